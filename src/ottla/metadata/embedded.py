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

from ottla.metadata.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Set,
    Watcher,
)

FILE_NAME = "ottla-metadata.db"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS node (
    path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL, ephemeral INTEGER NOT NULL
) WITHOUT ROWID
"""

RunBlocking = Callable[..., Awaitable[Any]]


class UnusableStore(Exception):
    """The file is damaged, or not ours: one line for whoever starts the broker."""


class EmbeddedStore:
    """A `Store` over one SQLite file."""

    def __init__(self, path: str, run_blocking: RunBlocking) -> None:
        self._run_blocking = run_blocking
        self._nodes: dict[str, Node] = {}
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._open()
        except sqlite3.Error as problem:
            raise UnusableStore(
                f"cannot use the metadata in {path}: {problem}; put a good copy there, or remove it to take the topics over "
                "with their default settings"
            ) from problem
        self._children: dict[str, set[str]] = {}
        for name in self._nodes:
            self._link(name)
        self._watchers: list[tuple[str, Watcher]] = []
        self._writing = asyncio.Lock()

    def _open(self) -> None:
        """Read everything; what an earlier session left ephemeral goes."""
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("PRAGMA cache_size=-256")
        self._database.execute(_SCHEMA)
        self._database.execute("DELETE FROM node WHERE ephemeral")
        for path, data, version in self._database.execute("SELECT path, data, version FROM node"):
            self._nodes[path] = Node(data, version)

    async def get(self, path: str) -> Node | None:
        return self._nodes.get(path)

    async def children(self, path: str) -> list[str]:
        return sorted(self._children.get(path, ()))

    async def subtree(self, path: str) -> dict[str, Node]:
        return self._below(path)

    def _below(self, path: str) -> dict[str, Node]:
        found: dict[str, Node] = {}
        pending = [path]
        while pending:
            parent = pending.pop()
            for name in self._children.get(parent, ()):
                child = f"{parent}/{name}"
                found[child] = self._nodes[child]
                pending.append(child)
        return found

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        # Whoever asked may go away; what was begun is finished, and nothing else touches the file before that.
        return await asyncio.shield(asyncio.ensure_future(self._commit(operations)))

    async def _commit(self, operations: Sequence[Operation]) -> list[int]:
        async with self._writing:
            staged, versions, ephemeral = self._stage(operations)
            await self._run_blocking(self._write, staged, ephemeral)
            for path, node in staged.items():
                if node is None:
                    self._unlink(path)
                else:
                    self._nodes[path] = node
                    self._link(path)
        for path in staged:
            for prefix, watcher in self._watchers:
                if path == prefix or path.startswith(prefix + "/"):
                    watcher(path)
        return versions

    def watch(self, prefix: str, watcher: Watcher) -> None:
        self._watchers.append((prefix, watcher))

    async def close(self) -> None:
        async with self._writing:
            await self._run_blocking(self._close)

    def _close(self) -> None:
        self._database.execute("DELETE FROM node WHERE ephemeral")
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._database.close()

    def _stage(self, operations: Sequence[Operation]) -> tuple[dict[str, Node | None], list[int], set[str]]:
        """What the operations would change (None: removed), the new versions, and which nodes are ephemeral; or an error."""
        staged: dict[str, Node | None] = {}
        versions: list[int] = []
        ephemeral: set[str] = set()

        def current(path: str) -> Node | None:
            return staged[path] if path in staged else self._nodes.get(path)

        for operation in operations:
            path = operation.path
            node = current(path)
            if isinstance(operation, Create):
                if node is not None:
                    raise NodeExists(path)
                for parent in _parents(path):
                    if current(parent) is None:
                        staged[parent] = Node(b"", 0)
                staged[path] = Node(operation.data, 0)
                if operation.ephemeral:
                    ephemeral.add(path)
                versions.append(0)
                continue
            if node is None:
                raise NoNode(path)
            if operation.version not in (ANY_VERSION, node.version):
                raise BadVersion(path)
            if isinstance(operation, Set):
                staged[path] = Node(operation.data, node.version + 1)
                versions.append(node.version + 1)
            elif isinstance(operation, Delete):
                staged.update(dict.fromkeys((*self._below(path), path)))
                versions.append(0)
            else:
                assert isinstance(operation, Check)
                versions.append(0)
        return staged, versions, ephemeral

    def _write(self, staged: dict[str, Node | None], ephemeral: set[str]) -> None:
        """Runs in a thread: one durable transaction."""
        self._database.execute("BEGIN")
        try:
            self._database.executemany(
                "DELETE FROM node WHERE path = ?", [(path,) for path, node in staged.items() if node is None]
            )
            self._database.executemany(
                "INSERT INTO node VALUES (?, ?, ?, ?) "
                "ON CONFLICT (path) DO UPDATE SET data = excluded.data, version = excluded.version",
                [(path, node.data, node.version, path in ephemeral) for path, node in staged.items() if node is not None],
            )
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    def _link(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self._children.setdefault(parent, set()).add(name)

    def _unlink(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self._nodes.pop(path, None)
        self._children.get(parent, set()).discard(name)
        self._children.pop(path, None)


def _parents(path: str) -> list[str]:
    """The paths above `path`, outermost first, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(2, len(parts))]
