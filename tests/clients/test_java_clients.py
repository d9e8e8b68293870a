"""The Java client with its defaults, and Apache Kafka's own tool for transactions; also with a transaction that hangs.

Stories that all clients share are in test_transactions and test_group_stories; here is what only Java has. All of it holds on
Apache Kafka too (`OTTLA_ANCHOR=apache`, see support/anchor).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from clients.adapters import CLIENTS, Client, Out, read
from clients.java_client import Java
from clients.transactional import committed_reader
from ottla.model import Error
from robustness.coordinator_calls import Calls, Producer
from robustness.raw import RawClient
from support import java
from support.anchor import Broker, open_broker

pytestmark = pytest.mark.java

TOOL = "org.apache.kafka.tools.TransactionsCommand"
HOUR = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Partitions are not verified: so a producer can write to one that is not in its transaction, as older clients could."""
    with open_broker(str(tmp_path_factory.mktemp("java")), {"transaction.partition.verification.enable": "false"}) as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def tool(broker: Broker, *arguments: str) -> list[list[str]]:
    """The rows of the table that the tool prints, without its head."""
    output = java.run(TOOL, "--bootstrap-server", broker.bootstrap_servers, *arguments).stdout
    return [line.split() for line in output.splitlines()[1:]]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_there_and_back(broker: Broker, admin: AdminClient, topic: str, codec: str) -> None:
    """What Java writes every client reads, keys, headers and timestamps too; and the other way round."""
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    sent = [
        Out(b"%d " % number * 20, b"key", (("h", b"1"), ("empty", b"")), 1_700_000_000_000 + number) for number in range(100)
    ]
    writers: list[Client] = [Java(), *CLIENTS]
    for number, writer in enumerate(writers):
        settings = {"linger.ms": 20} if codec == "none" else {"linger.ms": 20, "compression.type": codec}
        offsets = writer.produce(broker.bootstrap_servers, topic, sent, settings)
        assert offsets == list(range(number * 100, number * 100 + 100)), writer.name
    for reader_kind in [Java(), *CLIENTS] if codec == "zstd" else [Java()]:
        with reader_kind.reader(broker.bootstrap_servers, [(topic, 0)]) as reader:
            records = read(reader, 100 * len(writers))
        seen = [Out(one.value, one.key, one.headers, one.timestamp) for one in records]
        assert seen == sent * len(writers), reader_kind.name


def stable_end(admin: AdminClient, topic: str) -> int:
    asked = TopicPartition(topic, 0)
    found = admin.list_offsets({asked: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)[asked].result(20)
    return int(found.offset)


@pytest.fixture
def calls(broker: Broker) -> Iterator[Calls]:
    with RawClient(broker.port, timeout=30) as client:
        yield Calls(client)


def test_transactions_are_listed_and_described(broker: Broker, calls: Calls) -> None:
    idle, busy = calls.producer(), calls.begun()
    assert calls.produce(busy, sequence=3) == Error.NONE
    listed = {row[0]: row[1:] for row in tool(broker, "list")}
    assert listed[idle.name][1:] == [str(idle.id), "Empty"]
    assert listed[busy.name][1:] == [str(busy.id), "Ongoing"]
    # TransactionalId, then Coordinator and the rest in the order of the tool's columns.
    described = tool(broker, "describe", "--transactional-id", busy.name)[0]
    assert described[1] == busy.name
    assert described[2:5] == [str(busy.id), str(busy.epoch), "Ongoing"]
    assert described[5] == "60000"
    assert described[-1] == f"{calls.topic}-0"
    producers = tool(broker, "describe-producers", "--topic", calls.topic, "--partition", "0")
    assert [row[:2] for row in producers] == [[str(busy.id), str(busy.epoch)]]
    assert producers[0][3] == "3", "the last sequence"
    assert producers[0][-1] == "0", "where its transaction begins"
    assert calls.end(busy, True) == Error.NONE


def test_a_hanging_transaction_is_found_and_aborted(broker: Broker, admin: AdminClient, topic: str, calls: Calls) -> None:
    """One is written to a partition that the coordinator does not know of: no end ever comes, and readers stop before it."""
    healthy = calls.begun()
    assert calls.produce(healthy, age_ms=HOUR) == Error.NONE
    in_order, calls.topic = calls.topic, topic
    calls.create(topic)
    Java().produce(broker.bootstrap_servers, topic, [Out(b"before")])
    lost: Producer = calls.producer()
    assert calls.produce(lost, age_ms=HOUR) == Error.NONE
    Java().produce(broker.bootstrap_servers, topic, [Out(b"after")])
    assert stable_end(admin, topic) == 1
    with committed_reader(Java(), broker.bootstrap_servers, [(topic, 0)]) as reader:
        assert [record.value for record in read(reader, 1)] == [b"before"]
        broker_id = admin.list_topics(timeout=10).orig_broker_id
        found = tool(broker, "find-hanging", "--broker-id", str(broker_id))
        assert [row[:4] for row in found] == [[topic, "0", str(lost.id), str(lost.epoch)]], f"and not that of {in_order}"
        assert found[0][5] == "1", "where it begins"
        java.run(
            TOOL, "--bootstrap-server", broker.bootstrap_servers,
            "abort", "--topic", topic, "--partition", "0", "--start-offset", "1",
        )  # fmt: skip
        assert [record.value for record in read(reader, 1)] == [b"after"]
    assert stable_end(admin, topic) == 4, "three records and the marker"
    assert tool(broker, "find-hanging", "--broker-id", str(broker_id)) == []
    assert calls.end(healthy, True) == Error.NONE
