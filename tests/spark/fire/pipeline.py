"""The pipeline that is shot at, as a program of its own: topic to topic with an aggregation, exactly once, again and again.

Counts records by window and key, run after run of AvailableNow over one checkpoint, whatever happens, until a file `stop` is
there and a run went well. Each run leaves a line in `runs`: `ok`, or why it failed. When Spark's driver is gone the program
ends, and the test starts another one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark.conftest import open_session

WINDOW, LATE = 10, 60
"""Seconds of a window, and how late a record may be."""


def counts(records: DataFrame, partitions: int | None) -> DataFrame:
    """Records by window and key, as text; with `partitions` each row names its partition, and each of those has one task."""
    grouped = (
        records.withWatermark("timestamp", f"{LATE} seconds")
        .groupBy(f.window("timestamp", f"{WINDOW} seconds").alias("window"), f.col("key").cast("string").alias("key"))
        .count()
    )
    text = f.concat_ws(",", f.unix_seconds("window.start"), "key", "count").alias("value")
    if partitions is None:
        return grouped.select("key", text)
    place = f.pmod(f.hash("key"), f.lit(partitions)).alias("partition")
    return grouped.select("key", text, place).repartition(partitions, "partition")


def run(spark: SparkSession, arguments: dict[str, str]) -> None:
    address = arguments["bootstrap"]
    source = spark.readStream.format("ottla").option("kafka.bootstrap.servers", address)
    records = source.option("subscribe", arguments["source"]).option("startingOffsets", "earliest").load()
    frame = counts(records, 2 if arguments["mode"] == "shared" else None)
    sink = frame.writeStream.format("ottla").outputMode("append").option("kafka.bootstrap.servers", address)
    options = {
        "topic": arguments["target"],
        "exactlyOnce": "true",
        "transactionalId": arguments["target"],
        "commitGroup": f"g-{arguments['target']}",
        "checkpointLocation": f"{arguments['work']}/checkpoint",
        "kafka.transaction.timeout.ms": arguments["timeout"],
    }
    for name, value in options.items():
        sink = sink.option(name, value)
    sink.trigger(availableNow=True).start().awaitTermination()


def main(arguments: dict[str, str]) -> None:
    work = Path(arguments["work"])
    conf = {name.removeprefix("conf."): value for name, value in arguments.items() if name.startswith("conf.")}
    spark = open_session(str(work / "warehouse"), arguments.get("master", "local[2]"), **conf)
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    (work / "driver").write_text(str(java.pid))
    with open(work / "runs", "a", encoding="utf-8", buffering=1) as runs:
        while True:
            last = (work / "stop").exists()
            try:
                run(spark, arguments)
                runs.write("ok\n")
                if last:
                    break
                time.sleep(0.2)
            except Exception as problem:
                if java.poll() is not None:
                    os._exit(1)
                runs.write(f"failed: {str(problem)[:8000]!r}\n")
    spark.stop()


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
