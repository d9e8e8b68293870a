"""The sparse indexes of a segment: offset to position (8-byte entries) and timestamp to offset (12 bytes).

Guards: entries only rise, and the file says nothing that the log does not hold. While a segment is active its index
files have their full size with a tail of zeros (sparse, as Kafka preallocates them) and are trimmed when it is rolled
or closed. New entries wait in memory and go to the file a page at a time, on flush and on close: an index needs no
descriptor of its own, and after a crash the active segment's indexes are rebuilt from the log anyway. So an index that
cannot be written fails no append: its entries wait on. Thousands of idle logs cost a few hundred bytes each.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from struct import Struct
from typing import Final

from ottla.model import NO_TIMESTAMP
from ottla.storage.slices import pread

log: Final = logging.getLogger("ottla.storage")

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")
_PENDING_BYTES: Final = 4096
_SEARCH_WINDOW: Final = 512


class _Index:
    """What both indexes share: a file of fixed-size entries, a tail of them still in memory, and a search over both."""

    __slots__ = ("_entry", "_failing", "_pending", "_written", "base_offset", "entries", "max_entries", "path")

    def __init__(self, path: str, base_offset: int, entry: Struct, max_bytes: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // entry.size
        self.entries = 0
        self._entry = entry
        self._written = 0
        self._pending = bytearray()
        self._failing = False

    @property
    def size(self) -> int:
        """Bytes that its entries take."""
        return self.entries * self._entry.size

    def _copy_to(self, twin: _Index) -> None:
        twin._entry = self._entry
        twin.max_entries = self.max_entries
        twin.entries = self.entries
        twin._written = self._written
        twin._pending = self._pending[:]

    def _load(self) -> tuple[int, ...] | None:
        """Take the entries from a trimmed file; the last one, None if there is none. ValueError if the size is odd."""
        size = os.path.getsize(self.path)
        if size % self._entry.size:
            raise ValueError(f"{self.path}: {size} bytes are not a multiple of {self._entry.size}")
        self._written = self.entries = size // self._entry.size
        self._pending.clear()
        return self._at(self._written - 1) if self._written else None

    def preallocate(self) -> None:
        """The full size of an active segment's index, or more if it was larger when it was written; creates the file."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, max(self.max_entries, self._written) * self._entry.size)
        finally:
            os.close(fd)

    def write(self) -> None:
        """Bring the entries that wait in memory into the file. OSError leaves them waiting."""
        if self._pending:
            start, written = self._written * self._entry.size, 0
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                while written < len(self._pending):  # a disk that is filling up takes a part before it refuses
                    written += os.pwrite(fd, self._pending[written:], start + written)
            finally:
                os.close(fd)
            self._written = self.entries
            self._pending.clear()
            self._failing = False

    def try_write(self) -> None:
        """Write, and if that fails try again the next time: the log itself holds all that the entries say."""
        try:
            self.write()
        except OSError as error:
            if not self._failing:
                log.warning("%s: cannot be written, its entries wait in memory: %s", self.path, error.strerror or error)
            self._failing = True

    def trim(self) -> None:
        """Write, and cut the file to its entries: the segment is no longer active."""
        self.write()
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, self._written * self._entry.size)
        finally:
            os.close(fd)

    def _add(self, packed: bytes) -> None:
        self._pending += packed
        self.entries += 1
        if len(self._pending) >= _PENDING_BYTES:
            self.try_write()

    def _at(self, number: int) -> tuple[int, ...]:
        if number >= self._written:
            return self._entry.unpack_from(self._pending, (number - self._written) * self._entry.size)
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self._entry.unpack(os.pread(fd, self._entry.size, number * self._entry.size))
        finally:
            os.close(fd)

    def _floor(self, fits: Callable[[tuple[int, ...]], bool], nowait: bool = False) -> tuple[int, tuple[int, ...] | None]:
        """(how many entries `fits` holds for, the last of them). `fits` is true up to some entry and false from there on."""
        size = self._entry.size
        if self._pending:
            first = self._entry.unpack_from(self._pending, 0)
            if fits(first):
                count, found = _bisect(self._entry, self._pending, fits)
                return self._written + count, found
        if not self._written:
            return 0, None
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            low, high = 0, self._written  # entries below low fit, entries from high on do not
            while high - low > _SEARCH_WINDOW:
                middle = (low + high) // 2
                if fits(self._entry.unpack(pread(fd, size, middle * size, nowait))):
                    low = middle
                else:
                    high = middle
            window = pread(fd, (high - low) * size, low * size, nowait)
        finally:
            os.close(fd)
        count, found = _bisect(self._entry, window, fits)
        return low + count, found

    def _keep(self, count: int) -> tuple[int, ...] | None:
        """Drop all but the first `count` entries, with zeros in their place; the last that is left."""
        self.write()
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(fd).st_size
            os.ftruncate(fd, count * self._entry.size)
            os.ftruncate(fd, size)
        finally:
            os.close(fd)
        self._written = self.entries = count
        return self._at(count - 1) if count else None


def _bisect(
    entry: Struct, buffer: bytes | bytearray, fits: Callable[[tuple[int, ...]], bool]
) -> tuple[int, tuple[int, ...] | None]:
    low, high, found = 0, len(buffer) // entry.size, None
    while low < high:
        middle = (low + high) // 2
        candidate = entry.unpack_from(buffer, middle * entry.size)
        if fits(candidate):
            low, found = middle + 1, candidate
        else:
            high = middle
    return low, found


class OffsetIndex(_Index):
    """Where in the log an offset is to be looked for: at or after the position of the largest entry at or below it."""

    __slots__ = ("last_offset", "last_position")

    def __init__(self, path: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, base_offset, _OFFSET_ENTRY, max_bytes)
        self.last_offset = base_offset
        self.last_position = 0

    def snapshot(self) -> OffsetIndex:
        """The index as it is now: a thread may search it while the loop appends to this one."""
        twin = OffsetIndex(self.path, self.base_offset, 0)
        self._copy_to(twin)
        twin.last_offset, twin.last_position = self.last_offset, self.last_position
        return twin

    def load(self, log_size: int) -> None:
        """Take the entries from the file. ValueError if they cannot be right, FileNotFoundError if there is none."""
        self._remember(self._load())
        if self._written and (self.last_offset <= self.base_offset or not 0 < self.last_position < log_size):
            raise ValueError(f"{self.path}: its last entry ({self.last_offset}, {self.last_position}) is not of this segment")

    def append(self, offset: int, position: int) -> None:
        self._add(_OFFSET_ENTRY.pack(offset - self.base_offset, position))
        self.last_offset = offset
        self.last_position = position

    def lookup(self, offset: int, nowait: bool = False) -> int:
        """The position to start looking for `offset` from. BlockingIOError if `nowait` and the file is cold."""
        if offset >= self.last_offset:
            return self.last_position
        relative = offset - self.base_offset
        _, found = self._floor(lambda entry: entry[0] <= relative, nowait)
        return found[1] if found else 0

    def at_or_before_position(self, position: int) -> int:
        """The start of a batch at or before `position`: the last that the index knows."""
        _, found = self._floor(lambda entry: entry[1] <= position)
        return found[1] if found else 0

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or after `offset`."""
        if self.entries and self.last_offset >= offset:
            relative = offset - self.base_offset
            self._remember(self._keep(self._floor(lambda entry: entry[0] < relative)[0]))

    def reset(self) -> None:
        """Drop every entry, and the file's content with them."""
        self._pending.clear()
        self._remember(self._keep(0))

    def _remember(self, last: tuple[int, ...] | None) -> None:
        self.last_offset, self.last_position = (self.base_offset + last[0], last[1]) if last else (self.base_offset, 0)


class TimeIndex(_Index):
    """From which offset on records may be as new as a timestamp: (the largest timestamp so far, the offset that has it)."""

    __slots__ = ("last_offset", "last_timestamp")

    def __init__(self, path: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, base_offset, _TIME_ENTRY, max_bytes)
        self.last_timestamp = NO_TIMESTAMP
        self.last_offset = base_offset

    def snapshot(self) -> TimeIndex:
        """The index as it is now: a thread may search it while the loop appends to this one."""
        twin = TimeIndex(self.path, self.base_offset, 0)
        self._copy_to(twin)
        twin.last_timestamp, twin.last_offset = self.last_timestamp, self.last_offset
        return twin

    def load(self) -> None:
        """Take the entries from the file. ValueError if they cannot be right, FileNotFoundError if there is none."""
        self._remember(self._load())
        if self._written:
            first = self._at(0)
            if self.last_offset < self.base_offset or self.last_timestamp < first[0] or first[0] < 0:
                raise ValueError(
                    f"{self.path}: its last entry ({self.last_timestamp}, {self.last_offset}) is not of this segment"
                )

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Note that `offset` has the largest timestamp so far; nothing if that was noted."""
        if timestamp > self.last_timestamp and offset >= self.last_offset:
            self._add(_TIME_ENTRY.pack(timestamp, offset - self.base_offset))
            self.last_timestamp = timestamp
            self.last_offset = offset

    def lookup(self, timestamp: int) -> int:
        """The offset of the largest entry at or below `timestamp`; the base offset if there is none."""
        _, found = self._floor(lambda entry: entry[0] <= timestamp)
        return self.base_offset + found[1] if found else self.base_offset

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or after `offset`."""
        if self.entries and self.last_offset >= offset:
            relative = offset - self.base_offset
            self._remember(self._keep(self._floor(lambda entry: entry[1] < relative)[0]))

    def reset(self) -> None:
        """Drop every entry, and the file's content with them."""
        self._pending.clear()
        self._remember(self._keep(0))

    def _remember(self, last: tuple[int, ...] | None) -> None:
        self.last_timestamp, self.last_offset = (
            (last[0], self.base_offset + last[1]) if last else (NO_TIMESTAMP, self.base_offset)
        )
