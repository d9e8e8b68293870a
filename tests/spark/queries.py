"""What tests of the source and the sink do all the time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from ottla import client
from ottla.client import Cluster

NOW = int(os.environ.setdefault("OTTLA_TEST_NOW", str(time.time_ns() // 1_000_000_000 * 1000 - 3_600_000)))
"""An hour ago: old enough to count on from, and too young for retention."""


def fill(cluster: Cluster, topic: str, count: int, *, partitions: int = 2, first: int = 0, create: bool = True) -> None:
    """Records 0 to `count`, in turns over the partitions, a second apart."""
    if create:
        client.create_topic(cluster, topic, partitions, 1)
    numbers = range(first, first + count)
    rows = pa.table(
        {
            "key": [b"k%d" % number for number in numbers],
            "value": [b"%d" % number for number in numbers],
            "partition": [number % partitions for number in numbers],
            "timestamp": [NOW + 1000 * number for number in numbers],
        }
    )
    client.write(topic, rows, cluster=cluster)


def read(spark: SparkSession, bootstrap: str, **options: object) -> DataFrame:
    return _with(spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap), options).load()


def read_stream(spark: SparkSession, bootstrap: str, **options: object) -> DataFrame:
    """A stream; unlike by default each partition has a task of its own, however few records it has."""
    given = {"minRecordsPerPartition": 0, **options}
    return _with(spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap), given).load()


def _with(reader: Any, options: dict[str, object]) -> Any:
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader


def numbers(frame: DataFrame) -> list[int]:
    """The values of the records, in an order of their own."""
    return sorted(int(row.value) for row in frame.select("value").collect())


def write(frame: DataFrame, bootstrap: str, **options: object) -> None:
    """A batch into topics."""
    writer = frame.write.format("ottla").mode("append").option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def run_stream(frame: DataFrame, bootstrap: str, checkpoint: Path, **options: object) -> Any:
    """One run of AvailableNow; raises what the query raises."""
    writer = frame.writeStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    for name, value in {"checkpointLocation": checkpoint, **options}.items():
        writer = writer.option(name, value)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def committed(cluster: Cluster, topic: str) -> list[int]:
    """The values that readers of committed records get, in an order of their own."""
    table = client.read(topic, cluster=cluster, isolation="read_committed", columns=["value"]).table()
    return sorted(map(int, table["value"].to_pylist()))


class Collected:
    """A stream into memory, one run of AvailableNow after the other, with one checkpoint."""

    def __init__(self, frame: Callable[[], DataFrame], checkpoint: str) -> None:
        self._frame = frame
        self._checkpoint = checkpoint
        self.got: list[int] = []
        self.batches: list[int] = []
        """How many records each batch had."""
        self.query: StreamingQuery | None = None

    def run(self, **options: str) -> None:
        """Take what there is; raises what the query raises."""
        writer = self._frame().writeStream.foreachBatch(self._take).option("checkpointLocation", self._checkpoint)
        self.query = writer.trigger(availableNow=True).start()
        self.query.awaitTermination()

    def _take(self, batch: DataFrame, _number: int) -> None:
        found = numbers(batch)
        self.got += found
        self.batches.append(len(found))
