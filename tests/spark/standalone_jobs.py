"""What the driver of a standalone cluster is told to do (see `standalone`): functions of a session that return plain data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import Row, SparkSession

from spark.fire.pipeline import counts
from spark.queries import read, read_stream, write


def copy_a_batch(spark: SparkSession, bootstrap: str, source: str, target: str, columns: list[str]) -> int:
    """Read a topic and write it to another one, exactly once; how many executors read some of it."""

    def place(_rows: Iterator[Row]) -> list[int]:
        return [os.getppid()]  # the same for all Python workers of an executor

    frame = read(spark, bootstrap, subscribe=source).select(columns)
    write(frame, bootstrap, topic=target, exactlyOnce="true", transactionalId=target)
    return len(set(frame.rdd.mapPartitions(place).collect()))


def count_windows(spark: SparkSession, bootstrap: str, source: str, target: str, work: str, *, until: str | None = None) -> int:
    """Count records by window and key, topic to topic, exactly once; how many batches there were.

    With `until` the stream runs until a file of that name is there and everything was read; without, it takes what there is.
    """
    frame = counts(read_stream(spark, bootstrap, subscribe=source, startingOffsets="earliest"), None)
    options = {"topic": target, "exactlyOnce": "true", "transactionalId": target, "commitGroup": f"g-{target}"}
    sink = frame.writeStream.format("ottla").outputMode("append").option("kafka.bootstrap.servers", bootstrap)
    sink = sink.options(**options, checkpointLocation=f"{work}/checkpoint")
    if until is None:
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
    else:
        query = sink.start()
        while not Path(until).exists():
            query.awaitTermination(0.05)
        query.processAllAvailable()
        query.stop()
    progress = query.lastProgress
    return 0 if progress is None else progress["batchId"] + 1


def weigh(spark: SparkSession, bootstrap: str, topic: str) -> tuple[int, int]:
    """How many records a topic has, and the bytes of their values; one task reads all of a partition."""
    frame = read(spark, bootstrap, subscribe=topic, maxRecordsPerPartition=1 << 40)
    row = frame.selectExpr("count(*) records", "sum(length(value)) bytes").collect()[0]
    return row.records, row.bytes
