"""The obvious design, which loses records: each task commits its own transaction, with a marker, inside `write()`.

When Spark cancels a task, because a sibling failed, the input of its Python writer may end as if that were all, by chance: with
a slow sink of this kind and a real cancellation records were lost in two of five tries. A test cannot wait for chance, so the
early end is simulated here, every time. The bad sink commits a part of its rows, and its marker says that they were all of
them. `format("good")` is our own sink, with the same input.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.client import Cluster, Producer, TopicPartition, committed_offsets
from ottla.spark.options import sink_options
from ottla.spark.writer import StreamWriter


def under_fire(batches: Iterator[pa.RecordBatch], place: str) -> Iterator[pa.RecordBatch]:
    """Once: the input of task 1 ends in the midst of its rows, and when task 1 is done with that, task 0 fails."""
    context = TaskContext.get()
    assert context is not None
    failed, done = Path(place, "failed"), Path(place, "done")
    first = not failed.exists()
    for number, batch in enumerate(batches):
        if first and context.partitionId() == 0:
            while not done.exists():
                time.sleep(0.02)
            failed.touch()
            raise RuntimeError("a test wants a failure")
        if first and number == 3:
            return
        yield batch


class BadWriter(DataSourceStreamArrowWriter):
    """Makes rows visible before the driver knows that there are no more."""

    def __init__(self, bootstrap: str, topic: str, place: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._place = place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        group, place = f"bad-{self._topic}", TopicPartition(self._topic, context.partitionId())
        with Cluster(self._bootstrap) as cluster:
            done = committed_offsets(cluster, group, [place])
            if place in done and done[place].offset > batch:
                for _ in iterator:
                    pass
                return WriterCommitMessage()
            with Producer(cluster, transactional_id=f"{group}-{context.partitionId()}") as producer:
                producer.begin()
                for rows in under_fire(iterator, self._place):
                    producer.write(self._topic, rows)
                producer.send_offsets(group, {place: batch + 1})
                producer.commit()
        Path(self._place, "done").touch()
        return WriterCommitMessage()


class BadSink(DataSource):
    """`format("bad")`."""

    @classmethod
    def name(cls) -> str:
        return "bad"

    def streamWriter(self, schema: StructType, overwrite: bool) -> BadWriter:  # noqa: N802  (Spark's name)
        return BadWriter(self.options["kafka.bootstrap.servers"], self.options["topic"], self.options["place"])


class GoodWriter(StreamWriter):
    """Ours, with the same input."""

    place: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        written = super().write(under_fire(iterator, self.place))
        Path(self.place, "done").touch()
        return written


class GoodSink(DataSource):
    """`format("good")`."""

    @classmethod
    def name(cls) -> str:
        return "good"

    def streamWriter(self, schema: StructType, overwrite: bool) -> GoodWriter:  # noqa: N802
        writer = GoodWriter(sink_options(self.options), schema)
        writer.place = self.options["place"]
        return writer
