"""What survives when topics or metadata come and go: ids, sessions, groups, and nothing that was meant for somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.model import Error
from ottla.records.batch import Record, build
from ottla.testing import Broker
from ottla.wire.apis.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.wire.apis.groups import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.frame import encode_request
from robustness.raw import RawClient, wait_until


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def connect(broker: Broker) -> RawClient:
    return RawClient(int(broker.bootstrap_servers.rpartition(":")[2]))


def batch(*values: bytes) -> bytes:
    return build([Record(offset, 0, None, value, ()) for offset, value in enumerate(values)])


def values(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [message.value() for message in consumer.consume(count, 20)]
    consumer.close()
    return found


def watchers(broker: Broker, topic: str) -> int:
    return broker.run_on_loop(lambda real: len(real.services.replicas.get(topic, 0).watchers))


@pytest.mark.parametrize("woken", [True, False])
def test_a_fetch_without_a_session_that_waited_leaves_nothing_behind(broker: Broker, woken: bool) -> None:
    broker.create_topic("t")
    asked = FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)])
    request = FetchRequest(replica_id=-1, max_wait_ms=60_000 if woken else 50, min_bytes=1, max_bytes=1000, topics=[asked])
    with connect(broker) as reader, connect(broker) as writer:
        reader.send(encode_request(request, 4, 1, None))
        if woken:
            wait_until(lambda: watchers(broker, "t") == 1)
            writer.produce("t", batch(b"v"))
        assert reader.read_frame() is not None
        assert watchers(broker, "t") == 0


def test_a_session_by_topic_id_does_not_read_another_topic_of_the_same_name(broker: Broker) -> None:
    def topic_id() -> bytes:
        return broker.run_on_loop(lambda real: real.services.metadata.image.topics["t"].topic_id)

    def fetch(client: RawClient, session: int, epoch: int, topics: list[FetchTopic]) -> FetchResponse:
        request = FetchRequest(
            max_wait_ms=100, min_bytes=1, max_bytes=10_000, session_id=session, session_epoch=epoch, topics=topics
        )
        response = client.ask(request, 13)
        assert isinstance(response, FetchResponse)
        return response

    broker.create_topic("t")
    with connect(broker) as client:
        client.produce("t", batch(b"1", b"2", b"3"))
        part = FetchPartition(partition=0, fetch_offset=3, partition_max_bytes=10_000)
        first = fetch(client, 0, 0, [FetchTopic(topic_id=topic_id(), partitions=[part])])
        assert first.error_code == Error.NONE
        broker.delete_topic("t")
        broker.create_topic("t")
        client.produce("t", batch(*[b"new"] * 6))
        second = fetch(client, first.session_id, 1, [])
        [data] = second.responses[0].partitions
        assert data.error_code == Error.UNKNOWN_TOPIC_ID
        assert not data.records


def test_groups_live_on_after_their_topic_was_deleted(broker: Broker) -> None:
    request = FindCoordinatorRequest(key="g", key_type=0)
    with connect(broker) as client:
        for _ in range(2):
            answer = client.ask(request, 1)
            assert isinstance(answer, FindCoordinatorResponse)
            assert answer.error_code == Error.NONE
            broker.delete_topic("__consumer_offsets")


def test_clients_do_not_write_to_internal_topics(broker: Broker) -> None:
    broker.create_topic("__consumer_offsets")
    with connect(broker) as client:
        assert client.produce("__consumer_offsets", batch(b"v"))[0] == Error.INVALID_TOPIC_EXCEPTION


def test_a_producer_after_the_metadata_was_lost_is_not_taken_for_an_old_one(tmp_path: Path) -> None:
    with Broker(directory=str(tmp_path)) as first:
        _produce(first.bootstrap_servers, b"first")
    (tmp_path / "ottla-metadata.db").unlink()
    with Broker(directory=str(tmp_path)) as second:
        _produce(second.bootstrap_servers, b"second")
        assert values(second.bootstrap_servers, "t", 2) == [b"first", b"second"]
        settings = second.run_on_loop(lambda real: dict(real.services.configs.of_topic("t")))
        assert settings["retention.ms"] == "-1", "nothing of an adopted topic goes before somebody says so"


def _produce(bootstrap: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce("t", value, partition=0)
    assert producer.flush(20) == 0
