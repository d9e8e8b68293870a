"""A metadata store that several brokers of one process share: ZooKeeper's promises without ZooKeeper.

For test clusters and for the simulator. Each broker has a session (`MemoryStore`) over one `SharedTree`. Guards: transactions
happen one after the other, whole or not at all; a session that ended takes its ephemeral nodes along, and its owner is told
when it has a new one. Lives on one loop, or is called from several threads that each have their own (`call_on` bridges).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from ottla.metadata.store import Delete, Node, Operation, StoreUnavailable, Watcher
from ottla.metadata.tree import Tree


class SharedTree:
    """The nodes, who owns the ephemeral ones, and who is to be told of changes."""

    def __init__(self) -> None:
        self._tree = Tree({})
        self._lock = threading.Lock()
        self._owners: dict[str, int] = {}
        self._stores: dict[int, MemoryStore] = {}
        self._sessions = 0
        self._transactions = 0

    def open_session(self, store: MemoryStore) -> int:
        with self._lock:
            self._sessions += 1
            self._stores[self._sessions] = store
            return self._sessions

    def end_session(self, session: int) -> None:
        """Remove the ephemeral nodes of a session, as ZooKeeper does when it hears nothing of its owner."""
        with self._lock:
            self._stores.pop(session, None)
            gone = sorted((path for path, owner in self._owners.items() if owner == session), reverse=True)
            for path in gone:
                del self._owners[path]
                if self._tree.get(path) is not None:
                    self._tree.apply(self._tree.stage([Delete(path)]))
        self._tell(gone)

    def get(self, path: str, session: int) -> Node | None:
        with self._lock:
            node = self._tree.get(path)
            return node and replace(node, ours=self._owners.get(path) == session)

    def children(self, path: str) -> list[str]:
        with self._lock:
            return self._tree.children(path)

    def below(self, path: str) -> dict[str, Node]:
        with self._lock:
            return self._tree.below(path)

    def commit(self, operations: Sequence[Operation], session: int) -> list[int]:
        with self._lock:
            if session not in self._stores:
                raise StoreUnavailable("The session with the metadata store has ended.")
            staged = self._tree.stage(operations, self._transactions + 1)
            self._transactions += 1
            self._tree.apply(staged)
            for path, node in staged.nodes.items():
                if node is None:
                    self._owners.pop(path, None)
                elif path in staged.ephemeral:
                    self._owners[path] = session
        self._tell(list(staged.nodes))
        return staged.versions

    def _tell(self, paths: Sequence[str]) -> None:
        for store in tuple(self._stores.values()):
            store.told(paths)


class MemoryStore:
    """One broker's session with a `SharedTree`."""

    shared = True

    def __init__(self, tree: SharedTree) -> None:
        self._loop = asyncio.get_running_loop()
        self._tree = tree
        self._watchers: list[tuple[str, Watcher]] = []
        self._begun: Callable[[], None] = lambda: None
        self._closed = False
        self.session = tree.open_session(self)

    async def get(self, path: str) -> Node | None:
        await self._reach()
        return self._tree.get(path, self.session)

    async def nodes(self, paths: Sequence[str]) -> list[Node | None]:
        await self._reach()
        return [self._tree.get(path, self.session) for path in paths]

    async def children(self, path: str) -> list[str]:
        await self._reach()
        return self._tree.children(path)

    async def subtree(self, path: str) -> dict[str, Node]:
        await self._reach()
        return self._tree.below(path)

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        await self._reach()
        return self._tree.commit(operations, self.session)

    async def _reach(self) -> None:
        """What a way to the store takes: nothing here but a turn of the loop. The simulator makes it long, or cuts it."""
        if self._closed:
            raise StoreUnavailable("The session with the metadata store is closed.")
        await asyncio.sleep(0)

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        self._watchers.append((prefix, watcher))

    def told(self, paths: Sequence[str]) -> None:
        """Something changed; called from whichever thread changed it."""
        if not self._closed:
            self._loop.call_soon_threadsafe(self._call_watchers, tuple(paths))

    def _call_watchers(self, paths: Sequence[str]) -> None:
        for path in paths:
            for prefix, watcher in tuple(self._watchers):
                if path == prefix or path.startswith(prefix + "/"):
                    watcher(path)

    def on_new_session(self, begun: Callable[[], None]) -> None:
        self._begun = begun

    def expire(self) -> None:
        """Lose the session and begin a new one, as after a long pause: watches stay, ephemeral nodes are gone."""
        self._tree.end_session(self.session)
        self.session = self._tree.open_session(self)
        self._begun()

    async def close(self) -> None:
        self._closed = True
        self._tree.end_session(self.session)
