"""The files beside a segment, as `ottla dump-log` shows them: offset and time index, aborted transactions, producer snapshot.

Guards: every index entry is held against the log, as Apache Kafka's tool does, and what does not fit is a finding. An index
of an active segment has a tail of zeros, which ends it. Files are read by position, never mapped: a broker that rolls trims
an index under its readers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import Final

from fastcrc.crc32 import iscsi as crc32c

from ottla.cli.dump_entries import Entry, Reader, Unreadable, entries, rows
from ottla.cli.dump_output import (
    INDEX_MISMATCH,
    OFFSET_NOT_FOUND,
    OUT_OF_ORDER,
    TIME_MISMATCH,
    Aborted,
    Findings,
    Output,
    SnapshotEntry,
)
from ottla.model import NO_TIMESTAMP

OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")
_ABORTED: Final = Struct(">hqqqq")
_SNAPSHOT_HEAD: Final = Struct(">hIi")
_SNAPSHOT_ENTRY: Final = Struct(">qhiqiqiq")
_SNAPSHOT_VERSION: Final = 1
_CRC_FROM: Final = 6
_CHUNK: Final = 4096  # entries that are read at once


def base_offset(path: str) -> int:
    """The offset that a file's name begins with."""
    digits = os.path.basename(path).partition(".")[0]
    if not digits.isascii() or not digits.isdigit():
        raise Unreadable(f"{path}: its name must begin with an offset, as in 00000000000000000000.log")
    return int(digits)


def absolute(path: str) -> str:
    return os.path.join(os.getcwd(), path)


def _beside(path: str, suffix: str) -> str:
    directory, name = os.path.split(absolute(path))
    return os.path.join(directory, name.partition(".")[0] + suffix)


class IndexFile:
    """A file of entries of one size; what is left over at its end is no entry."""

    __slots__ = ("base", "count", "file", "layout")

    def __init__(self, path: str, layout: Struct) -> None:
        self.base = base_offset(path)
        self.layout = layout
        self.file = Reader(path)
        self.count = self.file.size // layout.size

    def at(self, number: int) -> tuple[int, ...]:
        """One entry; zeros if it was trimmed away meanwhile."""
        packed = os.pread(self.file.fd, self.layout.size, number * self.layout.size)
        return self.layout.unpack(packed.ljust(self.layout.size, b"\0"))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """The entries up to the first of the zeros at the end; an index that holds nothing else has that one."""
        size = self.layout.size
        for start in range(0, self.count, _CHUNK):
            chunk = os.pread(self.file.fd, _CHUNK * size, start * size)
            found = self.layout.iter_unpack(chunk[: len(chunk) // size * size])
            for number, entry in enumerate(found, start):
                # The relative offset of a real entry after the first one is not 0.
                if number and entry[self._relative] == 0:
                    return
                yield entry

    @property
    def _relative(self) -> int:
        return 0 if self.layout is OFFSET_ENTRY else 1

    def position_of(self, offset: int) -> int:
        """Where to begin to look for `offset` in the log: the entry at or before it. For an offset index."""
        relative = offset - self.base
        low, high, found = 0, self.count, 0
        while low < high:
            middle = (low + high) // 2
            candidate, position = self.at(middle)
            # Zeros after the first entry are the tail.
            if candidate <= relative and not (candidate == 0 and middle):
                low, found = middle + 1, position
            else:
                high = middle
        return found

    def check_size(self, what: str) -> None:
        size = self.file.size
        if size % self.layout.size:
            raise Unreadable(
                f"{what} file {absolute(self.file.path)} is corrupt, found {size} bytes which is neither positive nor a "
                f"multiple of {self.layout.size}"
            )

    def close(self) -> None:
        self.file.close()


def dump_offset_index(
    path: str, output: Output, findings: Findings, *, sanity_only: bool, verify_only: bool, max_message_size: int
) -> None:
    """The entries of an `.index`, each held against the batch that it points to."""
    base_offset(path)
    log = Reader(_beside(path, ".log"))
    try:
        index = IndexFile(path, OFFSET_ENTRY)
    except BaseException:
        log.close()
        raise
    try:
        if not index.count:
            output.empty()
        elif sanity_only:
            _check_offset_index(index)
            output.sane()
        else:
            _compare_offsets(index, log, output, findings, verify_only, max_message_size)
    finally:
        index.close()
        log.close()


def _check_offset_index(index: IndexFile) -> None:
    """What a broker checks when it starts, to know whether the index must be made anew."""
    last = index.base + index.at(index.count - 1)[0]
    if last < index.base:
        raise Unreadable(
            f"Corrupt index found, index file {absolute(index.file.path)} has non-zero size but the last offset is {last} "
            f"which is less than the base offset {index.base}"
        )
    index.check_size("Index")


def _compare_offsets(
    index: IndexFile, log: Reader, output: Output, findings: Findings, verify_only: bool, max_message_size: int
) -> None:
    for relative, position in index:
        offset = index.base + relative
        size = log.size  # each time: a broker may be adding to both
        if position > size:
            raise Unreadable(f"Slice from position {position} exceeds end position of {log.path} ({size} bytes)")
        if position < 0:
            raise Unreadable(f"Invalid position: {position} in read from {log.path} ({size} bytes)")
        entry = next(entries(log, position, min(size, position + max_message_size)), None)
        if entry is None:
            raise Unreadable(
                f"No whole batch of at most {max_message_size} bytes is at position {position} of {log.path}, "
                f"to which {index.file.path} points for offset {offset}"
            )
        if entry.header.last_offset != offset:
            findings.add(INDEX_MISMATCH, absolute(index.file.path), offset, entry.header.last_offset)
        if not verify_only:
            output.offset_entry(offset, position)


def dump_time_index(path: str, output: Output, findings: Findings, *, sanity_only: bool, verify_only: bool) -> None:
    """The entries of a `.timeindex`, each held against the batch that its offset ends."""
    base_offset(path)
    log = Reader(_beside(path, ".log"))
    opened: list[IndexFile] = []
    try:
        opened.append(offsets := IndexFile(_beside(path, ".index"), OFFSET_ENTRY))
        opened.append(index := IndexFile(path, _TIME_ENTRY))
        if sanity_only:
            _check_time_index(index)
            output.sane()
        else:
            _compare_times(index, offsets, log, output, findings, verify_only)
    finally:
        for one in opened:
            one.close()
        log.close()


def _check_time_index(index: IndexFile) -> None:
    if index.count:
        last_timestamp, relative = index.at(index.count - 1)
        first_timestamp, _ = index.at(0)
        found = f"Corrupt time index found, time index file ({absolute(index.file.path)}) has non-zero size but the last"
        if last_timestamp < first_timestamp:
            raise Unreadable(f"{found} timestamp is {last_timestamp} which is less than the first timestamp {first_timestamp}")
        if relative < 0:
            raise Unreadable(f"{found} offset is {index.base + relative} which is less than the first offset {index.base}")
    index.check_size("Time index")


def _compare_times(
    index: IndexFile, offsets: IndexFile, log: Reader, output: Output, findings: Findings, verify_only: bool
) -> None:
    path = absolute(index.file.path)
    previous = NO_TIMESTAMP
    for timestamp, relative in index:
        offset = index.base + relative
        entry = _ending_at_or_after(log, offsets.position_of(offset), offset)
        if entry is None or entry.header.last_offset != offset:
            findings.add(OFFSET_NOT_FOUND, path, offset, -1 if entry is None else entry.header.last_offset)
        else:
            latest = max((row.timestamp for row in rows(entry)), default=NO_TIMESTAMP)
            if latest != timestamp:
                findings.add(TIME_MISMATCH, path, timestamp, latest)
            if previous >= timestamp:
                findings.add(OUT_OF_ORDER, path, timestamp, previous)
        if not verify_only:
            output.time_entry(timestamp, offset)
        previous = timestamp


def _ending_at_or_after(log: Reader, position: int, offset: int) -> Entry | None:
    size = log.size
    if not 0 <= position <= size:
        raise Unreadable(f"Slice from position {position} exceeds end position of {log.path} ({size} bytes)")
    return next((entry for entry in entries(log, position, size) if entry.header.last_offset >= offset), None)


def dump_aborted(path: str, output: Output) -> None:
    """The aborted transactions in a `.txnindex`."""
    base_offset(path)
    with open(path, "rb") as file:
        while len(packed := file.read(_ABORTED.size)) == _ABORTED.size:
            entry = Aborted._make(_ABORTED.unpack(packed))
            if entry.version > 0:
                raise Unreadable(
                    f"Unexpected aborted transaction version {entry.version} in transaction index {absolute(path)}, "
                    "current version is 0"
                )
            output.aborted(entry)


def dump_snapshot(path: str, output: Output) -> None:
    """The producers in a `.snapshot`."""
    with open(path, "rb") as file:
        content = file.read()
    if len(content) < _SNAPSHOT_HEAD.size:
        raise Unreadable(f"Snapshot failed schema validation: {path} has {len(content)} bytes, too few for its header")
    version, checksum, count = _SNAPSHOT_HEAD.unpack_from(content)
    if not 0 <= count <= (len(content) - _SNAPSHOT_HEAD.size) // _SNAPSHOT_ENTRY.size:
        raise Unreadable(f"Snapshot failed schema validation: {path} has {len(content)} bytes, too few for {count} producers")
    if version != _SNAPSHOT_VERSION:
        raise Unreadable(f"Snapshot contained an unknown file version {version}")
    computed = crc32c(memoryview(content)[_CRC_FROM:])
    if computed != checksum:
        raise Unreadable(f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {checksum}. Computed crc: {computed}")
    for number in range(count):
        at = _SNAPSHOT_HEAD.size + number * _SNAPSHOT_ENTRY.size
        output.producer(SnapshotEntry._make(_SNAPSHOT_ENTRY.unpack_from(content, at)))
