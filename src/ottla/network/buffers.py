"""Receive buffers, lent and taken back: an idle connection holds none, so thousands of them cost next to nothing.

Guards: the memory of all idle buffers together is bounded, and so is what ever lies in large pages; a frame that claims to be
large gets its room as its bytes arrive, not when it is announced.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Final

SMALL: Final = 64 << 10
LARGE: Final = 2 << 20
_KEPT_SMALL: Final = 32
_KEPT_LARGE: Final = 4
_LARGE_PAGE: Final = getattr(mmap, "MADV_HUGEPAGE", None)


class Buffer:
    """Writable memory and a view of it, made once. Beyond the smallest size, pages become real as bytes are put into them."""

    __slots__ = ("data", "in_one_page", "size", "view")

    def __init__(self, size: int) -> None:
        self.data = bytearray(size) if size <= SMALL else mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self.data)
        self.size = size
        self.in_one_page = False

    def put_in_one_page(self) -> None:
        """What it holds goes, and from the next byte on its memory is one large page, where the system has any for it.

        A request of 128 KB is copied to 32 small pages, and summed up and written from there. In one large page all of that
        costs a twentieth less.
        """
        self.in_one_page = True
        if _LARGE_PAGE is not None and isinstance(self.data, mmap.mmap):
            with suppress(OSError):
                self.data.madvise(mmap.MADV_DONTNEED)
                self.data.madvise(_LARGE_PAGE)


class BufferPool:
    """The buffers that nobody uses at the moment.

    A few large ones, which a busy broker uses again and again, lie in large pages; not more of them, as such a page is real
    from its first byte on.
    """

    __slots__ = ("_in_one_page", "_large", "_small")

    def __init__(self) -> None:
        self._small: list[Buffer] = []
        self._large: list[Buffer] = []
        self._in_one_page = 0

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
        elif buffer.size == LARGE:
            large = self._large
            if len(large) < _KEPT_LARGE:
                if not buffer.in_one_page and self._in_one_page < _KEPT_LARGE:
                    buffer.put_in_one_page()
                    self._in_one_page += 1
                large.append(buffer)
            elif buffer.in_one_page:  # it takes the place of one that is not: there are no more of them than places
                at = next((at for at, kept in enumerate(large) if not kept.in_one_page), 0)
                large[at] = buffer
