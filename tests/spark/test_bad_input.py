"""What source and sink say to bad input, and that nothing is lost or there twice when it was mended.

Missing topics, records that are gone and schemas of the sink are in `test_source` and `test_sink`; records that do not decode
in `tests/pipelines`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ottla import client
from ottla.client import Cluster
from spark.queries import committed, fill, numbers, read, read_stream, run_stream
from support.server import ServerProcess

SOAK = bool(os.environ.get("OTTLA_SOAK"))
ALL = list(range(100))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServerProcess]:
    """One of its own, for tests that do it harm."""
    with ServerProcess(str(tmp_path / "data")) as server:
        yield server


def copied(spark: SparkSession, bootstrap: str, topic: str, **options: object) -> DataFrame:
    given = {"subscribe": topic, "startingOffsets": "earliest", **options}
    return read_stream(spark, bootstrap, **given).select("key", "value")


# ---- what is asked for ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "TOPIC-none"}, "Topic TOPIC-none does not exist: check its name, or create it"),
        ({"assign": '{"TOPIC":[5]}'}, "Partition TOPIC-5 does not exist: the topic has 2 partitions"),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC":{"0":999,"1":0}}'}, "TOPIC-0: it was .* offset 999, .* 50"),
    ],
    ids=["topic", "partition", "offset"],
)  # fmt: skip
def test_a_stream_over_what_is_not_there(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    fill(cluster, topic, 100)
    frame = read_stream(spark, bootstrap, **{name: value.replace("TOPIC", topic) for name, value in options.items()})
    with pytest.raises(PySparkException, match=message.replace("TOPIC", topic)):
        run_stream(frame, bootstrap, tmp_path, topic=topic)


def test_a_batch_that_begins_behind_the_end(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 100)
    options = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 999, "1": 0}})}
    message = f"Partition {topic}-0: it was to be read from offset 999, but that is behind its end at 50"
    with pytest.raises(PySparkException, match=message):
        read(spark, bootstrap, **options).collect()
    assert numbers(read(spark, bootstrap, failOnDataLoss="false", **options)) == list(range(1, 100, 2))


def test_a_schema_that_does_not_fit(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 10)
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    with pytest.raises(PySparkException, match=r"The schema struct<value:string> is not that of topics, which is key binary, "):
        reader.schema("value string").load().collect()
    assert numbers(reader.option("columns", "value").schema("value binary").load()) == list(range(10))


# ---- checkpoints ---------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_a_query_over_another_topic(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    other, out = f"{topic}-other", f"{topic}-out"
    fill(cluster, topic, 100)
    fill(cluster, other, 10, first=500)
    client.create_topic(cluster, out, 2, 1)
    options = {"topic": out, "exactlyOnce": "true", "transactionalId": out}
    run_stream(copied(spark, bootstrap, topic), bootstrap, tmp_path, **options)
    message = f"Partition {topic}-0: it is in the checkpoint, up to offset 50, but this query does not read it"
    with pytest.raises(PySparkException, match=message):
        run_stream(copied(spark, bootstrap, other), bootstrap, tmp_path, **options)
    fill(cluster, topic, 10, first=100, create=False)
    run_stream(copied(spark, bootstrap, topic), bootstrap, tmp_path, **options)
    assert committed(cluster, out) == list(range(110)), "the query that the checkpoint belongs to goes on with it"


def test_a_checkpoint_of_a_query_over_another_kind_of_source(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, 10)
    client.create_topic(cluster, f"{topic}-out", 2, 1)
    files = tmp_path / "files"
    spark.range(5).selectExpr("cast(id as string) value").write.text(str(files))
    texts = spark.readStream.format("text").load(str(files))
    run_stream(texts, bootstrap, tmp_path / "checkpoint", topic=f"{topic}-out")
    message = "The checkpoint belongs to another query: its offset .*logOffset.* is none of a topic's. Give this query a"
    with pytest.raises(PySparkException, match=message):
        run_stream(copied(spark, bootstrap, topic), bootstrap, tmp_path / "checkpoint", topic=f"{topic}-out")
    assert committed(cluster, f"{topic}-out") == list(range(5))


# ---- corrupt batches -----------------------------------------------------------------------------------------------------


def test_a_corrupt_batch_is_named_and_nothing_of_it_counts(
    spark: SparkSession, broker: ServerProcess, tmp_path: Path, topic: str
) -> None:
    bootstrap, out = broker.bootstrap_servers, f"{topic}-out"
    with Cluster(bootstrap) as cluster:
        client.create_topic(cluster, topic, 1, 1)
        client.create_topic(cluster, out, 1, 1)
        for first in range(0, 100, 10):
            client.write(topic, pa.table({"value": [b"%d" % number for number in range(first, first + 10)]}), cluster=cluster)
        log = Path(broker.directory, f"{topic}-0", f"{0:020}.log")
        good = log.read_bytes()
        log.write_bytes(good[:-1] + b"!")
        message = f"CorruptBatch: The batch at offset 90 of partition {topic}-0 is corrupt .*: read on from a later offset"
        with pytest.raises(PySparkException, match=message):
            read(spark, bootstrap, subscribe=topic).collect()
        whole = read(spark, bootstrap, subscribe=topic, endingOffsets=json.dumps({topic: {"0": 90}}))
        assert numbers(whole) == list(range(90))
        options = {"topic": out, "exactlyOnce": "true", "transactionalId": out}
        frame = copied(spark, bootstrap, topic, maxOffsetsPerTrigger="40").select("value")
        with pytest.raises(PySparkException, match=message):
            run_stream(frame, bootstrap, tmp_path / "checkpoint", **options)
        assert committed(cluster, out) == list(range(80)), "the batches before it, and nothing of its own"
        log.write_bytes(good)
        run_stream(frame, bootstrap, tmp_path / "checkpoint", **options)
        assert committed(cluster, out) == ALL


# ---- a broker that is away -----------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize(("seconds", "goes_on"), [(3, True), *([(75, False)] if SOAK else [])])
def test_a_broker_goes_away_while_a_stream_runs(
    spark: SparkSession, broker: ServerProcess, tmp_path: Path, topic: str, seconds: int, goes_on: bool
) -> None:
    """Killed with -9, and back later: the query goes on, or after a minute (default.api.timeout.ms) says why it does not."""
    bootstrap, out = broker.bootstrap_servers, f"{topic}-out"
    with Cluster({"bootstrap.servers": bootstrap, "retry.backoff.ms": 20}) as cluster:
        fill(cluster, topic, 100)
        client.create_topic(cluster, out, 2, 1)
        sink = copied(spark, bootstrap, topic).writeStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
        options = {"topic": out, "exactlyOnce": "true", "commitGroup": out, "checkpointLocation": str(tmp_path / "checkpoint")}
        sink = sink.options(**options).trigger(processingTime="100 milliseconds")
        query = sink.start()

        def wait_until(values: list[int]) -> None:
            deadline = time.monotonic() + 120
            while committed(cluster, out) != values:
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline, committed(cluster, out)
                time.sleep(0.05)

        wait_until(ALL)
        broker.kill()
        if goes_on:
            assert not query.awaitTermination(seconds), "it waits for the broker"
        else:
            with pytest.raises(PySparkException, match=rf"BrokerUnreachable: Cannot connect to the broker at {bootstrap}"):
                query.awaitTermination(seconds)
        broker.start()
        fill(cluster, topic, 50, first=100, create=False)
        if not goes_on:
            query = sink.start()
        wait_until(list(range(150)))
        query.stop()
        assert sum(one.offset for one in client.committed_offsets(cluster, out).values()) == 150
