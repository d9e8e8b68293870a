"""The cluster's shared truth, as a tree of small versioned nodes: what ZooKeeper offers, and no more.

Guards: every change is a transaction (`commit`) of checks and writes that happens whole or not at all; a write may carry the
version it expects, so that two writers never both win. Watchers are told a path after a commit that touched it, and read again:
they never learn values from the notice itself. Two implementations: `embedded` (one process, SQLite) and ZooKeeper (a cluster).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

ANY_VERSION = -1


class StoreError(Exception):
    """The store refused a transaction; nothing of it happened."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class NodeExists(StoreError):
    """A node to be created is there already."""


class NoNode(StoreError):
    """A node to be read, changed or removed (or a parent) is not there."""


class BadVersion(StoreError):
    """A node has changed since it was read."""


@dataclass(slots=True, frozen=True)
class Node:
    """What is stored at a path, and how often it was written before."""

    data: bytes
    version: int


@dataclass(slots=True, frozen=True)
class Create:
    """Make a node; its missing parents are made too. An ephemeral one goes with its session."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(slots=True, frozen=True)
class Set:
    """Write a node that exists."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(slots=True, frozen=True)
class Delete:
    """Remove a node and all below it."""

    path: str
    version: int = ANY_VERSION


@dataclass(slots=True, frozen=True)
class Check:
    """Go on only if the node has this version."""

    path: str
    version: int


Operation = Create | Set | Delete | Check
Watcher = Callable[[str], None]


class Store(Protocol):
    """What the engine needs from a metadata store. All calls run on the broker's loop."""

    async def get(self, path: str) -> Node | None:
        """The node at `path`, or None."""
        ...

    async def children(self, path: str) -> list[str]:
        """The names directly below `path`; empty where it does not exist."""
        ...

    async def subtree(self, path: str) -> dict[str, Node]:
        """Every node below `path`, by full path: how a new controller reads the world in one go."""
        ...

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        """All of the operations or none; the new version of each node written (0 for a check or delete)."""
        ...

    def watch(self, prefix: str, watcher: Watcher) -> None:
        """Call `watcher(path)` on the loop after each commit that touched `prefix` or something below it."""
        ...

    async def close(self) -> None:
        """Give up the session; ephemeral nodes go."""
        ...
