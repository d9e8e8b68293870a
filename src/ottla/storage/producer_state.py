"""The producers of a log together with their snapshots on the disk: loaded, replayed, written, dropped.

Guards: the producers in memory are those of the log up to `end_offset`. A snapshot is taken where a segment begins and
where the log was closed; after a restart the latest one that is sound is loaded and the batches after it are replayed.
A snapshot holds one batch for each producer; `refill` finds the four before it in the log, so that a client whose last
requests went unanswered may repeat all of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ottla.model import TopicPartition
from ottla.records.batch import MAGIC_V2, BatchHeader, read_marker
from ottla.storage import snapshots
from ottla.storage.aborted import AbortedTransaction
from ottla.storage.producers import CompletedTransaction, Producers, SentBatch, expired
from ottla.storage.scan import walk
from ottla.storage.segment import DELETED_SUFFIX, Segment, file_name
from ottla.storage.snapshots import SNAPSHOT_SUFFIX, CorruptSnapshot

log: Final = logging.getLogger("ottla.storage")

_REFILL_BYTES: Final = 1024 * 1024


class ProducerState:
    """`producers` as of `end_offset`, and the snapshots beside the log."""

    __slots__ = ("_partition", "directory", "end_offset", "expiration_ms", "producers", "snapshot_offset")

    def __init__(self, partition: TopicPartition, directory: str, expiration_ms: int) -> None:
        self._partition = partition
        self.directory = directory
        self.expiration_ms = expiration_ms
        self.producers = Producers(partition)
        self.end_offset = 0
        self.snapshot_offset = 0

    def _path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def replay(self, header: BatchHeader, read_batch: Callable[[], bytes]) -> CompletedTransaction | None:
        """Remember a batch that is in the log; the transaction that it ended. Only a marker is opened."""
        if header.producer_id < 0 or header.magic != MAGIC_V2:
            return None
        if not header.is_control:
            self.producers.record(header, header.base_offset, header.max_timestamp)
            return None
        if not header.count:  # cleaned away with its whole transaction
            return None
        marker = read_marker(read_batch(), 0, header)
        return self.producers.record_marker(header, marker, header.base_offset, header.max_timestamp) if marker else None

    def aborted(self, completed: CompletedTransaction) -> AbortedTransaction:
        """What the transaction index says of an aborted transaction."""
        stable = self.producers.stable_after(completed)
        return AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, stable)

    # Snapshots

    def take_snapshot(self) -> None:
        """Write what is known as of `end_offset`, unless that was done."""
        if self.end_offset > self.snapshot_offset:
            snapshots.write(self._path(self.end_offset), list(self.producers.by_id.values()))
            self.snapshot_offset = self.end_offset

    def rebuild(self, segments: Sequence[Segment], log_start_offset: int, end_offset: int, now_ms: int) -> None:
        """Producers as of `end_offset`, from the latest sound snapshot and the batches after it. Blocks."""
        if end_offset != self.end_offset or not self.producers.by_id:
            self._drop(offset for offset in snapshots.offsets(self.directory) if not log_start_offset < offset <= end_offset)
            self._load(log_start_offset, now_ms)
        for at, segment in enumerate(segments):
            end = segments[at + 1].base_offset if at + 1 < len(segments) else end_offset
            if end <= self.end_offset or segment.base_offset >= end_offset:
                continue
            if segment.base_offset >= self.end_offset:
                self.end_offset = segment.base_offset
                self.take_snapshot()
            self._replay_segment(segment, self.end_offset, end_offset)
            self.end_offset = min(end, end_offset)
        self.end_offset = end_offset

    def _replay_segment(self, segment: Segment, start: int, end: int) -> None:
        fd = segment.file.fd
        for position, header in walk(fd, segment.offset_index.lookup(start), segment.size):
            if header.base_offset >= end:
                break
            if header.base_offset >= start:
                self.replay(header, lambda p=position, h=header: os.pread(fd, h.size, p))  # type: ignore[misc]

    def _load(self, log_start_offset: int, now_ms: int) -> None:
        self.producers.clear()
        for offset in reversed(snapshots.offsets(self.directory)):
            try:
                found = snapshots.read(self._path(offset))
            except (CorruptSnapshot, OSError) as error:
                log.warning("%s: dropping a producer snapshot that cannot be read: %s", self._partition, error)
                self._drop([offset])
                continue
            for producer in found:
                if not expired(producer, now_ms, self.expiration_ms):
                    self.producers.add(producer)
            self.end_offset = self.snapshot_offset = offset
            return
        self.end_offset = self.snapshot_offset = log_start_offset

    def refill(self, segment: Segment) -> None:
        """The batches before each producer's last one, as far as the tail of the active segment shows them. Blocks."""
        if not self.producers.by_id:
            return
        found: dict[int, list[SentBatch]] = {}
        start = segment.offset_index.at_or_before_position(max(segment.size - _REFILL_BYTES, 0))
        for _, header in walk(segment.file.fd, start, segment.size):
            producer = self.producers.by_id.get(header.producer_id)
            if producer is not None and producer.epoch == header.producer_epoch and not header.is_control:
                sent = SentBatch(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)
                found.setdefault(header.producer_id, []).append(sent)
        for producer_id, batches in found.items():
            self.producers.by_id[producer_id].remember(batches)

    def keep_snapshots_of(self, segments: Sequence[Segment]) -> None:
        """Drop the snapshots that belong to no segment, except the latest if it lies beyond all of them."""
        bases = {segment.base_offset for segment in segments}
        strays = [offset for offset in snapshots.offsets(self.directory) if offset not in bases]
        if strays and strays[-1] > max(bases, default=-1):
            strays.pop()
        self._drop(strays)

    def _drop(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(offset))

    def retire_snapshot(self, offset: int) -> list[str]:
        """The snapshot of a segment that is being deleted, renamed like it; its new name."""
        path = self._path(offset)
        try:
            os.rename(path, path + DELETED_SUFFIX)
        except FileNotFoundError:
            return []
        return [path + DELETED_SUFFIX]

    def cut(self, offset: int) -> None:
        """The log ends at `offset` now, and no producer is known that wrote to it."""
        self._drop(found for found in snapshots.offsets(self.directory) if found > offset)
        self.end_offset, self.snapshot_offset = offset, min(self.snapshot_offset, offset)

    def restart_at(self, offset: int) -> None:
        """Forget all: the log starts anew at `offset`."""
        self._drop(snapshots.offsets(self.directory))
        self.producers.clear()
        self.end_offset = self.snapshot_offset = offset

    def log_start_moved(self, log_start_offset: int) -> None:
        self.producers.log_start_moved(log_start_offset)
        self.end_offset = max(self.end_offset, log_start_offset)


class ProducerRebuild:
    """The producers of a log that was cut, found again from a snapshot and the batches after it.

    Works beside the log, on what it was when it was cut: a long segment must not stop everybody else. `run` blocks: safe in a
    thread, once, while nothing is appended to the log.
    """

    __slots__ = ("_end", "_now_ms", "_segments", "_start", "state")

    def __init__(self, before: ProducerState, segments: Sequence[Segment], start: int, end: int, now_ms: int) -> None:
        self.state = ProducerState(before._partition, before.directory, before.expiration_ms)
        self._segments = segments
        self._start = start
        self._end = end
        self._now_ms = now_ms

    def anew(self) -> ProducerRebuild:
        """The same work for another runner: this one may be under way in a thread that nobody can stop."""
        return ProducerRebuild(self.state, self._segments, self._start, self._end, self._now_ms)

    def run(self) -> None:
        self.state.rebuild(self._segments, self._start, self._end, self._now_ms)
