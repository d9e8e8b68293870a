"""What one client writes, every client reads: keys, headers, timestamps, nothing at all, and all four codecs."""

from __future__ import annotations

import confluent_kafka
import kafka.errors
import pytest
from aiokafka.errors import MessageSizeTooLargeError

from clients.adapters import BY_NAME, CLIENTS, AioKafka, Client, Confluent, Headers, In, KafkaPython, Out, read
from clients.conftest import Topics
from clients.stored import batches
from support.server import ServerProcess

CODECS = ("gzip", "snappy", "lz4", "zstd")
STAMP = 1_600_000_000_000

RECORDS = (
    Out(b"value", b"key", (("header", b"content"),), STAMP),
    Out(b"no key", timestamp=STAMP + 1),
    Out(None, b"tombstone", timestamp=STAMP + 2),
    Out(b"", b"", timestamp=STAMP + 3),
    Out(b"many headers", b"k", (("a", b"1"), ("a", b"2"), ("b", b"")), STAMP + 4),
    Out("žluťoučký kůň".encode(), "příliš".encode(), (("úpěl", "ďábelské ódy".encode()),), STAMP + 5),
    Out(bytes(range(256)) * 40, b"binary", timestamp=STAMP + 6),
    Out(b"earlier", b"out of order", timestamp=STAMP - 1000),
)


def _seen(record: In) -> Out:
    return Out(record.value, record.key, record.headers, record.timestamp)


def test_every_field_comes_back_as_it_was_sent(server: ServerProcess, topics: Topics, topic: str, client: Client) -> None:
    topics.create(topic)
    offsets = client.produce(server.bootstrap_servers, topic, RECORDS)
    assert offsets == list(range(len(RECORDS)))
    with client.reader(server.bootstrap_servers, [(topic, 0)]) as reader:
        records = read(reader, len(RECORDS))
    assert [record.offset for record in records] == offsets
    assert [_seen(record) for record in records] == list(RECORDS)


def test_a_header_without_a_value(server: ServerProcess, topics: Topics, topic: str, client: Client) -> None:
    """Of the three only librdkafka can send one; all can read it."""
    topics.create(topic)
    headers: Headers = (("null", None), ("empty", b""), ("full", b"1"))
    BY_NAME["confluent"].produce(server.bootstrap_servers, topic, [Out(b"v", headers=headers)])
    with client.reader(server.bootstrap_servers, [(topic, 0)]) as reader:
        assert read(reader, 1)[0].headers == headers


@pytest.fixture(scope="module")
def written(server: ServerProcess) -> dict[tuple[str, str], str]:
    """One topic for each client and codec, written with that client and that codec."""
    topics: dict[tuple[str, str], str] = {}
    for writer in CLIENTS:
        for codec in CODECS:
            name = topics[writer.name, codec] = f"codec-{writer.name}-{codec}"
            records = [*RECORDS, *(Out(b"x" * 200 + b"%d" % number, b"%d" % number, timestamp=STAMP) for number in range(300))]
            writer.produce(server.bootstrap_servers, name, records, {"compression.type": codec, "linger.ms": 20})
            assert codec in {batch.codec for batch in batches(server, name)}, f"{writer.name} did not compress with {codec}"
    return topics


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", BY_NAME)
def test_each_client_reads_each_codec_of_each_other(
    server: ServerProcess, written: dict[tuple[str, str], str], writer: str, codec: str, client: Client
) -> None:
    with client.reader(server.bootstrap_servers, [(written[writer, codec], 0)]) as reader:
        records = read(reader, len(RECORDS) + 300)
    assert [record.offset for record in records] == list(range(len(RECORDS) + 300))
    assert [_seen(record) for record in records[: len(RECORDS)]] == list(RECORDS)
    assert [record.key for record in records[len(RECORDS) :]] == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(server: ServerProcess, topics: Topics, topic: str, client: Client, acks: int | str) -> None:
    topics.create(topic)
    # An idempotent producer has acks=all by definition; kafka-python says so where it is on by default.
    settings = {"acks": acks} if acks == "all" or client.name != "kafka-python" else {"acks": acks, "enable.idempotence": False}
    offsets = client.produce(server.bootstrap_servers, topic, [Out(b"%d" % number) for number in range(50)], settings)
    if acks != 0:
        assert offsets == list(range(50))
    with client.reader(server.bootstrap_servers, [(topic, 0)]) as reader:
        assert [record.value for record in read(reader, 50)] == [b"%d" % number for number in range(50)]


def test_a_topic_comes_into_being_when_it_is_written_to(server: ServerProcess, topic: str, client: Client) -> None:
    assert client.produce(server.bootstrap_servers, topic, [Out(b"first")]) == [0]
    with client.reader(server.bootstrap_servers, [(topic, 0)]) as reader:
        assert read(reader, 1)[0].value == b"first"


def test_a_record_just_under_the_limit(server: ServerProcess, topics: Topics, topic: str, client: Client) -> None:
    """librdkafka itself sends up to 1,000,000 bytes by default, the broker takes 1,048,588."""
    topics.create(topic)
    large = bytes(999_000) + b"!"
    client.produce(server.bootstrap_servers, topic, [Out(b"before"), Out(large), Out(b"after")])
    with client.reader(server.bootstrap_servers, [(topic, 0)]) as reader:
        records = read(reader, 3)
    assert [record.value for record in records] == [b"before", large, b"after"]


_TOO_LARGE = {
    Confluent.name: ({"message.max.bytes": 4_000_000}, confluent_kafka.KafkaException, "MSG_SIZE_TOO_LARGE"),
    KafkaPython.name: ({"max.request.size": 4_000_000}, kafka.errors.MessageSizeTooLargeError, ""),
    AioKafka.name: ({"max.request.size": 4_000_000}, MessageSizeTooLargeError, ""),
}


def test_a_record_over_the_limit_is_refused_by_the_broker(
    server: ServerProcess, topics: Topics, topic: str, client: Client
) -> None:
    """The client is told to let it pass, so that the broker says MESSAGE_TOO_LARGE; others get through before and after."""
    topics.create(topic)
    settings, error, words = _TOO_LARGE[client.name]
    client.produce(server.bootstrap_servers, topic, [Out(b"before")])
    with pytest.raises(error, match=words):
        client.produce(server.bootstrap_servers, topic, [Out(bytes(1_100_000))], settings)
    assert client.produce(server.bootstrap_servers, topic, [Out(b"after")]) == [1]


def test_a_larger_record_comes_through_where_the_topic_allows_it(
    server: ServerProcess, topics: Topics, topic: str, client: Client
) -> None:
    """Also to a consumer whose limits are smaller: the first batch of an answer comes whole."""
    topics.create(topic, max_message_bytes="3000000")
    settings, _, _ = _TOO_LARGE[client.name]
    value = bytes(range(250)) * 10_000
    client.produce(server.bootstrap_servers, topic, [Out(value), Out(b"small")], settings)
    with client.reader(server.bootstrap_servers, [(topic, 0)]) as reader:
        assert [record.value for record in read(reader, 2)] == [value, b"small"]
