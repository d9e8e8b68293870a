"""Answers on their way out of a connection: what they are made of, and those that have to wait.

Guards: an answer whose request is carried out, but which waits for something else (other replicas, say), leaves in its turn
however late it comes, and towards whoever makes it it stands for its connection. Small file regions become bytes here, in one
place; larger ones never pass through Python.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol, cast

from ottla.metrics import RequestCounters
from ottla.network.buffers import SMALL
from ottla.replication.waiting import Pending
from ottla.storage.slices import FileSlice

_READ_AT_MOST: Final = 16 << 10  # bytes of small file regions in one answer that are read and sent with what surrounds them

Part = bytes | FileSlice


class Debtor(Protocol):
    """A connection that may owe answers."""

    host: str
    port: int
    listener: str
    last_active: float

    @property
    def closed(self) -> bool: ...

    def paid(self) -> None:
        """An answer that was waited for is here: whatever may leave now leaves."""
        ...

    def close(self) -> None: ...


class Owed:
    """The answer to a request that is carried out. It may be made after requests that follow were carried out, and leaves
    before their answers."""

    __slots__ = ("_connection", "answering", "host", "last_active", "listener", "parts", "port", "waiter")

    def __init__(self, connection: Debtor) -> None:
        self._connection = connection
        self.host = connection.host
        self.port = connection.port
        self.listener = connection.listener
        self.last_active = connection.last_active
        self.answering: RequestCounters | None = None
        self.waiter: Pending | None = None
        self.parts: Sequence[Part] | None = None

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def owe(self) -> Owed:
        """It waits already."""
        return self

    def answer(self, parts: Sequence[Part]) -> None:
        """Send the answer when those before it have left."""
        self.waiter = None
        self.parts = parts
        self._connection.paid()

    def no_answer(self) -> None:
        """There is none after all."""
        self.answer(())

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def is_large(parts: Sequence[Part] | None) -> bool:
    """Of an answer: with a file region, or large without one."""
    return parts is not None and len(parts) > 0 and (len(parts) > 1 or len(parts[0]) > SMALL)


def in_one_piece(out: deque[Part | memoryview]) -> bytes:
    """All that is to be sent before the first file region, which becomes the first part: one call sends it.

    To copy small answers costs less than to tell the kernel where each of them lies. A large one is seldom among them, as it
    does not wait for others.
    """
    run: list[bytes | memoryview] = []
    while out and not isinstance(part := out[0], FileSlice):
        run.append(part)
        out.popleft()
    joined = b"".join(run)
    out.appendleft(joined)
    return joined


def small_regions_read(parts: Sequence[Part]) -> Sequence[Part]:
    """The parts of an answer with its small file regions as bytes; all in one where none else are left.

    Three calls send a header, a region and what follows it, and wake up the reader at the second and the third; reading a
    region of some kilobytes costs less than that. Whoever answers has seen to it that the region is in the page cache.
    """
    left = _READ_AT_MOST
    made: list[Part] = []
    regions = 0
    for part in parts:
        if isinstance(part, FileSlice):
            if part.length <= left and (data := _bytes_of(part)) is not None:
                left -= part.length
                made.append(data)
                continue
            regions += 1
        made.append(part)
    return made if regions else [b"".join(cast(list[bytes], made))]


def _bytes_of(region: FileSlice) -> bytes | None:
    """None where they cannot be had: then sending the region fails in the same way, and that is where it is told."""
    try:
        data = region.read()
    except OSError:
        return None
    return data if len(data) == region.length else None
