"""What is written is read: every codec, headers, nulls and tombstones, by us and by others, from Ottla and Apache Kafka."""

from __future__ import annotations

import datetime
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from client.tables import NOW, everything, same
from ottla import client
from ottla.client import At, Cluster, TopicPartition
from ottla.wire.apis import ApiKey

ALL = client.SCHEMA.names
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
def test_a_table_there_and_back(cluster: Cluster, topic: str, codec: str) -> None:
    client.create_topic(cluster, topic, 3, 1)
    sent = everything(5000)
    written = client.write(topic, sent, cluster=cluster, codec=codec, batch_size=20_000)
    assert sum(one.records for one in written.values()) == 5000
    assert all(one.first == 0 and one.end == one.records for one in written.values())
    got = client.read(topic, cluster=cluster, columns=ALL).table()
    got.validate(full=True)
    assert got.schema == client.SCHEMA
    assert same(got) == same(sent)
    assert set(got["topic"].to_pylist()) == {topic}
    assert set(got["timestampType"].to_pylist()) == {0}
    for number in range(3):
        part = client.read(topic, cluster=cluster, partitions=[number], columns=["offset", "partition"]).table()
        assert part["offset"].to_pylist() == list(range(part.num_rows))
        assert set(part["partition"].to_pylist()) == {number}


def test_columns_are_chosen(cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 1, 1)
    client.write(topic, everything(100), cluster=cluster)
    reader = client.read(topic, cluster=cluster, columns=["value"])
    assert reader.schema.names == ["value"]
    assert reader.table()["value"].to_pylist() == everything(100)["value"].to_pylist()
    assert client.read(topic, cluster=cluster).schema.names == list(client.COLUMNS)
    with pytest.raises(client.InvalidSetting, match="There is no column payload: allowed are key, value"):
        client.read(topic, cluster=cluster, columns=["payload"])


def test_log_append_time(cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 1, 1, {"message.timestamp.type": "LogAppendTime"})
    client.write(topic, everything(50), cluster=cluster)
    got = client.read(topic, cluster=cluster, columns=["timestamp", "timestampType"]).table()
    assert set(got["timestampType"].to_pylist()) == {1}
    assert len(set(got["timestamp"].to_pylist())) == 1


def test_offsets_and_times_as_bounds(cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 2, 1)
    rows = pa.table(
        {
            "value": [b"%d" % row for row in range(20)],
            "partition": [row % 2 for row in range(20)],
            "timestamp": [NOW + 1000 * row for row in range(20)],
        }
    )
    client.write(topic, rows, cluster=cluster)

    def read(start: Any, end: Any) -> list[int]:
        table = client.read(topic, start, end, cluster=cluster, columns=["value"]).table()
        return sorted(int(value) for value in table["value"].to_pylist())

    assert read(3, 5) == [6, 7, 8, 9]
    assert read({0: 9}, "latest") == [18]
    assert read({0: 2, 1: "latest"}, {0: 4}) == [4, 6]
    assert read(At(NOW + 5000), At(NOW + 8000)) == [5, 6, 7]
    when = datetime.datetime.fromtimestamp((NOW + 17_000) / 1000, datetime.UTC)
    assert read(when, "latest") == [17, 18, 19]
    assert read(At(NOW + 60_000), "latest") == []
    assert read("earliest", At(NOW + 60_000)) == list(range(20))
    assert read("latest", "earliest") == []
    assert read({TopicPartition(topic, 1): -2}, {TopicPartition(topic, 1): -1}) == list(range(1, 20, 2))


def test_committed_records_only(cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 1, 1)

    def values(isolation: str) -> list[bytes]:
        found: list[bytes] = client.read(topic, cluster=cluster, isolation=isolation).table()["value"].to_pylist()
        return found

    def some(name: str) -> pa.Table:
        return pa.table({"value": [f"{name}-{row}" for row in range(3)]})

    with (
        client.Producer(cluster, transactional_id=f"{topic}-a") as first,
        client.Producer(cluster, transactional_id=f"{topic}-b") as second,
    ):
        first.begin()
        second.begin()
        first.write(topic, some("aborted"))
        second.write(topic, some("committed"))
        client.write(topic, some("plain"), cluster=cluster)
        first.abort()
        second.commit()
        first.begin()
        first.write(topic, some("later"))
        first.commit(visible=True)
        second.begin()
        second.write(topic, some("open"))
        wanted = [f"{name}-{row}".encode() for name in ("committed", "plain", "later") for row in range(3)]
        assert values("read_committed") == wanted
        assert len(values("read_uncommitted")) == 15
        second.abort()
    assert values("read_committed") == wanted


def test_one_transaction_by_several_writers_and_a_groups_offsets(cluster: Cluster, topic: str) -> None:
    """As the Spark sink does it: the driver begins and ends, tasks write to partitions of their own."""
    client.create_topic(cluster, topic, 2, 1)
    group = f"g-{topic}"
    place = TopicPartition(topic, 1)
    identity = client.init_producer(cluster, topic)
    for number in range(2):
        with client.Producer(cluster, identity=identity) as task:
            rows = pa.table({"value": [b"x"] * 10, "partition": [number] * 10})
            assert task.write(topic, rows)[TopicPartition(topic, number)].records == 10
            with pytest.raises(client.ClientError, match="only joined"):
                task.commit()
    client.add_offsets(cluster, identity, group, {place: client.Committed(42, "batch 7")})
    assert client.committed_offsets(cluster, group, []) == {}
    assert client.read(topic, cluster=cluster, isolation="read_committed").table().num_rows == 0
    client.end_transaction(cluster, identity, commit=True)
    client.end_transaction(cluster, identity, commit=True)  # an answer that was lost does no harm
    assert client.read(topic, cluster=cluster, isolation="read_committed").table().num_rows == 20
    assert client.committed_offsets(cluster, group) == {place: client.Committed(42, "batch 7")}
    again = client.init_producer(cluster, topic)
    assert again.epoch > identity.epoch
    with client.Producer(cluster, identity=identity) as late, pytest.raises(client.ProducerFenced):
        late.write(topic, pa.table({"value": [b"too late"]}))


def test_a_write_in_one_transaction(cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 1, 1)
    client.write(topic, everything(100), cluster=cluster, transactional_id=topic)

    def broken() -> Any:
        yield everything(100)
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError, match="the source is gone"):
        client.write(topic, broken(), cluster=cluster, transactional_id=topic)
    assert client.read(topic, cluster=cluster, isolation="read_committed").table().num_rows == 100


def test_a_topic_column(cluster: Cluster, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        client.create_topic(cluster, name, 1, 1)
    rows = pa.table({"value": [b"%d" % row for row in range(30)], "topic": [names[row % 3] for row in range(30)]})
    written = client.write(None, rows, cluster=cluster)
    assert {tp.topic: one.records for tp, one in written.items()} == dict.fromkeys(names, 10)
    got = client.read(names, cluster=cluster).table()
    assert sorted(zip(got["topic"].to_pylist(), got["value"].to_pylist(), strict=True)) == sorted(
        zip(rows["topic"].to_pylist(), rows["value"].to_pylist(), strict=True)
    )


def test_tail_follows_until_it_is_stopped(cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 2, 1)
    client.write(topic, pa.table({"value": [b"before"]}), cluster=cluster)
    with client.tail(topic, cluster=cluster, columns=["value"]) as reader:
        assert reader.poll(0.05) is None
        client.write(topic, pa.table({"value": [b"%d" % row for row in range(10)]}), cluster=cluster)
        got: list[bytes] = []
        while len(got) < 10:
            got += next(reader)["value"].to_pylist()
        assert sorted(got) == sorted(b"%d" % row for row in range(10))
        reader.stop()
        assert list(reader) == []


def test_groups_and_settings(cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 2, 1, {"retention.ms": 123456789})
    assert client.describe_topic(cluster, topic)["retention.ms"] == "123456789"
    assert sorted(cluster.topic(topic, fresh=True).partitions) == [0, 1]
    group = f"g-{topic}"
    offsets = {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): client.Committed(7, "seen")}
    client.commit_offsets(cluster, group, offsets)
    assert client.committed_offsets(cluster, group, [TopicPartition(topic, 1)]) == {
        TopicPartition(topic, 1): client.Committed(7, "seen")
    }
    client.delete_topic(cluster, topic)
    with pytest.raises(client.UnknownTopic):
        client.delete_topic(cluster, f"{topic}-none")


# ---- with others ---------------------------------------------------------------------------------------------------------


def _bootstrap(cluster: Cluster) -> str:
    return str(cluster.settings.bootstrap[0])


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_what_we_wrote_and_we_what_it_wrote(cluster: Cluster, topic: str, codec: str) -> None:
    client.create_topic(cluster, topic, 5, 1)
    sent = everything(500)
    client.write(topic, sent, cluster=cluster, codec=codec)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": _bootstrap(cluster), "group.id": topic, "check.crcs": True})
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(5)])
    messages: list[Any] = []
    while len(messages) < 500:
        messages += consumer.consume(500, 5)
    consumer.close()
    assert all(message.error() is None for message in messages)
    theirs = [(m.key(), m.value(), m.timestamp()[1], [tuple(h) for h in m.headers() or ()]) for m in messages]
    ours = [
        (
            row["key"],
            row["value"],
            int(row["timestamp"].timestamp() * 1000 + 0.5),
            [tuple(h.values()) for h in row["headers"] or ()],
        )
        for row in sent.to_pylist()
    ]
    assert sorted(theirs, key=repr) == sorted(ours, key=repr)

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": _bootstrap(cluster), "compression.type": codec, "linger.ms": 20, "partitioner": "murmur2_random"}
    )
    places: dict[bytes, int] = {}
    for number in range(500):
        producer.produce(
            topic, b"from there", b"%d" % number, headers=[("n", b"%d" % number)],
            on_delivery=lambda _error, message: places.update({message.key(): message.partition()}),
        )  # fmt: skip
    producer.flush(20)
    written = client.write(topic, pa.table({"key": list(places), "value": [b"from here"] * 500}), cluster=cluster)
    ends = {tp: one.first for tp, one in written.items()}
    got = client.read(topic, cluster=cluster, columns=ALL).table().to_pylist()
    from_there = [row for row in got if row["value"] == b"from there"]
    assert sorted((row["key"], row["headers"][0]["value"]) for row in from_there) == sorted((key, key) for key in places)
    from_here = {row["key"]: row["partition"] for row in got if row["offset"] >= ends[TopicPartition(topic, row["partition"])]}
    assert from_here == places, "the same key goes to the same partition"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize(("version", "kind"), [(1, -1), (3, 0)])
def test_message_sets_of_old_brokers(cluster: Cluster, topic: str, codec: str, version: int, kind: int) -> None:
    """A broker that is asked as in 0.9 and in 0.10 answers with messages of format v0 and v1."""
    client.create_topic(cluster, topic, 1, 1)
    sent = everything(300).select(["key", "value", "timestamp"])
    client.write(topic, sent, cluster=cluster, codec=codec, batch_size=2000)
    with Cluster(_bootstrap(cluster), limits={ApiKey.FETCH: version}) as old:
        got = client.read(topic, 7, 290, cluster=old).table()
        assert got["offset"].to_pylist() == list(range(7, 290))
        assert got["key"].to_pylist() == sent["key"].to_pylist()[7:290]
        assert got["value"].to_pylist() == sent["value"].to_pylist()[7:290]
        assert set(got["timestampType"].to_pylist()) == {kind}
        if kind == 0:
            assert got["timestamp"].to_pylist() == sent["timestamp"].to_pylist()[7:290]
        with pytest.raises(client.UnsupportedByBroker, match="FetchRequest is needed in version 4 to 12"):
            client.read(topic, cluster=old, isolation="read_committed").table()


def test_every_shape_of_input(cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 1, 1)
    table = everything(100)
    shapes: list[Any] = [
        table,
        table.slice(10, 50).combine_chunks().to_batches()[0].slice(3, 20),
        table.to_batches(max_chunksize=7),
        pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=9)),
        table.set_column(1, "value", table["value"].cast(pa.large_binary())),
        pa.table(
            {"value": pa.array(["a", None, "b"]).dictionary_encode(), "key": pa.array(["x", "y", None], pa.large_string())}
        ),
        pa.table({"value": pa.array([], pa.binary())}),
    ]
    start = 0
    for shape in shapes:
        written = client.write(topic, shape, cluster=cluster)
        count = sum(one.records for one in written.values())
        got = client.read(topic, start, cluster=cluster, columns=ALL).table()
        assert got.num_rows == count
        start += count
    assert start == 100 + 20 + 100 + 100 + 100 + 3
    sliced = client.read(topic, 100, 120, cluster=cluster, columns=ALL).table()
    assert same(sliced) == same(table.slice(13, 20))
