"""A stream's side in the driver: where it begins, how far the next batch goes, what its tasks read, and what is told to others.

Guards: batches follow each other without a gap; what is gone is named, once, and ends the query or (`failOnDataLoss` false) is
passed over; a position in a checkpoint says which topic it is about, so that one made anew under the same name is not read
from the old one's offset. Offsets go to `commitGroup` when their batch is complete: Spark asks for the next batch with the end
of the last completed one, also when nothing new has come and at the end of AvailableNow, where its own call would not come.

Life: one object for as long as the query runs; tasks get a copy and use `read` alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.client import ClientError, Cluster, InvalidSetting, TopicPartition, commit_offsets
from ottla.spark.log import log, speak
from ottla.spark.offsets import (
    OffsetRange,
    Position,
    from_json,
    gather,
    is_new_topic,
    is_position,
    limited,
    limited_by_bytes,
    lost_since,
    plan,
    split,
    to_json,
)
from ottla.spark.options import SourceOptions
from ottla.spark.positions import bound, earliest, latest, sample_sizes, selected
from ottla.spark.reader import RangePartition, read_ranges, report


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query's source."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._latest: Position | None = None
        self._target: Position | None = None
        self._committed: Mapping[TopicPartition, int] | None = None
        self._last_trigger = time.monotonic()

    # ---- Spark asks ------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        cluster, options = self._connected(), self._options
        chosen = selected(cluster, options.selection)
        offsets = bound(cluster, options, chosen, options.start, is_start=True)
        return to_json(Position(offsets, {tp.topic: known for tp, known in chosen.items() if known}))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What is named first; the others are kept by `latestOffset` as well."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.min_offsets is None else ReadMinRows(options.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = latest(self._connected(), self._options, must_exist=False)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        cluster, options = self._connected(), self._options
        before = _position(start)
        self._commit_group(before)
        now = self._target or latest(cluster, options, must_exist=False)
        self._latest = now
        report(lost_since(before, now, options.selection.names), options)
        starts = self._starts(cluster, before, now)
        ends = dict(now.offsets)
        if not isinstance(limit, ReadAllAvailable):
            if not self._enough(starts, ends):
                return start
            if options.max_offsets is not None:
                ends = limited(starts, ends, options.max_offsets)
            if options.max_bytes is not None:
                # What retention took since the last batch has no size; `partitions` says that it is gone.
                begins = earliest(cluster, [tp for tp, end in ends.items() if starts[tp] < end])
                starts |= {tp: max(starts[tp], first) for tp, first in begins.items()}
                ranges = [OffsetRange(tp, starts[tp], end) for tp, end in ends.items() if starts[tp] < end]
                sizes = sample_sizes(cluster, ranges, options.isolation)
                ends = limited_by_bytes(starts, ends, sizes, options.max_bytes)
        self._last_trigger = time.monotonic()
        return to_json(Position(ends, now.ids))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Stands in the query's progress beside the end of the batch: the difference is the lag."""
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        cluster, options = self._connected(), self._options
        before, after = _position(start), _position(end)
        there = selected(cluster, options.selection, must_exist=False) if after.ids else {}
        ids = {tp.topic: known for tp, known in there.items() if known}
        ranges, losses = plan(before, after, earliest(cluster, after.offsets), ids)
        report(losses, options)
        pieces = split(ranges, options.min_partitions, options.max_records_per_partition)
        least = options.min_records_per_partition if options.min_partitions is None else 0
        return [RangePartition(ranges) for ranges in gather(pieces, least)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_ranges(self._options, partition.ranges, known=True)

    def commit(self, end: dict[str, Any]) -> None:
        self._commit_group(_position(end))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # ---- inside ----------------------------------------------------------------------------------------------------------

    def _connected(self) -> Cluster:
        if self._cluster is None:
            speak()
            self._cluster = Cluster(self._options.settings)
        return self._cluster

    def _starts(self, cluster: Cluster, before: Position, now: Position) -> dict[TopicPartition, int]:
        """Where each partition goes on; one that is new begins at its earliest offset."""
        new = [tp for tp in now.offsets if tp not in before.offsets or is_new_topic(before, now, tp.topic)]
        begins = earliest(cluster, new)
        return {tp: begins.get(tp, 0) if tp in begins else before.offsets.get(tp, 0) for tp in now.offsets}

    def _enough(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
        """Whether there are `minOffsetsPerTrigger` records, or it has taken too long; AvailableNow does not wait for more."""
        least = self._options.min_offsets
        if least is None or self._target is not None:
            return True
        waited_ms = (time.monotonic() - self._last_trigger) * 1000
        if waited_ms >= self._options.max_trigger_delay_ms:
            return True
        return sum(max(end - starts[tp], 0) for tp, end in ends.items()) >= least

    def _commit_group(self, done: Position) -> None:
        group = self._options.commit_group
        if group is None or done.offsets == self._committed:
            return
        there = selected(self._connected(), self._options.selection, must_exist=False)
        try:
            commit_offsets(self._connected(), group, {tp: offset for tp, offset in done.offsets.items() if tp in there})
        except ClientError as problem:
            log.warning("Offsets were not committed to group %s; the next batch tries again: %s", group, problem.message)
            return
        self._committed = done.offsets


def _position(written: Any) -> Position:
    """A position as Spark hands it over; a checkpoint may hold that of another kind of source."""
    if written and not is_position(written):
        raise InvalidSetting(
            f"The checkpoint belongs to another query: its offset {written} is none of a topic's. Give this query a"
            " checkpointLocation of its own."
        )
    return from_json(written or {})
