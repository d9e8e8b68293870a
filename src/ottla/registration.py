"""This broker among the living: where clients reach it, its node in the store, and its return after a session was lost.

Guards: a broker that ZooKeeper or the controller had given up comes back under a new epoch before it decides anything; until
then clients are served from what it knew. It tries for as long as it takes, and says what keeps it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

from ottla.clock import Clock
from ottla.config import BrokerConfig, Listener
from ottla.metadata import membership, znodes
from ottla.metadata.store import Store, StoreError, UnusableStore
from ottla.metadata.znodes import BrokerNode
from ottla.model import KafkaError

log = logging.getLogger("ottla.broker")

_TRY_EVERY = 1.0


class Registration:
    """One broker's registration, made anew for each session of the store."""

    def __init__(self, config: BrokerConfig, store: Store, clock: Clock, broker_id: int, bound: Sequence[Listener]) -> None:
        self.advertised = _addresses_for_clients(config, bound)
        self.epoch = -1
        """Which life of this broker id it is: other brokers ignore word from an earlier one."""
        self.epoch_changed: Callable[[int], None] = lambda _epoch: None
        """Told the epoch whenever it is another one than before."""
        self._broker_id = broker_id
        self._rack = config.text("broker.rack") or None
        self._session_timeout_ms = config.integer("zookeeper.session.timeout.ms")
        self._store = store
        self._clock = clock
        self._returning: asyncio.Task[None] | None = None
        self._stopped = False

    async def enter(self) -> None:
        """Register; raises NotAdmitted where another broker lives under our id."""
        node = BrokerNode(
            self._broker_id,
            tuple(str(listener) for listener in self.advertised),
            {listener.name: listener.protocol for listener in self.advertised},
            self._clock.now_ms(),
            self._rack,
        )
        epoch = await membership.register(self._store, node, self._session_timeout_ms, self._clock)
        if epoch != self.epoch:
            self.epoch = epoch
            self.epoch_changed(epoch)

    async def keep(self, take_role: Callable[[], Awaitable[None]]) -> None:
        """From now on, after a session was lost, register again and then take our role in the cluster again; and when a
        controller removed our registration, because it took us for dead, make another one."""
        self._store.on_new_session(lambda: self._come_back(take_role))
        if self._store.shared:
            await self._store.watch(f"{znodes.BROKER_IDS}/{self._broker_id}", lambda _path: self._look(take_role))

    def _look(self, take_role: Callable[[], Awaitable[None]]) -> None:
        """Our node changed, or is gone. Whoever returns already need not return twice."""
        if not self._stopped and (self._returning is None or self._returning.done()):
            self._returning = asyncio.ensure_future(self._return(take_role, only_if_missing=True))

    def _come_back(self, take_role: Callable[[], Awaitable[None]]) -> None:
        if self._stopped:
            return
        if self._returning is not None:
            self._returning.cancel()
        self._returning = asyncio.ensure_future(self._return(take_role))

    async def _return(self, take_role: Callable[[], Awaitable[None]], only_if_missing: bool = False) -> None:
        while True:
            try:
                if only_if_missing and await self._is_there():
                    return
                await self.enter()
                await take_role()
            except (StoreError, UnusableStore, KafkaError) as problem:
                log.error("Broker %d could not register again, and tries on: %s", self._broker_id, problem)
                await asyncio.sleep(_TRY_EVERY)
            else:
                log.info("Registered again: broker %d with epoch %d", self._broker_id, self.epoch)
                only_if_missing = True  # it may have been removed again while nobody looked

    async def _is_there(self) -> bool:
        node = await self._store.get(f"{znodes.BROKER_IDS}/{self._broker_id}")
        return node is not None and node.ours and node.created == self.epoch

    async def stop(self) -> None:
        """Come back no more."""
        self._stopped = True
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.gather(self._returning, return_exceptions=True)


def _addresses_for_clients(config: BrokerConfig, bound_listeners: Sequence[Listener]) -> list[Listener]:
    told = {listener.name: listener for listener in config.advertised_listeners}
    result = []
    for bound in bound_listeners:
        if bound.name in told:
            chosen = told[bound.name]
            result.append(Listener(chosen.name, bound.protocol, chosen.host, chosen.port or bound.port))
        elif bound.any_address:
            host = socket.getfqdn() or socket.gethostname()
            log.warning(
                "%s listens on all addresses; clients will be told %s:%d: set advertised.listeners if they cannot reach it",
                bound.name, host, bound.port,
            )  # fmt: skip
            result.append(Listener(bound.name, bound.protocol, host, bound.port))
        else:
            result.append(bound)
    return result
