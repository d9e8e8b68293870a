"""How records get to a consumer: at once, within bounds, from many partitions, and what it hears when a topic is gone."""

from __future__ import annotations

import threading
import time

import confluent_kafka
import confluent_kafka.admin
import pytest

from clients.adapters import BY_NAME, Client, Confluent, In, Out, read
from clients.conftest import Topics
from support.server import ServerProcess
from support.waiting import wait_for


def test_a_waiting_consumer_gets_a_record_when_it_comes(
    server: ServerProcess, topics: Topics, topic: str, client: Client
) -> None:
    """The fetch waits at the broker: with a wait of 10 s the record is there long before."""
    topics.create(topic)
    client.produce(server.bootstrap_servers, topic, [Out(b"first")])
    wait_setting = "fetch.wait.max.ms" if isinstance(client, Confluent) else "fetch.max.wait.ms"
    with client.reader(server.bootstrap_servers, [(topic, 0)], {wait_setting: 10_000}) as reader:
        read(reader, 1)
        reader.poll(0.3)  # now the next fetch is at the broker
        begun = time.monotonic()
        sender = threading.Thread(target=client.produce, args=(server.bootstrap_servers, topic, [Out(b"second")]))
        sender.start()
        assert [record.value for record in read(reader, 1)] == [b"second"]
        assert time.monotonic() - begun < 3
        sender.join()


def test_fetch_min_bytes_holds_an_answer_back(server: ServerProcess, topics: Topics, topic: str) -> None:
    """Too little data waits for the deadline; enough data does not."""
    topics.create(topic)
    client = BY_NAME["confluent"]
    client.produce(server.bootstrap_servers, topic, [Out(b"small")])
    settings = {"fetch.min.bytes": 50_000, "fetch.wait.max.ms": 1200}
    with client.reader(server.bootstrap_servers, [(topic, 0)], settings) as reader:
        begun = time.monotonic()
        read(reader, 1)
        assert time.monotonic() - begun > 1.0
    client.produce(server.bootstrap_servers, topic, [Out(bytes(100_000))])
    with client.reader(server.bootstrap_servers, [(topic, 0)], settings) as reader:
        begun = time.monotonic()
        read(reader, 2)
        assert time.monotonic() - begun < 1.0


@pytest.mark.parametrize(
    "settings",
    [
        {"fetch.max.bytes": 5_000, "max.partition.fetch.bytes": 5_000},
        {"fetch.max.bytes": 1_000_000, "max.partition.fetch.bytes": 1_000},
        {"fetch.max.bytes": 50_000_000, "max.partition.fetch.bytes": 10_000_000},
    ],
    ids=["small answers", "small partitions", "large answers"],
)
def test_every_record_comes_whatever_the_bounds(
    server: ServerProcess, topics: Topics, topic: str, client: Client, settings: dict[str, int]
) -> None:
    topics.create(topic, 3)
    sent = [Out(b"%04d" % number + bytes(500), partition=number % 3) for number in range(300)]
    client.produce(server.bootstrap_servers, topic, sent)
    if isinstance(client, Confluent):  # librdkafka wants room for one message of its own maximal size
        settings = {**settings, "message.max.bytes": 1_000, "fetch.max.bytes": max(settings["fetch.max.bytes"], 1_000)}
    with client.reader(server.bootstrap_servers, [(topic, number) for number in range(3)], settings) as reader:
        records = read(reader, 300)
    for number in range(3):
        assert [record.offset for record in records if record.partition == number] == list(range(100))


def test_two_hundred_partitions_in_one_session(server: ServerProcess, topics: Topics, topic: str, client: Client) -> None:
    """An incremental session: after the first round only a few partitions change, and just those are heard of."""
    topics.create(topic, 200)
    everything = [(topic, number) for number in range(200)]
    client.produce(server.bootstrap_servers, topic, [Out(b"%d" % number, partition=number) for number in range(200)])
    with client.reader(server.bootstrap_servers, everything) as reader:
        assert {record.partition for record in read(reader, 200)} == set(range(200))
        for turn in range(5):
            chosen = [turn, 77, 199 - turn]
            client.produce(server.bootstrap_servers, topic, [Out(b"turn %d" % turn, partition=number) for number in chosen])
            records = read(reader, 3)
            assert sorted((record.partition, record.value) for record in records) == sorted(
                (n, b"turn %d" % turn) for n in chosen
            )
        reader.seek(topic, 100, 0)
        assert [(record.partition, record.offset) for record in read(reader, 1)] == [(100, 0)]


def test_a_topic_has_an_id_that_changes_when_it_is_made_anew(
    server: ServerProcess, topics: Topics, topic: str, admin: confluent_kafka.admin.AdminClient
) -> None:
    def described() -> confluent_kafka.Uuid:
        asked = confluent_kafka.TopicCollection([topic])
        return admin.describe_topics(asked)[topic].result(20).topic_id

    topics.create(topic)
    first = described()
    assert str(first) == str(described())
    admin.delete_topics([topic])[topic].result(20)
    topics.create(topic)
    assert str(described()) != str(first)


def test_a_consumer_reads_on_after_its_topic_was_deleted_and_made_anew(
    server: ServerProcess, topics: Topics, topic: str, admin: confluent_kafka.admin.AdminClient, client: Client
) -> None:
    """While it is gone the consumer lives; when there is a new one of that name, it is read."""
    topics.create(topic)
    client.produce(server.bootstrap_servers, topic, [Out(b"old %d" % number) for number in range(10)])
    hurry = {"metadata.max.age.ms": 1000}
    if isinstance(client, Confluent):
        hurry = {**hurry, "topic.metadata.refresh.interval.ms": 500, "allow.auto.create.topics": False}
    with client.member(server.bootstrap_servers, [topic], f"g-{topic}", {**hurry, "enable.auto.commit": False}) as member:
        assert len(read(member, 10)) == 10
        admin.delete_topics([topic])[topic].result(20)
        assert member.poll(0.5) == []
        topics.create_if_missing(topic)  # it may be the consumer itself that asked for it first
        client.produce(server.bootstrap_servers, topic, [Out(b"new %d" % number) for number in range(20)])
        seen: list[In] = []
        wait_for(
            lambda: seen.extend(member.poll(0.2)) or (seen and seen[-1].value == b"new 19"), "the new topic read to its end"
        )
        assert all(record.value.startswith(b"new") for record in seen if record.value)


def test_a_deleted_topic_is_gone_for_clients_and_from_disk(
    server: ServerProcess, topics: Topics, topic: str, admin: confluent_kafka.admin.AdminClient
) -> None:
    topics.create(topic, 3)
    admin.delete_topics([topic])[topic].result(20)
    assert topic not in admin.list_topics(timeout=20).topics
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap_servers, "group.id": "g", "allow.auto.create.topics": False}
    )
    try:
        with pytest.raises(confluent_kafka.KafkaException, match=r"UNKNOWN|Unknown"):
            consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=10)
    finally:
        consumer.close()
