"""Clients of another time: message sets of formats 0 and 1, in and out, beside clients of today.

kafka-python still speaks as if to brokers 0.8.2 to 0.10; librdkafka too, when it is told not to ask for versions.
"""

from __future__ import annotations

from typing import Any

import kafka.errors
import pytest

from clients.adapters import BY_NAME, Client, Out, read
from clients.conftest import Topics
from clients.stored import batches
from support.server import ServerProcess

STAMP = 1_600_000_000_000
VERSIONS = {
    "0.8.2": (0, 8, 2),  # produce v0, fetch v0: format 0
    "0.9": (0, 9),  # produce v1, fetch v1: format 0
    "0.10": (0, 10),  # produce v2, fetch v2: format 1, with timestamps
    "0.10.1": (0, 10, 1),  # fetch v3: the first batch of an answer comes whole
}
RECORDS = (
    Out(b"value", b"key"),
    Out(b"no key"),
    Out(None, b"tombstone"),
    Out(b"", b"empty"),
    *[Out(b"%d" % n, b"k") for n in range(200)],
)


def _pairs(records: Any) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("version", ["0.8.2", "0.9", "0.10"])
def test_what_an_old_producer_writes_everybody_reads(
    server: ServerProcess, topics: Topics, topic: str, version: str, codec: str
) -> None:
    topics.create(topic)
    settings: dict[str, Any] = {"api.version": VERSIONS[version], "acks": 1, "linger.ms": 20, "enable.idempotence": False}
    if codec != "none":
        settings["compression.type"] = codec
    stamp = STAMP if version == "0.10" else None
    sent = [Out(one.value, one.key, timestamp=stamp) for one in RECORDS]
    offsets = BY_NAME["kafka-python"].produce(server.bootstrap_servers, topic, sent, settings)
    assert offsets == list(range(len(RECORDS)))
    assert {batch.magic for batch in batches(server, topic)} == {2}
    for reader_name in BY_NAME:
        with BY_NAME[reader_name].reader(server.bootstrap_servers, [(topic, 0)]) as reader:
            records = read(reader, len(RECORDS))
        assert _pairs(records) == _pairs(RECORDS)
        assert [record.offset for record in records] == offsets
        if stamp is not None:
            assert {record.timestamp for record in records} == {stamp}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_new_producers_write_an_old_consumer_reads(
    server: ServerProcess, topics: Topics, topic: str, version: str, codec: str, client: Client
) -> None:
    """Headers did not exist then, and are left out; timestamps since 0.10."""
    topics.create(topic)
    settings = {"linger.ms": 20, **({"compression.type": codec} if codec != "none" else {})}
    sent = [Out(one.value, one.key, (("header", b"new"),), STAMP) for one in RECORDS]
    client.produce(server.bootstrap_servers, topic, sent, settings)
    old = {"api.version": VERSIONS[version], "request.timeout.ms": 5000}
    with BY_NAME["kafka-python"].reader(server.bootstrap_servers, [(topic, 0)], old) as reader:
        records = read(reader, len(RECORDS))
        reader.seek(topic, 0, 100)  # in the middle of a batch
        again = [record for record in read_at_least(reader, len(RECORDS) - 100) if record.offset >= 100]
    assert _pairs(records) == _pairs(RECORDS)
    assert [record.offset for record in records] == list(range(len(RECORDS)))
    assert _pairs(again) == _pairs(RECORDS[100:])
    if version.startswith("0.10"):
        assert {record.timestamp for record in records} == {STAMP}


def read_at_least(reader: Any, count: int) -> list[Any]:
    records: list[Any] = []
    for _ in range(50):
        records += reader.poll(0.2)
        if len(records) >= count:
            break
    return records


@pytest.mark.parametrize("version", ["0.8.2", "0.10"])
def test_zstd_is_not_for_old_consumers(server: ServerProcess, topics: Topics, topic: str, version: str) -> None:
    """They cannot read it, and are told so by an error instead of by garbage."""
    topics.create(topic)
    BY_NAME["confluent"].produce(
        server.bootstrap_servers, topic, [Out(b"x" * 100)] * 200, {"compression.type": "zstd", "linger.ms": 20}
    )
    assert "zstd" in {batch.codec for batch in batches(server, topic)}
    with (
        BY_NAME["kafka-python"].reader(server.bootstrap_servers, [(topic, 0)], {"api.version": VERSIONS[version]}) as reader,
        pytest.raises(kafka.errors.UnsupportedCompressionTypeError),
    ):
        read(reader, 200, 5)


def test_a_batch_too_large_for_an_old_consumer_is_told(server: ServerProcess, topics: Topics, topic: str) -> None:
    """Before fetch version 3 the bound held for the first batch too.

    Brokers of that time sent a piece of the batch, and the client knew. Apache Kafka 3.9 sends nothing; we send a piece.
    """
    topics.create(topic)
    BY_NAME["confluent"].produce(server.bootstrap_servers, topic, [Out(bytes(50_000))])
    settings = {"api.version": (0, 9), "max.partition.fetch.bytes": 1000}
    with (
        BY_NAME["kafka-python"].reader(server.bootstrap_servers, [(topic, 0)], settings) as reader,
        pytest.raises(Exception, match="larger than the fetch size"),
    ):
        read(reader, 1, 5)


@pytest.mark.parametrize("fallback", ["0.8.2", "0.9.0", "0.10.0"])
def test_librdkafka_that_does_not_ask_for_versions(server: ServerProcess, topics: Topics, topic: str, fallback: str) -> None:
    topics.create(topic)
    old = {"api.version.request": False, "broker.version.fallback": fallback}
    client = BY_NAME["confluent"]
    assert client.produce(server.bootstrap_servers, topic, RECORDS, old) == list(range(len(RECORDS)))
    client.produce(server.bootstrap_servers, topic, [Out(b"from a new one", headers=(("h", b"v"),))])
    with client.reader(server.bootstrap_servers, [(topic, 0)], old) as reader:
        assert _pairs(read(reader, len(RECORDS) + 1)) == [*_pairs(RECORDS), (None, b"from a new one")]


def test_an_old_group_member(server: ServerProcess, topics: Topics, topic: str) -> None:
    """Group requests of 0.9: join v0, commit v2."""
    topics.create(topic)
    client = BY_NAME["kafka-python"]
    client.produce(server.bootstrap_servers, topic, [Out(b"%d" % number) for number in range(10)])
    with client.member(server.bootstrap_servers, [topic], f"g-{topic}", {"api.version": (0, 9)}) as member:
        assert len(read(member, 10)) == 10
        member.commit()
    client.produce(server.bootstrap_servers, topic, [Out(b"later")])
    with client.member(server.bootstrap_servers, [topic], f"g-{topic}") as member:
        assert [record.value for record in read(member, 1)] == [b"later"]
