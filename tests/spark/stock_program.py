"""What `test_stock_connector` runs: programs as they are written for Apache Kafka."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ottla.client import Cluster, TopicPartition, list_offsets
from ottla.client.admin.offsets import LATEST
from spark.conftest import open_session
from spark.queries import NOW


def read(spark: SparkSession, bootstrap: str, topic: str, **options: object) -> DataFrame:
    reader: Any = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name, value)
    frame: DataFrame = reader.load()
    return frame


def stream(spark: SparkSession, bootstrap: str, topic: str, out: str, checkpoint: Path) -> Any:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    records = reader.option("startingOffsets", "earliest").load().select("key", "value")
    writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", out)
    return writer.option("checkpointLocation", str(checkpoint))


def main(bootstrap: str, topic: str, work: str, jars: str) -> None:
    master = "local[4]"  # real-time mode needs all of its tasks at once
    spark = open_session(f"{work}/warehouse", master, **{"spark.jars": jars})
    every = read(spark, bootstrap, topic)
    start = json.dumps({topic: {"0": 40, "1": 2}})
    by_offset = Counter(str(row.partition) for row in read(spark, bootstrap, topic, startingOffsets=start).collect())
    late = read(spark, bootstrap, topic, startingTimestamp=NOW + 95_000)
    seen = {"read": every.count(), "from": dict(sorted(by_offset.items())), "by time": late.count()}
    frame = every.select("key", "value")
    frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", f"{topic}-batch").save()
    query = stream(spark, bootstrap, topic, f"{topic}-stream", Path(work, "stream")).trigger(availableNow=True).start()
    query.awaitTermination()
    seen["rows"] = sum(progress["numInputRows"] for progress in query.recentProgress)
    live = stream(spark, bootstrap, topic, f"{topic}-live", Path(work, "live"))
    running = live.outputMode("update").trigger(realTime="5 minutes").start()
    places = [TopicPartition(f"{topic}-live", number) for number in range(2)]
    with Cluster(bootstrap) as cluster:
        deadline = time.monotonic() + 120
        while sum(list_offsets(cluster, dict.fromkeys(places, LATEST)).values()) < 100:
            if running.exception() is not None or time.monotonic() > deadline:
                raise SystemExit(f"real-time mode: {running.exception()}")
            time.sleep(0.1)
    running.stop()
    spark.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
