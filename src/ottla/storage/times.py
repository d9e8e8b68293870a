"""Offsets by time: what ListOffsets asks. The time index narrows it to one segment and a few batches; one batch is opened.

May read from the disk: an answer for old data blocks. So it runs in threads, over segments that do not change
(`Segment.snapshot` of the active one). One that is deleted meanwhile is passed over: its records are gone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from ottla.records import kernel
from ottla.records.batch import MAGIC_V2, BatchHeader, payload, read_records
from ottla.storage.scan import walk
from ottla.storage.segment import Segment


class TimestampOffset(NamedTuple):
    """A record found by its time: the timestamp it has, its offset, and the leader epoch it was written under."""

    timestamp: int
    offset: int
    leader_epoch: int


def first_at_or_after(segments: Sequence[Segment], timestamp: int, start_offset: int) -> TimestampOffset | None:
    """The first record from `start_offset` on that is as new as `timestamp`."""
    for segment in segments:
        if segment.max_timestamp < timestamp:
            continue
        with suppress(FileNotFoundError):
            found = _first_of(segment, timestamp, start_offset)
            if found is not None:
                return found
    return None


def _first_of(segment: Segment, timestamp: int, start_offset: int) -> TimestampOffset | None:
    start = segment.offset_index.lookup(max(segment.time_index.lookup(timestamp), start_offset))
    file = segment.file
    for position, header in walk(file.fd, start, segment.size):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            found = _within(file.fd, position, header, timestamp, start_offset)
            if found is not None:
                return found
    return None


def newest(segments: Sequence[Segment], start_offset: int) -> TimestampOffset | None:
    """The first record with the largest timestamp of the log."""
    for segment in sorted(segments, key=lambda candidate: candidate.max_timestamp, reverse=True):
        with suppress(FileNotFoundError):
            found = _newest_of(segment, start_offset)
            if found is not None:
                return found
    return None


def _newest_of(segment: Segment, start_offset: int) -> TimestampOffset | None:
    timestamp = segment.max_timestamp
    file = segment.file
    for position, header in walk(file.fd, segment.offset_index.lookup(segment.offset_of_max_timestamp), segment.size):
        if header.max_timestamp == timestamp:
            found = _within(file.fd, position, header, timestamp, start_offset)
            if found is not None:
                return found
    return None


def _within(fd: int, position: int, header: BatchHeader, timestamp: int, start_offset: int) -> TimestampOffset | None:
    if not header.count:  # emptied by compaction, and kept for its producer's sequence
        return None
    if header.magic != MAGIC_V2 or header.is_log_append_time:  # one time for the whole batch
        return TimestampOffset(header.max_timestamp, max(header.base_offset, start_offset), header.leader_epoch)
    batch = os.pread(fd, header.size, position)
    if header.base_offset < start_offset:
        for record in read_records(batch, 0, header):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimestampOffset(record.timestamp, record.offset, header.leader_epoch)
        return None
    area = payload(batch, 0, header)
    found = kernel.first_at_or_after(area, 0, len(area), header.base_timestamp, header.count, timestamp)
    if found is None:
        return None
    delta, exact = found
    return TimestampOffset(exact, header.base_offset + delta, header.leader_epoch)
