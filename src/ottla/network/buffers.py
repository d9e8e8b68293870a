"""Receive buffers, lent and taken back: an idle connection holds none, so thousands of them cost next to nothing.

Guards: the memory of all idle buffers together is bounded; a frame that claims to be large gets its room as its bytes arrive,
not when it is announced.
"""

from __future__ import annotations

import mmap
from typing import Final

from ottla.network.pacing import OldData

SMALL: Final = 64 << 10
LARGE: Final = 2 << 20
_KEPT_SMALL: Final = 32
_KEPT_LARGE: Final = 4


class Buffer:
    """Writable memory and a view of it, made once. Beyond the smallest size, pages become real as bytes are put into them."""

    __slots__ = ("data", "size", "view")

    def __init__(self, size: int) -> None:
        self.data = bytearray(size) if size <= SMALL else mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self.data)
        self.size = size


class BufferPool:
    """The buffers that nobody uses at the moment, and who used one last.

    `last_reader` and `last_read` tell a connection with much to send whether others are busy: then it sends in smaller pieces,
    and those of `old_data` with rests between them.
    """

    __slots__ = ("_large", "_small", "last_read", "last_reader", "old_data")

    def __init__(self) -> None:
        self.last_reader: object = None
        self.last_read = 0.0
        self.old_data = OldData()
        self._small: list[Buffer] = []
        self._large: list[Buffer] = []

    def take(self, large: bool) -> Buffer:
        """A buffer of one of the two usual sizes."""
        if large:
            return self._large.pop() if self._large else Buffer(LARGE)
        return self._small.pop() if self._small else Buffer(SMALL)

    def take_for(self, need: int, have: int) -> Buffer:
        """A buffer for a frame of `need` bytes of which `have` are here: at most double what was proven."""
        if need <= LARGE:
            return self.take(large=True)
        return Buffer(min(need, max(2 * have, 2 * LARGE)))

    def give_back(self, buffer: Buffer) -> None:
        """Keep a buffer for the next one who needs it, or let it go."""
        if buffer.size == SMALL:
            if len(self._small) < _KEPT_SMALL:
                self._small.append(buffer)
        elif buffer.size == LARGE and len(self._large) < _KEPT_LARGE:
            self._large.append(buffer)
