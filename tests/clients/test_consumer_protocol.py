"""The consumer protocol (KIP-848) with librdkafka and the Java client: groups that grow, shrink, move over and come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from clients.adapters import BY_NAME, Client, Following, Out, Reader, read
from clients.conftest import Topics
from clients.java_client import Java
from support.server import ServerProcess
from support.waiting import wait_for

CONSUMER = {"group.protocol": "consumer"}
CLASSIC = {"group.protocol": "classic", "heartbeat.interval.ms": 200}
CLIENTS = [BY_NAME["confluent"], pytest.param(Java(), marks=pytest.mark.java)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A broker whose members hear of news soon: the interval of heartbeats is the broker's to say."""
    settings = {"group.consumer.heartbeat.interval.ms": 200, "group.consumer.min.heartbeat.interval.ms": 100}
    with ServerProcess(str(tmp_path_factory.mktemp("consumer") / "data"), settings) as process:
        yield process
        assert "Traceback" not in process.log(), process.log()


@pytest.fixture(scope="module")
def admin(server: ServerProcess) -> confluent_kafka.admin.AdminClient:
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


def opener(server: ServerProcess, topic: str, client: Client | None = None, **settings: Any) -> Callable[[], Reader]:
    """Opens a member of the group that belongs to a topic; settings with underscores for dots."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    chosen = client or BY_NAME["confluent"]
    return lambda: chosen.member(server.bootstrap_servers, [topic], f"g-{topic}", {**CONSUMER, **named})


def numbered(count: int, partitions: int, begin: int = 0) -> list[Out]:
    return [Out(b"%d" % number, partition=number % partitions) for number in range(begin, begin + count)]


def values(*members: Following) -> set[bytes | None]:
    return {record.value for member in members for record in member.records}


def shares(topic: str, partitions: int, *members: Following) -> bool:
    """Whether these members have all partitions, each of them one that no other has."""
    parts = [member.assignment() for member in members]
    return all(parts) and sorted(one for part in parts for one in part) == [(topic, n) for n in range(partitions)]


def test_a_group_grows_and_shrinks_and_reads_everything(
    server: ServerProcess, topics: Topics, topic: str, client: Client
) -> None:
    topics.create(topic, 6)
    member = opener(server, topic, client)
    write = BY_NAME["confluent"].produce

    def send(begin: int) -> None:
        write(server.bootstrap_servers, topic, numbered(60, 6, begin))

    with Following(member) as first:
        wait_for(lambda: shares(topic, 6, first), "the only member has all")
        send(0)
        with Following(member) as second, Following(member) as third:
            everyone = (first, second, third)
            wait_for(lambda: shares(topic, 6, *everyone), "three members share")
            assert {len(one.assignment()) for one in everyone} == {2}
            send(60)
            wait_for(lambda: len(values(*everyone)) == 120, "the three have read all")
        wait_for(lambda: shares(topic, 6, first), "the one that stays has all again")
        send(120)
        wait_for(lambda: len(values(first, second, third)) == 180, "nothing is missing")


def test_a_new_member_goes_on_where_the_group_left_off(
    server: ServerProcess, topics: Topics, topic: str, client: Client
) -> None:
    topics.create(topic, 2)
    client.produce(server.bootstrap_servers, topic, numbered(50, 2))
    with opener(server, topic, client)() as first:
        read(first, 50)
        first.commit()
    client.produce(server.bootstrap_servers, topic, [Out(b"new", partition=0)])
    with opener(server, topic, client)() as second:
        assert [record.value for record in read(second, 1)] == [b"new"]


@pytest.mark.java
def test_clients_of_two_makes_share_a_group(server: ServerProcess, topics: Topics, topic: str) -> None:
    topics.create(topic, 4)
    with (
        Following(opener(server, topic, BY_NAME["confluent"])) as first,
        Following(opener(server, topic, Java())) as second,
    ):
        wait_for(lambda: shares(topic, 4, first, second), "the two share")


def test_a_static_member_restarts_without_a_rebalance(server: ServerProcess, topics: Topics, topic: str) -> None:
    topics.create(topic, 4)
    told: list[str] = []
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap_servers, "group.id": f"g-{topic}", **CONSUMER, "log_level": 0}
    )
    consumer.subscribe([topic], on_revoke=lambda _, parts: told.append(f"revoked {len(parts)}"))

    def polled(condition: Callable[[], bool]) -> Callable[[], bool]:
        """The consumer has no thread of its own: it is polled while one waits."""
        return lambda: (consumer.poll(0.1), condition())[1]

    try:
        static = opener(server, topic, group_instance_id="i")
        with Following(static) as first:
            wait_for(polled(lambda: len(consumer.assignment()) == 2), "the other one has its half")
            wait_for(polled(lambda: len(first.assignment()) == 2), "the static one has its half")
            before = first.assignment()
        told.clear()
        with Following(static) as again:
            wait_for(polled(lambda: again.assignment() == before), "it has its place back")
        assert told == []
    finally:
        consumer.close()


def test_a_pattern_finds_topics_that_come_later(server: ServerProcess, topics: Topics, topic: str) -> None:
    topics.create(f"{topic}-1")
    member = lambda: BY_NAME["confluent"].member(  # noqa: E731 - what Following opens
        server.bootstrap_servers, [f"^{topic}-[0-9]+"], f"g-{topic}", CONSUMER
    )
    with Following(member) as follower:
        wait_for(lambda: follower.assignment() == {(f"{topic}-1", 0)}, "the topic that is there")
        topics.create(f"{topic}-22")
        topics.create(f"{topic}-other")
        wait_for(lambda: follower.assignment() == {(f"{topic}-1", 0), (f"{topic}-22", 0)}, "the one that came")


def test_a_topic_that_grows(
    server: ServerProcess, topics: Topics, topic: str, client: Client, admin: confluent_kafka.admin.AdminClient
) -> None:
    topics.create(topic, 1)
    with Following(opener(server, topic, client)) as member:
        wait_for(lambda: shares(topic, 1, member), "what there is")
        admin.create_partitions([confluent_kafka.admin.NewPartitions(topic, 3)])[topic].result(20)
        wait_for(lambda: shares(topic, 3, member), "the new partitions")


def test_a_group_over_a_kill_of_the_broker(tmp_path: Any, topic: str) -> None:
    settings = {"group.consumer.heartbeat.interval.ms": 200, "group.consumer.min.heartbeat.interval.ms": 100}
    with ServerProcess(str(tmp_path / "data"), settings) as own:
        boss = confluent_kafka.admin.AdminClient({"bootstrap.servers": own.bootstrap_servers, "log_level": 0})
        boss.create_topics([confluent_kafka.admin.NewTopic(topic, 4, 1)])[topic].result(20)
        BY_NAME["confluent"].produce(own.bootstrap_servers, topic, numbered(40, 4))
        quiet = {"reconnect_backoff_max_ms": 500}
        with Following(opener(own, topic, **quiet)) as first, Following(opener(own, topic, **quiet)) as second:
            wait_for(lambda: shares(topic, 4, first, second), "the two share")
            before = first.assignment(), second.assignment()
            own.kill()
            own.start()
            BY_NAME["confluent"].produce(own.bootstrap_servers, topic, numbered(40, 4, 40))
            wait_for(lambda: len(values(first, second)) == 80, "all was read")
            assert (first.assignment(), second.assignment()) == before


def test_such_groups_are_listed_described_and_deleted(
    server: ServerProcess, topics: Topics, topic: str, admin: confluent_kafka.admin.AdminClient
) -> None:
    topics.create(topic)
    group = f"g-{topic}"

    def listed(**filters: Any) -> set[str]:
        return {one.group_id for one in admin.list_consumer_groups(**filters).result(20).valid}

    BY_NAME["confluent"].produce(server.bootstrap_servers, topic, numbered(7, 1))
    with opener(server, topic, client_id="a-client")() as member:
        read(member, 7)
        member.commit()
        described = admin.describe_consumer_groups([group])[group].result(20)
        assert described.state == confluent_kafka.ConsumerGroupState.STABLE
        assert described.type == confluent_kafka.ConsumerGroupType.CONSUMER
        assert [one.client_id for one in described.members] == ["a-client"]
        assert [(p.topic, p.partition) for p in described.members[0].assignment.topic_partitions] == [(topic, 0)]
        assert group in listed(types={confluent_kafka.ConsumerGroupType.CONSUMER})
        assert group not in listed(types={confluent_kafka.ConsumerGroupType.CLASSIC})
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)
    offsets = admin.list_consumer_group_offsets([asked])[group].result(20)
    assert [(one.topic, one.partition, one.offset) for one in offsets.topic_partitions] == [(topic, 0, 7)]
    admin.delete_consumer_groups([group])[group].result(20)
    assert group not in listed()


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_group_moves_over_and_back_while_it_works(
    server: ServerProcess, topics: Topics, topic: str, assignor: str, admin: confluent_kafka.admin.AdminClient
) -> None:
    topics.create(topic, 4)
    write = BY_NAME["confluent"].produce
    classic = opener(server, topic, partition_assignment_strategy=assignor, **CLASSIC)
    consumer = opener(server, topic)

    def kind() -> Any:
        return admin.describe_consumer_groups([f"g-{topic}"])[f"g-{topic}"].result(20).type

    with Following(classic) as stays:
        with Following(classic) as leaves:
            wait_for(lambda: shares(topic, 4, stays, leaves), "two classic members share")
            assert kind() == confluent_kafka.ConsumerGroupType.CLASSIC
            write(server.bootstrap_servers, topic, numbered(40, 4))
            wait_for(lambda: len(values(stays, leaves)) == 40, "they read all")
            with Following(consumer) as new:
                wait_for(lambda: shares(topic, 4, stays, leaves, new), "one of the new protocol has its share")
                assert kind() == confluent_kafka.ConsumerGroupType.CONSUMER
                write(server.bootstrap_servers, topic, numbered(40, 4, 40))
                wait_for(lambda: len(values(stays, leaves, new)) == 80, "the three read all")
            wait_for(lambda: shares(topic, 4, stays, leaves), "it left: the two have all")
            assert kind() == confluent_kafka.ConsumerGroupType.CLASSIC
        wait_for(lambda: shares(topic, 4, stays), "the one that stays has all")
        write(server.bootstrap_servers, topic, numbered(40, 4, 80))
        wait_for(lambda: len(values(stays, leaves, new)) == 120, "nothing is missing")
