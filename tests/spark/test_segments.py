"""`format("ottla.segments")`: a dead broker's directory as a frame, and one of Apache Kafka's."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from client.tables import everything
from ottla import client
from ottla.client import Cluster
from spark.queries import numbers, read
from support.secured import Secured
from support.server import ServerProcess
from support.waiting import wait_for

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def wait_for_checkpoint(directory: Path, cluster: Cluster, topic: str) -> None:
    """Until the broker has written down how far the topic goes."""
    checkpoint = directory / "replication-offset-checkpoint"
    ends = client.read(topic, cluster=cluster).ranges
    wanted = {f"{tp.topic} {tp.partition} {one.end}" for tp, one in ends.items()}

    def is_written() -> bool:
        return checkpoint.exists() and wanted <= set(checkpoint.read_text().splitlines())

    wait_for(is_written, "the checkpoint says so", 30)


def test_directories_of_a_broker_that_was_killed(spark: SparkSession, tmp_path: Path, topic: str) -> None:
    directory = str(tmp_path / "data")
    settings = {"log.segment.bytes": 2000, "replica.high.watermark.checkpoint.interval.ms": 100}
    with ServerProcess(directory, settings) as server, Cluster(server.bootstrap_servers) as cluster:
        client.create_topic(cluster, topic, 2, 1)
        with client.Producer(cluster, transactional_id=topic, batch_size=500) as producer:
            for first in range(0, 400, 100):
                producer.begin()
                producer.write(topic, pa.table({"value": [str(first + number) for number in range(100)]}))
                producer.commit() if first % 200 else producer.abort()
        wait_for_checkpoint(tmp_path / "data", cluster, topic)
        server.kill()
    frame = spark.read.format("ottla.segments").option("subscribe", topic)
    assert numbers(frame.load(directory)) == list(range(400))
    assert frame.load(directory).rdd.getNumPartitions() > 2
    committed = numbers(frame.option("kafka.isolation.level", "read_committed").load(directory))
    assert committed == [*range(100, 200), *range(300, 400)]
    with pytest.raises(PySparkException, match="Topic none has no partition in"):
        spark.read.format("ottla.segments").option("subscribe", "none").load(directory).count()


def test_directories_of_apache_kafka(spark: SparkSession, secured: Secured, topic: str) -> None:
    """Committed, aborted and still open transactions and plain batches of every codec: the same as over the wire."""
    with Cluster(secured.plaintext) as cluster:
        client.create_topic(cluster, topic, 2, 1, {"segment.bytes": "8000"})
        for number, codec in enumerate(CODECS):
            client.write(topic, everything(50, seed=number), cluster=cluster, codec=codec, batch_size=2000)
            with client.Producer(cluster, transactional_id=f"{topic}-{codec}", codec=codec, batch_size=2000) as producer:
                for end in (producer.commit, producer.abort, producer.commit):
                    producer.begin()
                    producer.write(topic, everything(50, seed=number))
                    end()
        with client.Producer(cluster, transactional_id=f"{topic}-open") as producer:
            producer.begin()
            producer.write(topic, everything(20))
            wait_for_checkpoint(Path(secured.log_dir), cluster, topic)
            found = {}
            for isolation in ("read_committed", "read_uncommitted"):
                options = {"subscribe": topic, "includeHeaders": "true", "kafka.isolation.level": isolation}
                stored = spark.read.format("ottla.segments").options(**options).load(secured.log_dir)
                found[isolation] = stored.orderBy("partition", "offset").collect()
                assert found[isolation] == read(spark, secured.plaintext, **options).orderBy("partition", "offset").collect()
    assert stored.rdd.getNumPartitions() > 2, "several segments"
    assert {isolation: len(rows) for isolation, rows in found.items()} == {"read_committed": 750, "read_uncommitted": 1020}
