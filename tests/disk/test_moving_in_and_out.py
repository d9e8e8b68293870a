"""A whole broker over the other's directory: Apache Kafka's topics and groups are served by us, and ours by Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.kafka import ApacheKafka, ZooKeeper
from support.server import ServerProcess

pytestmark = [pytest.mark.java, pytest.mark.slow]

TOPIC, GROUP, PARTITIONS = "moved", "readers", 3


def produce(bootstrap: str, name: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for number in range(count):
        producer.produce(TOPIC, f"{name}-{number}".encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def read_all(bootstrap: str, expected: int) -> dict[int, list[bytes]]:
    """Every value by partition, in order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "checker", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    while sum(map(len, found.values())) < expected:
        messages = consumer.consume(expected - sum(map(len, found.values())), 60)
        assert messages, found
        for message in messages:
            assert message.error() is None
            found[message.partition()].append(message.value())
    consumer.close()
    return found


def committed(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    offsets = [tp.offset for tp in consumer.committed([TopicPartition(TOPIC, p) for p in range(PARTITIONS)], timeout=60)]
    consumer.close()
    return offsets


def commit(bootstrap: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(TOPIC, p, offset) for p in range(PARTITIONS)], asynchronous=False)
    consumer.close()


def topic_id(bootstrap: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return str(admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(60).topic_id)


def values(*rounds: tuple[str, int]) -> dict[int, list[bytes]]:
    return {
        partition: [f"{name}-{n}".encode() for name, count in rounds for n in range(count) if n % PARTITIONS == partition]
        for partition in range(PARTITIONS)
    }


def test_topics_and_groups_move_in_and_out(tmp_path: Path) -> None:
    with ZooKeeper(str(tmp_path / "zookeeper")) as zookeeper:
        kafka = ApacheKafka(str(tmp_path), zookeeper, {"offsets.topic.num.partitions": 4})
        with kafka:
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
            identity = topic_id(kafka.bootstrap_servers)
            produce(kafka.bootstrap_servers, "apache", 300)
            commit(kafka.bootstrap_servers, 40)
            assert kafka.stop() in (0, 143)

        ours = ServerProcess(kafka.log_dir)
        with ours:
            assert read_all(ours.bootstrap_servers, 300) == values(("apache", 300))
            assert committed(ours.bootstrap_servers) == [40] * PARTITIONS
            assert topic_id(ours.bootstrap_servers) == identity
            produce(ours.bootstrap_servers, "ottla", 300)
            commit(ours.bootstrap_servers, 60)
            assert ours.stop() == 0

        with kafka:
            produce(kafka.bootstrap_servers, "again", 30)
            rounds = (("apache", 300), ("ottla", 300), ("again", 30))
            assert read_all(kafka.bootstrap_servers, 630) == values(*rounds)
            assert committed(kafka.bootstrap_servers) == [60] * PARTITIONS
            assert kafka.stop() in (0, 143)

        with ours:
            assert read_all(ours.bootstrap_servers, 630) == values(*rounds)
            assert committed(ours.bootstrap_servers) == [60] * PARTITIONS
            assert "Traceback" not in ours.log()
