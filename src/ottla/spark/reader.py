"""Reading ranges of offsets: the plan of a batch query, and what every task does, in batches and in streams.

Guards: a range is read as a whole or the task fails; where records of it are gone, the task fails with partition and offsets,
or (`failOnDataLoss` false) says so in the log and goes on behind them.

Filters are taken only if the option `pushFilters` is set. Spark 4.2 keeps what it planned with one query's filters for all
queries over the same DataFrame: `frame.where("partition = 0").union(frame.where("partition = 1"))` then reads one of the two,
and silently. Spark hands filters down only where `spark.sql.python.filterPushdown.enabled` is true, and refuses readers that
could take them where it is not: so a reader that takes filters is made only in the process that hands them down.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ottla import client
from ottla.client import ClientError, Cluster, OffsetOutOfRange, TopicPartition, UnknownTopic
from ottla.client.admin.offsets import list_offsets
from ottla.model import Error
from ottla.spark.filters import Narrowed, narrow
from ottla.spark.log import log, speak
from ottla.spark.offsets import Loss, OffsetRange, split
from ottla.spark.options import BATCH_TASK_RECORDS, SourceOptions
from ottla.spark.positions import bound, earliest, selected
from ottla.spark.workers import fit_in, lasting_cluster, settle

_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"
_GO_ON = "Set failOnDataLoss to false to go on with what is left."


class DataLost(ClientError):
    """Records that a query was to read are not there."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        shown = " ".join(map(str, losses[:5]))
        more = f" So it is with {len(losses) - 5} other partitions." if len(losses) > 5 else ""
        super().__init__(Error.OFFSET_OUT_OF_RANGE, f"{shown}{more} {_GO_ON}")


@dataclass
class RangePartition(InputPartition):
    """The ranges that one task reads, one after the other; none where there is nothing at all to read."""

    ranges: tuple[OffsetRange, ...]


def report(losses: Sequence[Loss], options: SourceOptions) -> None:
    """Fail, or say so and go on."""
    if losses and options.fail_on_data_loss:
        raise DataLost(losses)
    for loss in losses:
        log.warning("%s Going on with what is left.", loss)


def task_settings(options: SourceOptions) -> dict[str, str]:
    """The settings of a task; the machine that it runs on may say in which rack it is."""
    rack = os.environ.get("OTTLA_CLIENT_RACK")
    settings = dict(options.settings)
    if rack and "client.rack" not in settings:
        settings["client.rack"] = rack
    return settings


def read_ranges(options: SourceOptions, ranges: Iterable[OffsetRange], *, known: bool = False) -> Iterator[pa.RecordBatch]:
    """What a task does. Ranges that are `known` were there when they were planned, a moment ago."""
    speak()
    ahead = fit_in()
    with lasting_cluster(task_settings(options)) as cluster:
        for wanted in ranges:
            yield from _read(cluster, options, wanted, known, ahead)
    settle()


def _read(cluster: Cluster, options: SourceOptions, wanted: OffsetRange, known: bool, ahead: int) -> Iterator[pa.RecordBatch]:
    """The records of a range; at most so many bytes are fetched ahead."""
    tp, position = wanted.partition, wanted.start
    while position < wanted.end:
        try:
            with _reader(cluster, options, OffsetRange(tp, position, wanted.end), known, ahead) as reader:
                try:
                    yield from reader
                finally:
                    position = max(position, reader.positions[tp])
            break
        except OffsetOutOfRange as problem:
            left = OffsetRange(tp, position, wanted.end)
            report([Loss(tp, _gone(problem, left))], options)
            wanted, position = _what_is_left(problem, left)
        except UnknownTopic as problem:
            report([Loss(tp, f"offsets {position} to {wanted.end - 1} are gone: {problem.message}")], options)
            break


def _reader(cluster: Cluster, options: SourceOptions, wanted: OffsetRange, known: bool, ahead: int) -> client.Reader:
    tp, start, end = wanted.partition, wanted.start, wanted.end
    if known:
        return client.read_known({tp: (start, end)}, cluster=cluster, columns=options.columns, max_bytes=ahead)
    return client.read(tp.topic, {tp: start}, {tp: end}, cluster=cluster, columns=options.columns, max_bytes=ahead)


def _gone(problem: OffsetOutOfRange, wanted: OffsetRange) -> str:
    return (
        f"offsets {wanted.start} to {wanted.end - 1} were to be read, but its log has {problem.earliest} to {problem.latest}"
        " now: records were deleted before they were read, or the topic was made anew."
    )


def _what_is_left(problem: OffsetOutOfRange, wanted: OffsetRange) -> tuple[OffsetRange, int]:
    end = min(wanted.end, problem.latest)
    return OffsetRange(wanted.partition, wanted.start, end), max(wanted.start, problem.earliest)


class BatchReader(DataSourceReader):
    """A batch query: everything between two bounds, as the cluster has it when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowed = Narrowed()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        speak()
        with Cluster(options.settings) as cluster:
            chosen = selected(cluster, options.selection)
            starts = bound(cluster, options, chosen, options.start, is_start=True)
            ends = bound(cluster, options, chosen, options.end, is_start=False)
            begins = earliest(cluster, chosen)
            times = self._from_times(cluster, chosen)
        losses, ranges = [], []
        for tp in sorted(filter(self._narrowed.wants, chosen)):
            if starts[tp] < begins[tp] and starts[tp] < ends[tp]:
                what = f"offsets {starts[tp]} to {min(begins[tp], ends[tp]) - 1} are gone, its log begins at {begins[tp]} now."
                losses.append(Loss(tp, what))
            elif starts[tp] > ends[tp]:
                losses.append(
                    Loss(tp, f"it was to be read from offset {starts[tp]}, but that is behind its end at {ends[tp]}.")
                )
            whole = OffsetRange(tp, max(starts[tp], begins[tp]), ends[tp])
            ranges.append(self._narrowed.cut(whole, times.get(tp, 0)))
        report(losses, options)
        settle()
        pieces = split(ranges, options.min_partitions, options.max_records_per_partition or BATCH_TASK_RECORDS)
        return [RangePartition((piece,)) for piece in pieces] or [RangePartition(())]

    def _from_times(self, cluster: Cluster, chosen: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each partition has its first record that is late enough; where none is, nothing is left to read."""
        since = self._narrowed.from_time_ms
        wanted = [tp for tp in chosen if self._narrowed.wants(tp)]
        if since is None or not wanted:
            return {}
        found = list_offsets(cluster, dict.fromkeys(wanted, since), self._options.isolation)
        return {tp: 1 << 62 if offset < 0 else offset for tp, offset in found.items()}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_ranges(self._options, partition.ranges)


class FilteringBatchReader(BatchReader):
    """The same where Spark hands filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        self._narrowed = narrow(filters)
        return filters


def batch_reader(options: SourceOptions) -> BatchReader:
    """The reader that fits the process in which it is planned."""
    return FilteringBatchReader(options) if options.push_filters and _PUSHDOWN in sys.modules else BatchReader(options)
