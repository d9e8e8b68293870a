"""One pass over one log: note the last offset of each key in its dirty section, then write anew what stays of the whole of it.

Guards: a record goes only if a later one of its key was noted, if it was aborted, or if it is a tombstone whose delete horizon
has passed; the last offset of every batch that stays is what it was; a batch is compressed anew only if a record of it went.
What cannot be read is `CorruptRecords` with file and offset, and nothing comes of the pass. Runs in the worker: all of it
blocks. Old files are only read; what is written are `.cleaned` files, which the broker swaps in.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from ottla.records import legacy
from ottla.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    MAGIC_V2,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ControlType,
    assemble,
    build,
    crc_ok,
    encode_records,
    payload,
    read_header,
    read_marker,
    read_records,
)
from ottla.records.codecs import Codec, compress
from ottla.records.errors import CorruptRecords
from ottla.records.offset_map import FULL, SPECIAL, OffsetMap
from ottla.storage.cleaning import faults
from ottla.storage.cleaning.job import Job
from ottla.storage.cleaning.policy import Source, groups
from ottla.storage.cleaning.target import CleanedSegment
from ottla.storage.cleaning.transactions import CleanedTransactions
from ottla.storage.log_config import MAX_LONG
from ottla.storage.scan import header_at
from ottla.storage.segment import LOG_SUFFIX, file_name

_LEAST_BUFFER: Final = 64 * 1024
_READ_BYTES: Final = 128 * 1024  # at once: the core is held until the kernel has copied them
_MOST_BUFFER: Final = 1 << 30
_GROWTH: Final = 3  # how much longer a batch may get when its timestamps are written anew
_KEPT_ATTRIBUTES: Final = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
_LEAST_ENTRY: Final = 26


class Written(NamedTuple):
    """A cleaned segment that is on the disk, and the segments it is to replace."""

    bases: tuple[int, ...]
    size: int


class Chunk:
    """The bytes of a segment at hand, in a buffer that is used again and again."""

    __slots__ = ("buffer", "filled", "view")

    def __init__(self, size: int) -> None:
        self.filled = 0
        self.make(size)

    def make(self, size: int) -> None:
        """A buffer of another size."""
        self.buffer = bytearray(size)
        self.view = memoryview(self.buffer)

    def fill(self, fd: int, position: int, end: int) -> None:
        """Read on from `position`."""
        self.filled = 0
        wanted = min(len(self.buffer), end - position)
        while self.filled < wanted:
            step = min(wanted, self.filled + _READ_BYTES)
            count = os.preadv(fd, [self.view[self.filled : step]], position + self.filled)
            if not count:
                break
            self.filled += count


class Pass:
    """One pass. `run` once; then `end`, `read` and `written` say what it came to."""

    __slots__ = ("_chunk", "_empty_offsets", "_horizon", "_job", "_kept_empty", "_map", "_markers", "_out", "_out_at", "_spend",
                 "_target", "_transactions", "end", "read", "written")  # fmt: skip

    def __init__(self, job: Job, spend: Callable[[int], None], offset_map: OffsetMap) -> None:
        """`spend` is told of every byte read or written; it may wait, or end the pass by raising."""
        self._job = job
        self._spend = spend
        self._map = offset_map
        self._chunk = Chunk(min(max(job.buffer_bytes, _LEAST_BUFFER), _MOST_BUFFER))
        self._out = bytearray()
        self._out_at = 0
        self._horizon = min(job.now_ms + job.delete_retention_ms, MAX_LONG)
        self._kept_empty = array("q", job.last_offsets)
        self._empty_offsets = frozenset(job.last_offsets)
        self._markers = frozenset(job.marker_epochs)
        self._transactions = CleanedTransactions(job.aborted)
        self._target: CleanedSegment | None = None
        self.end = job.first_dirty
        self.read = 0
        self.written = 0

    @property
    def keys(self) -> int:
        """How many keys the dirty section has."""
        return len(self._map)

    @property
    def memory(self) -> int:
        """What the map takes."""
        return self._map.memory

    def run(self) -> Iterator[Written]:
        """Clean; each segment that is ready is told at once."""
        self._index()
        self.end = self._map.latest + 1
        self._map.settle(self._job.first_dirty)
        faults.reach("map-built")
        sources = [source for source in self._job.sources if source.base_offset < self.end]
        limits = {"segment_bytes": self._job.segment_bytes, "index_bytes": self._job.index_bytes}
        after_last = self._next_base(sources[-1]) if sources else self.end
        self._transactions = CleanedTransactions(self._job.aborted)
        for group in groups(sources, end=after_last, **limits):
            yield self._rewrite(group)
            faults.reach("group-told")

    def _next_base(self, source: Source) -> int:
        later = (one.base_offset for one in self._job.sources if one.base_offset > source.base_offset)
        return next(later, self._job.end)

    # Walking

    def _walk(self, source: Source, step: Callable[[int, int], tuple[int, int, bool]]) -> bool:
        """Lead `step` over the chunks of a segment; true if it had enough before the end.

        It gets the last offset so far and the one that no batch may reach; it gives how many bytes it took, and where it is.
        """
        path = os.path.join(self._job.directory, file_name(source.base_offset, LOG_SUFFIX))
        chunk, limit = self._chunk, self._next_base(source)
        position, after = 0, source.base_offset - 1
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while position < source.size:
                chunk.fill(fd, position, source.size)
                self._spend(chunk.filled)
                self.read += chunk.filled
                taken, after, enough = step(after, limit)
                position += taken
                if enough:
                    return True
                if not taken:
                    self._make_room(position, source.size)
            return False
        except (ValueError, CorruptRecords) as error:
            raise CorruptRecords(f"{path}: at or after byte {position}: {error}") from None
        finally:
            os.close(fd)

    def _make_room(self, position: int, end: int) -> None:
        """A batch did not fit into the chunk: get a larger one, unless the file ends within it."""
        chunk = self._chunk
        if chunk.filled < _LEAST_ENTRY:
            raise CorruptRecords(f"{chunk.filled} bytes are too few for a batch")
        size = header_at(chunk.view[: chunk.filled], 0).size
        if size > end - position or size <= chunk.filled:
            raise CorruptRecords(f"a batch of {size} bytes of which {end - position} are there")
        chunk.make(size)

    def _checked(self, at: int, after: int, limit: int) -> BatchHeader:
        """The header of the whole batch at `at`, if it can be believed."""
        header = header_at(self._chunk.view, at)
        if header.last_offset_delta < 0 or header.last_offset <= after or header.last_offset >= limit:
            offsets = f"{header.base_offset} to {header.last_offset}"
            raise CorruptRecords(f"a batch with the offsets {offsets} between {after} and {limit}")
        if header.magic == MAGIC_V2:
            if header.base_offset <= after:
                raise CorruptRecords(f"offset {header.base_offset} follows offset {after}")
            if not crc_ok(self._chunk.view, at, header):
                raise CorruptRecords(f"the checksum of the batch at offset {header.base_offset} is wrong")
        return header

    # The map

    def _index(self) -> None:
        """Note the keys of the dirty section, as far as the map has room."""
        job = self._job
        self._map.latest = job.first_dirty - 1
        for source in job.sources:
            next_base = self._next_base(source)
            if next_base <= job.first_dirty:
                continue
            if self._walk(source, self._index_chunk):
                return
            self._map.note(next_base - 1)

    def _index_chunk(self, after: int, limit: int) -> tuple[int, int, bool]:
        chunk, first_dirty, at = self._chunk, self._job.first_dirty, 0
        while True:
            at, after, why = self._map.put_batches(chunk.buffer, at, chunk.filled, after, limit, first_dirty, crc32c)
            if why != SPECIAL:
                return at, after, why == FULL
            header = self._checked(at, after, limit)
            if not self._index_one(at, header):
                return at, after, True
            after = header.last_offset
            if after >= first_dirty:
                self._map.note(after)
            at += header.size

    def _index_one(self, at: int, header: BatchHeader) -> bool:
        """Note one batch; false if there is no room."""
        view: memoryview | bytes = self._chunk.view[at : at + header.size]
        if header.magic != MAGIC_V2:
            view = _modern(view)
            header = read_header(view)
        if header.is_control:
            self._transactions.ends(header, _outcome(view, header))
            return True
        if self._transactions.is_aborted(header) or not header.count:
            return True
        area = payload(view, 0, header)
        return self._map.put_all(area, header.base_offset, header.count, header.last_offset_delta, self._job.first_dirty)

    # Rewriting

    def _rewrite(self, group: list[Source]) -> Written:
        job = self._job
        last = os.path.join(job.directory, file_name(group[-1].base_offset, LOG_SUFFIX))
        target = self._target = CleanedSegment(job.directory, group[0].base_offset, job.index_bytes, job.index_interval_bytes)
        try:
            faults.reach("cleaned-begun")
            for source in group:
                self._walk(source, self._rewrite_chunk)
            self._flush()
            faults.reach("cleaned-written")
            target.complete(os.stat(last).st_mtime_ns)
        except Exception:
            target.close()
            target.unlink()
            raise
        faults.reach("cleaned-synced")
        self._target = None
        return Written(tuple(source.base_offset for source in group), target.size)

    def _rewrite_chunk(self, after: int, limit: int) -> tuple[int, int, bool]:
        chunk, job, at = self._chunk, self._job, 0
        if len(self._out) < len(chunk.buffer) * _GROWTH + HEADER_SIZE:
            self._flush()
            self._out = bytearray(len(chunk.buffer) * _GROWTH + HEADER_SIZE)
        while True:
            at, self._out_at, after, why = self._map.filter_batches(
                chunk.buffer, at, chunk.filled, self._out, self._out_at, after, limit, job.now_ms, self._horizon,
                self._kept_empty, crc32c,
            )  # fmt: skip
            if why == FULL:
                self._flush()
            elif why == SPECIAL:
                header = self._checked(at, after, limit)
                stays = self._rewrite_one(at, header)
                if stays is not None:
                    self._put(stays)
                after = header.last_offset
                at += header.size
            else:
                if self._out_at >= len(chunk.buffer):
                    self._flush()
                return at, after, False

    def _put(self, batch: bytes | memoryview) -> None:
        if len(batch) > len(self._out) - self._out_at:
            self._flush()
        assert self._target is not None
        if len(batch) > len(self._out):
            self._spend(len(batch))
            self._target.append(memoryview(batch))
            self.written += len(batch)
            return
        self._out[self._out_at : self._out_at + len(batch)] = batch
        self._out_at += len(batch)

    def _flush(self) -> None:
        if self._out_at:
            assert self._target is not None
            self._spend(self._out_at)
            with memoryview(self._out) as view:
                self._target.append(view[: self._out_at])
            self.written += self._out_at
            self._out_at = 0

    def _rewrite_one(self, at: int, header: BatchHeader) -> bytes | memoryview | None:
        """What stays of a batch that is not plain."""
        view: memoryview | bytes = self._chunk.view[at : at + header.size]
        if header.magic != MAGIC_V2:
            view = _modern(view)
            header = read_header(view)
        if header.is_control:
            return self._rewrite_control(view, header)
        if self._transactions.is_aborted(header) or not self._map.holds_any(header.base_offset, header.last_offset):
            return self._without_records(header)
        horizon = -1 if header.delete_horizon is not None else self._horizon
        gone = header.delete_horizon is not None and header.delete_horizon <= self._job.now_ms
        area = payload(view, 0, header) if header.count else b""
        stays, count, newest, tombstones = self._map.retain(
            area, header.base_offset, header.base_timestamp, header.count, header.last_offset_delta, gone, horizon
        )
        if not count:
            return self._without_records(header)
        if stays is None:
            return view
        attributes, base_timestamp = header.attributes, header.base_timestamp
        if tombstones and horizon >= 0:
            attributes, base_timestamp = attributes | DELETE_HORIZON_BIT, horizon
        codec = Codec(header.attributes & CODEC_MASK)
        newest = header.max_timestamp if header.is_log_append_time else newest
        changed = header._replace(attributes=attributes, base_timestamp=base_timestamp, max_timestamp=newest, count=count)
        return assemble(changed, compress(codec, stays) if codec else stays)

    def _rewrite_control(self, view: memoryview | bytes, header: BatchHeader) -> bytes | memoryview | None:
        needless, aborted = self._transactions.ends(header, _outcome(view, header))
        if aborted is not None:
            assert self._target is not None
            self._target.aborted(aborted)
        if not header.count:
            return self._without_records(header)
        if not needless:
            return view
        if header.delete_horizon is None:  # from now on it waits for its time, like a tombstone
            records = read_records(view, 0, header)
            if any(record.timestamp - self._horizon < -MAX_LONG for record in records):
                return view  # a time that cannot be counted from the horizon: it stays
            area = encode_records(records, header.base_offset, self._horizon)
            attributes = header.attributes & ~CODEC_MASK | DELETE_HORIZON_BIT
            return assemble(header._replace(attributes=attributes, base_timestamp=self._horizon), area)
        return self._without_records(header) if header.delete_horizon <= self._job.now_ms else view

    def _without_records(self, header: BatchHeader) -> bytes | None:
        """The empty batch that keeps a producer's last sequence or epoch; None where nobody needs that."""
        if header.is_control:
            kept = (header.producer_id, header.producer_epoch) in self._markers
        else:
            kept = header.last_offset in self._empty_offsets
        if not kept:
            return None
        attributes = header.attributes & _KEPT_ATTRIBUTES
        return assemble(header._replace(attributes=attributes, base_timestamp=-1, count=0), b"")


def _outcome(view: memoryview | bytes, header: BatchHeader) -> ControlType | None:
    marker = read_marker(view, 0, header) if header.count else None
    return None if marker is None else marker.type


def _modern(entry: memoryview | bytes) -> bytes:
    """An entry of format v0 or v1 as a v2 batch with the same offsets: what is written anew is written in today's format."""
    (opened,) = legacy.read_entries(entry)
    return build(
        opened.records,
        base_offset=opened.records[0].offset,
        codec=opened.codec,
        timestamp_type=opened.timestamp_type,
    )
