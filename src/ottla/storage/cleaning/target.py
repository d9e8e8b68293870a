"""The segment that a pass writes: `BASE.log.cleaned` with its indexes, as a segment that is no longer written to has them.

Guards: everything is on the disk when `complete` returns, with the time of last change of what it replaces; a file that an
earlier clean left under its name is not touched but replaced.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from ottla.records.batch import read_header
from ottla.records.errors import CorruptRecords
from ottla.storage import writeback
from ottla.storage.aborted import AbortedTransaction, TransactionIndex
from ottla.storage.checkpoints import sync_file
from ottla.storage.index import OffsetIndex, TimeIndex
from ottla.storage.log_config import MAX_INT
from ottla.storage.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)

_WRITE_BYTES: Final = 64 * 1024  # a write of a megabyte holds the core for two milliseconds, whoever else wants it


class CleanedSegment:
    """One output of a pass. Everything here blocks."""

    __slots__ = ("_aborted", "_directory", "_fd", "_interval", "_max_timestamp", "_max_timestamp_at", "_offsets", "_sent",
                 "_since", "_times", "base_offset", "size")  # fmt: skip

    def __init__(self, directory: str, base_offset: int, index_bytes: int, index_interval: int) -> None:
        self.base_offset = base_offset
        self.size = 0
        self._directory = directory
        self._interval = index_interval
        self._since = 0
        self._sent = 0
        self._max_timestamp = -1
        self._max_timestamp_at = base_offset
        self.unlink()
        self._fd = os.open(self._path(LOG_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._offsets = OffsetIndex(self._path(INDEX_SUFFIX), base_offset, index_bytes)
        self._times = TimeIndex(self._path(TIME_INDEX_SUFFIX), base_offset, index_bytes)
        self._aborted = TransactionIndex(self._path(TXN_INDEX_SUFFIX))

    def _path(self, suffix: str) -> str:
        return os.path.join(self._directory, file_name(self.base_offset, suffix) + CLEANED_SUFFIX)

    def append(self, batches: memoryview) -> None:
        """Write whole v2 batches, and index them."""
        position = written = 0
        while position < len(batches):
            header = read_header(batches, position)
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._max_timestamp_at = header.max_timestamp, header.last_offset
            if self._since > self._interval:
                self._offsets.append(header.last_offset, self.size + position)
                self._times.maybe_append(self._max_timestamp, self._max_timestamp_at)
                self._since = 0
            self._since += header.size
            position += header.size
        if self.size + len(batches) > MAX_INT:
            raise CorruptRecords(f"the segment at offset {self.base_offset} does not fit into 2 GB when it is cleaned")
        while written < len(batches):
            written += os.pwrite(self._fd, batches[written : written + _WRITE_BYTES], self.size + written)
        self.size += len(batches)
        while self.size - self._sent >= writeback.STEP:
            writeback.begin(self._fd, self._sent, self._sent + writeback.STEP)
            self._sent += writeback.STEP

    def aborted(self, transaction: AbortedTransaction) -> None:
        """A transaction whose abort marker is in this segment."""
        self._aborted.append(transaction)

    def complete(self, modified_ns: int) -> None:
        """Bring everything to the disk."""
        self._times.maybe_append(self._max_timestamp, self._max_timestamp_at)
        self._offsets.trim()
        self._times.trim()
        self._aborted.write()
        os.utime(self._fd, ns=(modified_ns, modified_ns))
        os.fsync(self._fd)
        self.close()
        for index in (self._offsets, self._times, self._aborted):
            with suppress(FileNotFoundError):  # most segments have no aborted transaction, and then no file
                sync_file(index.path)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def unlink(self) -> None:
        """Take the files away."""
        for suffix in SEGMENT_SUFFIXES:
            with suppress(FileNotFoundError):
                os.unlink(self._path(suffix))
