"""`ottla.testing`: a broker for other people's tests, and misbehaviour on order, as a real client sees it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from ottla.broker import StartError
from ottla.config import ConfigError
from ottla.model import KafkaError as OurKafkaError
from ottla.testing import Broker, Error


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"num.partitions": 2}) as running:
        yield running


@pytest.fixture(autouse=True)
def no_faults_left(broker: Broker) -> Iterator[None]:
    yield
    broker.faults.clear()


class Sender:
    """A producer that notes what became of each record."""

    def __init__(self, broker: Broker, **settings: object) -> None:
        self.outcomes: list[str | None] = []
        self.seconds = 0.0
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 10,
                "log_level": 0,
                **settings,
            }
        )

    def send(self, topic: str) -> str | None:
        begun = time.monotonic()
        self._producer.produce(
            topic, b"v", on_delivery=lambda error, _message: self.outcomes.append(error.name() if error else None)
        )
        assert self._producer.flush(20) == 0
        self.seconds = time.monotonic() - begun
        return self.outcomes[-1]


def produce_requests(broker: Broker) -> int:
    """How many the broker has seen so far."""
    return broker.run_on_loop(lambda real: sum(real._registry.counters[0].requests.values()))


def test_it_is_a_real_broker(broker: Broker) -> None:
    broker.create_topic("real", partitions=3, config={"retention.ms": 5000, "preallocate": False})
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10)
    assert len(metadata.topics["real"].partitions) == 3
    assert metadata.cluster_id == broker.cluster_id
    assert Sender(broker).send("real") is None
    broker.delete_topic("real")
    assert "real" not in AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).topics


def test_what_cannot_be_created_says_so(broker: Broker) -> None:
    broker.create_topic("twice")
    with pytest.raises(OurKafkaError, match="already exists"):
        broker.create_topic("twice")
    with pytest.raises(OurKafkaError) as refusal:
        broker.delete_topic("never-there")
    assert refusal.value.error is Error.UNKNOWN_TOPIC_OR_PARTITION


def test_a_failure_that_the_client_retries(broker: Broker) -> None:
    broker.create_topic("retried")
    sender = Sender(broker)
    broker.faults.fail("Produce", Error.NOT_ENOUGH_REPLICAS, times=2)
    assert sender.send("retried") is None, "the third try goes through"
    assert sender.seconds >= 0.04


def test_what_is_no_error_is_not_planned(broker: Broker) -> None:
    with pytest.raises(TypeError, match=r"use ottla\.testing\.Error"):
        broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS")  # type: ignore[arg-type]


def test_a_failure_that_the_client_gives_up_on(broker: Broker) -> None:
    broker.create_topic("given-up")
    broker.faults.fail("produce", Error.MESSAGE_TOO_LARGE)
    sender = Sender(broker)
    assert sender.send("given-up") == "MSG_SIZE_TOO_LARGE"
    assert sender.send("given-up") is None
    high = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    from confluent_kafka import TopicPartition  # noqa: PLC0415

    assert high.get_watermark_offsets(TopicPartition("given-up", 0), 10) == (0, 1), "what failed was not carried out"
    high.close()


def test_a_delay(broker: Broker) -> None:
    broker.create_topic("delayed")
    sender = Sender(broker)
    assert sender.send("delayed") is None
    broker.faults.delay("Produce", 0.4)
    assert sender.send("delayed") is None
    assert sender.seconds >= 0.4
    assert sender.send("delayed") is None
    assert sender.seconds < 0.4


def test_a_lost_connection(broker: Broker) -> None:
    broker.create_topic("lost")
    sender = Sender(broker)
    assert sender.send("lost") is None
    before = produce_requests(broker)
    broker.faults.disconnect("Produce", times=2)
    assert sender.send("lost") is None, "the client connects again and tries again"
    assert produce_requests(broker) - before == 3


def test_a_coordinator_that_is_not_available(broker: Broker) -> None:
    broker.create_topic("grouped")
    broker.faults.fail("FindCoordinator", Error.COORDINATOR_NOT_AVAILABLE, times=2)
    assert Sender(broker).send("grouped") is None
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g1",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe(["grouped"])
    message = None
    end = time.monotonic() + 20
    while message is None and time.monotonic() < end:
        message = consumer.poll(0.2)
    assert message is not None
    assert message.value() == b"v"
    consumer.close()


def test_a_fault_for_every_spelling_and_none_for_a_wrong_one(broker: Broker) -> None:
    for spelling in ("ListOffsets", "list_offsets", "LIST_OFFSETS"):
        broker.faults.fail(spelling, Error.NOT_CONTROLLER)
    assert broker.run_on_loop(lambda real: len(real.faults.planned[2])) == 3
    with pytest.raises(ValueError, match="not a Kafka API; known are: Produce, Fetch, ListOffsets"):
        broker.faults.fail("Produces", Error.NOT_CONTROLLER)


def test_it_is_gone_afterwards() -> None:
    before = threading.active_count()
    with Broker() as running:
        directory, address = running.directory, running.bootstrap_servers
        assert os.path.isdir(directory)
    assert not os.path.exists(directory)
    assert threading.active_count() <= before
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=0.5)
    with pytest.raises(RuntimeError, match="not running"):
        _ = running.bootstrap_servers


def test_a_directory_of_ones_own_stays_and_its_data_is_there_again(tmp_path: Path) -> None:
    directory = str(tmp_path / "mine")
    with Broker(directory=directory) as first:
        first.create_topic("kept")
        assert Sender(first).send("kept") is None
        cluster = first.cluster_id
    with Broker(directory=directory) as second:
        assert second.cluster_id == cluster
        assert "kept" in AdminClient({"bootstrap.servers": second.bootstrap_servers}).list_topics(timeout=10).topics


def test_two_brokers_side_by_side() -> None:
    with Broker() as one, Broker() as two:
        one.create_topic("only-here")
        assert one.bootstrap_servers != two.bootstrap_servers
        assert "only-here" not in AdminClient({"bootstrap.servers": two.bootstrap_servers}).list_topics(timeout=10).topics


def test_a_start_that_cannot_be_raises_where_it_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"num\.partitions=none"):
        Broker({"num.partitions": "none"})
    with Broker(directory=str(tmp_path)), pytest.raises(StartError, match="locked by another broker"):
        Broker(directory=str(tmp_path)).start()


def test_starting_takes_a_moment() -> None:
    begun = time.monotonic()
    with Broker():
        took = time.monotonic() - begun
    assert took < 1.0


def test_a_setting_that_is_unknown_is_named() -> None:
    with pytest.warns(UserWarning, match=r"Unknown setting num\.partition is ignored"):
        Broker({"num.partition": 3})
