"""The tables of refused payloads and of sequences against Apache Kafka itself: we answer what it answers."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.model import Error
from support.kafka import ApacheKafka, ZooKeeper
from unit.storage.refusals import ACCEPTED, BROKEN_GZIP, HUGE, MARKER, REFUSED, SEQUENCES, UNKNOWN_CODEC
from unit.storage.storage_kit import NOW, batch

pytestmark = [pytest.mark.java, pytest.mark.slow]

# What Apache Kafka says instead, and why we do not.
DIFFERENT = {
    HUGE: Error.UNKNOWN_SERVER_ERROR,  # its length overflows there
    UNKNOWN_CODEC: Error.UNKNOWN_SERVER_ERROR,  # a codec that it has no name for
    BROKEN_GZIP: Error.UNKNOWN_SERVER_ERROR,  # an exception of its unpacker
    MARKER: Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,  # the request's transactional id is looked at before the log is
}


class Client:
    """Produce requests by hand: no client library would send these."""

    def __init__(self, port: int) -> None:
        self.port = port

    def produce(self, topic: str, payload: bytes, version: int = 7) -> tuple[Error, int]:
        """(error, base offset)."""
        name = topic.encode()
        body = struct.pack(">hhii", -1, 1, 5000, 1) + struct.pack(">h", len(name)) + name
        body += struct.pack(">iii", 1, 0, len(payload)) + payload
        request = struct.pack(">hhih", 0, version, 1, -1) + body
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            connection.settimeout(5)
            with connection.makefile("rb") as answer:
                size = struct.unpack(">i", answer.read(4))[0]
                content = answer.read(size)
        code, base_offset = struct.unpack_from(">hq", content, 4 + 4 + 2 + len(name) + 4 + 4)
        return Error(code), base_offset


def settings(config: dict[str, object]) -> dict[str, str]:
    """A topic's settings as Kafka spells them; times are moved to today, because Apache Kafka has no clock that we own."""
    found: dict[str, str] = {}
    for key, value in config.items():
        text = ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
        if key == "message_timestamp_before_max_ms":
            text = str(int(text) + int(time.time() * 1000) - NOW - 60_000)
        found[key.replace("_", ".")] = text
    return found


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    directory = str(tmp_path_factory.mktemp("kafka"))
    with ZooKeeper(directory) as zookeeper, ApacheKafka(directory, zookeeper) as broker:
        yield broker


def create(kafka: ApacheKafka, topics: list[NewTopic]) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.create_topics(topics).values():
        future.result(60)


def test_the_same_refusals(kafka: ApacheKafka) -> None:
    create(kafka, [NewTopic(f"t{at}", 1, 1, config=settings(config)) for at, (_, config, _, _) in enumerate(REFUSED)])
    client = Client(kafka.port)
    answers: dict[int, Error] = {}
    for number, (payload, config, version, _) in enumerate(REFUSED):
        if version is None or "message_timestamp_after_max_ms" in config:
            continue
        answers[number] = client.produce(f"t{number}", payload, min(version, 7))[0]
    expected = {number: DIFFERENT.get(REFUSED[number][0], REFUSED[number][3]) for number in answers}
    assert answers == expected


def test_the_same_sequences(kafka: ApacheKafka) -> None:
    create(kafka, [NewTopic(f"s{number}", 1, 1) for number in range(len(SEQUENCES))])
    client = Client(kafka.port)
    for number, (sent, epoch, seq, count, expected) in enumerate(SEQUENCES):
        end = sum(size for _, _, size in sent)
        for before_epoch, before_seq, size in sent:
            error, _ = client.produce(f"s{number}", batch(size, pid=7, epoch=before_epoch, seq=before_seq))
            assert error is Error.NONE
        error, offset = client.produce(f"s{number}", batch(count, pid=7, epoch=epoch, seq=seq))
        if isinstance(expected, Error):
            assert error is expected, number
        else:
            assert (error, offset) == (Error.NONE, end if expected == ACCEPTED else expected), number
