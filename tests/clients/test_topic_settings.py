"""Settings of a topic that change what happens to its records: timestamps, codecs, sizes, retention; also changed live."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin as ck
import pytest

from clients.adapters import BY_NAME, Client, Out, read
from clients.conftest import Topics
from clients.stored import batches
from support.server import ServerProcess
from support.waiting import wait_for

STAMP = 1_600_000_000_000


def _set(admin: ck.AdminClient, topic: str, **settings: str) -> None:
    changes = [
        ck.ConfigEntry(name.replace("_", "."), value, incremental_operation=ck.AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ck.ConfigResource(ck.ResourceType.TOPIC, topic, incremental_configs=changes)
    admin.incremental_alter_configs([resource])[resource].result(20)


def test_log_append_time_is_the_brokers(server: ServerProcess, topics: Topics, topic: str, client: Client) -> None:
    topics.create(topic, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    client.produce(server.bootstrap_servers, topic, [Out(b"%d" % number, timestamp=STAMP) for number in range(20)])
    after = int(time.time() * 1000)
    with client.reader(server.bootstrap_servers, [(topic, 0)]) as reader:
        records = read(reader, 20)
    assert all(before <= record.timestamp <= after for record in records)
    assert all(batch.log_append_time for batch in batches(server, topic))


@pytest.mark.parametrize("sent", ["none", "gzip", "lz4"])
@pytest.mark.parametrize("kept", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_the_topics_codec_decides(server: ServerProcess, topics: Topics, topic: str, sent: str, kept: str) -> None:
    """Whatever the producer used, the topic's codec is on the disk, and every client reads it."""
    topics.create(topic, compression_type=kept)
    values = [b"%d" % number + b"x" * 100 for number in range(200)]
    offsets = BY_NAME["confluent"].produce(
        server.bootstrap_servers,
        topic,
        [Out(value, timestamp=STAMP) for value in values],
        {"compression.type": sent, "linger.ms": 20},
    )
    assert offsets == list(range(200))
    assert {batch.codec for batch in batches(server, topic)} == {"none" if kept == "uncompressed" else kept}
    for reader_name in BY_NAME:
        with BY_NAME[reader_name].reader(server.bootstrap_servers, [(topic, 0)]) as reader:
            records = read(reader, 200)
        assert [(record.offset, record.value, record.timestamp) for record in records] == [
            (number, value, STAMP) for number, value in enumerate(values)
        ]


def test_a_limit_on_sizes_holds_at_once(server: ServerProcess, topics: Topics, admin: ck.AdminClient, topic: str) -> None:
    topics.create(topic)
    client = BY_NAME["confluent"]
    client.produce(server.bootstrap_servers, topic, [Out(bytes(5000))])
    _set(admin, topic, max_message_bytes="2000")
    with pytest.raises(confluent_kafka.KafkaException, match="MSG_SIZE_TOO_LARGE"):
        client.produce(server.bootstrap_servers, topic, [Out(bytes(5000))])
    assert client.produce(server.bootstrap_servers, topic, [Out(bytes(1000))]) == [1]


def test_a_compacted_topic_wants_keys(server: ServerProcess, topics: Topics, topic: str) -> None:
    topics.create(topic, cleanup_policy="compact")
    client = BY_NAME["confluent"]
    with pytest.raises(confluent_kafka.KafkaException, match="INVALID_RECORD"):
        client.produce(server.bootstrap_servers, topic, [Out(b"no key")])
    assert client.produce(server.bootstrap_servers, topic, [Out(b"v", b"key")]) == [0]


def test_timestamps_too_far_off_are_refused(server: ServerProcess, topics: Topics, topic: str) -> None:
    topics.create(topic, message_timestamp_before_max_ms="60000")
    client = BY_NAME["confluent"]
    with pytest.raises(confluent_kafka.KafkaException, match="INVALID_TIMESTAMP"):
        client.produce(server.bootstrap_servers, topic, [Out(b"old", timestamp=STAMP)])
    assert client.produce(server.bootstrap_servers, topic, [Out(b"now")]) == [0]


@pytest.fixture(scope="module")
def tidy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A broker that looks after its logs several times a second."""
    directory = tmp_path_factory.mktemp("tidy") / "data"
    settings = {"log.retention.check.interval.ms": 200, "log.initial.task.delay.ms": 0, "log.segment.delete.delay.ms": 0}
    with ServerProcess(str(directory), settings) as process:
        yield process


def _bounds(server: ServerProcess, topic: str) -> tuple[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "bounds"})
    try:
        low, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=20)
        return low, high
    finally:
        consumer.close()


def test_retention_ms_0_empties_the_topic_at_the_next_check(tidy_server: ServerProcess, topic: str) -> None:
    """Also the active segment, which is rolled for it; offsets go on where they were, and a consumer goes on reading."""
    server = tidy_server
    admin = ck.AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
    Topics(admin).create(topic)
    client = BY_NAME["confluent"]
    client.produce(server.bootstrap_servers, topic, [Out(bytes(1000)) for _ in range(50)])
    assert _bounds(server, topic) == (0, 50)
    _set(admin, topic, retention_ms="0")
    wait_for(lambda: _bounds(server, topic) == (50, 50), "the topic is empty")
    directory = Path(server.directory, f"{topic}-0")
    wait_for(lambda: sum(path.stat().st_size for path in directory.glob("*.log*")) == 0, "the bytes are off the disk")
    _set(admin, topic, retention_ms="604800000")
    assert client.produce(server.bootstrap_servers, topic, [Out(b"new")]) == [50]
    with client.reader(server.bootstrap_servers, [(topic, 0)], {"auto.offset.reset": "earliest"}) as reader:
        assert [(record.offset, record.value) for record in read(reader, 1)] == [(50, b"new")]


def test_retention_bytes_keeps_the_newest_segments(tidy_server: ServerProcess, topic: str) -> None:
    server = tidy_server
    admin = ck.AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
    Topics(admin).create(topic, segment_bytes="10000")
    client = BY_NAME["confluent"]
    for _ in range(10):
        client.produce(server.bootstrap_servers, topic, [Out(bytes(4000))] * 2, {"linger.ms": 0, "batch.num.messages": 1})
    assert _bounds(server, topic) == (0, 20)
    _set(admin, topic, retention_bytes="20000")
    wait_for(lambda: _bounds(server, topic)[0] > 0, "old segments are gone")
    low, high = _bounds(server, topic)
    assert high == 20
    assert 4 <= high - low <= 8
    with client.reader(server.bootstrap_servers, [(topic, 0)], {"auto.offset.reset": "earliest"}) as reader:
        assert [record.offset for record in read(reader, high - low)] == list(range(low, high))
