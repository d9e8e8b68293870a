"""The sink: what arrives, as a whole and once; which way a batch goes by itself, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ottla import client
from ottla.client import Cluster, TopicPartition
from ottla.spark.coordination import last_batch
from spark.queries import committed, fill, numbers, read, read_stream, run_stream, write

ALL = list(range(100))


def frame_of(spark: SparkSession, *columns: str, tasks: int = 2) -> DataFrame:
    wanted = columns or ("cast(id as string) key", "cast(id as string) value")
    return spark.range(100, numPartitions=tasks).selectExpr(*wanted)


# ---- batches -------------------------------------------------------------------------------------------------------------


def test_a_frame_into_topics(spark: SparkSession, either: str, open_cluster: Callable[[str], Cluster], topic: str) -> None:
    """Keys, partitions, headers and the topic column, as in Spark's Kafka sink."""
    cluster = open_cluster(either)
    for name in (topic, f"{topic}-odd"):
        client.create_topic(cluster, name, 3, 1)
    columns = (
        f"case when id % 2 = 0 then '{topic}' else '{topic}-odd' end topic",
        "cast(id as string) key",
        "encode(cast(id as string), 'UTF-8') value",
        "cast(case when id < 50 then id % 3 end as int) partition",
        "array(struct('n' as key, encode(cast(id as string), 'UTF-8') as value)) headers",
        "current_timestamp() timestamp",
    )
    write(frame_of(spark, *columns), either)
    rows = client.read([topic, f"{topic}-odd"], cluster=cluster, columns=client.SCHEMA.names).table().to_pylist()
    assert sorted(int(row["value"]) for row in rows) == ALL
    for row in rows:
        number = int(row["value"])
        assert row["topic"] == (f"{topic}-odd" if number % 2 else topic)
        assert row["key"] == row["value"] == row["headers"][0]["value"]
        assert number >= 50 or row["partition"] == number % 3


@pytest.mark.parametrize("transactions", ["shared", "task"])
def test_a_batch_as_a_whole(
    spark: SparkSession, either: str, open_cluster: Callable[[str], Cluster], topic: str, transactions: str
) -> None:
    cluster = open_cluster(either)
    client.create_topic(cluster, topic, 2, 1)
    good = frame_of(spark, "cast(id as string) value", "cast(id div 50 as int) partition")
    bad = frame_of(spark, "cast(if(id = 99, raise_error('no'), id) as string) value", "cast(id div 50 as int) partition")
    options = {"topic": topic, "exactlyOnce": "true", "transactions": transactions, "transactionalId": topic}
    with pytest.raises(PySparkException, match="no"):
        write(bad, either, **options)
    assert committed(cluster, topic) == []
    write(good, either, **options)
    assert committed(cluster, topic) == ALL
    assert client.open_transactions(cluster, topic) == []


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (("id",), {}, "There is no column value: the columns are id"),
        (("id value",), {}, "Column value has type bigint: cast it to string or binary"),
        (("cast(id as string) value",), {"topic": None}, "No topic: set option topic, or give a column topic"),
        (("cast(id as string) value",), {"exactlyOnce": "true", "kafka.transaction.timeout.ms": "99999999"},
         "The brokers do not allow transactions of 99999999 ms"),
        (("cast(id as string) value",), {"commitGroup": "g"}, "Option commitGroup is for streams"),
        (("cast(id as string) value", "cast(id % 2 as int) partition"), {"exactlyOnce": "true"},
         "cannot share one transaction: tasks 0 and 1 both wrote to partition"),
        (("cast(id as string) value",), {"topic": "there-is-none"}, "Topic there-is-none does not exist"),
    ],
)  # fmt: skip
def test_what_is_refused(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    topic: str,
    columns: tuple[str, ...],
    options: dict[str, str | None],
    message: str,
) -> None:
    client.create_topic(cluster, topic, 2, 1)
    given = {name: value for name, value in {"topic": topic, **options}.items() if value is not None}
    with pytest.raises(PySparkException, match=message):
        write(frame_of(spark, *columns), bootstrap, **given)
    assert committed(cluster, topic) == []


# ---- streams -------------------------------------------------------------------------------------------------------------


def copying(spark: SparkSession, bootstrap: str, topic: str, *columns: str, limit: int = 40) -> DataFrame:
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
    return read_stream(spark, bootstrap, **options).selectExpr(*(columns or ("key", "value")))


@pytest.mark.parametrize(
    ("columns", "transactions"),
    [
        (("key", "value"), "task"),
        (("value", "partition"), "shared"),
        (("value",), "shared"),
    ],
    ids=["keys", "partitions", "values"],
)
def test_a_stream_exactly_once(
    spark: SparkSession,
    either: str,
    open_cluster: Callable[[str], Cluster],
    topic: str,
    tmp_path: Path,
    columns: tuple[str, ...],
    transactions: str,
) -> None:
    cluster = open_cluster(either)
    fill(cluster, topic, 100)
    out = f"{topic}-out"
    client.create_topic(cluster, out, 2, 1)
    options = {"topic": out, "exactlyOnce": "true", "transactionalId": topic, "commitGroup": f"g-{topic}"}
    run_stream(copying(spark, either, topic, *columns), either, tmp_path, **options)
    assert committed(cluster, out) == ALL
    assert last_batch(cluster, topic).mode == transactions
    group = client.committed_offsets(cluster, f"g-{topic}")
    assert {tp.partition: one.offset for tp, one in group.items()} == {0: 50, 1: 50}
    # As if the driver had died before Spark noted that the last batch is done: it is run again, and left out.
    (tmp_path / "commits" / "2").unlink()
    (tmp_path / "commits" / ".2.crc").unlink(missing_ok=True)
    run_stream(copying(spark, either, topic, *columns), either, tmp_path, **options)
    assert committed(cluster, out) == ALL


def test_a_batch_that_cannot_be_shared_is_written_by_tasks_after_a_restart(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, 100)
    out = f"{topic}-out"
    client.create_topic(cluster, out, 2, 1)
    both = copying(spark, bootstrap, topic, "value", "cast(offset % 2 as int) partition")
    with pytest.raises(PySparkException, match="Started again, the query uses one transaction for each task"):
        run_stream(both, bootstrap, tmp_path, topic=out, exactlyOnce="true")
    assert committed(cluster, out) == []
    run_stream(both, bootstrap, tmp_path, topic=out, exactlyOnce="true")
    assert committed(cluster, out) == ALL


def test_at_least_once(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    fill(cluster, topic, 100)
    client.create_topic(cluster, f"{topic}-out", 2, 1)
    frame = copying(spark, bootstrap, topic)
    run_stream(frame, bootstrap, tmp_path, topic=f"{topic}-out", commitGroup=f"g-{topic}")
    assert numbers(read(spark, bootstrap, subscribe=f"{topic}-out")) == ALL
    assert client.committed_offsets(cluster, f"g-{topic}")[TopicPartition(topic, 0)].offset == 50


def test_batches_that_are_written_inside_a_stream(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Two writes with one transactional id in each micro-batch are two batches; one that has a name is written once."""
    fill(cluster, topic, 20)
    out, named = f"{topic}-out", f"{topic}-named"
    for name in (out, named):
        client.create_topic(cluster, name, 1, 1)

    def write_thrice(batch: DataFrame, number: int) -> None:
        rows = batch.select("value")
        for _ in range(2):
            write(rows, bootstrap, topic=out, exactlyOnce="true", transactionalId=out)
        write(rows, bootstrap, topic=named, exactlyOnce="true", transactionalId=named, batchName=f"batch {number}")

    def run() -> None:
        query = copying(spark, bootstrap, topic, limit=10).writeStream.foreachBatch(write_thrice)
        query.option("checkpointLocation", tmp_path).trigger(availableNow=True).start().awaitTermination()

    run()
    assert committed(cluster, out) == sorted([*range(20)] * 2)
    assert committed(cluster, named) == [*range(20)]
    # As if the driver had died before Spark noted that the last batch is done.
    (tmp_path / "commits" / "1").unlink()
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    assert committed(cluster, named) == [*range(20)]
    assert len(committed(cluster, out)) == 60, "nobody can know one without a name again"
