"""Transactions with every client: committed, aborted, timed out, fenced, with offsets; and what readers see of them.

The stories hold on Apache Kafka too (`OTTLA_ANCHOR=apache`, see support/anchor).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from clients.adapters import Client, In, Out, Reader, read
from clients.members import until
from clients.transactional import FOUR, committed_reader, everyone, fenced, member, transactor, uncommitted_reader
from support.anchor import Broker, open_broker

# Soon enough for a test: how often the coordinator looks for transactions that are over time.
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}


@pytest.fixture(params=FOUR, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    """Each client in turn, Java's too."""
    chosen: Client = request.param
    return chosen


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with open_broker(str(tmp_path_factory.mktemp("transactions")), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def create(admin: AdminClient, partitions: dict[str, int]) -> None:
    for future in admin.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()]).values():
        future.result(30)


def end_of(admin: AdminClient, topic: str, isolation: IsolationLevel, partition: int = 0) -> int:
    """The last stable offset for readers of committed data, the high watermark for the others."""
    asked = TopicPartition(topic, partition)
    found = admin.list_offsets({asked: OffsetSpec.latest()}, isolation_level=isolation)[asked].result(20)
    return int(found.offset)


def stable_end(admin: AdminClient, topic: str, partition: int = 0) -> int:
    return end_of(admin, topic, IsolationLevel.READ_COMMITTED, partition)


def values(records: Sequence[In]) -> list[bytes | None]:
    return [record.value for record in records]


def nothing_more(reader: Reader) -> None:
    """A few polls bring nothing: what is checked is always also waited for elsewhere, so this needs no long time."""
    assert values([record for _ in range(3) for record in reader.poll(0.1)]) == []


def test_a_committed_transaction_over_topics_and_partitions(
    broker: Broker, admin: AdminClient, topic: str, client: Client
) -> None:
    """Readers of committed data see nothing of it until it is committed, and then all of it; the others see it at once."""
    servers, other = broker.bootstrap_servers, f"{topic}-other"
    create(admin, {topic: 3, other: 1})
    partitions = [(topic, 0), (topic, 1), (topic, 2), (other, 0)]
    sent = [Out(b"%d" % number, partition=number % 3) for number in range(9)]
    with (
        transactor(client, servers, f"id-{topic}") as producer,
        committed_reader(client, servers, partitions) as patient,
        uncommitted_reader(client, servers, partitions) as eager,
    ):
        producer.begin()
        producer.send(topic, sent)
        producer.send(other, [Out(b"beside")])
        assert sorted(filter(None, values(read(eager, 10)))) == sorted([b"%d" % n for n in range(9)] + [b"beside"])
        nothing_more(patient)
        assert [stable_end(admin, topic, number) for number in range(3)] == [0, 0, 0]
        producer.commit()
        seen = read(patient, 10)
        assert sorted(filter(None, values(seen))) == sorted([b"%d" % n for n in range(9)] + [b"beside"])
        until(lambda: [stable_end(admin, topic, n) for n in range(3)] == [4, 4, 4], "three records and a marker each")
        nothing_more(eager)
        nothing_more(patient)


def test_an_aborted_transaction_among_others(broker: Broker, admin: AdminClient, topic: str, client: Client) -> None:
    servers = broker.bootstrap_servers
    create(admin, {topic: 1})
    with transactor(client, servers, f"id-{topic}") as producer:
        for number, commits in enumerate((True, False, True, False, False, True)):
            producer.begin()
            producer.send(topic, [Out(b"%d %d" % (number, part)) for part in range(3)])
            if commits:
                producer.commit()
            else:
                producer.abort()
    until(lambda: stable_end(admin, topic) == 24, "all are ended: 18 records, 6 markers")
    with committed_reader(client, servers, [(topic, 0)]) as reader:
        assert values(read(reader, 9)) == [b"%d %d" % (number, part) for number in (0, 2, 5) for part in range(3)]
        nothing_more(reader)
    with uncommitted_reader(client, servers, [(topic, 0)]) as reader:
        assert values(read(reader, 18)) == [b"%d %d" % (number, part) for number in range(6) for part in range(3)]


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_a_reader_waits_at_the_last_stable_offset(
    broker: Broker, admin: AdminClient, topic: str, client: Client, commits: bool
) -> None:
    """An open transaction holds up what came after it, even what was written without one."""
    servers = broker.bootstrap_servers
    create(admin, {topic: 1})
    client.produce(servers, topic, [Out(b"before")])
    with (
        transactor(client, servers, f"id-{topic}") as producer,
        transactor(client, servers, f"id2-{topic}") as quicker,
        committed_reader(client, servers, [(topic, 0)]) as reader,
    ):
        producer.begin()
        producer.send(topic, [Out(b"open")])
        quicker.begin()
        quicker.send(topic, [Out(b"quicker")])
        quicker.commit()
        client.produce(servers, topic, [Out(b"plain")])
        assert values(read(reader, 1)) == [b"before"]
        nothing_more(reader)
        assert stable_end(admin, topic) == 1
        assert end_of(admin, topic, IsolationLevel.READ_UNCOMMITTED) == 5
        with uncommitted_reader(client, servers, [(topic, 0)]) as eager:
            assert values(read(eager, 4)) == [b"before", b"open", b"quicker", b"plain"]
        if commits:
            producer.commit()
            assert values(read(reader, 3)) == [b"open", b"quicker", b"plain"]
        else:
            producer.abort()
            assert values(read(reader, 2)) == [b"quicker", b"plain"]
        nothing_more(reader)


def test_a_transaction_that_takes_too_long_is_aborted(broker: Broker, admin: AdminClient, topic: str, client: Client) -> None:
    """The coordinator aborts it by itself, and the producer that comes back late is refused for good."""
    servers = broker.bootstrap_servers
    create(admin, {topic: 1})
    # librdkafka insists that delivery times out no later than the transaction does.
    hurry = {"transaction.timeout.ms": 1500, **({"message.timeout.ms": 1400} if client.name == "confluent" else {})}
    with transactor(client, servers, f"id-{topic}", hurry) as producer:
        producer.begin()
        producer.send(topic, [Out(b"too late")])
        until(lambda: stable_end(admin, topic) == 2, "the coordinator has aborted the transaction")
        with pytest.raises(Exception) as late:
            producer.commit()
    with transactor(client, servers, f"id-{topic}") as successor:
        successor.begin()
        successor.send(topic, [Out(b"in time")])
        successor.commit()
    with committed_reader(client, servers, [(topic, 0)]) as reader:
        assert values(read(reader, 1)) == [b"in time"]
        nothing_more(reader)
    assert fenced(late.value), late.value


def test_a_second_producer_with_the_same_id_fences_the_first(
    broker: Broker, admin: AdminClient, topic: str, client: Client
) -> None:
    servers = broker.bootstrap_servers
    create(admin, {topic: 1})
    with transactor(client, servers, f"id-{topic}") as first:
        first.begin()
        first.send(topic, [Out(b"of the first, committed")])
        first.commit()
        first.begin()
        first.send(topic, [Out(b"of the first, left open")])
        with transactor(client, servers, f"id-{topic}") as second:
            until(lambda: stable_end(admin, topic) == 4, "the second has aborted what the first left open")
            second.begin()
            second.send(topic, [Out(b"of the second")])
            with pytest.raises(Exception) as problem:
                first.commit()
            assert fenced(problem.value), problem.value
            second.commit()
    with committed_reader(client, servers, [(topic, 0)]) as reader:
        assert values(read(reader, 2)) == [b"of the first, committed", b"of the second"]
        nothing_more(reader)


def committed_offsets(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20)
    return {(one.topic, one.partition): one.offset for one in found.topic_partitions if one.offset >= 0}


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    broker: Broker, admin: AdminClient, topic: str, client: Client
) -> None:
    """Consume, transform, produce: after an abort the group is where it was, after a commit it is past what was produced."""
    servers, group, output = broker.bootstrap_servers, f"g-{topic}", f"{topic}-out"
    create(admin, {topic: 1, output: 1})
    client.produce(servers, topic, [Out(b"%d" % number) for number in range(6)])
    settings = {"isolation.level": "read_committed", "enable.auto.commit": False}
    for place, (ends, expected) in enumerate((("abort", 0), ("commit", 3), ("abort", 3), ("commit", 6))):
        reader = member(client, servers, [topic], group, settings)
        try:
            with transactor(client, servers, f"id-{topic}") as producer:
                taken: list[In] = []
                until(lambda r=reader, t=taken: t.extend(r.poll(0.2)) or len(t) >= 3, "three records came")
                taken = taken[:3]
                producer.begin()
                producer.send(output, [Out((record.value or b"") + b" done") for record in taken])
                producer.send_offsets({(topic, 0): taken[-1].offset + 1}, reader)
                # What a transaction holds is not the group's yet.
                assert committed_offsets(admin, group).get((topic, 0), 0) == (0, 0, 3, 3)[place]
                getattr(producer, ends)()
            until(lambda e=expected: committed_offsets(admin, group).get((topic, 0), 0) == e, f"the group is at {expected}")
        finally:
            reader.close()
    with committed_reader(client, servers, [(output, 0)]) as result:
        assert values(read(result, 6)) == [b"%d done" % number for number in range(6)]
        nothing_more(result)


def test_what_one_client_did_the_others_read(broker: Broker, admin: AdminClient, topic: str, client: Client) -> None:
    """Large transactions of several batches, in turn committed and aborted, by this client; read by all."""
    servers = broker.bootstrap_servers
    create(admin, {topic: 1})
    with transactor(client, servers, f"id-{topic}") as producer:
        for number in range(6):
            producer.begin()
            for part in range(3):
                producer.send(topic, [Out(b"%d %d %d" % (number, part, one), b"key") for one in range(50)])
            (producer.commit if number % 2 else producer.abort)()
    client.produce(servers, topic, [Out(b"end")])
    expected = [b"%d %d %d" % (number, part, one) for number in (1, 3, 5) for part in range(3) for one in range(50)] + [b"end"]
    for other in everyone():
        with committed_reader(other, servers, [(topic, 0)]) as reader:
            assert values(read(reader, len(expected))) == expected, other.name
