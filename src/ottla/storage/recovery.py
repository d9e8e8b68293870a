"""Opens the directory of a partition: what was left over is cleared, what is damaged is cut, what is missing is rebuilt.

After a clean stop nothing is scanned but the few batches behind the last index entry. After an unclean one every
segment from the recovery point on is read with its checksums, in chunks: the log is cut at the first byte that is not a
sound batch (reported by file and offset) and what follows is deleted, as Kafka does; indexes, leader epochs and
producers are rebuilt on the way. A checkpoint that speaks of more than the log holds is not believed: it may be of an
earlier topic of the same name, so nothing is deleted for its sake and everything is read. Everything here blocks: the
manager runs it in threads.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ottla.clock import Clock
from ottla.model import TopicPartition
from ottla.records.batch import MAGIC_V2
from ottla.records.errors import CorruptRecords
from ottla.storage.epochs import LeaderEpochs
from ottla.storage.log_config import MAX_INT, LogConfig
from ottla.storage.producer_state import ProducerState
from ottla.storage.scan import Damage, Scratch, verify, walk
from ottla.storage.segment import CLEANED_SUFFIX, DELETED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, Segment

log: Final = logging.getLogger("ottla.storage")

_SEGMENT_FILE: Final = re.compile(r"(\d+)(\.log|\.index|\.timeindex|\.txnindex)")
_PROGRESS_BYTES: Final = 1 << 30


@dataclass(slots=True)
class Opened:
    """A partition's directory, ready to be a log."""

    segments: list[Segment]
    epochs: LeaderEpochs
    producer_state: ProducerState
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


def open_directory(
    directory: str,
    partition: TopicPartition,
    config: LogConfig,
    clock: Clock,
    *,
    recovery_point: int,
    log_start_offset: int,
    clean_shutdown: bool,
    producer_expiration_ms: int,
    jitter: Callable[[int], int],
    fresh: bool = False,
) -> Opened:
    """Everything a log needs to begin; a `fresh` directory was made just now, and need not be looked through. Blocks."""
    if fresh:
        segment = Segment.create(
            directory, log_start_offset, config, clock.now_ms(), jitter_ms=jitter(config.segment_jitter_ms)
        )
        state = ProducerState(partition, directory, producer_expiration_ms)
        state.end_offset = log_start_offset
        epochs = LeaderEpochs(directory, fresh=True)
        return Opened([segment], epochs, state, log_start_offset, log_start_offset, log_start_offset)
    opening = _Opening(directory, partition, config, clock, producer_expiration_ms=producer_expiration_ms, jitter=jitter)
    return opening.run(recovery_point, log_start_offset, clean_shutdown)


class _Opening:
    """One run over one directory."""

    def __init__(
        self,
        directory: str,
        partition: TopicPartition,
        config: LogConfig,
        clock: Clock,
        *,
        producer_expiration_ms: int,
        jitter: Callable[[int], int],
    ) -> None:
        self.directory = directory
        self.partition = partition
        self.config = config
        self.clock = clock
        self.jitter = jitter
        self.expiration_ms = producer_expiration_ms
        self.epochs = LeaderEpochs(directory)
        self.segments: list[Segment] = []
        self.scratch: Scratch | None = None
        self.replayed: ProducerState | None = None
        self.log_start_offset = 0

    def run(self, recovery_point: int, log_start_offset: int, clean_shutdown: bool) -> Opened:
        clear_leftovers(self.directory)
        self._list_segments()
        self.log_start_offset = max(log_start_offset, self.segments[0].base_offset if self.segments else 0)
        flushed = len(self.segments) if clean_shutdown else self._first_unflushed(recovery_point)
        for segment in self.segments[:flushed]:
            self._load_indexes(segment)
        self._recover(flushed)
        end_offset = self._end_offset()
        if self.segments and (end_offset < self.log_start_offset or (end_offset < recovery_point and not clean_shutdown)):
            words = "%s: the log ends at %d, before its checkpointed start %d or recovery point %d; recovering all there is"
            log.warning(words, self.partition, end_offset, self.log_start_offset, recovery_point)
            self.log_start_offset = recovery_point = self.segments[0].base_offset
            clean_shutdown, self.replayed = False, None
            self._recover(0)
            end_offset = self._end_offset()
        if not self.segments:
            end_offset = self.log_start_offset
            self.segments = [self._create(end_offset)]
        else:
            self.segments[-1].activate()
        self.epochs.truncate_from_end(end_offset)
        self.epochs.truncate_from_start(self.log_start_offset)
        state = self._producer_state(end_offset)
        point = end_offset if clean_shutdown else min(recovery_point, end_offset)
        return Opened(self.segments, self.epochs, state, self.log_start_offset, end_offset, point)

    def _list_segments(self) -> None:
        names = os.listdir(self.directory)
        matches = [match for name in names if (match := _SEGMENT_FILE.fullmatch(name))]
        bases = {int(match[1]) for match in matches if match[2] == LOG_SUFFIX}
        for match in matches:
            if int(match[1]) not in bases:
                log.warning("%s: %s has no log file; removing it", self.partition, match[0])
                os.unlink(os.path.join(self.directory, match[0]))
        now = self.clock.now_ms()
        for base in sorted(bases):
            segment = Segment(self.directory, base, self.config, now, jitter_ms=self.jitter(self.config.segment_jitter_ms))
            segment.size = os.path.getsize(segment.path(LOG_SUFFIX))
            segment.created_ms = int(os.path.getmtime(segment.path(LOG_SUFFIX)) * 1000)
            self.segments.append(segment)

    def _create(self, base_offset: int) -> Segment:
        return Segment.create(
            self.directory, base_offset, self.config, self.clock.now_ms(), jitter_ms=self.jitter(self.config.segment_jitter_ms)
        )

    def _delete(self, segments: list[Segment]) -> None:
        for segment in segments:
            for path in segment.rename(DELETED_SUFFIX):
                os.unlink(path)

    def _load_indexes(self, segment: Segment) -> None:
        """A closed segment's indexes, rebuilt if they are missing or cannot be right."""
        try:
            segment.load_indexes()
        except FileNotFoundError as error:
            log.warning("%s: %s is missing; rebuilding the indexes of its segment", self.partition, error.filename)
        except ValueError as error:
            log.warning("%s: %s; rebuilding the indexes of its segment", self.partition, error)
        else:
            return
        self._recover_segment(segment)

    def _first_unflushed(self, recovery_point: int) -> int:
        """Which segment holds the recovery point."""
        return max((at for at, segment in enumerate(self.segments) if segment.base_offset <= recovery_point), default=0)

    def _recover(self, first: int) -> None:
        """Read the segments from number `first` on; cut at the first damage."""
        unflushed = self.segments[first:]
        total, done, next_report = sum(segment.size for segment in unflushed), 0, _PROGRESS_BYTES
        for at, segment in enumerate(unflushed, first):
            size = segment.size
            intact = self._recover_segment(segment)
            done += size
            if done >= next_report:
                log.info("%s: recovered %d of %d MB", self.partition, done >> 20, total >> 20)
                next_report = done + _PROGRESS_BYTES
            if not intact:
                rest = self.segments[at + 1 :]
                if rest:
                    log.warning(
                        "%s: deleting %d segments after the damage in %s", self.partition, len(rest), segment.path(LOG_SUFFIX)
                    )
                    self._delete(rest)
                    del self.segments[at + 1 :]
                return

    def _recover_segment(self, segment: Segment) -> bool:
        """Read a segment with its checksums and rebuild all that is derived from it; whether it was whole."""
        self.scratch = self.scratch or Scratch()
        state = self._state_at(segment)
        following = [other.base_offset for other in self.segments if other.base_offset > segment.base_offset]
        limit = min([segment.base_offset + MAX_INT + 1, *following])
        damage = rebuild_segment(segment, limit, self.config, state, self.epochs, self.scratch)
        state.take_snapshot()
        self.replayed = state
        return damage is None

    def _state_at(self, segment: Segment) -> ProducerState:
        """The producers as of the segment's beginning: those just replayed, else from a snapshot."""
        if self.replayed is not None and self.replayed.end_offset == segment.base_offset:
            return self.replayed
        before = [other for other in self.segments if other.base_offset < segment.base_offset]
        state = ProducerState(self.partition, self.directory, self.expiration_ms)
        state.rebuild(before, self.log_start_offset, segment.base_offset, self.clock.now_ms())
        return state

    def _end_offset(self) -> int:
        """The offset after the last batch. A tail that does not parse is recovered, whatever the last stop said of itself."""
        while self.segments:
            segment = self.segments[-1]
            try:
                end, position = segment.base_offset, segment.offset_index.last_position
                for at, header in walk(segment.file.fd, position, segment.size):
                    end, position = header.next_offset, at + header.size
                if position == segment.size:
                    return end
                reason = f"{segment.size - position} bytes at its end are no batch"
            except Damage as damage:
                reason = str(damage)
            log.warning("%s: %s: %s; recovering the segment", self.partition, segment.path(LOG_SUFFIX), reason)
            self._recover_segment(segment)
        return self.log_start_offset

    def _producer_state(self, end_offset: int) -> ProducerState:
        """The producers at the end of the log. A state that was replayed knows more of them than a snapshot."""
        state = self.replayed
        if state is None or state.end_offset != end_offset:
            state = ProducerState(self.partition, self.directory, self.expiration_ms)
            state.keep_snapshots_of(self.segments)
            state.rebuild(self.segments, self.log_start_offset, end_offset, self.clock.now_ms())
            state.refill(self.segments[-1])
        else:
            state.producers.expire(self.clock.now_ms(), self.expiration_ms)
            state.keep_snapshots_of(self.segments)
        return state


def rebuild_segment(
    segment: Segment, limit: int, config: LogConfig, state: ProducerState, epochs: LeaderEpochs, scratch: Scratch
) -> Damage | None:
    """Read a segment with its checksums, rebuild its indexes, replay epochs and producers; cut it where it is damaged.

    Offsets from `limit` on cannot be its own: they are outside the checksum, so they are held against their neighbours.
    Blocks. Returns the damage, None if the segment is whole.
    """
    path = segment.path(LOG_SUFFIX)
    for index in (segment.offset_index, segment.time_index, segment.aborted):
        index.reset()
    fd = segment.file.fd
    end, since, max_timestamp, offset_of_max, last = 0, 0, -1, segment.base_offset, segment.base_offset - 1
    damage: Damage | None = None
    try:
        for position, header in verify(fd, 0, segment.size, scratch):
            if (header.magic == MAGIC_V2 and header.base_offset <= last) or header.last_offset <= last:
                raise Damage(position, f"offset {header.base_offset} follows offset {last}")
            if header.last_offset >= limit:
                raise Damage(position, f"offset {header.last_offset} belongs to another segment")
            last = header.last_offset
            if header.max_timestamp > max_timestamp:
                max_timestamp, offset_of_max = header.max_timestamp, last
            if since > config.index_interval_bytes:
                segment.offset_index.append(last, position)
                segment.time_index.maybe_append(max_timestamp, offset_of_max)
                since = 0
            since += header.size
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
            completed = state.replay(header, lambda p=position, h=header: os.pread(fd, h.size, p))  # type: ignore[misc]
            if completed is not None and completed.aborted:
                segment.aborted.append(state.aborted(completed))
            end = position + header.size
    except Damage as found:
        damage = found
    except CorruptRecords as error:  # a marker that is no marker
        damage = Damage(end, str(error))
    if damage is not None:
        log.warning("%s: damaged %s (offset %d); cutting the last %d bytes", path, damage, last + 1, segment.size - end)
        os.truncate(path, end)
        segment.size = end
    segment.rebuilt(max_timestamp, offset_of_max)
    state.end_offset = last + 1
    return damage


def clear_leftovers(directory: str) -> None:
    """Finish or undo what a crash interrupted: deletions, cleanings, and swaps of cleaned segments. Blocks."""
    names = os.listdir(directory)
    for name in names:
        if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")):
            os.unlink(os.path.join(directory, name))
    # A swap is complete unless a cleaned file of the same or an earlier offset shows that a larger one was still under way.
    cleaned = [_offset(name) for name in names if name.endswith(CLEANED_SUFFIX)]
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    undone = [name for name in swaps if cleaned and _offset(name) >= min(cleaned)]
    for name in undone:
        os.unlink(os.path.join(directory, name))
    for name in sorted(set(swaps) - set(undone)):
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            _replace_range(directory, name)
    for name in sorted(set(swaps) - set(undone)):
        os.replace(os.path.join(directory, name), os.path.join(directory, name.removesuffix(SWAP_SUFFIX)))


def _offset(name: str) -> int:
    digits = name.split(".", 1)[0]
    return int(digits) if digits.isdigit() else 0


def _replace_range(directory: str, swap_name: str) -> None:
    """Delete the segments whose offsets the swapped-in one covers."""
    path = os.path.join(directory, swap_name)
    base, end = _offset(swap_name), _offset(swap_name) + 1
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _, header in walk(fd, 0, os.path.getsize(path)):
            end = header.next_offset
    finally:
        os.close(fd)
    for name in os.listdir(directory):
        match = _SEGMENT_FILE.fullmatch(name)
        if match and base <= int(match[1]) < end:
            os.unlink(os.path.join(directory, name))
