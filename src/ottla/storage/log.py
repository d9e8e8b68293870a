"""The log of one partition: what its leader and its coordinators append, what consumers and followers read.

Guards: offsets only rise, and every batch is written once, whole, by one call. A read never leaves log_start..log_end
and never passes the limit that its caller sets. The high watermark is moved by the partition and decides nothing here
but retention and the last stable offset. Life: `Log.open` (recovers, blocks), then on the broker's loop, then `close`
or `rename_for_deletion`.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from ottla.clock import Clock
from ottla.model import NO_TIMESTAMP, Error, KafkaError, TopicPartition
from ottla.records.batch import CONTROL_BIT, LOG_OVERHEAD, EndTransactionMarker, patch, read_marker
from ottla.storage import times
from ottla.storage.aborted import AbortedTransaction
from ottla.storage.append import AppendInfo, Origin, Prepared, prepare, whole_batches
from ottla.storage.deletion import DeletionQueue
from ottla.storage.log_config import MAX_LONG, LogConfig
from ottla.storage.recovery import Opened, open_directory
from ottla.storage.scan import Damage
from ottla.storage.segment import Segment
from ottla.storage.segments import SegmentedLog
from ottla.storage.slices import FileSlice, NotCached
from ottla.storage.times import TimestampOffset

log: Final = logging.getLogger("ottla.storage")

_SEARCHES: Final = 100
"""How often a search by time begins anew because what it looked at was cleaned away under it."""


def _no_jitter(_bound: int) -> int:
    return 0


class Log(SegmentedLog):
    """One partition's log. Not for threads, except what says so."""

    __slots__ = ("_on_io_error",)

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
        on_io_error: Callable[[Log, OSError], None] | None,
    ) -> None:
        super().__init__(directory, topic_partition, config, clock, opened=opened, trash=trash, jitter=jitter)
        self._on_io_error = on_io_error

    @classmethod
    def open(
        cls,
        dir: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        clock: Clock,
        *,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean_shutdown: bool = False,
        producer_expiration_ms: int = 86_400_000,
        trash: DeletionQueue | None = None,
        jitter: Callable[[int], int] = _no_jitter,
        on_io_error: Callable[[Log, OSError], None] | None = None,
    ) -> Log:
        """Open a partition's directory, recovering what an unclean stop left. Blocks: safe in a thread."""
        try:
            os.mkdir(dir)
            fresh = True
        except FileExistsError:
            fresh = False
        except FileNotFoundError:
            os.makedirs(dir, exist_ok=True)
            fresh = False
        opened = open_directory(
            dir,
            topic_partition,
            config,
            clock,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean_shutdown=clean_shutdown,
            producer_expiration_ms=producer_expiration_ms,
            jitter=jitter,
            fresh=fresh,
        )
        queue = trash if trash is not None else DeletionQueue(clock)
        return cls(dir, topic_partition, config, clock, opened=opened, trash=queue, jitter=jitter, on_io_error=on_io_error)

    # Appending

    def append_as_leader(
        self, records: memoryview, leader_epoch: int, *, origin: Origin = Origin.CLIENT, api_version: int | None = None
    ) -> AppendInfo:
        """Check, number and write what a producer or a coordinator sent. Raises KafkaError with what Kafka answers.

        A writable buffer is changed in place. If it raises, the log holds what it held.
        """
        config = self.config
        ready = prepare(records, config, self._clock, origin, api_version)
        records, headers = ready.records, ready.headers
        header = headers[0]
        size = len(records)
        if size > config.segment_bytes:
            raise KafkaError(
                Error.RECORD_LIST_TOO_LARGE,
                f"Message batch size is {size} bytes in append to partition {self.topic_partition}, "
                f"which exceeds the maximum configured segment size of {config.segment_bytes}.",
            )
        first_offset = self.log_end_offset
        last_offset = first_offset + header.last_offset_delta
        max_timestamp = header.max_timestamp
        offset_of_max = last_offset
        batches: list[tuple[int, int]] | None = None
        if len(headers) > 1:
            last_offset, max_timestamp, offset_of_max, batches = _number(ready, first_offset, leader_epoch)
        else:
            patch(records, 0, first_offset, leader_epoch)
        active = self._active
        if active.should_roll(config, self._clock, size, max_timestamp, last_offset):
            active = self._rolled(first_offset)
        marker: EndTransactionMarker | None = None
        producer_id = header.producer_id
        control = header.attributes & CONTROL_BIT
        if producer_id >= 0:
            if control:
                marker = read_marker(records, 0, header)
                if marker is not None:
                    self._producers.check_marker(header, marker, first_offset)
            else:
                sent = self._producers.check(header, first_offset, sequences=origin is Origin.CLIENT)
                if sent is not None:
                    return AppendInfo(
                        sent.first_offset,
                        sent.last_offset,
                        sent.timestamp,
                        self.log_start_offset,
                        0,
                        leader_epoch,
                        sent.timestamp,
                        True,
                        sent.last_offset >= self.recovery_point and config.flush_messages < MAX_LONG,
                    )
        try:
            active.append(
                records, first_offset, last_offset, max_timestamp, offset_of_max, config.index_interval_bytes, batches
            )
        except OSError as error:
            raise self._failed(active, error) from error
        self.log_end_offset = end = last_offset + 1
        if leader_epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, first_offset)
        state = self._producer_state
        if producer_id >= 0:
            if marker is not None:
                completed = self._producers.record_marker(header, marker, first_offset, max_timestamp)
                if completed is not None and completed.aborted:
                    active.aborted.append(state.aborted(completed))
            elif not control:
                self._producers.record(header, first_offset, max_timestamp)
        state.end_offset = end
        return AppendInfo(
            first_offset,
            last_offset,
            ready.log_append_time,
            self.log_start_offset,
            size,
            leader_epoch,
            max_timestamp,
            False,
            end - self.recovery_point >= config.flush_messages,
        )

    def append_as_follower(self, records: memoryview) -> AppendInfo:
        """Write what the leader sent, with its offsets and epochs. A batch that is cut off at the end is left out."""
        records, headers = whole_batches(records)
        if not headers:
            return AppendInfo(-1, -1, NO_TIMESTAMP, self.log_start_offset, 0, -1, NO_TIMESTAMP)
        if self._rebuild is not None:
            self.rebuild_producers()
        expected = self.log_end_offset
        batches: list[tuple[int, int]] = []
        position, max_timestamp, offset_of_max, last = 0, NO_TIMESTAMP, -1, -1
        for header in headers:
            if header.base_offset < expected:
                raise KafkaError(
                    Error.UNKNOWN_SERVER_ERROR,
                    f"Unexpected offset in append to {self.topic_partition}: {header.base_offset} is less than the next offset "
                    f"{expected}",
                )
            last = header.base_offset + header.last_offset_delta
            expected = last + 1
            if header.max_timestamp > max_timestamp or offset_of_max < 0:
                max_timestamp, offset_of_max = header.max_timestamp, last
            batches.append((last, position))
            position += LOG_OVERHEAD + header.length
        first = headers[0].base_offset
        config = self.config
        active = self._active
        if active.should_roll(config, self._clock, len(records), max_timestamp, last):
            active = self._rolled(first)
        try:
            active.append(records, first, last, max_timestamp, offset_of_max, config.index_interval_bytes, batches)
        except OSError as error:
            raise self._failed(active, error) from error
        self.log_end_offset = last + 1
        state = self._producer_state
        for header, (_, at) in zip(headers, batches, strict=True):
            if header.leader_epoch > self.leader_epochs.latest:
                self.leader_epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id < 0:
                continue
            if not header.attributes & CONTROL_BIT:
                self._producers.record(header, header.base_offset, header.max_timestamp)
                continue
            completed = state.replay(header, lambda at=at, h=header: bytes(records[at : at + h.size]))  # type: ignore[misc]
            if completed is not None and completed.aborted:
                active.aborted.append(state.aborted(completed))
        state.end_offset = last + 1
        flush_due = self.log_end_offset - self.recovery_point >= config.flush_messages
        return AppendInfo(
            first,
            last,
            NO_TIMESTAMP,
            self.log_start_offset,
            len(records),
            headers[-1].leader_epoch,
            max_timestamp,
            False,
            flush_due,
        )

    def failed(self, error: OSError) -> KafkaError:
        """Something that was done to the log's files failed: whoever owns the directory is told. What to raise."""
        return self._failed(self._active, error)

    def _rolled(self, base_offset: int) -> Segment:
        try:
            return self.roll(base_offset)
        except OSError as error:
            raise self._failed(self._active, error) from error

    def _failed(self, segment: Segment, error: OSError) -> KafkaError:
        """An I/O error: one line for the operator, a word to whoever owns the directory, an answer for the client."""
        log.error("%s: %s: %s", self.topic_partition, segment.directory, error)
        if self._on_io_error is not None:
            self._on_io_error(self, error)
        return segment.storage_error(error)

    # Reading

    def read(self, offset: int, max_bytes: int, limit: int, min_one: bool, nowait: bool = False) -> FileSlice | None:
        """Batches from the one that holds `offset` on, below `limit`, of one segment; None if there is nothing to read.

        At most `max_bytes`, cut within a later batch if need be; where the first alone is larger, it comes whole with
        `min_one` and nothing comes without. With `nowait` it raises NotCached where finding the place would wait for a disk;
        else that may block.
        """
        end_offset = self.log_end_offset
        if offset > end_offset or offset < self.log_start_offset:
            raise KafkaError(
                Error.OFFSET_OUT_OF_RANGE,
                f"Received request for offset {offset} for partition {self.topic_partition}, but we only have log segments "
                f"from offset {self.log_start_offset} up to {end_offset}.",
            )
        if offset >= limit or offset == end_offset:
            return None
        segment = self._active
        bases = self._bases
        at = len(bases) - 1
        if offset < segment.base_offset:
            at = bisect_right(bases, offset) - 1
            segment = self._segments[at]
        try:
            found = segment.position_of(offset, nowait)
            while found is None:  # the offset was compacted away, and with it the rest of its segment
                at += 1
                if at == len(bases):
                    return None
                segment = self._segments[at]
                found = segment.position_of(offset, nowait)
            position, first_size = found
            bounded = limit < (bases[at + 1] if at + 1 < len(bases) else end_offset)
            length = (segment.end_position(limit, nowait) if bounded else segment.size) - position
            if length > max_bytes:
                length = max_bytes
                if first_size > max_bytes:  # a piece of one batch is of no use to anybody
                    length = first_size if min_one else 0
            if length <= 0:
                return None
            return FileSlice(segment.file, position, length)
        except BlockingIOError:
            raise NotCached(lambda: (segment.position_of(offset), segment.end_position(limit))) from None
        except Damage as damage:
            raise KafkaError(Error.CORRUPT_MESSAGE, f"{segment.path('.log')}: damaged {damage}") from damage
        except OSError as error:
            raise self._failed(segment, error) from error

    def search_by_time(self, timestamp: int) -> Callable[[], TimestampOffset | None]:
        """What finds the first record as new as `timestamp` in the log as it is now. Calling it blocks: safe in a thread."""
        start = self.log_start_offset
        segments = self._as_it_is([segment for segment in self._segments if segment.max_timestamp >= timestamp])
        return lambda: self._searched(segments, lambda current: times.first_at_or_after(current, timestamp, start))

    def search_newest(self) -> Callable[[], TimestampOffset | None]:
        """What finds the record with the largest timestamp in the log as it is now. Calling it blocks: safe in a thread."""
        start = self.log_start_offset
        segments = self._as_it_is([segment for segment in self._segments if segment.max_timestamp >= 0])
        return lambda: self._searched(segments, lambda current: times.newest(current, start))

    def _as_it_is(self, segments: list[Segment]) -> tuple[Segment, ...]:
        """What a thread may search: closed segments change no more; of the active one it gets a copy."""
        try:
            return tuple(segment.snapshot() if segment.active else segment for segment in segments)
        except OSError as error:
            raise self._failed(self._active, error) from error

    def _searched(
        self, segments: tuple[Segment, ...], search: Callable[[tuple[Segment, ...]], TimestampOffset | None]
    ) -> TimestampOffset | None:
        """Search in a thread. Segments that were replaced by cleaned ones meanwhile lead nowhere: then again, with those."""
        for _ in range(_SEARCHES):
            try:
                found = search(segments)
            except Exception as error:
                if not any(segment.replaced for segment in segments):
                    if isinstance(error, OSError):
                        raise self._failed(self._active, error) from error
                    if isinstance(error, Damage):
                        raise KafkaError(Error.CORRUPT_MESSAGE, f"{self.dir}: damaged {error}") from error
                    raise
            else:
                if not any(segment.replaced for segment in segments):
                    return found
            tail = tuple(segment for segment in segments if segment.active)
            before = tail[0].base_offset if tail else MAX_LONG
            segments = (*(one for one in tuple(self._segments) if not one.active and one.base_offset < before), *tail)
        raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is being cleaned faster than it can be searched")

    def aborted_within(self, region: FileSlice, start: int, nowait: bool = False) -> list[AbortedTransaction]:
        """The aborted transactions that touch what a region holds from offset `start` on. `nowait` as in `read`."""
        first = max(bisect_right(self._bases, start) - 1, 0)
        # Compaction may have emptied the segment that `start` belongs to: then the region is of a later one.
        at = next((at for at in range(first, len(self._bases)) if self._segments[at].file is region.file), first)
        end = self._bases[at + 1] if at + 1 < len(self._bases) else self.log_end_offset
        found = self.aborted_transactions(start, end)
        if not found:
            return found
        segment = self._segments[at]
        try:
            cut = segment.offset_at(region.position + region.length, nowait)
        except BlockingIOError:
            raise NotCached(lambda: segment.offset_at(region.position + region.length)) from None
        return found if cut is None else [one for one in found if one.first_offset < cut]

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that touch start..end (exclusive)."""
        found: list[AbortedTransaction] = []
        for segment in self._segments[max(bisect_right(self._bases, start) - 1, 0) :]:
            some, complete = segment.aborted.collect(start, end)
            found += some
            if complete:
                break
        return found


def _number(ready: Prepared, offset: int, leader_epoch: int) -> tuple[int, int, int, list[tuple[int, int]]]:
    """Number several batches in place: (last offset, max timestamp, its batch's last offset, [(last offset, position)])."""
    max_timestamp, offset_of_max, position = NO_TIMESTAMP, offset, 0
    batches: list[tuple[int, int]] = []
    for header in ready.headers:
        patch(ready.records, position, offset, leader_epoch)
        last = offset + header.last_offset_delta
        batches.append((last, position))
        if header.max_timestamp > max_timestamp:
            max_timestamp, offset_of_max = header.max_timestamp, last
        position += header.size
        offset = last + 1
    return offset - 1, max_timestamp, offset_of_max, batches
