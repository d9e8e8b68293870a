"""The cluster's shared truth, as a tree of small versioned nodes: what ZooKeeper offers, and no more.

Guards: every change is a transaction (`commit`) of checks and writes that happens whole or not at all; a write may carry the
version it expects, so that two writers never both win. Watchers are told a path after a commit that touched it, and read again:
they never learn values from the notice itself. Two implementations: `embedded` (one process, SQLite) and `zookeeper` (shared).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ottla.model import Error, KafkaError

ANY_VERSION = -1
# ZooKeeper hangs up on a request of 1 MB (jute.maxbuffer). What a request needs beside its paths and data is estimated.
MAX_TRANSACTION_BYTES = 700_000
_BYTES_PER_NODE = 60


class UnusableStore(Exception):
    """There is no store to work with: one line for whoever starts the broker."""


class StoreError(Exception):
    """The store refused a transaction; nothing of it happened."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class StoreUnavailable(KafkaError):
    """The store cannot be reached. Whether a transaction on its way happened is not known: whoever sent it reads again.

    An error for clients, because all they can do is to try again: everything that serves them passes it on.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Error.REQUEST_TIMED_OUT, message)


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
    created: int = field(default=-1, compare=False)
    """The number of the transaction that made it, which only grows: a broker's epoch. -1 where no other process could ask."""
    ours: bool = field(default=False, compare=False)
    """Whether it goes with our session."""
    modified: int = field(default=-1, compare=False)
    """The number of the transaction that wrote it last."""


@dataclass(slots=True, frozen=True)
class Create:
    """Make a node; its missing parents are made too. An ephemeral one goes with its session; a sequential one gets a number of
    ten digits behind its path, larger than any that was given there before."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(slots=True, frozen=True)
class Set:
    """Write a node that exists; without data it stands, as before, for no more than what is below it."""

    path: str
    data: bytes | None
    version: int = ANY_VERSION


@dataclass(slots=True, frozen=True)
class Delete:
    """Remove a node and all below it. What is below, if it is too much for one transaction, goes first, in several."""

    path: str
    version: int = ANY_VERSION


@dataclass(slots=True, frozen=True)
class Check:
    """Go on only if the node has this version."""

    path: str
    version: int


Operation = Create | Set | Delete | Check
Watcher = Callable[[str], None]


def parents(path: str) -> list[str]:
    """The paths above `path`, outermost first, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(2, len(parts))]


def in_pieces(operations: Sequence[Operation], limit: int = MAX_TRANSACTION_BYTES) -> Iterator[list[Operation]]:
    """The operations in order, cut into transactions that any store takes: one, unless there are thousands.

    Good only where every beginning of the list is a state that somebody completes later.
    """
    piece: list[Operation] = []
    room = limit
    for operation in operations:
        size = _size(operation)
        if piece and size > room:
            yield piece
            piece, room = [], limit
        piece.append(operation)
        room -= size
    if piece:
        yield piece


def _size(operation: Operation) -> int:
    data = len(operation.data or b"") if isinstance(operation, Create | Set) else 0
    parent = len(operation.path) + _BYTES_PER_NODE if isinstance(operation, Create) else 0  # it may have to be made as well
    return len(operation.path) + data + _BYTES_PER_NODE + parent


class Store(Protocol):
    """What the engine needs from a metadata store. All calls run on the broker's loop."""

    shared: bool
    """Whether other processes see the tree: they are told of changes in Apache Kafka's ways too."""

    async def get(self, path: str) -> Node | None:
        """The node at `path`, or None."""
        ...

    async def nodes(self, paths: Sequence[str]) -> list[Node | None]:
        """The nodes at these paths, in their order: much cheaper than one by one, but not a picture of one moment."""
        ...

    async def children(self, path: str) -> list[str]:
        """The names directly below `path`; empty where it does not exist."""
        ...

    async def subtree(self, path: str) -> dict[str, Node]:
        """Every node below `path`, by full path."""
        ...

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        """All of the operations or none; the new version of each node written (0 for a check or delete)."""
        ...

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        """From now on call `watcher(path)` on the loop after each change, by anybody, of `prefix` or something below it.

        Changes that follow each other closely may be told once.
        """
        ...

    def on_new_session(self, begun: Callable[[], None]) -> None:
        """Call `begun` on the loop when our session had ended and a new one has begun: our ephemeral nodes are gone."""
        ...

    async def close(self) -> None:
        """Give up the session; ephemeral nodes go."""
        ...
