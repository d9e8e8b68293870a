"""The files of one partition: its row of segments with what belongs to them, how they come and go, how they reach the
disk.

Guards: the segments follow each other without an overlap and the last one is active; `log_start_offset` never lies
beyond the end; no segment beyond the high watermark is deleted; after a sync that failed the recovery point stays where
it is until the next start recovers the log. What blocks for the disk is handed out as a job that a
thread may run (`flush_job`) or as paths in the deletion queue. `log.Log` adds what clients and followers do: appends
and reads.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ottla.clock import Clock
from ottla.model import Error, KafkaError, TopicPartition
from ottla.storage import checkpoints
from ottla.storage.cleaning import faults
from ottla.storage.deletion import DeletionQueue
from ottla.storage.flushing import FlushJob
from ottla.storage.log_config import MAX_LONG, LogConfig
from ottla.storage.producer_state import ProducerRebuild
from ottla.storage.producers import Producers
from ottla.storage.recovery import Opened
from ottla.storage.retention import deletable
from ottla.storage.segment import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX, Segment

log: Final = logging.getLogger("ottla.storage")

DELETE_DIR_SUFFIX: Final = "-delete"
_MAX_NAME: Final = 255


def deletion_path(directory: str, topic_partition: TopicPartition) -> str:
    """A name for a partition's directory that is to be deleted, unlike any other."""
    unique = f".{uuid.uuid4().hex}{DELETE_DIR_SUFFIX}"
    topic, partition = topic_partition
    name = f"{topic[: _MAX_NAME - len(unique) - len(str(partition)) - 1]}-{partition}{unique}"
    return os.path.join(os.path.dirname(directory), name)


class SegmentedLog:
    """One partition's log. Not for threads, except what says so."""

    __slots__ = (
        "_active",
        "_bases",
        "_clock",
        "_high_watermark",
        "_jitter",
        "_producer_state",
        "_producers",
        "_rebuild",
        "_segments",
        "_trash",
        "cleaned_to",
        "config",
        "cuts",
        "dir",
        "flush_failed",
        "last_flush_ms",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "recovery_point",
        "removals",
        "swaps",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        clock: Clock,
        *,
        opened: Opened,
        trash: DeletionQueue,
        jitter: Callable[[int], int],
    ) -> None:
        self.dir = directory
        self.topic_partition = topic_partition
        self.config = config
        self.leader_epochs = opened.epochs
        self.log_start_offset = opened.log_start_offset
        self.log_end_offset = opened.log_end_offset
        self.recovery_point = opened.recovery_point
        self.cleaned_to: int | None = None  # where the next compaction begins; None before the first
        self.swaps = (
            0  # how often cleaned segments took the place of others: a copy that began before may miss what explains it
        )
        self.removals = 0  # how often segments were taken away, cut or moved: a clean that began before is of no use
        self.cuts = 0
        """How often the end was cut off: a copy that began before may hold what is gone."""
        self.flush_failed = False
        self.last_flush_ms = clock.now_ms()
        self.topic_id = checkpoints.read_topic_id(directory)
        self._clock = clock
        self._segments = opened.segments
        self._bases = [segment.base_offset for segment in opened.segments]
        self._active = opened.segments[-1]
        self._producer_state = opened.producer_state
        self._producers = opened.producer_state.producers
        self._rebuild: ProducerRebuild | None = None
        self._high_watermark = opened.log_start_offset
        self._trash = trash
        self._jitter = jitter

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    # What it is

    @property
    def size(self) -> int:
        """Bytes of all its segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first; the last one is active."""
        return self._segments

    @property
    def producers(self) -> Producers:
        """Who wrote to it: sequences and open transactions."""
        return self._producers

    @property
    def high_watermark(self) -> int:
        """Up to where it is committed, as the partition last said."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        if self._producers.unstable:
            self._producers.high_watermark_moved(offset)

    @property
    def last_stable_offset(self) -> int:
        """Up to where a read_committed consumer may read: the high watermark, or the first open transaction below it."""
        if not self._producers.unstable:
            return self._high_watermark
        first = self._producers.first_unstable_offset
        # Of an open transaction the beginning may have been deleted.
        return self._high_watermark if first is None else min(max(first, self.log_start_offset), self._high_watermark)

    @property
    def flush_target(self) -> int:
        """Up to where a due flush goes: the end, or only the closed segments if nothing but a roll asks for it."""
        unflushed = self.log_end_offset - self.recovery_point
        overdue = self.config.flush_ms < MAX_LONG and self._clock.now_ms() - self.last_flush_ms >= self.config.flush_ms
        return self.log_end_offset if overdue or unflushed >= self.config.flush_messages else self._active.base_offset

    @property
    def needs_flush(self) -> bool:
        """Whether flush.messages, flush.ms or a segment that was rolled asks for a flush now."""
        return self.recovery_point < self.flush_target

    @property
    def starts_within_segment(self) -> bool:
        """Whether the log starts after its first segment does, so that only a checkpoint can say where."""
        return self.log_start_offset > self._bases[0]

    def write_topic_id(self, topic_id: bytes, *, sync: bool = False) -> None:
        """Name the topic that this partition belongs to."""
        if self.topic_id is not None and self.topic_id != topic_id:
            raise KafkaError(
                Error.INCONSISTENT_TOPIC_ID, f"{self.dir} belongs to topic id {checkpoints.encode_uuid(self.topic_id)}"
            )
        if self.topic_id is None:
            checkpoints.write_topic_id(self.dir, topic_id, sync=sync)
            self.topic_id = topic_id

    # Segments come and go

    def roll(self, base_offset: int | None = None) -> Segment:
        """Close the active segment and begin a new one at the log's end (a follower's may begin later).

        OSError leaves the log as it was: what can fail comes first, and an empty segment that nothing followed is taken
        away, as it would hide from recovery what is appended to the old one after all.
        """
        base = max(base_offset or 0, self.log_end_offset)
        active = self._active
        jitter = self._jitter(self.config.segment_jitter_ms)
        new = Segment.create(self.dir, base, self.config, self._clock.now_ms(), jitter_ms=jitter)
        if active.base_offset == base:  # nothing was written to it; the new one has its files, with indexes of today's size
            self._segments.pop()
            self._bases.pop()
        else:
            state = self._producer_state
            end_offset, state.end_offset = state.end_offset, base
            try:
                active.complete()
                state.take_snapshot()
            except OSError:
                state.end_offset = end_offset
                new.unlink()
                raise
            active.deactivate()
        self._active = new
        self._segments.append(new)
        self._bases.append(base)
        return new

    def apply_retention(self, now_ms: int) -> int:
        """Delete the segments that are too old, too many, or before the log's start; how many. Stops at the high watermark."""
        count, why = deletable(
            self._segments,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=self._high_watermark,
            log_end_offset=self.log_end_offset,
        )
        if not count:
            return 0
        if count == len(self._segments):
            self.roll()
        self._drop_oldest(count, why)
        self._start_at(self._segments[0].base_offset)
        return count

    def delete_records_before(self, offset: int) -> None:
        """Move the log's start up to `offset`, and delete the segments that lie before it."""
        if offset > self._high_watermark:
            raise KafkaError(
                Error.OFFSET_OUT_OF_RANGE,
                f"Cannot increment the log start offset to {offset} of partition {self.topic_partition} "
                f"since it is larger than the high watermark {self._high_watermark}",
            )
        self._start_at(offset)
        count = bisect_right(self._bases, self.log_start_offset) - 1
        if count > 0:
            self._drop_oldest(count, "its records were deleted")

    def _start_at(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)
            self._producer_state.log_start_moved(offset)

    def _drop_oldest(self, count: int, why: str) -> None:
        for segment in self._segments[:count]:
            log.info(
                "%s: deleting the segment at %d (%d bytes): %s", self.topic_partition, segment.base_offset, segment.size, why
            )
            self._retire(segment)
        del self._segments[:count]
        del self._bases[:count]
        self.removals += 1

    def _retire(self, segment: Segment) -> None:
        renamed = segment.rename(DELETED_SUFFIX) + self._producer_state.retire_snapshot(segment.base_offset)
        self._trash.add(renamed, self.config.file_delete_delay_ms)

    def swap_in(self, bases: Sequence[int], size: int) -> None:
        """Put the cleaned segment that lies beside the log in the place of those at `bases`, its neighbours.

        The order of the renames lets a start after a crash at any of them finish the swap or forget it (`recovery`). Readers
        in flight keep the file they have. OSError if a rename fails: then the directory is not what it should be.
        """
        first = bisect_left(self._bases, bases[0])
        old = self._segments[first : first + len(bases)]
        if [segment.base_offset for segment in old] != list(bases) or old[-1].active:
            raise ValueError(f"{self.topic_partition}: the segments at {list(bases)} are not what was cleaned")
        new = Segment(self.dir, bases[0], self.config, old[0].created_ms, size=size)
        new.load_indexes(CLEANED_SUFFIX)  # what can fail without harm comes first
        try:
            self._swap(old, new)
        except OSError as error:  # half of it is done: only a start can tell which half
            raise OSError(errno.EIO, f"a swap was interrupted ({error.strerror or error})", self.dir) from error
        self._segments[first : first + len(bases)] = [new]
        self._bases[first : first + len(bases)] = [new.base_offset]
        self.swaps += 1
        faults.reach("swapped")

    def _swap(self, old: Sequence[Segment], new: Segment) -> None:
        new.take_name(CLEANED_SUFFIX, SWAP_SUFFIX, partial(faults.reach, "half-named-swap"))
        faults.reach("named-swap")
        for segment in old:
            segment.replaced = True
        for segment in old:
            self._trash.add(segment.rename(DELETED_SUFFIX), self.config.file_delete_delay_ms)
            if segment is not old[0]:
                retired = self._producer_state.retire_snapshot(segment.base_offset)
                self._trash.add(retired, self.config.file_delete_delay_ms)
            faults.reach("half-old-gone")
        faults.reach("old-gone")
        new.take_name(SWAP_SUFFIX, "", partial(faults.reach, "half-swapped"))
        new.forget_file()  # a thread may have opened the old one under this name just before it went

    def truncate_to(self, offset: int) -> None:
        """Forget everything from `offset` on. May block."""
        self.cut(offset)
        self.rebuild_producers()

    def cut(self, offset: int) -> None:
        """Forget everything from `offset` on, all but what producers wrote there: until `producer_rebuild` was run in a thread
        and handed to `rebuilt`, or `rebuild_producers` was called, nothing may be appended."""
        if offset >= self.log_end_offset:
            self.leader_epochs.truncate_from_end(offset)
            return
        if offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return
        log.info("%s: truncating from %d to %d", self.topic_partition, self.log_end_offset, offset)
        self.removals += 1
        self.cuts += 1
        while self._segments[-1].base_offset > offset:
            self._retire(self._segments.pop())
            self._bases.pop()
        self._active = self._segments[-1]
        if not self._active.active:
            self._active.activate()
        self._active.truncate_to(offset)
        self.log_end_offset = offset
        self.leader_epochs.truncate_from_end(offset)
        self._moved_back()
        if self._producers.by_id:
            self._rebuild = ProducerRebuild(
                self._producer_state, tuple(self._segments), self.log_start_offset, offset, self._clock.now_ms()
            )
        else:
            self._producer_state.cut(offset)

    @property
    def producer_rebuild(self) -> ProducerRebuild | None:
        """What must be run, in a thread or here, before the next append; None where nothing must."""
        return self._rebuild

    def rebuilt(self, job: ProducerRebuild) -> None:
        """A rebuild has run. It counts unless the log was cut again meanwhile."""
        if self._rebuild is job:
            self._rebuild = None
            self._producer_state = job.state
            self._producers = job.state.producers
            self._producers.high_watermark_moved(self._high_watermark)

    def begin_rebuild(self) -> ProducerRebuild | None:
        """A rebuild for whoever runs it now: one that somebody else runs meanwhile counts no more. None where none is due."""
        if self._rebuild is None:
            return None
        job = self._rebuild = self._rebuild.anew()
        return job

    def rebuild_producers(self) -> None:
        """Make good at once what `cut` left open. May block."""
        job = self.begin_rebuild()
        if job is not None:
            job.run()
            self.rebuilt(job)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop the whole log and begin anew at `offset`."""
        self._rebuild = None
        log.info("%s: dropping the log and starting anew at %d", self.topic_partition, offset)
        self.removals += 1
        self.cuts += 1
        self.cleaned_to = None
        for segment in self._segments:
            self._retire(segment)
        self._active = Segment.create(self.dir, offset, self.config, self._clock.now_ms())
        self._segments = [self._active]
        self._bases = [offset]
        self.leader_epochs.clear()
        self._producer_state.restart_at(offset)
        self.log_start_offset = self.log_end_offset = self._high_watermark = self.recovery_point = offset

    def _moved_back(self) -> None:
        """The log's end moved back: nothing may point beyond it."""
        end = self.log_end_offset
        self.log_start_offset = min(self.log_start_offset, end)
        self.recovery_point = min(self.recovery_point, end)
        self._high_watermark = min(self._high_watermark, end)
        if self.cleaned_to is not None:
            self.cleaned_to = min(self.cleaned_to, end)

    # To the disk

    def flush_job(self, up_to: int | None = None) -> FlushJob | None:
        """What must be brought to the disk so that the recovery point may move to `up_to` (the log's end); None if nothing.

        None too once a sync has failed (`flush_failed`): nothing can make that good but a recovery. OSError if the files
        cannot be opened now.
        """
        target = self.log_end_offset if up_to is None else min(up_to, self.log_end_offset)
        self.last_flush_ms = self._clock.now_ms()
        if target <= self.recovery_point or self.flush_failed:
            return None
        first = max(bisect_right(self._bases, self.recovery_point) - 1, 0)
        touched = [segment for segment in self._segments[first:] if segment.base_offset < target]
        return FlushJob(touched, self.leader_epochs, self.recovery_point, target, self._sync_failed)

    def _sync_failed(self, path: str, error: OSError) -> None:
        """Called in the thread that ran a flush job."""
        if not self.flush_failed:
            self.flush_failed = True
            log.error(
                "%s: %s could not be brought to the disk: %s; nothing of the log after %d counts as flushed until a restart "
                "recovers it", self.topic_partition, path, error.strerror or error, self.recovery_point,
            )  # fmt: skip

    def flushed(self, job: FlushJob) -> None:
        """A flush job has run: the recovery point moves, unless the log was cut back meanwhile or another job failed."""
        if not self.flush_failed:
            self.recovery_point = max(self.recovery_point, min(job.up_to, self.log_end_offset))

    def flush(self, up_to: int | None = None) -> None:
        """Bring the log to the disk. Blocks. OSError if that fails or has failed."""
        job = self.flush_job(up_to)
        if job is not None:
            job.run()
            self.flushed(job)
        elif self.flush_failed:
            raise OSError(errno.EIO, "an earlier flush failed", self.dir)

    def expire_producers(self) -> int:
        """Forget the producers that were silent for producer.id.expiration.ms."""
        return self._producers.expire(self._clock.now_ms(), self._producer_state.expiration_ms)

    def close(self) -> None:
        """Flush, snapshot, trim the indexes: after this, and the clean-shutdown mark, nothing needs recovery. Blocks."""
        self.flush()
        self._producer_state.take_snapshot()
        self._active.complete()
        self._active.deactivate()
        for segment in self._segments:
            segment.forget_file()

    def rename_for_deletion(self) -> str:
        """Give the directory the name of one that is to be deleted, so that the partition may be created anew; the new path."""
        path = deletion_path(self.dir, self.topic_partition)
        self.rename(path)
        return path

    def rename(self, path: str) -> None:
        """Give the directory another name on the same disk."""
        os.rename(self.dir, path)
        self.removals += 1
        self._trash.moved(self.dir, path)
        self.dir = self._producer_state.directory = path
        self.leader_epochs.moved(path)
        for segment in self._segments:
            segment.moved(path)
