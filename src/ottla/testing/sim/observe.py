"""Watches the brokers from the inside, for what no client can see: who wrote as leader, and what came under a high watermark.

While it is installed, a `Watch` sits between the logs of all brokers and whoever uses them. It changes nothing; what it sees
goes into the history, and it knows up to where each partition was ever committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ottla.model import TopicPartition
from ottla.records.batch import HEADER_SIZE, read_header
from ottla.storage.log import Log
from ottla.storage.segments import SegmentedLog
from ottla.testing.sim.history import Appended, Committed, History
from ottla.testing.sim.loop import SimLoop, current_process


class Watch:
    """What the simulation saw of the logs."""

    def __init__(self, loop: SimLoop, history: History) -> None:
        self.committed: dict[TopicPartition, int] = {}
        """Up to where each partition was ever committed, by the word of any broker."""
        self._loop = loop
        self._history = history
        self._seen: dict[tuple[str, TopicPartition], int] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """See every log of this process."""
        real_append = Log.append_as_leader
        real_mark: Any = SegmentedLog.high_watermark
        watch = self

        def append_as_leader(log: Log, records: memoryview, leader_epoch: int, **options: Any) -> Any:
            info = real_append(log, records, leader_epoch, **options)
            if not info.duplicate:
                watch.appended(log, leader_epoch, info.first_offset, info.last_offset)
            return info

        def set_mark(log: SegmentedLog, offset: int) -> None:
            real_mark.fset(log, offset)
            watch.marked(log, offset)

        Log.append_as_leader = append_as_leader  # type: ignore[method-assign,assignment]
        SegmentedLog.high_watermark = property(real_mark.fget, set_mark)  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            Log.append_as_leader = real_append  # type: ignore[method-assign]
            SegmentedLog.high_watermark = real_mark  # type: ignore[method-assign]

    def appended(self, log: Log, leader_epoch: int, first: int, last: int) -> None:
        """A leader wrote."""
        process = current_process()
        broker = process.number if process is not None else -1
        self._history.add(Appended(self._loop.time(), broker, log.topic_partition, leader_epoch, first, last))

    def marked(self, log: SegmentedLog, offset: int) -> None:
        """A high watermark moved: what came under it is written down."""
        tp, broker = log.topic_partition, str(current_process())
        seen = self._seen.get((broker, tp), log.log_start_offset)
        if offset <= seen:
            return
        self._seen[broker, tp] = offset
        self.committed[tp] = max(offset, self.committed.get(tp, 0))
        for base, last, epoch, checksum in _batches(log, seen, offset):
            self._history.add(Committed(self._loop.time(), broker, tp, base, last, epoch, checksum))


def _batches(log: SegmentedLog, first: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The batches of a log between two offsets: base and last offset, epoch, checksum."""
    for segment in log.segments:
        if segment.base_offset >= end:
            return
        if segment is not log.segments[-1] and _next_base(log, segment.base_offset) <= first:
            continue
        found = segment.position_of(first) if first > segment.base_offset else (0, 0)
        if found is None:
            continue
        position = found[0]
        while position + HEADER_SIZE <= segment.size:
            header = read_header(os.pread(segment.file.fd, HEADER_SIZE, position))
            if header.base_offset >= end:
                return
            if header.last_offset >= first:
                yield header.base_offset, header.last_offset, header.leader_epoch, header.crc
            position += header.size


def _next_base(log: SegmentedLog, base: int) -> int:
    return min(other.base_offset for other in log.segments if other.base_offset > base)
