"""ZooKeeper as brokers of the simulation meet it: sessions over one tree, at the end of a way that delays, loses and is cut.

Guards: what ZooKeeper promises holds. Requests of one session are carried out in their order, and their answers and the notices
of watches come back in order too, so that whoever reads something new was told of it before. A transaction is whole or not at
all; but when its answer is lost nobody can tell which (`StoreUnavailable`). A session of which nothing is heard for its timeout
ends, whatever its owner believes: its ephemeral nodes go at once, and the owner hears of it when it is in touch again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, TypeVar

from ottla.clock import Clock
from ottla.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, SharedTree
from ottla.metadata.store import Create, Node, Operation, Set, Store, StoreError, StoreUnavailable
from ottla.model import TopicPartition
from ottla.testing.sim.history import ControllerEpochWritten, History, StateWritten
from ottla.testing.sim.loop import Process, SimLoop, current_process
from ottla.testing.sim.network import Network

_T = TypeVar("_T")

HOST = "zookeeper"
_GAP = 1e-6
_THERE, _BACK = "there", "back"
_NOBODY = Context()
_PATIENCE = 2.0  # how long a request waits for a connection that is away


class Keeper:
    """The store's side: the tree, the sessions, and who is in touch."""

    def __init__(self, loop: SimLoop, network: Network, random: Random, history: History) -> None:
        self.loop = loop
        self.network = network
        self.random = random
        self.tree = SharedTree()
        self.down = False
        self.lost_answers = 0.0
        """The chance that the answer to a transaction that happened is lost."""
        self.expired = 0
        self._history = history
        self._sessions: dict[SimStore, None] = {}

    async def open(self, config: BrokerConfig, _home: str, _clock: Clock, _run_blocking: Any) -> Store:
        """A session for the process that asks."""
        process = current_process()
        assert process is not None
        timeout = config.integer("zookeeper.session.timeout.ms") / 1000
        store = SimStore(self, process, timeout)
        await store.reach()
        self._sessions[store] = None
        return store

    def in_touch(self, process: Process) -> bool:
        """Whether the store hears of a process, and it of the store."""
        if self.down or not process.alive or process.paused:
            return False
        return self.network.passes(process.host, HOST) and self.network.passes(HOST, process.host)

    def look(self) -> None:
        """Something changed that may have put sessions in or out of touch."""
        for session in list(self._sessions):
            session.look()

    def forget(self, session: SimStore) -> None:
        """Its owner closed it, or is dead and it ran out."""
        self._sessions.pop(session, None)

    def committed(self, operations: Sequence[Operation]) -> None:
        """Write down what the checker wants to know of a transaction."""
        for path in dict.fromkeys(one.path for one in operations if isinstance(one, Create | Set)):
            node = self.tree.get(path, -1)
            if node is None:
                continue
            if path == "/controller_epoch":
                self._history.add(ControllerEpochWritten(self.loop.time(), int(node.data)))
            elif path.startswith("/brokers/topics/") and path.endswith("/state"):
                self._history.add(_state_written(self.loop.time(), path, node))


def _state_written(at: float, path: str, node: Node) -> StateWritten:
    _, _, _, topic, _, number, _ = path.split("/")
    state = json.loads(node.data)
    return StateWritten(
        at,
        TopicPartition(topic, int(number)),
        state["leader"],
        state["leader_epoch"],
        tuple(state["isr"]),
        node.version,
        state["controller_epoch"],
    )


class SimStore(MemoryStore):
    """One broker's session."""

    def __init__(self, keeper: Keeper, process: Process, timeout: float) -> None:
        super().__init__(keeper.tree)
        self.process = process
        self._keeper = keeper
        self._timeout = timeout
        self._last = {_THERE: 0.0, _BACK: 0.0}
        self._expiry: asyncio.TimerHandle | None = None
        self._expired = False
        self._missed: list[str] = []
        self._touched = asyncio.Event()
        self._touched.set()

    # ---- requests --------------------------------------------------------------------------------------------------------

    async def get(self, path: str) -> Node | None:
        return await self._ask(lambda: self._tree.get(path, self.session))

    async def nodes(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._ask(lambda: [self._tree.get(path, self.session) for path in paths])

    async def children(self, path: str) -> list[str]:
        return await self._ask(lambda: self._tree.children(path))

    async def subtree(self, path: str) -> dict[str, Node]:
        return await self._ask(lambda: self._tree.below(path))

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        def write() -> list[int]:
            versions = self._tree.commit(operations, self.session)
            self._keeper.committed(operations)
            return versions

        return await self._ask(write, may_lose=True)

    async def _ask(self, carry_out: Callable[[], _T], *, may_lose: bool = False) -> _T:
        """There, and back with what came of it."""
        await self.reach()
        answered: asyncio.Future[_T] = self._keeper.loop.create_future()
        self._keeper.loop.call_at(
            self._next(_THERE), self._carry_out, self.session, carry_out, may_lose, answered, context=_NOBODY
        )
        return await answered

    def _carry_out(self, session: int, carry_out: Callable[[], _T], may_lose: bool, answered: asyncio.Future[_T]) -> None:
        """A request has come to the store: a step of nobody's, so that it happens though its sender is stopped or dead."""
        keeper = self._keeper
        lost = keeper.down or not keeper.network.passes(self.process.host, HOST)
        outcome: Callable[[], None]
        try:
            if lost or session != self.session or self._expired:
                raise StoreUnavailable("The connection to the store was lost, or the session has ended.")
            outcome = partial(answered.set_result, carry_out())
        except (StoreError, StoreUnavailable) as problem:
            outcome = partial(answered.set_exception, problem)
        if may_lose and keeper.random.random() < keeper.lost_answers:
            outcome = partial(answered.set_exception, StoreUnavailable("The store's answer was lost."))
        keeper.loop.call_at(self._next(_BACK), self._answer, outcome, answered, context=_NOBODY)

    def _answer(self, outcome: Callable[[], None], answered: asyncio.Future[Any]) -> None:
        if answered.done():
            return
        if self._keeper.down or not self._keeper.network.passes(HOST, self.process.host):
            answered.set_exception(StoreUnavailable("The connection to the store was lost on the way back."))
        else:
            outcome()

    def _next(self, way: str) -> float:
        """When the next message arrives: never before the one ahead of it."""
        network = self._keeper.network
        when = max(network.loop.time() + network.latency(HOST, self.process.host), self._last[way] + _GAP)
        self._last[way] = when
        return when

    async def reach(self) -> None:
        """Wait a little for the store if it is away. Raises StoreUnavailable."""
        if self._closed:
            raise StoreUnavailable("The session with the store is closed.")
        if not self._touched.is_set() or not self._keeper.in_touch(self.process):
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._touched.wait()
            except TimeoutError:
                pass
            if not self._touched.is_set() or not self._keeper.in_touch(self.process):
                raise StoreUnavailable("The store cannot be reached at the moment.")

    # ---- notices ---------------------------------------------------------------------------------------------------------

    def told(self, paths: Sequence[str]) -> None:
        """Something changed: word of it travels back as an answer does, or waits until we are in touch."""
        if self._closed or not self.process.alive:
            return
        if not self._touched.is_set():
            self._missed += paths
            return
        self._keeper.loop.call_at(self._next(_BACK), self._notice, tuple(paths), context=self.process.context)

    def _notice(self, paths: Sequence[str]) -> None:
        if not self._touched.is_set():
            self._missed += paths
        elif not self._closed:
            self._call_watchers(paths)

    # ---- the session -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """In or out of touch now? Called by the store's side."""
        keeper = self._keeper
        if keeper.in_touch(self.process):
            if self._expiry is not None:
                self._expiry.cancel()
                self._expiry = None
            if not self._touched.is_set():
                delay = keeper.random.uniform(0.01, 0.5)
                keeper.loop.call_later(delay, self._reconnected, context=self.process.context)
        else:
            self._touched.clear()
            if self._expiry is None and not self._expired:
                after = self._timeout * keeper.random.uniform(1.0, 1.3)
                self._expiry = keeper.loop.call_later(after, self._run_out, context=_NOBODY)

    def _run_out(self) -> None:
        """The store gives the session up."""
        self._expiry = None
        if self._keeper.down:  # nobody is there to do so; sessions live on until it is back
            self._expiry = self._keeper.loop.call_later(self._timeout, self._run_out, context=_NOBODY)
            return
        self._expired = True
        self._keeper.expired += 1
        self._tree.end_session(self.session)
        if not self.process.alive:
            self._keeper.forget(self)

    def _reconnected(self) -> None:
        if self._closed or self._touched.is_set() or not self._keeper.in_touch(self.process):
            return
        expired, self._expired = self._expired, False
        if expired:
            self.session = self._tree.open_session(self)
        self._touched.set()
        missed, self._missed = self._missed, []
        if missed:
            self.told(missed)
        if expired:
            self._begun()

    def expire(self) -> None:
        """The store forgets the session though its owner is in touch: it is told at once, and begins a new one."""
        if self._touched.is_set() and not self._closed and self.process.alive:
            self._touched.clear()
            self._expired = True
            self._keeper.expired += 1
            self._tree.end_session(self.session)
            self._keeper.loop.call_later(0.05, self._reconnected, context=self.process.context)

    async def close(self) -> None:
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        self._keeper.forget(self)
        self._tree.end_session(self.session)
