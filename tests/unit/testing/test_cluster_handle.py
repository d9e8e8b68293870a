"""`ottla.testing.Cluster`: three brokers in a test, which survive what real ones survive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from ottla.testing import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, {"min.insync.replicas": 2, "replica.lag.time.max.ms": 2000}) as running:
        yield running


def send(cluster: Cluster, topic: str, *values: str) -> None:
    outcomes: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _message: outcomes.append(error))
    assert producer.flush(30) == 0
    assert outcomes == [None] * len(values)


def received(cluster: Cluster, topic: str, count: int, group: str) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    messages = consumer.consume(count, 30)
    consumer.close()
    return [message.value().decode() for message in messages]


def test_what_was_acknowledged_survives_its_leader(cluster: Cluster) -> None:
    cluster.create_topic("orders", partitions=2)
    send(cluster, "orders", "one", "two")
    assert received(cluster, "orders", 2, "before") == ["one", "two"]
    leader = cluster.leader_of("orders", 0)
    cluster.kill(leader)
    assert cluster.leader_of("orders", 0) != leader
    send(cluster, "orders", "three")
    assert received(cluster, "orders", 3, "after") == ["one", "two", "three"]
    cluster.start_broker(leader)
    cluster.wait_until_in_sync()
    assert set(cluster.in_sync("orders", 0)) == {1, 2, 3}


def test_the_controller_may_go(cluster: Cluster) -> None:
    first = cluster.controller
    cluster.kill(first)
    assert cluster.controller != first
    cluster.create_topic("after", replication_factor=2)
    send(cluster, "after", "still here")


def test_a_clean_stop_moves_leaders_first(cluster: Cluster) -> None:
    cluster.create_topic("orders")
    leader = cluster.leader_of("orders", 0)
    cluster.stop_broker(leader)
    assert cluster.leader_of("orders", 0) != leader
    send(cluster, "orders", "one")


def test_a_session_that_ended(cluster: Cluster) -> None:
    cluster.create_topic("orders")
    cluster.expire_session(cluster.leader_of("orders", 0))
    send(cluster, "orders", "one")
    cluster.wait_until_in_sync()
