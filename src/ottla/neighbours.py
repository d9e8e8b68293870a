"""The other brokers of the cluster: how this one reaches them, sees that they died, and leaves them in good order.

Guards: an address comes from the controller's word, or from what our own controller just read; a broker whose process is gone
(`network/liveness` made sure) loses its registration at once, and with it the controller's claim if it had one; the store's
versions and everybody's epochs make a wrong guess harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.config import BrokerConfig
from ottla.controller.channels import Channel
from ottla.controller.controller import Controller
from ottla.metadata import znodes
from ottla.metadata.cache import MetadataCache
from ottla.metadata.image import Endpoint, Image
from ottla.metadata.store import Create, Delete, Operation, Store, StoreError
from ottla.metadata.znodes import ControllerNode
from ottla.model import Error, KafkaError
from ottla.network.control import Announcements, RemoteChannel
from ottla.network.controller_peer import ControllerPeer
from ottla.network.leader import RemoteLeader, ReplicaFetchSettings
from ottla.network.link import Dial
from ottla.network.liveness import Duty, Liveness, Open, duty, to_watch
from ottla.network.peer import Peer

log = logging.getLogger("ottla.broker")

_LOOK_EVERY = 0.2
_TELL_AGAIN = 1.0
_SHUTDOWN_WITHIN = 15.0


class Neighbours:
    """This broker's ways to all others."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        metadata: MetadataCache,
        store: Store,
        dial: Dial,
        open_line: Open,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        broker_epoch: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self._listener = config.inter_broker_listener
        self._metadata = metadata
        self._store = store
        self._dial = dial
        self._spawn = spawn
        self._broker_epoch = broker_epoch
        self._announcements = Announcements()
        self._liveness = Liveness(self._gone, open_line)
        self._controller: Controller | None = None
        self._trusted_epoch = -1

    def know(self, controller: Controller) -> ControllerPeer:
        """Our own controller, active or not; a way to whichever reigns."""
        self._controller = controller
        self._metadata.swapped = self._look_after
        return ControllerPeer(self._broker_id, self._broker_epoch, self._metadata, controller, self.connect)

    # ---- ways ------------------------------------------------------------------------------------------------------------

    def address_of(self, broker_id: int) -> Endpoint | None:
        """Where brokers reach another one; our own controller, if it reigns, heard of it first."""
        controller = self._controller
        known = controller.brokers.get(broker_id) if controller is not None else None
        known = known or self._metadata.image.brokers.get(broker_id)
        return known.endpoints.get(self._listener) if known is not None else None

    def connect(self, broker_id: int) -> Peer:
        """A connection to another broker, made when it is used."""
        return Peer(broker_id, self.address_of, self._dial, str(self._broker_id))

    def channel_to(self, own: Channel, broker_id: int) -> Channel:
        """How the controller speaks to a broker; to our own without a socket."""
        if broker_id == self._broker_id:
            return own
        return RemoteChannel(self.connect(broker_id), self.address_of, self._announcements)

    def leader(self, broker_id: int) -> RemoteLeader:
        """How followers here fetch from a leader there."""
        setting = self._config.integer
        settings = ReplicaFetchSettings(
            setting("replica.fetch.wait.max.ms"),
            setting("replica.fetch.min.bytes"),
            setting("replica.fetch.max.bytes"),
            setting("replica.fetch.response.max.bytes"),
            setting("replica.socket.timeout.ms"),
        )
        return RemoteLeader(self.connect(broker_id), self._broker_id, self._broker_epoch, self._name_of, settings)

    def _name_of(self, topic_id: bytes) -> str | None:
        return self._metadata.image.topic_names.get(topic_id)

    # ---- life and death --------------------------------------------------------------------------------------------------

    def _look_after(self, image: Image) -> None:
        self._liveness.watch(to_watch(self._broker_id, image.controller_id, image.brokers, self._listener))

    def _gone(self, broker_id: int, broker_epoch: int) -> None:
        """Nobody listens at a broker's address any more."""
        action = duty(self._broker_id, self._metadata.image.controller_id, broker_id)
        if action is Duty.SUSPECT and self._controller is not None:
            self._spawn(self._quietly(self._controller.suspect(broker_id, broker_epoch)))
        elif action is Duty.DEPOSE:
            self._spawn(self._quietly(self._depose(broker_id)))

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        """Somebody else may have done it, and where the store is away nothing can be done: it is tried again while it is so."""
        try:
            await work
        except (StoreError, KafkaError) as problem:
            log.debug("Nothing came of a suspicion: %s", problem)

    async def _depose(self, broker_id: int) -> None:
        """The controller's process is gone: remove its claim and its registration, and let the brokers elect another one."""
        claim = await self._store.get(znodes.CONTROLLER)
        if claim is None or ControllerNode.decode(claim.data).broker_id != broker_id:
            return
        operations: list[Operation] = [Delete(znodes.CONTROLLER, claim.version)]
        path = f"{znodes.BROKER_IDS}/{broker_id}"
        registered = await self._store.get(path)
        if registered is not None:
            operations.append(Delete(path, registered.version))
        await self._store.commit(operations)

    async def check_controller(self, epoch: int) -> None:
        """Raise unless a controller of this epoch was elected. A new epoch is looked up in the store, once: what anybody may
        send to our listener must not take us away from the controller that we have."""
        if not self._store.shared:
            raise KafkaError(
                Error.CLUSTER_AUTHORIZATION_FAILED, "This broker has metadata of its own, and is its own controller."
            )
        if epoch <= self._trusted_epoch:
            return  # an older one is refused by its epoch
        node = await self._store.get(znodes.CONTROLLER_EPOCH)
        known = int(node.data) if node is not None else 0
        if epoch > known:  # or our ZooKeeper lags behind the controller's: it says it again in a moment
            raise KafkaError(Error.NOT_CONTROLLER, f"No controller of epoch {epoch} was elected: the last one has {known}.")
        self._trusted_epoch = known

    async def tell_of_failed_disk(self) -> None:
        """Have the controller ask which of our replicas are gone: others shall lead them."""
        event = Create(f"{znodes.LOG_DIR_EVENTS}/log_dir_event_", znodes.encode_log_dir_event(self._broker_id), sequential=True)
        while self._store.shared:
            try:
                await self._store.commit([event])
            except (StoreError, KafkaError) as problem:
                log.warning("The controller could not be told of the failed log directory, and is told again: %s", problem)
                await asyncio.sleep(_TELL_AGAIN)
            else:
                return

    # ---- leaving ---------------------------------------------------------------------------------------------------------

    async def leave(self, controller: ControllerPeer) -> None:
        """Have our leaders moved away before we stop, as far as there is somebody to lead."""
        self._liveness.close()
        if not self._config.flag("controlled.shutdown.enable") or len(self._metadata.image.brokers) <= 1:
            return
        tries = self._config.integer("controlled.shutdown.max.retries")
        pause = min(self._config.integer("controlled.shutdown.retry.backoff.ms") / 1000, _LOOK_EVERY)
        try:
            async with asyncio.timeout(_SHUTDOWN_WITHIN):
                for _ in range(tries * max(1, round(1 / pause))):
                    try:
                        left = await controller.controlled_shutdown()
                    except KafkaError as problem:
                        log.info("The controller could not be told of the shutdown, and is asked again: %s", problem.message)
                    else:
                        if not left:
                            log.info("All leaders have moved away")
                            return
                    await asyncio.sleep(pause)
        except TimeoutError:
            pass
        log.warning("Stopping although this broker still leads partitions: nobody else can lead them now")

    def close(self) -> None:
        """Watch nobody any more."""
        self._liveness.close()
