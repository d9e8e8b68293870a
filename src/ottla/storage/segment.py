"""One segment of a log: `BASE.log` with its offset, time and transaction indexes, named by its base offset in 20 digits.

Guards: `size` is what the log holds; bytes beyond it, left by a write that failed, are never read. The entries of the
indexes lie within `size`. Only the active segment is written to. Beside the sparse index the active segment remembers
where its last batches begin (`_recent_*`), so that a read at the tail, which is nearly every read, costs no system
call.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ottla.clock import Clock
from ottla.model import NO_TIMESTAMP, Error, KafkaError
from ottla.records.batch import HEADER_SIZE, LOG_OVERHEAD
from ottla.storage import reserving
from ottla.storage.aborted import TransactionIndex
from ottla.storage.index import OffsetIndex, TimeIndex
from ottla.storage.log_config import MAX_INT, LogConfig
from ottla.storage.scan import header_at, walk
from ottla.storage.slices import OPEN_FILES, SegmentFile

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_RECENT: Final = 256
_OF_A_SNAPSHOT: Final = LogConfig()  # its indexes are copies, and nothing is written to it


def file_name(offset: int, suffix: str) -> str:
    """A segment's or a snapshot's file name."""
    return f"{offset:020d}{suffix}"


class Segment:
    """One segment. Lives on the broker's loop; what blocks says so."""

    __slots__ = (
        "_file",
        "_first_timestamp",
        "_indexes_have_room",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "_recent_from",
        "_recent_lasts",
        "_recent_positions",
        "_reserved",
        "_since_index_entry",
        "aborted",
        "active",
        "base_offset",
        "created_ms",
        "directory",
        "jitter_ms",
        "offset_index",
        "replaced",
        "size",
        "time_index",
    )

    def __init__(
        self, directory: str, base_offset: int, config: LogConfig, now_ms: int, *, size: int = 0, jitter_ms: int = 0
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self.created_ms = now_ms
        self.jitter_ms = jitter_ms
        self.active = False
        self.replaced = False  # a cleaned segment has its name now: what a thread finds under it is not this one's
        self.offset_index = OffsetIndex(self.path(INDEX_SUFFIX), base_offset, config.segment_index_bytes)
        self.time_index = TimeIndex(self.path(TIME_INDEX_SUFFIX), base_offset, config.segment_index_bytes)
        self.aborted = TransactionIndex(self.path(TXN_INDEX_SUFFIX))
        self._file: SegmentFile | None = None
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = None
        self._offset_of_max_timestamp = base_offset
        self._since_index_entry = 0
        self._indexes_have_room = False  # found by `should_roll`, and again after every entry
        self._reserved = reserving.FROM
        self._recent_from = base_offset
        self._recent_lasts = array("q")
        self._recent_positions = array("q")

    @classmethod
    def create(cls, directory: str, base_offset: int, config: LogConfig, now_ms: int, *, jitter_ms: int = 0) -> Segment:
        """A new, empty, active segment on the disk. OSError leaves no file that was not there."""
        segment = cls(directory, base_offset, config, now_ms, jitter_ms=jitter_ms)
        path = segment.path(LOG_SUFFIX)
        OPEN_FILES.forget(path)
        existed = os.path.exists(path)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                if config.preallocate:
                    os.ftruncate(fd, config.segment_bytes)
            finally:
                os.close(fd)
            segment.aborted.reset()
            segment.activate()
        except OSError:
            if not existed:
                segment.unlink()
            raise
        return segment

    def unlink(self) -> None:
        """Take the files away at once: of a segment that never came into use."""
        for suffix in SEGMENT_SUFFIXES:
            with suppress(OSError):
                os.unlink(self.path(suffix))

    def snapshot(self) -> Segment:
        """The active segment as it is now: a thread may search it while the loop appends to this one, rolls or retires it."""
        _ = self.max_timestamp  # found now, and not by two threads at once
        twin = Segment(
            self.directory, self.base_offset, _OF_A_SNAPSHOT, self.created_ms, size=self.size, jitter_ms=self.jitter_ms
        )
        twin.active = self.active
        twin.replaced = self.replaced
        twin.aborted = self.aborted
        twin._file = self.file
        twin._first_timestamp = self._first_timestamp
        twin._max_timestamp = self._max_timestamp
        twin._offset_of_max_timestamp = self._offset_of_max_timestamp
        twin._since_index_entry = self._since_index_entry
        twin._recent_from = self._recent_from
        twin._recent_lasts = self._recent_lasts
        twin._recent_positions = self._recent_positions
        twin.offset_index = self.offset_index.snapshot()
        twin.time_index = self.time_index.snapshot()
        return twin

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{file_name(self.base_offset, suffix)}"

    @property
    def file(self) -> SegmentFile:
        """The open log file: kept open while the segment is active, else remembered for a while."""
        if self._file is not None:
            return self._file
        if not self.active:
            return OPEN_FILES.get(self.path(LOG_SUFFIX))
        self._file = SegmentFile(self.path(LOG_SUFFIX), os.O_RDWR)
        return self._file

    def forget_file(self) -> None:
        """Keep the log file open no longer, except for those who hold a slice of it."""
        self._file = None
        OPEN_FILES.forget(self.path(LOG_SUFFIX))

    def moved(self, directory: str) -> None:
        """The partition's directory has a new name."""
        self.forget_file()
        self.directory = directory
        self.offset_index.path = self.path(INDEX_SUFFIX)
        self.time_index.path = self.path(TIME_INDEX_SUFFIX)
        self.aborted.path = self.path(TXN_INDEX_SUFFIX)

    # The active segment

    def activate(self) -> None:
        """From now on written to: the indexes get their full size."""
        self.active = True
        self.offset_index.preallocate()
        self.time_index.preallocate()

    def complete(self) -> None:
        """Give the files the form of a segment that is no longer written to. After OSError it may still be written to."""
        self.time_index.maybe_append(self.max_timestamp, self._offset_of_max_timestamp)
        self._indexes_have_room = False
        self.offset_index.trim()
        self.time_index.trim()
        self.aborted.write()
        reserved = self.size > reserving.FROM
        if reserved or os.path.getsize(self.path(LOG_SUFFIX)) != self.size:  # preallocated, or the rest of a write that failed
            os.truncate(self.path(LOG_SUFFIX), self.size)
            self._reserved = max(reserving.FROM, self.size)

    def deactivate(self) -> None:
        """Rolled or closed, after `complete`: no longer written to."""
        self.active = False
        self._file = None
        del self._recent_lasts[:]
        del self._recent_positions[:]

    def append(
        self,
        records: memoryview,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        offset_of_max: int,
        index_interval: int,
        batches: list[tuple[int, int]] | None = None,
    ) -> None:
        """Write `records` at the end and index them. OSError leaves the segment as it was: after the write nothing raises.

        `batches` gives (last offset, position in `records`) of each batch if there are several.
        """
        position = self.size
        length = len(records)
        fd = (self._file or self.file).fd
        written = os.pwrite(fd, records, position)
        while written < length:
            written += os.pwrite(fd, records[written:], position + written)
        self.size = end = position + length
        if end > self._reserved:
            self._reserved = reserving.reserve(fd, end)
        if position == 0:
            self._first_timestamp = max_timestamp
        newest = self._max_timestamp
        if max_timestamp > (self.max_timestamp if newest is None else newest):
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = offset_of_max
        since = self._since_index_entry
        if since > index_interval:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self._offset_of_max_timestamp)
            self._indexes_have_room = False
            since = 0
        self._since_index_entry = since + length
        lasts, positions = self._recent_lasts, self._recent_positions
        if not lasts:
            self._recent_from = base_offset
        if batches is None:
            lasts.append(last_offset)
            positions.append(position)
        else:
            for last, at in batches:
                lasts.append(last)
                positions.append(position + at)
        if len(lasts) > _RECENT:
            surplus = len(lasts) - _RECENT // 2
            self._recent_from = lasts[surplus - 1] + 1
            del lasts[:surplus]
            del positions[:surplus]

    def should_roll(self, config: LogConfig, clock: Clock, size: int, max_timestamp: int, last_offset: int) -> bool:
        """Whether an append of `size` bytes must go to a new segment: by size, time, full index, or offsets out of reach."""
        if self.size > config.segment_bytes - size or last_offset - self.base_offset > MAX_INT:
            return True
        if not self._indexes_have_room:
            offsets, timestamps = self.offset_index, self.time_index
            if offsets.entries >= offsets.max_entries or timestamps.entries >= timestamps.max_entries:
                return True
            self._indexes_have_room = True
        if self.size == 0:
            return False
        first = self._first_timestamp
        if first is None:
            first = self.first_timestamp
        waited = max_timestamp - first if first >= 0 else clock.now_ms() - self.created_ms
        return waited > config.roll_ms - self.jitter_ms

    @property
    def first_timestamp(self) -> int:
        """The timestamp that the age of the segment counts from; -1 if it has none."""
        if self._first_timestamp is None:
            if not self.size:
                return NO_TIMESTAMP
            head = os.pread(self.file.fd, HEADER_SIZE, 0)
            self._first_timestamp = header_at(head, 0).max_timestamp
        return self._first_timestamp

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment; -1 if it has none."""
        if self._max_timestamp is None:
            self._max_timestamp = self.time_index.last_timestamp
            self._offset_of_max_timestamp = self.time_index.last_offset
        return self._max_timestamp

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the batch that has the largest timestamp."""
        return self._offset_of_max_timestamp if self.max_timestamp >= 0 else self.base_offset

    def age_timestamp(self) -> int:
        """What retention by time goes by: the largest timestamp, else when the file was last written."""
        newest = self.max_timestamp
        return newest if newest >= 0 else int(os.path.getmtime(self.path(LOG_SUFFIX)) * 1000)

    # Lookups

    def position_of(self, offset: int, nowait: bool = False) -> tuple[int, int] | None:
        """(position, size) of the first batch that reaches `offset`; None if the segment ends before it.

        BlockingIOError if `nowait` and the files are cold.
        """
        lasts = self._recent_lasts
        if lasts and offset >= self._recent_from:
            at = bisect_left(lasts, offset)
            positions = self._recent_positions
            if at == len(lasts):
                return None
            position = positions[at]
            return position, (positions[at + 1] if at + 1 < len(positions) else self.size) - position
        for position, header in walk(self.file.fd, self.offset_index.lookup(offset, nowait), self.size, nowait):
            if header.base_offset + header.last_offset_delta >= offset:
                return position, LOG_OVERHEAD + header.length
        return None

    def end_position(self, limit: int, nowait: bool = False) -> int:
        """Where the batches that lie wholly below `limit` end."""
        found = self.position_of(limit, nowait)
        return found[0] if found else self.size

    def offset_at(self, position: int, nowait: bool = False) -> int | None:
        """The first offset that does not lie wholly before `position` in the file; None if all do.

        BlockingIOError if `nowait` and the files are cold.
        """
        if position >= self.size:
            return None
        for start, header in walk(self.file.fd, self.offset_index.at_or_before_position(position), self.size, nowait):
            if start + LOG_OVERHEAD + header.length > position:
                return header.base_offset
        return None

    def next_offset(self) -> int:
        """The offset after the last batch, from the file. Blocks."""
        last = self.base_offset
        for _, header in walk(self.file.fd, self.offset_index.last_position, self.size):
            last = header.next_offset
        return last

    # Changes

    def truncate_to(self, offset: int) -> int:
        """Cut everything from the batch that reaches `offset` on; the bytes cut. The segment is to be the active one."""
        found = self.position_of(offset)
        if found is None:
            return 0
        cut = self.size - found[0]
        os.truncate(self.path(LOG_SUFFIX), found[0])
        self.size = found[0]
        self._reserved = max(reserving.FROM, self.size)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.aborted.truncate_to(offset)
        self._forget()
        if self.size:
            self._find_max_timestamp()
        return cut

    def _forget(self) -> None:
        del self._recent_lasts[:]
        del self._recent_positions[:]
        self._max_timestamp = None
        self._since_index_entry = 0
        self._indexes_have_room = False
        if not self.size:
            self._first_timestamp = None

    def _find_max_timestamp(self) -> None:
        """The largest timestamp again, from the last time index entry and the batches after it."""
        newest, offset = self.time_index.last_timestamp, self.time_index.last_offset
        for _, header in walk(self.file.fd, self.offset_index.lookup(offset), self.size):
            if header.max_timestamp > newest:
                newest, offset = header.max_timestamp, header.last_offset
        self._max_timestamp, self._offset_of_max_timestamp = newest, offset

    def rebuilt(self, max_timestamp: int, offset_of_max: int) -> None:
        """The indexes were rebuilt from the log: complete them, and start from what was found."""
        self.time_index.maybe_append(max_timestamp, offset_of_max)
        self.offset_index.trim()
        self.time_index.trim()
        self.aborted.write()
        self._forget()
        self._max_timestamp, self._offset_of_max_timestamp = max_timestamp, offset_of_max

    def rename(self, suffix: str) -> list[str]:
        """Give the files a name with `suffix`, so that no later segment meets them; the new names. Readers do not feel it."""
        self.forget_file()
        renamed: list[str] = []
        for part in SEGMENT_SUFFIXES:
            path = self.path(part)
            try:
                os.rename(path, path + suffix)
            except FileNotFoundError:
                continue
            renamed.append(path + suffix)
        return renamed

    def take_name(self, suffix: str, new_suffix: str, between: Callable[[], None] = lambda: None) -> None:
        """Rename the files of a cleaned segment, the log first: half a set under the new name shows that it is not complete.

        `between` is called after the first one.
        """
        for part in SEGMENT_SUFFIXES:
            path = self.path(part)
            try:
                os.rename(path + suffix, path + new_suffix)
            except FileNotFoundError:
                if part != TXN_INDEX_SUFFIX:  # most segments have none
                    raise
            if part == LOG_SUFFIX:
                between()

    def load_indexes(self, suffix: str = "") -> None:
        """Take the indexes of a segment that was closed. ValueError or FileNotFoundError if they must be rebuilt.

        With a `suffix` they are read from files that bear it, and have lost it when they are read next.
        """
        indexes = (self.offset_index, self.time_index, self.aborted)
        for index in indexes:
            index.path += suffix
        try:
            self.offset_index.load(self.size)
            self.time_index.load()
            self.aborted.load()
        finally:
            for index in indexes:
                index.path = index.path.removesuffix(suffix)

    def storage_error(self, error: OSError) -> KafkaError:
        """How an I/O error on this segment is told to whoever asked."""
        return KafkaError(Error.KAFKA_STORAGE_ERROR, f"{self.path(LOG_SUFFIX)}: {error.strerror or error}")
