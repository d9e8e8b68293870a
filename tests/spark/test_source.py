"""The source, batch and streaming: what is read, in which pieces, and what it says when records are gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ottla import client
from ottla.client import Cluster, TopicPartition
from ottla.spark.offsets import OffsetRange
from ottla.spark.options import source_options
from ottla.spark.positions import sample_sizes
from ottla.spark.reader import DataLost, RangePartition
from ottla.spark.stream_reader import StreamReader
from ottla.wire.apis.topics import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from spark.queries import NOW, Collected, fill, numbers, read, read_stream

ALL = list(range(100))


# ---- batch ---------------------------------------------------------------------------------------------------------------


def test_a_topic_as_a_frame(spark: SparkSession, either: str, open_cluster: Callable[[str], Cluster], topic: str) -> None:
    cluster = open_cluster(either)
    fill(cluster, topic, 100)
    client.write(topic, _with_headers(), cluster=cluster)
    frame = read(spark, either, subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    rows = {bytes(row.value): row for row in frame.collect()}
    assert len(rows) == 101
    seven = rows[b"7"]
    assert (bytes(seven.key), seven.topic, seven.partition, seven.offset, seven.timestampType) == (b"k7", topic, 1, 3, 0)
    assert int(seven.timestamp.timestamp() * 1000) == NOW + 7000
    assert seven.headers is None
    assert [(one.key, one.value) for one in rows[b"h"].headers] == [("a", bytearray(b"1")), ("b", None)]
    assert read(spark, either, subscribe=topic, columns="offset,value").columns == ["offset", "value"]


def _with_headers() -> pa.Table:
    kind = client.SCHEMA.field("headers").type
    headers = pa.array([[{"key": "a", "value": b"1"}, {"key": "b", "value": None}]], kind)
    return pa.table({"value": pa.array([b"h"]), "partition": pa.array([0]), "headers": headers})


def test_bounds(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 100)

    def some(**options: object) -> list[int]:
        return numbers(read(spark, bootstrap, **{"subscribe": topic, **options}))

    assert some() == ALL
    offsets = {"startingOffsets": {"0": 10, "1": -2}, "endingOffsets": {"0": 12, "1": 3}}
    assert some(**{name: json.dumps({topic: value}) for name, value in offsets.items()}) == [1, 3, 5, 20, 22]
    assert some(startingTimestamp=NOW + 95_000) == [95, 96, 97, 98, 99]
    times = {"startingOffsetsByTimestamp": {"0": NOW + 90_000, "1": NOW + 97_000}, "endingTimestamp": NOW + 98_000}
    given = {name: json.dumps({topic: value}) if isinstance(value, dict) else value for name, value in times.items()}
    assert some(**given) == [90, 92, 94, 96, 97]
    assert some(startingTimestamp=NOW + 10**6, startingOffsetsByTimestampStrategy="latest") == []
    assert numbers(read(spark, bootstrap, assign=json.dumps({topic: [1]}))) == list(range(1, 100, 2))
    assert numbers(read(spark, bootstrap, subscribePattern=f"{topic[:-2]}..")) == ALL
    for options, message in (
        ({"startingTimestamp": NOW + 10**6}, "has no record at or after time"),
        ({"startingOffsets": json.dumps({topic: {"0": 1}})}, f"does not name partition {topic}-1"),
        ({"endingOffsets": json.dumps({topic: {"0": 1, "1": 999}})}, "offsets 0 to 998 were to be read.*has 0 to 50"),
    ):
        with pytest.raises(PySparkException, match=message):
            some(**options)
    with pytest.raises(PySparkException, match=f"Topic {topic}-none does not exist"):
        some(subscribe=f"{topic}-none")


def test_large_ranges_are_split(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 100)
    halves = read(spark, bootstrap, subscribe=topic, maxRecordsPerPartition="20")
    assert halves.rdd.getNumPartitions() == 6
    assert numbers(halves) == ALL
    assert read(spark, bootstrap, subscribe=topic, minPartitions="5").rdd.getNumPartitions() == 5
    assert read(spark, bootstrap, subscribe=topic).rdd.getNumPartitions() == 2


def test_filters_go_down_where_the_setting_allows_it(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 100)
    chosen = "partition = 1 and offset >= 10 and offset < 13"

    def frame(**options: str) -> DataFrame:
        return read(spark, bootstrap, subscribe=topic, **options)

    assert numbers(frame(pushFilters="true").where(chosen)) == [21, 23, 25], "the setting does not allow it"
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        narrowed = frame(pushFilters="true").where(chosen)
        assert numbers(narrowed) == [21, 23, 25]
        assert narrowed.rdd.getNumPartitions() == 1
        late = frame(pushFilters="true").where(f"timestamp >= timestamp_millis({NOW + 97_000}L)")
        assert numbers(late) == [97, 98, 99]
        every = frame()  # Spark would plan both sides with the filters of one: nothing is pushed unless it is asked for
        assert numbers(every.where("partition = 0").union(every.where("partition = 1"))) == ALL
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_only_what_is_committed(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 1, 1)
    with client.Producer(cluster, transactional_id=topic) as producer:
        for value in (b"1", b"2", b"3"):
            producer.begin()
            producer.write(topic, pa.table({"value": [value]}))
            producer.abort() if value == b"2" else producer.commit()
    assert numbers(read(spark, bootstrap, subscribe=topic)) == [1, 2, 3]
    assert numbers(read(spark, bootstrap, subscribe=topic, **{"kafka.isolation.level": "read_committed"})) == [1, 3]


# ---- streaming -----------------------------------------------------------------------------------------------------------


def test_a_stream_in_limited_batches_that_others_see(
    spark: SparkSession, either: str, open_cluster: Callable[[str], Cluster], topic: str, tmp_path: Path
) -> None:
    cluster = open_cluster(either)
    fill(cluster, topic, 100)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40", "commitGroup": f"g-{topic}"}
    stream = Collected(lambda: read_stream(spark, either, **options), str(tmp_path))
    stream.run()
    assert sorted(stream.got) == ALL
    assert stream.batches == [40, 40, 20]
    assert stream.query is not None
    first = stream.query.recentProgress[0]["sources"][0]
    assert json.loads(first["endOffset"])[topic] == {"0": 20, "1": 20}
    assert json.loads(first["latestOffset"])[topic] == {"0": 50, "1": 50}
    committed = client.committed_offsets(cluster, f"g-{topic}")
    assert {tp.partition: one.offset for tp, one in committed.items()} == {0: 50, 1: 50}
    fill(cluster, topic, 10, first=100, create=False)
    stream.run()
    assert sorted(stream.got) == list(range(110))


def test_limits_in_bytes_and_from_below(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    client.create_topic(cluster, topic, 1, 1)
    client.write(topic, pa.table({"value": [b"%0100d" % number for number in range(100)]}), cluster=cluster)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxBytesPerTrigger": "5000", "minOffsetsPerTrigger": "1000"}
    stream = Collected(lambda: read_stream(spark, bootstrap, **options), str(tmp_path))
    stream.run()  # AvailableNow does not wait for more than there is
    assert stream.got == ALL
    assert 2 <= len(stream.batches) <= 4


def test_partitions_that_appear(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    fill(cluster, topic, 10, partitions=1)
    options = {"subscribePattern": f"{topic}.*", "startingOffsets": "latest"}
    stream = Collected(lambda: read_stream(spark, bootstrap, **options), str(tmp_path))
    stream.run()
    fill(cluster, topic, 10, first=10, partitions=1, create=False)
    fill(cluster, f"{topic}-new", 10, first=20)
    stream.run()
    assert sorted(stream.got) == list(range(10, 30)), "of a partition that is new everything is read"


def _shorten(cluster: Cluster, topic: str, before: int) -> None:
    """Delete the first records of partition 0."""
    wanted = DeleteRecordsPartition(partition_index=0, offset=before)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=10_000)
    leader = cluster.leaders([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
    assert cluster.ask(request, leader).topics[0].partitions[0].error_code == 0


def _recreate(cluster: Cluster, topic: str, count: int) -> None:
    client.delete_topic(cluster, topic)
    fill(cluster, topic, count, first=1000, partitions=1)


@pytest.mark.parametrize(
    ("change", "message", "then"),
    [
        (lambda cluster, topic: (fill(cluster, topic, 10, first=10, partitions=1, create=False), _shorten(cluster, topic, 15)),
         "{topic}-0: offsets 10 to 14 are gone, its log begins at 15 now", list(range(15, 20))),
        (lambda cluster, topic: _recreate(cluster, topic, 20),
         "{topic}-0: its topic was deleted and made anew; the old one was read up to offset 10", list(range(1000, 1020))),
        (client.delete_topic,
         "{topic}-0: it does not exist any more; it was read up to offset 10", []),
    ],
    ids=["truncated", "recreated", "deleted"],
)  # fmt: skip
def test_records_that_are_gone(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    topic: str,
    tmp_path: Path,
    change: Callable[[Cluster, str], Any],
    message: str,
    then: list[int],
) -> None:
    fill(cluster, topic, 10, partitions=1)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    strict = Collected(lambda: read_stream(spark, bootstrap, **options), str(tmp_path))
    strict.run()
    assert strict.got == list(range(10))
    change(cluster, topic)
    with pytest.raises(PySparkException, match=message.format(topic=topic)):
        strict.run()
    lax = Collected(lambda: read_stream(spark, bootstrap, **options, failOnDataLoss="false"), str(tmp_path))
    lax.run()
    assert lax.got == then


def _reader(bootstrap: str, topic: str, **options: str) -> StreamReader:
    """The driver's side of a stream that goes on where records are gone, without Spark around it."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "failOnDataLoss": "false", **options}
    return StreamReader(source_options(given, streaming=True))


def _planned(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
    return [one for task in reader.partitions(start, end) if isinstance(task, RangePartition) for one in task.ranges]


def test_small_ranges_of_a_stream_share_a_task(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 40, partitions=4)
    stream = {"subscribe": topic, "startingOffsets": "earliest"}
    tasks: dict[str, set[int]] = {}
    for least in ("500", "20", "0"):
        frame = read_stream(spark, bootstrap, **stream, minRecordsPerPartition=least)
        got: list[Any] = []
        rows = frame.selectExpr("cast(cast(value as string) as int) n", "spark_partition_id() task")
        query = rows.writeStream.foreachBatch(lambda batch, _, got=got: got.extend(batch.collect()))
        query.trigger(availableNow=True).start().awaitTermination()
        assert sorted(row.n for row in got) == list(range(40))
        tasks[least] = {row.task for row in got}
    assert [len(tasks[least]) for least in ("500", "20", "0")] == [1, 2, 4]


def test_a_limit_in_bytes_where_records_are_gone(bootstrap: str, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 100, partitions=1)
    _shorten(cluster, topic, 60)
    reader, tp = _reader(bootstrap, topic, maxBytesPerTrigger="100"), TopicPartition(topic, 0)
    start = {topic: {"0": 10}}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    (planned,) = _planned(reader, start, end)
    assert planned.start == 60
    assert 60 < planned.end < 100, "a limit counts what is there"
    gone = [OffsetRange(tp, 10, 20), OffsetRange(TopicPartition(f"{topic}-none", 0), 0, 5), OffsetRange(tp, 60, 100)]
    assert sample_sizes(cluster, gone, "read_uncommitted").keys() == {tp}
    assert sample_sizes(cluster, gone[:2], "read_uncommitted") == {}
    reader.stop()


def test_a_batch_is_not_replayed_from_a_topic_made_anew(bootstrap: str, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 10, partitions=1)
    reader = _reader(bootstrap, topic, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert _planned(reader, start, end) == [OffsetRange(TopicPartition(topic, 0), 0, 10)]
    _recreate(cluster, topic, 20)
    assert _planned(reader, start, end) == []
    after = reader.latestOffset(end, ReadAllAvailable())
    assert _planned(reader, end, after) == [OffsetRange(TopicPartition(topic, 0), 0, 20)], "the next batch has all of it"
    strict = _reader(bootstrap, topic, failOnDataLoss="true")
    with pytest.raises(DataLost, match=f"{topic}-0: its topic was deleted and made anew; offsets up to 10 of the old one"):
        strict.partitions(start, end)
    for one in (reader, strict):
        one.stop()
