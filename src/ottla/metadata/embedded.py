"""The metadata store of a cluster of one: a SQLite file in the first log directory.

Guards: a commit is durable (fsync) before it is answered, and all or nothing. Ephemeral nodes belong to a session, and the only
session is this process: what an earlier process left ephemeral is removed at start. Reads are answered from memory, for there
is no other writer; the log directory's lock keeps a second process out. SQLite's calls block, so commits run in a thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ottla.metadata.store import Node, Operation, UnusableStore, Watcher
from ottla.metadata.tree import Staged, Tree

FILE_NAME = "ottla-metadata.db"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS node (
    path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL, ephemeral INTEGER NOT NULL
) WITHOUT ROWID
"""

RunBlocking = Callable[..., Awaitable[Any]]


class EmbeddedStore:
    """A `Store` over one SQLite file."""

    shared = False

    def __init__(self, path: str, run_blocking: RunBlocking) -> None:
        self._run_blocking = run_blocking
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._tree = Tree(self._open())
        except sqlite3.Error as problem:
            raise UnusableStore(
                f"cannot use the metadata in {path}: {problem}; put a good copy there, or remove it to take the topics over "
                "with their default settings"
            ) from problem
        self._watchers: list[tuple[str, Watcher]] = []
        self._writing = asyncio.Lock()

    def _open(self) -> dict[str, Node]:
        """Read everything; what an earlier session left ephemeral goes."""
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("PRAGMA cache_size=-256")
        self._database.execute(_SCHEMA)
        self._database.execute("DELETE FROM node WHERE ephemeral")
        rows = self._database.execute("SELECT path, data, version FROM node")
        return {path: Node(data, version) for path, data, version in rows}

    async def get(self, path: str) -> Node | None:
        return self._tree.get(path)

    async def nodes(self, paths: Sequence[str]) -> list[Node | None]:
        return [self._tree.get(path) for path in paths]

    async def children(self, path: str) -> list[str]:
        return self._tree.children(path)

    async def subtree(self, path: str) -> dict[str, Node]:
        return self._tree.below(path)

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        # Whoever asked may go away; what was begun is finished, and nothing else touches the file before that.
        return await asyncio.shield(asyncio.ensure_future(self._commit(operations)))

    async def _commit(self, operations: Sequence[Operation]) -> list[int]:
        async with self._writing:
            staged = self._tree.stage(operations)
            await self._run_blocking(self._write, staged)
            self._tree.apply(staged)
        for path in staged.nodes:
            for prefix, watcher in self._watchers:
                if path == prefix or path.startswith(prefix + "/"):
                    watcher(path)
        return staged.versions

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        self._watchers.append((prefix, watcher))

    def on_new_session(self, begun: Callable[[], None]) -> None:
        """The session is this process: it never has a second one."""

    async def close(self) -> None:
        async with self._writing:
            await self._run_blocking(self._close)

    def _close(self) -> None:
        self._database.execute("DELETE FROM node WHERE ephemeral")
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._database.close()

    def _write(self, staged: Staged) -> None:
        """Runs in a thread: one durable transaction."""
        self._database.execute("BEGIN")
        try:
            self._database.executemany(
                "DELETE FROM node WHERE path = ?", [(path,) for path, node in staged.nodes.items() if node is None]
            )
            self._database.executemany(
                "INSERT INTO node VALUES (?, ?, ?, ?) "
                "ON CONFLICT (path) DO UPDATE SET data = excluded.data, version = excluded.version",
                [
                    (path, node.data, node.version, path in staged.ephemeral)
                    for path, node in staged.nodes.items()
                    if node is not None
                ],
            )
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
