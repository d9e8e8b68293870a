"""The metadata store of a cluster: ZooKeeper, with Apache Kafka's own tree.

Guards: `commit` is one ZooKeeper transaction (multi), so all of it or nothing. A commit whose connection was lost on the way
may have happened: it is looked up before it is tried again, and where that cannot be done in time `StoreUnavailable` says that
the outcome is not known. Nothing waits longer than `zookeeper_session.PATIENCE` for a ZooKeeper that is away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError, UnimplementedError
from kazoo.protocol.states import WatchedEvent

from ottla.clock import Clock
from ottla.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Node,
    NoNode,
    Operation,
    Set,
    StoreUnavailable,
    UnusableStore,
    Watcher,
    in_pieces,
    parents,
)
from ottla.metadata.zookeeper_plan import Stale, Step, plan, versions, wanted_parents
from ottla.metadata.zookeeper_reads import ManyReads
from ottla.metadata.zookeeper_session import Interrupted, RunBlocking, Session
from ottla.metadata.zookeeper_watches import Watches

_ATTEMPTS = 10
_PAUSE = 0.05
_MOST_BELOW = 2000
_READS_AT_ONCE = 500


class ZooKeeperStore:
    """A `Store` over ZooKeeper, below a root of its own if the address names one (`host:port/root`)."""

    shared = True

    def __init__(self, connect: str, session_timeout_ms: int, in_flight: int, clock: Clock, run_blocking: RunBlocking) -> None:
        addresses, slash, root = connect.partition("/")
        servers = ",".join(one.strip() for one in addresses.split(","))
        self._root = slash + root.strip("/") if root.strip("/") else ""
        self._session = Session(servers, session_timeout_ms, in_flight, clock, run_blocking)
        self._watches = Watches(self, self._path_of)
        self._session.connected_again = self._watches.connected_again

    async def open(self, timeout_ms: int) -> None:
        """Connect, and make our root. Raises UnusableStore."""
        await self._session.open(timeout_ms)
        for path in (*parents(self._root), self._root) if self._root else ():
            with contextlib.suppress(NodeExistsError):
                await self._read(partial(_create, path))

    async def close(self) -> None:
        await self._watches.stop()
        await self._session.close()

    # Reading

    async def get(self, path: str) -> Node | None:
        return (await self._nodes([path]))[0][0]

    async def nodes(self, paths: Sequence[str]) -> list[Node | None]:
        return [node for node, _ in await self._nodes(paths)]

    async def _nodes(self, paths: Sequence[str]) -> list[tuple[Node | None, int]]:
        """Each node, and how many are directly below it."""
        found: list[tuple[Node | None, int]] = []
        for one in await self._many(ManyReads.nodes, paths):
            if one is None:
                found.append((None, 0))
            else:
                data, stat = one
                ours = stat.ephemeralOwner != 0 and stat.ephemeralOwner == self._session.id
                found.append((Node(data or b"", stat.version, stat.czxid, ours, stat.mzxid), stat.numChildren))
        return found

    async def children(self, path: str) -> list[str]:
        names = (await self._many(ManyReads.children, [path]))[0]
        return sorted(names) if names is not None else []

    async def subtree(self, path: str) -> dict[str, Node]:
        found: dict[str, Node] = {}
        level = [path]
        while level:
            below = await self._directly_below(level)
            level = []
            for one, (node, children) in zip(below, await self._nodes(below), strict=True):
                if node is not None:
                    found[one] = node
                    if children:
                        level.append(one)
        return found

    async def _directly_below(self, paths: Sequence[str]) -> list[str]:
        listed = await self._many(ManyReads.children, paths)
        found = [f"{parent}/{name}" for parent, names in zip(paths, listed, strict=True) for name in names or ()]
        return [path for path in found if path != "/zookeeper"]

    async def _many(self, kind: Callable[[Sequence[str]], ManyReads], paths: Sequence[str]) -> list[Any]:
        pieces = [paths[begin : begin + _READS_AT_ONCE] for begin in range(0, len(paths), _READS_AT_ONCE)]
        requests = [kind([self._at(path) for path in piece]) for piece in pieces]
        try:
            answers = await asyncio.gather(*(self._read(partial(_send, request)) for request in requests))
        except UnimplementedError:
            raise UnusableStore("this ZooKeeper is too old: 3.6 or newer is needed") from None
        return [one for answer in answers for one in answer]

    async def watch_node(self, path: str, fired: Callable[[WatchedEvent], None]) -> Any:
        return await self._read(lambda client: client.exists_async(self._at(path), fired))

    async def watch_children(self, path: str, fired: Callable[[WatchedEvent], None]) -> list[str] | None:
        try:
            names: list[str] = await self._read(lambda client: client.get_children_async(self._at(path), fired))
        except NoNodeError:
            return None
        return [name for name in names if path or name != "zookeeper"]

    async def _read(self, send: Callable[[KazooClient], Any]) -> Any:
        """A read may be done again as often as it is interrupted; how long that goes on is the session's business."""
        while True:
            try:
                return await self._session.call(send)
            except Interrupted:
                await asyncio.sleep(_PAUSE)

    # Writing

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        # Whoever asked may go away; what was begun is finished, and if it fails then, nobody is left to hear of it.
        work = asyncio.ensure_future(self._commit(operations))
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(work)

    async def _commit(self, operations: Sequence[Operation]) -> list[int]:
        for _ in range(_ATTEMPTS):
            try:
                steps = plan(operations, await self._missing_parents(operations), await self._below(operations), self._at)
                return versions(operations, steps, await self._send(steps))
            except Stale:
                await asyncio.sleep(_PAUSE)
            except Interrupted:
                happened = await self._versions_if_it_happened(operations)
                if happened is not None:
                    return happened
        raise StoreUnavailable("Metadata could not be written: ZooKeeper changes or hangs up all the time.")

    async def _send(self, steps: Sequence[Step]) -> Any:
        def send(client: KazooClient) -> Any:
            transaction = client.transaction()
            transaction.operations.extend(step.request for step in steps)
            return transaction.commit_async()

        return await self._session.call(send)

    async def _missing_parents(self, operations: Sequence[Operation]) -> set[str]:
        """Level by level: below what is missing, or made by this very transaction, everything is missing."""
        made = {one.path for one in operations if isinstance(one, Create)}
        missing: set[str] = set()
        for _, paths in sorted(wanted_parents(operations).items()):
            unknown = []
            for path in paths:
                above = path.rpartition("/")[0]
                if above in missing or above in made:
                    missing.add(path)
                else:
                    unknown.append(path)
            missing.update(path for path, (node, _) in zip(unknown, await self._nodes(unknown), strict=True) if node is None)
        return missing

    async def _below(self, operations: Sequence[Operation]) -> dict[str, list[str]]:
        """What lies below each node to be removed, deepest first. More than one transaction takes is removed here."""
        found: dict[str, list[str]] = {}
        for one in operations:
            if isinstance(one, Delete):
                paths = await self._all_below(one.path)
                if len(paths) > _MOST_BELOW:
                    await self._remove(paths, [check for check in operations if isinstance(check, Check)])
                    raise Stale(one.path)
                found[one.path] = paths
        return found

    async def _all_below(self, path: str) -> list[str]:
        """Deepest first."""
        found: list[str] = []
        level = [path]
        while level:
            level = await self._directly_below(level)
            found = level + found
        return found

    async def _remove(self, paths: Sequence[str], checks: Sequence[Operation]) -> None:
        for piece in in_pieces([Delete(path) for path in paths]):
            operations = [*checks, *piece]
            steps = plan(operations, set(), {}, self._at)
            try:
                versions(operations, steps, await self._send(steps))
            except NoNode:
                return  # somebody removes it too: look again

    async def _versions_if_it_happened(self, operations: Sequence[Operation]) -> list[int] | None:
        """The versions, if every node is as the transaction would have left it; None if not: it may be tried again."""
        last: dict[str, int] = {
            one.path: index
            for index, one in enumerate(operations)
            if not isinstance(one, Check) and not (isinstance(one, Create) and one.sequential)
        }
        found = [0] * len(operations)
        for index, (node, _) in zip(last.values(), await self._nodes(list(last)), strict=True):
            if not _as_left_by(operations[index], node):
                return None
            found[index] = node.version if node is not None else 0
        return found if last else None

    # The rest

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        await self._watches.add(prefix, watcher)

    def on_new_session(self, begun: Callable[[], None]) -> None:
        self._session.begun_anew = begun

    def _at(self, path: str) -> str:
        return self._root + path or "/"

    def _path_of(self, full: str) -> str:
        return full.removeprefix(self._root) if full != "/" else ""


def _as_left_by(operation: Operation, node: Node | None) -> bool:
    if isinstance(operation, Delete):
        return node is None
    if node is None:
        return False
    if isinstance(operation, Create):
        return node.data == operation.data and node.version == 0 and node.ours == operation.ephemeral
    assert isinstance(operation, Set)
    return node.data == operation.data and operation.version in (ANY_VERSION, node.version - 1)


def _send(request: ManyReads, client: KazooClient) -> Any:
    result = client.handler.async_result()
    client._call(request, result)  # kazoo has no public way for a request that it does not know
    return result


def _create(path: str, client: KazooClient) -> Any:
    return client.create_async(path)
