"""The controller wherever it is: without a socket where it is this broker, by its own requests where it is another."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.controller.controller import NewTopic
from ottla.metadata.cache import MetadataCache
from ottla.metadata.image import Image, TopicImage
from ottla.model import BrokerUnavailable, Error, KafkaError, TopicPartition
from ottla.network.controller_peer import ControllerPeer
from ottla.network.peer import Peer
from ottla.replication.isr import IsrOutcome, IsrProposal
from ottla.wire.apis.replication import (
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
    ControlledShutdownResponse,
    RemainingPartition,
)
from ottla.wire.apis.topics import CreatableTopicResult, CreateTopicsResponse
from unit.network.peer_kit import Answer, RecordingLink, peer_over

ID_A, ID_B = b"a" * 16, b"b" * 16
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
PROPOSALS = [
    IsrProposal(A0, ID_A, 3, (1, 2), 8, {1: 11}),
    IsrProposal(B0, ID_B, 4, (1,), 2, {1: 11}),
    IsrProposal(A1, ID_A, 5, (2, 1), 9, {1: 11, 2: 22}),
]


class Scene:
    """Broker 1, told that the controller is some broker."""

    def __init__(self, controller: int, answer: Answer, local: Any = None) -> None:
        self.metadata = MetadataCache()
        self.metadata.image = Image(controller_id=controller)
        self.link = RecordingLink(answer)
        self.connected: list[int] = []
        self.peer = ControllerPeer(1, lambda: 11, self.metadata, local, self._connect)

    def _connect(self, broker: int) -> Peer:
        self.connected.append(broker)
        return peer_over(self.link, broker)


def remote(answer: Any) -> Scene:
    return Scene(2, lambda _request: answer)


def test_proposals_over_the_wire() -> None:
    def partition(number: int, error: int = 0) -> AlterPartitionResponsePartition:
        if error:
            return AlterPartitionResponsePartition(partition_index=number, error_code=error)
        return AlterPartitionResponsePartition(
            partition_index=number, leader_id=1, leader_epoch=3, isr=[1, 2], partition_epoch=9
        )

    async def run() -> None:
        topic = AlterPartitionResponseTopic(
            topic_id=ID_A, partitions=[partition(0), partition(1, Error.INVALID_UPDATE_VERSION)]
        )
        scene = remote(AlterPartitionResponse(topics=[topic]))
        outcomes = await scene.peer.alter_partitions(PROPOSALS)
        assert outcomes == {
            A0: IsrOutcome(Error.NONE, 1, 3, (1, 2), 9),
            A1: IsrOutcome(Error.INVALID_UPDATE_VERSION),
            B0: IsrOutcome(Error.UNKNOWN_SERVER_ERROR),
        }
        [(version, request)] = scene.link.sent
        assert (version, request.broker_id, request.broker_epoch) == (3, 1, 11)
        told = {
            (topic.topic_id, one.partition_index): (
                one.leader_epoch,
                one.partition_epoch,
                [(member.broker_id, member.broker_epoch) for member in one.new_isr_with_epochs],
            )
            for topic in request.topics
            for one in topic.partitions
        }
        assert told == {
            (ID_A, 0): (3, 8, [(1, 11), (2, -1)]),
            (ID_A, 1): (5, 9, [(2, 22), (1, 11)]),
            (ID_B, 0): (4, 2, [(1, 11)]),
        }

    asyncio.run(run())


def test_leaving_over_the_wire() -> None:
    async def run() -> None:
        scene = remote(ControlledShutdownResponse(remaining_partitions=[RemainingPartition(topic_name="a", partition_index=1)]))
        assert await scene.peer.controlled_shutdown() == {A1}
        [(version, request)] = scene.link.sent
        assert (version, request.broker_id, request.broker_epoch) == (3, 1, 11)

    asyncio.run(run())


def test_topics_over_the_wire() -> None:
    async def run() -> None:
        refused = CreatableTopicResult(name="b", error_code=Error.INVALID_REPLICATION_FACTOR, error_message="too many")
        scene = remote(CreateTopicsResponse(topics=[CreatableTopicResult(name="a"), refused]))
        topics = [
            NewTopic("a", 3, 2, config={"cleanup.policy": "compact"}),
            NewTopic("b", 1, 9),
            NewTopic("c", 1, 1, {0: (1,)}),
        ]
        results = await scene.peer.create_topics(topics)
        assert results["a"] is None
        assert (results["b"].error, results["b"].message) == (Error.INVALID_REPLICATION_FACTOR, "too many")
        assert results["c"].error is Error.UNKNOWN_SERVER_ERROR
        [(_, request)] = scene.link.sent
        a, b, c = request.topics
        assert (a.name, a.num_partitions, a.replication_factor) == ("a", 3, 2)
        assert [(one.name, one.value) for one in a.configs] == [("cleanup.policy", "compact")]
        assert (b.num_partitions, b.replication_factor) == (1, 9)
        assert (c.num_partitions, c.replication_factor) == (-1, -1)
        assert [(one.partition_index, list(one.broker_ids)) for one in c.assignments] == [(0, [1])]

    asyncio.run(run())


CALLS = [
    lambda peer: peer.alter_partitions(PROPOSALS),
    lambda peer: peer.controlled_shutdown(),
    lambda peer: peer.create_topics([NewTopic("a", 1, 1)]),
]


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (CALLS[0], AlterPartitionResponse(error_code=Error.NOT_CONTROLLER)),
        (CALLS[1], ControlledShutdownResponse(error_code=Error.STALE_CONTROLLER_EPOCH)),
        (CALLS[2], CreateTopicsResponse(topics=[CreatableTopicResult(name="a", error_code=Error.NOT_CONTROLLER)])),
    ],
)
def test_a_broker_that_is_not_the_controller_any_more(call: Any, answer: Any) -> None:
    with pytest.raises(KafkaError) as refusal:
        asyncio.run(_on(lambda: call(remote(answer).peer)))
    assert refusal.value.error in (Error.NOT_CONTROLLER, Error.STALE_CONTROLLER_EPOCH)


@pytest.mark.parametrize("call", CALLS)
def test_a_controller_that_cannot_be_reached(call: Any) -> None:
    with pytest.raises(BrokerUnavailable):
        asyncio.run(_on(lambda: call(remote(BrokerUnavailable("silence")).peer)))


@pytest.mark.parametrize("call", CALLS)
def test_no_controller_is_known(call: Any) -> None:
    with pytest.raises(KafkaError) as refusal:
        asyncio.run(_on(lambda: call(Scene(-1, lambda _request: KafkaError(Error.NONE)).peer)))
    assert refusal.value.error is Error.NOT_CONTROLLER


async def _on(call: Any) -> Any:
    return await call()


def test_this_broker_is_the_controller() -> None:
    asked: list[Any] = []

    async def alter_partitions(*args: Any) -> dict[TopicPartition, IsrOutcome]:
        asked.append(args)
        return {A0: IsrOutcome(Error.NONE)}

    async def controlled_shutdown(*args: Any) -> set[TopicPartition]:
        asked.append(args)
        return {A0}

    async def create_topics(topics: Any, validate_only: bool) -> dict[str, Any]:
        asked.append((topics, validate_only))
        return {"a": TopicImage("a", ID_A, {}), "b": KafkaError(Error.TOPIC_ALREADY_EXISTS)}

    async def run() -> None:
        local = SimpleNamespace(
            alter_partitions=alter_partitions, controlled_shutdown=controlled_shutdown, create_topics=create_topics
        )
        scene = Scene(1, lambda _request: KafkaError(Error.NONE), local)
        assert await scene.peer.alter_partitions(PROPOSALS) == {A0: IsrOutcome(Error.NONE)}
        assert await scene.peer.controlled_shutdown() == {A0}
        results = await scene.peer.create_topics([])
        assert results["a"] is None
        assert results["b"].error is Error.TOPIC_ALREADY_EXISTS
        assert asked == [(1, 11, PROPOSALS), (1, 11), ([], False)]
        assert scene.connected == []

    asyncio.run(run())


def test_the_controller_moves() -> None:
    async def run() -> None:
        scene = remote(ControlledShutdownResponse())
        await scene.peer.controlled_shutdown()
        await scene.peer.controlled_shutdown()
        scene.metadata.swap(Image(controller_id=3))
        scene.link = RecordingLink(lambda _request: ControlledShutdownResponse())
        await scene.peer.controlled_shutdown()
        assert scene.connected == [2, 3]

    asyncio.run(run())
