"""The controller's word over the wire: filled as Apache Kafka's controller fills it, and what comes back as values."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.controller.channels import Stamp, Stop
from ottla.metadata.image import BrokerImage, Endpoint, MetadataUpdate, PartitionState, TopicImage
from ottla.model import LEADER_DURING_DELETE, BrokerUnavailable, Error, KafkaError, TopicPartition
from ottla.network.control import Announcements, RemoteChannel
from ottla.wire.apis.replication import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from ottla.wire.schema import Response
from unit.network.peer_kit import RecordingLink, peer_over

STAMP = Stamp(1, 5, 77)
TOPIC_ID = bytes(range(16))
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
STATE = PartitionState(1, 3, (1, 2), (1, 2, 3), 4, 9, adding=(3,), removing=(2,))
LED_BY_3 = PartitionState(3, 4, (3,), (3, 2), 5, 0)
ADDRESSES = {1: Endpoint("one", 9091), 2: Endpoint("two", 9092), 3: Endpoint("three", 9093)}


def say(answer: Response | Exception, call: Callable[[RemoteChannel], Awaitable[Any]]) -> tuple[int, Any, Any]:
    """Version and request that went out, and what the call returned."""

    async def run() -> tuple[int, Any, Any]:
        link = RecordingLink(lambda _request: answer)
        result = await call(RemoteChannel(peer_over(link), ADDRESSES.get))
        [(version, request)] = link.sent
        return version, request, result

    return asyncio.run(run())


def test_roles() -> None:
    topics = [TopicImage("t", TOPIC_ID, {0: STATE, 1: LED_BY_3})]
    failed = LeaderAndIsrPartitionError(partition_index=1, error_code=Error.KAFKA_STORAGE_ERROR)
    done = LeaderAndIsrPartitionError(partition_index=0)
    answer = LeaderAndIsrResponse(topics=[LeaderAndIsrTopicError(topic_id=TOPIC_ID, partition_errors=[done, failed])])
    version, request, result = say(answer, lambda channel: channel.leader_and_isr(STAMP, topics, {1, 2}, {T1}))
    assert version == 7
    assert result == {T1: Error.KAFKA_STORAGE_ERROR}
    assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (1, 5, 77)
    assert not request.is_kraft_controller
    assert request.type == 0
    [topic] = request.topic_states
    assert (topic.topic_name, topic.topic_id) == ("t", TOPIC_ID)
    first, second = topic.partition_states
    assert (first.leader, first.leader_epoch, list(first.isr), list(first.replicas)) == (1, 3, [1, 2], [1, 2, 3])
    assert (first.controller_epoch, first.partition_epoch, first.leader_recovery_state) == (4, 9, 0)
    assert (list(first.adding_replicas), list(first.removing_replicas)) == ([3], [2])
    assert (first.is_new, second.is_new) == (False, True)
    leaders = [(one.broker_id, one.host_name, one.port) for one in request.live_leaders]
    assert leaders == [(1, "one", 9091)], "broker 3 leads and does not live, broker 2 lives and does not lead"


def test_stops() -> None:
    stops = [Stop(T1, 6, True), Stop(TopicPartition("a", 0), -2, False), Stop(T0, 5, False)]
    answer = StopReplicaResponse(
        partition_errors=[
            StopReplicaPartitionError(topic_name="t", partition_index=1, error_code=Error.FENCED_LEADER_EPOCH),
            StopReplicaPartitionError(topic_name="t", partition_index=0),
        ]
    )
    version, request, result = say(answer, lambda channel: channel.stop_replicas(STAMP, stops))
    assert version == 4
    assert result == {T1: Error.FENCED_LEADER_EPOCH}
    assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (1, 5, 77)
    told = {
        (topic.topic_name, one.partition_index): (one.leader_epoch, one.delete_partition)
        for topic in request.topic_states
        for one in topic.partition_states
    }
    assert told == {("a", 0): (-2, False), ("t", 0): (5, False), ("t", 1): (6, True)}
    assert [topic.topic_name for topic in request.topic_states] == ["a", "t"]


UPDATE = MetadataUpdate(
    1,
    {
        1: BrokerImage(1, {"PLAINTEXT": Endpoint("one", 9091), "OUT": Endpoint("o.ne", 19091, "SASL_SSL")}, "r1", 76),
        2: BrokerImage(2, {"PLAINTEXT": Endpoint("two", 9092)}, None, 77),
    },
    [TopicImage("t", TOPIC_ID, {0: STATE, 1: PartitionState(LEADER_DURING_DELETE, 0, (1,), (1,))})],
)


def test_metadata() -> None:
    version, request, _ = say(UpdateMetadataResponse(), lambda channel: channel.update_metadata(STAMP, UPDATE))
    assert version == 8
    assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (1, 5, 77)
    assert not request.is_kraft_controller
    assert request.type == 0
    one, two = request.live_brokers
    assert (one.id, one.rack, two.rack) == (1, "r1", None)
    told = [(end.listener, end.host, end.port, end.security_protocol) for end in one.endpoints]
    assert told == [("PLAINTEXT", "one", 9091, 0), ("OUT", "o.ne", 19091, 3)]
    [topic] = request.topic_states
    first, gone = topic.partition_states
    assert (topic.topic_name, topic.topic_id) == ("t", TOPIC_ID)
    assert (first.leader, first.leader_epoch, first.controller_epoch, first.zk_version) == (1, 3, 4, 9)
    assert (list(first.isr), list(first.replicas), list(first.offline_replicas)) == ([1, 2], [1, 2, 3], [3])
    assert gone.leader == LEADER_DURING_DELETE


def test_one_update_is_made_once_and_stamped_for_each_broker() -> None:
    async def run() -> None:
        announcements = Announcements()
        links = [RecordingLink(lambda _request: UpdateMetadataResponse()) for _ in range(2)]
        channels = [RemoteChannel(peer_over(link), ADDRESSES.get, announcements) for link in links]
        await asyncio.gather(
            channels[0].update_metadata(Stamp(1, 5, 70), UPDATE), channels[1].update_metadata(Stamp(1, 5, 71), UPDATE)
        )
        assert [link.sent[0][1].broker_epoch for link in links] == [70, 71]
        first, second = (announcements.request(Stamp(1, 5, epoch), UPDATE) for epoch in (1, 2))
        assert first.topic_states is second.topic_states
        other = MetadataUpdate(1, UPDATE.brokers)
        assert announcements.request(STAMP, other).topic_states == []

    asyncio.run(run())


@pytest.mark.parametrize("error", [Error.STALE_CONTROLLER_EPOCH, Error.STALE_BROKER_EPOCH])
@pytest.mark.parametrize(
    ("answer", "call"),
    [
        (LeaderAndIsrResponse, lambda channel: channel.leader_and_isr(STAMP, [], (), ())),
        (StopReplicaResponse, lambda channel: channel.stop_replicas(STAMP, [])),
        (UpdateMetadataResponse, lambda channel: channel.update_metadata(STAMP, UPDATE)),
    ],
)
def test_a_refusal_of_the_whole(answer: type[Response], call: Any, error: Error) -> None:
    with pytest.raises(KafkaError) as refusal:
        say(answer(error_code=error), call)
    assert refusal.value.error is error


def test_a_broker_that_does_not_answer() -> None:
    with pytest.raises(BrokerUnavailable):
        say(BrokerUnavailable("silence"), lambda channel: channel.update_metadata(STAMP, UPDATE))
