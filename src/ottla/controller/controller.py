"""The controller: the one broker that changes the cluster's truth and tells the others; every broker stands for it.

Guards: there is one at a time. Whoever makes `/controller` together with the next epoch reigns; a check of that epoch in every
later transaction, and in every message to a broker, makes the word of an earlier one worthless. Life: `start` stands for
election, once for each session of the store. Who loses watches the node and stands again when it goes; who wins takes over
(`reign`). Everything that happens goes through one queue (`events`), one thing after the other; what is decided lies in pure
modules, what is told in the `outbox`. Public calls raise NOT_CONTROLLER where another broker is to be asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import TypeVar

from ottla.clock import Clock
from ottla.controller import partition_changes, topic_changes
from ottla.controller.channels import Channel, Stop
from ottla.controller.events import EventQueue
from ottla.controller.outbox import Errors, Outbox
from ottla.controller.reign import Reign, UncleanAllowed
from ottla.controller.topic_rules import NewTopic, new_id
from ottla.metadata import znodes
from ottla.metadata.image import BrokerImage, PartitionState, TopicImage
from ottla.metadata.store import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    Set,
    Store,
    StoreError,
    StoreUnavailable,
)
from ottla.metadata.znodes import ControllerNode
from ottla.metrics import ControllerCounters
from ottla.model import NO_LEADER, Error, KafkaError, TopicPartition
from ottla.replication.isr import IsrOutcome, IsrProposal

__all__ = ["Controller", "NewTopic", "new_id"]

log = logging.getLogger("ottla.controller")

T = TypeVar("T")
PATIENCE = 2.0
"""Seconds that an answer waits for the brokers, so that whoever gets it finds everywhere what was done."""
_TRY_EVERY = 1.0
_AS_LONG_AS_CLIENTS_WAIT = 30.0


class Controller:
    """This broker's part in being controlled, and in controlling while it is elected."""

    def __init__(
        self,
        broker_id: int,
        store: Store,
        clock: Clock,
        random: Random,
        channel_to: Callable[[int], Channel],
        unclean_allowed: UncleanAllowed,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._clock = clock
        self._random = random
        self._channel_to = channel_to
        self._unclean_allowed = unclean_allowed
        self._patience = patience
        self._queue = EventQueue()
        self._reign: Reign | None = None
        self._watching = False
        self._stopped = False
        self._retry: asyncio.TimerHandle | None = None
        self.counters = ControllerCounters()
        self.controller_id = NO_LEADER
        """Who reigns, as far as we know."""
        self.settings_written: Callable[[str, Mapping[str, str]], None] = lambda _topic, _config: None
        """Told the settings of a new topic before its logs are made: the store's own notice may come later."""

    @property
    def active(self) -> bool:
        """Whether this broker reigns, and has told the world."""
        return self._reign is not None and not self._reign.over and self._reign.announced

    @property
    def epoch(self) -> int:
        """The epoch of our last reign; 0 if there was none."""
        return self._reign.epoch if self._reign is not None else 0

    @property
    def brokers(self) -> Mapping[int, BrokerImage]:
        """The live brokers as our reign knows them; empty where another broker reigns."""
        return self._reign.state.brokers if self._reign is not None and not self._reign.over else {}

    # ---- election --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Stand for election, in each session once; returns when a controller is known and, if it is us, when our own broker
        has been told everything."""
        if not self._watching:
            self._watching = True
            await self._store.watch(znodes.CONTROLLER, lambda _path: self._look())
            for prefix, event in (
                (znodes.BROKER_IDS, Reign.members_changed),
                (znodes.ISR_CHANGES, Reign.isr_changed),
                (znodes.LOG_DIR_EVENTS, Reign.directories_failed),
            ):
                await self._store.watch(prefix, partial(self._store_changed, event))
        await self._queue.run(self._stand)
        if self._reign is not None and not self._reign.over:
            await self._reign.outbox.settled(None, only=self._broker_id)
            await self._queue.run(_nothing)

    def stop(self) -> None:
        """Decide nothing more, and stand no more."""
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        if self._reign is not None:
            self._reign.end()

    async def resign(self) -> None:
        """Stop, and let another broker reign at once instead of when our session ends."""
        reign = self._reign
        reigned = reign is not None and not reign.over
        self.stop()
        if reigned:
            try:
                there = await self._store.get(znodes.CONTROLLER)
                if there is not None and there.ours:
                    await self._store.commit([Delete(znodes.CONTROLLER, there.version)])
            except (StoreError, StoreUnavailable) as problem:
                log.info("The controller's node stays until our session ends: %s", problem)

    def _look(self) -> None:
        """Something happened to the controller's node."""
        if not self._stopped:
            self._queue.post(self._stand_again, "controller")

    async def _stand_again(self) -> None:
        if self._stopped:
            return
        try:
            await self._stand()
        except (StoreError, KafkaError) as problem:
            log.warning("The election could not be followed, and is looked at again: %s", problem)
            self._look_later()

    def _look_later(self) -> None:
        if self._retry is None and not self._stopped:
            self._retry = asyncio.get_running_loop().call_later(_TRY_EVERY, self._look_now)

    def _look_now(self) -> None:
        self._retry = None
        self._look()

    async def _stand(self) -> None:
        """Reign, or know who does."""
        while not self._stopped:
            there = await self._store.get(znodes.CONTROLLER)
            ours = there is not None and (there.ours or not self._store.shared)
            if self._reign is not None and not self._reign.over:
                if ours:
                    await self._reign.be_sure()
                    return
                log.warning("Controller epoch %d is over: our node in the store is gone", self._reign.epoch)
                self._reign.end()
            if there is not None and not ours:
                reigning = ControllerNode.decode(there.data).broker_id
                if reigning != self.controller_id:
                    log.info("Broker %d is the controller", reigning)
                self.controller_id = reigning
                return
            try:
                self._reign = await self._claim(again=ours)
            except (NodeExists, NoNode, BadVersion):
                continue  # another one was faster
            if self._stopped:
                self._reign.end()
                return
            self.controller_id = self._broker_id
            log.info("This broker is the controller now, with epoch %d", self._reign.epoch)
            try:
                await self._reign.take_over()
            except KafkaError:
                if not self._reign.over:
                    raise

    async def _claim(self, again: bool) -> Reign:
        """Win; `again` if there is a claim of ours of which we did not hear that it was granted."""
        node = await self._store.get(znodes.CONTROLLER_EPOCH)
        operations: list[Operation] = [] if node else [Create(znodes.CONTROLLER_EPOCH, b"0")]
        epoch, version = (int(node.data), node.version) if node else (0, 0)
        if again:
            operations.append(Delete(znodes.CONTROLLER))
        claim = ControllerNode(self._broker_id, self._clock.now_ms())
        operations.append(Create(znodes.CONTROLLER, claim.encode(), ephemeral=True))
        operations.append(Set(znodes.CONTROLLER_EPOCH, b"%d" % (epoch + 1), version))
        epoch_version = (await self._store.commit(operations))[-1]
        return self._begin(epoch + 1, epoch_version)

    def _begin(self, epoch: int, epoch_version: int) -> Reign:
        outbox = Outbox(self._broker_id, epoch, self._channel_to, lambda: self._deposed(reign))
        reign = Reign(self._store, epoch, epoch_version, outbox, self._unclean_allowed, self._random, self.counters)
        reign.doubted = self._look_later

        def roles_refused(broker: BrokerImage, errors: Errors) -> None:
            self._post(reign, lambda: reign.roles_refused(broker, errors))

        def stopped(broker: BrokerImage, stops: Sequence[Stop], errors: Errors) -> None:
            self._post(reign, lambda: reign.replicas_stopped(broker, stops, errors))

        outbox.roles_refused, outbox.stopped = roles_refused, stopped
        return reign

    def _deposed(self, reign: Reign) -> None:
        """Somebody knows of a newer controller than `reign`."""
        if not reign.over:
            log.warning("Controller epoch %d is over: another broker has taken over", reign.epoch)
            reign.end()
            self._look()

    # ---- events ----------------------------------------------------------------------------------------------------------

    def _store_changed(self, event: Callable[[Reign], Awaitable[None]], _path: str) -> None:
        reign = self._reign
        if reign is not None and not reign.over:
            self._post(reign, lambda: event(reign), f"{event.__name__} {reign.epoch}")

    def _post(self, reign: Reign, work: Callable[[], Awaitable[None]], name: str = "") -> None:
        """Have the reign follow an event; if it cannot now, the world is read again later, and with it what happened."""

        async def follow() -> None:
            if reign.over:
                return
            try:
                await reign.be_sure()
                await work()
            except (StoreError, StoreUnavailable) as problem:
                log.warning("The controller could not follow a change, and reads everything again: %s", problem)
                reign.doubt()
            except KafkaError as problem:
                if not reign.over:
                    raise
                log.info("A change is left to the next controller: %s", problem)

        self._queue.post(follow, name)

    async def _decide(self, decision: Callable[[Reign], Awaitable[T]]) -> T:
        """Have something decided when its turn comes."""
        return await self._queue.run(lambda: self._as_controller(decision))

    async def _as_controller(self, decision: Callable[[Reign], Awaitable[T]]) -> T:
        reign = self._reign
        if reign is None or reign.over or self._stopped:
            raise KafkaError(Error.NOT_CONTROLLER)
        await reign.be_sure()
        return await decision(reign)

    async def _heard(self) -> None:
        """Wait a while for the brokers to have heard of it, and for what their answers bring.

        For ourselves we wait as long as clients do: whoever is told that something was created asks us about it next, and a
        thousand partitions take their time. One of the others may be away.
        """
        reign = self._reign
        if reign is not None:
            try:
                await reign.outbox.settled(_AS_LONG_AS_CLIENTS_WAIT, only=self._broker_id)
                async with asyncio.timeout(self._patience):
                    await reign.outbox.settled(None)
                    await self._queue.run(_nothing)
            except TimeoutError:
                pass

    # ---- what others ask for ---------------------------------------------------------------------------------------------

    async def create_topics(self, topics: Sequence[NewTopic], validate_only: bool) -> dict[str, TopicImage | KafkaError]:
        """Create each topic or say why not; each stands for itself."""
        results = await self._decide(
            lambda reign: topic_changes.create_topics(reign, topics, validate_only, self.settings_written)
        )
        if not validate_only and any(isinstance(result, TopicImage) for result in results.values()):
            await self._heard()
        return results

    async def create_partitions(
        self, name: str, count: int, new_assignments: Sequence[tuple[int, ...]] | None, validate_only: bool
    ) -> None:
        """Grow a topic to `count` partitions."""
        await self._decide(lambda reign: topic_changes.create_partitions(reign, name, count, new_assignments, validate_only))
        if not validate_only:
            await self._heard()

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; returns when it is gone, or after a while if a replica of it cannot be reached now."""

        async def begin(reign: Reign) -> asyncio.Future[None]:
            begun = name in reign.state.deleting
            await topic_changes.mark_for_deletion(reign, name)
            return reign.deletion_of(name) if begun else reign.begin_deletion(name)

        gone = await self._decide(begin)
        await asyncio.wait([gone], timeout=self._patience)
        if gone.done():
            gone.result()

    async def topic_names(self) -> Mapping[bytes, str]:
        """All topics by id, as the controller knows them at its turn."""

        async def look(reign: Reign) -> dict[bytes, str]:
            return {topic.topic_id: name for name, topic in reign.state.topics.items()}

        return await self._decide(look)

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> dict[TopicPartition, IsrOutcome]:
        """A leader wishes for other ISRs. Raises STALE_BROKER_EPOCH for an earlier life of the broker."""
        return await self._decide(lambda reign: partition_changes.alter(reign, broker_id, broker_epoch, proposals))

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Collection[TopicPartition]:
        """A broker wants to leave; what it leads still, and would have to be given up."""
        return await self._decide(lambda reign: partition_changes.shut_down(reign, broker_id, broker_epoch))

    async def elect_leaders(
        self, unclean: bool, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, KafkaError | None]:
        """Preferred leaders for partitions (None: all), or unclean ones for those without any; why not, where not."""
        return await self._decide(lambda reign: partition_changes.elect_leaders(reign, unclean, partitions))

    async def rebalance_leaders(self, percentage: int) -> None:
        """From time to time: leaders go back to brokers that lead too little of what they should. Only while we reign."""
        if self.active:
            await self._decide(lambda reign: partition_changes.rebalance(reign, percentage))

    async def reassign(
        self, wanted: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> Mapping[TopicPartition, KafkaError | None]:
        """Move partitions to other brokers, or (None) leave them where they were; why not, where not."""
        return await self._decide(lambda reign: partition_changes.reassign(reign, wanted))

    async def reassignments(self, partitions: Collection[TopicPartition] | None) -> Mapping[TopicPartition, PartitionState]:
        """The partitions that are being moved, of those asked for (None: all)."""

        async def look(reign: Reign) -> dict[TopicPartition, PartitionState]:
            return partition_changes.reassignments(reign, partitions)

        return await self._decide(look)

    async def suspect(self, broker_id: int, broker_epoch: int) -> None:
        """Somebody made sure that nobody listens at a broker's address: its registration goes, if it is still that one."""
        await self._decide(lambda reign: reign.suspect(broker_id, broker_epoch))

    def settings_changed(self) -> None:
        """Unclean elections may be allowed now where they were not: partitions without a leader are looked at again."""
        reign = self._reign
        if reign is not None and not reign.over:
            self._post(reign, lambda: reign.settle(reign.state.leaderless()), f"settings {reign.epoch}")


async def _nothing() -> None:
    """What has its turn after everything before it."""
