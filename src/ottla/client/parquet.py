"""A topic as Parquet files, now and again later: each run goes on where the last one ended.

Guards: a file is there as a whole or not at all (it is renamed when it is complete), and its name says which offsets it covers,
so that the files themselves are the memory: whatever ended a run, the next one begins at the end of the last complete file of
each partition, and every record is in one file. Layout: `DIR/partition=N/FIRST-END.parquet`, which Spark, DuckDB and Polars
read as one table with a column `partition`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.client.admin.offsets import EARLIEST, list_offsets
from ottla.client.cluster import Cluster
from ottla.client.decoding import SCHEMA
from ottla.client.errors import OffsetOutOfRange
from ottla.client.reading import read
from ottla.client.segments import plan_segments, read_segment, stored_partitions
from ottla.model import TopicPartition

_FILE = re.compile(r"([0-9]{20})-([0-9]{20})\.parquet")
_COLUMNS = tuple(name for name in SCHEMA.names if name not in ("topic", "partition"))
FILE_RECORDS = 1_000_000
"""Records in one file, unless it is told otherwise."""


class Exported(NamedTuple):
    """What one run wrote of a partition."""

    partition: TopicPartition
    start: int
    end: int
    records: int
    files: int


class _Target:
    """One partition's directory, and the file that is being written."""

    def __init__(self, directory: str, partition: TopicPartition, file_records: int) -> None:
        self.partition = partition
        self.directory = os.path.join(directory, f"partition={partition.partition}")
        os.makedirs(self.directory, exist_ok=True)
        self.records = self.files = 0
        self._file_records = file_records
        self._writer: pq.ParquetWriter | None = None
        self._first = self._next = self._in_file = 0
        names = os.listdir(self.directory)
        for name in names:
            if name.startswith(".") and name.endswith(".writing"):
                os.unlink(os.path.join(self.directory, name))  # of a run that did not end well
        self.end = max((int(match[2]) for match in map(_FILE.fullmatch, names) if match), default=None)
        """Up to where the files go that are there."""

    def begin(self, offset: int) -> None:
        self._first = self._next = offset

    def add(self, batch: pa.RecordBatch) -> None:
        at = 0
        while at < batch.num_rows:
            piece = batch.slice(at, self._file_records - self._in_file)
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._unfinished, piece.schema, compression="zstd")
            self._writer.write_batch(piece)
            at += piece.num_rows
            self._in_file += piece.num_rows
            self._next = piece["offset"][-1].as_py() + 1
            if self._in_file >= self._file_records:
                self.finish(self._next)

    def finish(self, end: int) -> None:
        """Complete the file: it covers all offsets before `end`."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            os.rename(self._unfinished, os.path.join(self.directory, f"{self._first:020}-{end:020}.parquet"))
            self.files += 1
            self.records += self._in_file
        self._in_file = 0
        self._first = self._next = end

    def drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            os.unlink(self._unfinished)

    @property
    def _unfinished(self) -> str:
        return os.path.join(self.directory, f".{self._first:020}.writing")


def export_topic(
    cluster: Cluster, topic: str, directory: str, *, isolation: str = "read_committed", file_records: int = FILE_RECORDS
) -> Iterator[Exported]:
    """Write what a topic has now, and was not written before, partition by partition."""
    for number in cluster.topic(topic, fresh=True).partitions:
        tp = TopicPartition(topic, number)
        target = _Target(directory, tp, file_records)
        begins = list_offsets(cluster, {tp: EARLIEST})[tp]
        if target.end is not None and target.end < begins:
            raise OffsetOutOfRange(tp, target.end, begins, list_offsets(cluster, {tp: -1})[tp])
        start = begins if target.end is None else target.end
        with read(topic, {tp: start}, "latest", cluster=cluster, columns=_COLUMNS, isolation=isolation) as reader:
            yield _export(target, reader, start, reader.ranges[tp].end or start)


def export_directories(
    directories: Sequence[str],
    topic: str,
    directory: str,
    *,
    isolation: str = "read_committed",
    file_records: int = FILE_RECORDS,
) -> Iterator[Exported]:
    """The same from data directories, without a broker."""
    for tp, stored in sorted(stored_partitions(directories, [topic]).items()):
        target = _Target(directory, tp, file_records)
        ranges = plan_segments(stored, isolation, target.end or 0)
        start = stored.start if target.end is None else target.end
        batches = (batch for one in ranges for batch in read_segment(one, _COLUMNS))
        yield _export(target, batches, start, ranges[-1].end if ranges else start)


def _export(target: _Target, batches: Iterable[pa.RecordBatch], start: int, end: int) -> Exported:
    target.begin(start)
    try:
        for batch in batches:
            target.add(batch)
        target.finish(end)
    finally:
        target.drop()
    return Exported(target.partition, start, end, target.records, target.files)
