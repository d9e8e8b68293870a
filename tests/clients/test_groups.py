"""Consumer groups: members come and go, offsets stay, every record is read."""

from __future__ import annotations

import confluent_kafka
import confluent_kafka.admin

from clients.adapters import BY_NAME, CLIENTS, Client, Following, Out, Reader, read
from clients.conftest import Topics
from support.server import ServerProcess
from support.waiting import wait_for

# How soon a member hears of a rebalance is its own affair: they ask every 3 s unless they are told to hurry.
QUICK = {"heartbeat.interval.ms": 200}


def _numbered(count: int, partitions: int = 1) -> list[Out]:
    return [Out(b"%d" % number, partition=number % partitions) for number in range(count)]


def test_a_new_member_goes_on_where_the_group_left_off(
    server: ServerProcess, topics: Topics, topic: str, client: Client
) -> None:
    topics.create(topic, 2)
    client.produce(server.bootstrap_servers, topic, _numbered(100, 2))
    with client.member(server.bootstrap_servers, [topic], f"g-{topic}") as first:
        assert {record.value for record in read(first, 100)} == {b"%d" % number for number in range(100)}
        first.commit()
    client.produce(server.bootstrap_servers, topic, [Out(b"new 0", partition=0), Out(b"new 1", partition=1)])
    with client.member(server.bootstrap_servers, [topic], f"g-{topic}") as second:
        assert {record.value for record in read(second, 2)} == {b"new 0", b"new 1"}


def test_offsets_are_committed_by_themselves_on_leaving(
    server: ServerProcess, topics: Topics, topic: str, client: Client
) -> None:
    """enable.auto.commit is every client's default: a member that leaves commits what it has read."""
    topics.create(topic)
    client.produce(server.bootstrap_servers, topic, _numbered(10))
    with client.member(server.bootstrap_servers, [topic], f"g-{topic}") as member:
        read(member, 10)
    client.produce(server.bootstrap_servers, topic, [Out(b"later")])
    with client.member(server.bootstrap_servers, [topic], f"g-{topic}") as member:
        assert [record.value for record in read(member, 1)] == [b"later"]


def test_what_one_client_committed_another_goes_on_from(server: ServerProcess, topics: Topics, topic: str) -> None:
    topics.create(topic)
    writer = CLIENTS[0]
    for number, client in enumerate([*CLIENTS, *reversed(CLIENTS)]):
        writer.produce(server.bootstrap_servers, topic, [Out(b"%d" % number)])
        with client.member(server.bootstrap_servers, [topic], f"g-{topic}") as member:
            assert [record.value for record in read(member, 1)] == [b"%d" % number], client.name
            member.commit()


def test_partitions_are_shared_when_a_member_joins_and_taken_back_when_it_leaves(
    server: ServerProcess, topics: Topics, topic: str, client: Client
) -> None:
    topics.create(topic, 4)
    everything = {(topic, number) for number in range(4)}

    def member() -> Reader:
        return client.member(server.bootstrap_servers, [topic], f"g-{topic}", QUICK)

    with Following(member) as first:
        wait_for(lambda: first.assignment() == everything, "the only member has all partitions")
        with Following(member) as second:
            wait_for(lambda: len(first.assignment()) == len(second.assignment()) == 2, "two members have two partitions each")
            assert first.assignment() | second.assignment() == everything
            client.produce(server.bootstrap_servers, topic, _numbered(40, 4))
            wait_for(lambda: len(first.records) + len(second.records) >= 40, "the two have read all")
            values = [record.value for record in first.records + second.records]
            assert sorted(values, key=lambda value: int(value or 0)) == [b"%d" % number for number in range(40)]
            assert len(first.records) == len(second.records) == 20
        wait_for(lambda: first.assignment() == everything, "the one that stays has all again")
        client.produce(server.bootstrap_servers, topic, [Out(b"last", partition=number) for number in range(4)])
        wait_for(lambda: len(first.records) == 24, "the one that stays reads all")


def test_two_kinds_of_clients_share_a_group(server: ServerProcess, topics: Topics, topic: str) -> None:
    """librdkafka and kafka-python both know the range assignor; the broker only picks one that all know."""
    topics.create(topic, 4)
    with (
        Following(lambda: BY_NAME["confluent"].member(server.bootstrap_servers, [topic], f"g-{topic}", QUICK)) as first,
        Following(lambda: BY_NAME["kafka-python"].member(server.bootstrap_servers, [topic], f"g-{topic}", QUICK)) as second,
    ):
        wait_for(lambda: len(first.assignment()) == len(second.assignment()) == 2, "each has two partitions")
        assert first.assignment() | second.assignment() == {(topic, number) for number in range(4)}


def test_seek_back_and_read_again(server: ServerProcess, topics: Topics, topic: str, client: Client) -> None:
    topics.create(topic)
    client.produce(server.bootstrap_servers, topic, _numbered(20))
    with client.member(server.bootstrap_servers, [topic], f"g-{topic}") as member:
        read(member, 20)
        member.seek(topic, 0, 15)
        assert [record.offset for record in read(member, 5)] == [15, 16, 17, 18, 19]


def test_a_group_is_listed_described_and_deleted(
    server: ServerProcess, topics: Topics, topic: str, admin: confluent_kafka.admin.AdminClient
) -> None:
    topics.create(topic)
    group = f"g-{topic}"
    BY_NAME["confluent"].produce(server.bootstrap_servers, topic, _numbered(7))
    with BY_NAME["confluent"].member(server.bootstrap_servers, [topic], group, {"client.id": "a-client"}) as member:
        read(member, 7)
        member.commit()
        described = admin.describe_consumer_groups([group])[group].result(20)
        assert described.state == confluent_kafka.ConsumerGroupState.STABLE
        assert [one.client_id for one in described.members] == ["a-client"]
        assert [(p.topic, p.partition) for p in described.members[0].assignment.topic_partitions] == [(topic, 0)]
    listed = {one.group_id for one in admin.list_consumer_groups().result(20).valid}
    assert group in listed
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)
    offsets = admin.list_consumer_group_offsets([asked])[group].result(20)
    assert [(one.topic, one.partition, one.offset) for one in offsets.topic_partitions] == [(topic, 0, 7)]
    admin.delete_consumer_groups([group])[group].result(20)
    assert group not in {one.group_id for one in admin.list_consumer_groups().result(20).valid}
