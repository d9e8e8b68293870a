"""The controller, as the brokers ask it: wherever it is now, this broker included.

Guards: who the controller is comes from the metadata image, which the controller itself made; where that is us, no socket is
used. Nothing is repeated here: NOT_CONTROLLER and an unreachable controller are told to the caller, who knows whether what it
wants is still wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby

from ottla.controller.controller import Controller, NewTopic
from ottla.metadata.cache import MetadataCache
from ottla.model import NO_LEADER, Error, KafkaError, TopicPartition, error_of
from ottla.network.peer import Peer
from ottla.replication.isr import IsrOutcome, IsrProposal
from ottla.wire.apis.replication import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    BrokerState,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from ottla.wire.apis.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_UNKNOWN_BROKER_EPOCH = -1


class ControllerPeer:
    """The active controller. Every call raises KafkaError: NOT_CONTROLLER while none is known or it has moved on."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        metadata: MetadataCache,
        local: Controller,
        connect: Callable[[int], Peer],
    ) -> None:
        """`local` is the controller of this broker, active or not; `connect` gives a way to another broker."""
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._metadata = metadata
        self._local = local
        self._connect = connect
        self._peer: Peer | None = None

    async def alter_partitions(self, proposals: Sequence[IsrProposal]) -> Mapping[TopicPartition, IsrOutcome]:
        """Have new ISRs written; what came of each."""
        peer = self._remote()
        if peer is None:
            return await self._local.alter_partitions(self._broker_id, self._broker_epoch(), proposals)
        request = AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=_proposed(proposals)
        )
        response = await peer.ask(request, AlterPartitionResponse)
        _check(response.error_code, "AlterPartition", peer.broker_id)
        names = {one.topic_id: one.tp.topic for one in proposals}
        outcomes = {
            TopicPartition(names[topic.topic_id], one.partition_index): _outcome(one)
            for topic in response.topics
            if topic.topic_id in names
            for one in topic.partitions
        }
        missing = IsrOutcome(Error.UNKNOWN_SERVER_ERROR)
        return {one.tp: outcomes.get(one.tp, missing) for one in proposals}

    async def controlled_shutdown(self) -> Collection[TopicPartition]:
        """Have our leaders moved away; the partitions that we still lead."""
        peer = self._remote()
        if peer is None:
            return await self._local.controlled_shutdown(self._broker_id, self._broker_epoch())
        request = ControlledShutdownRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        response = await peer.ask(request, ControlledShutdownResponse)
        _check(response.error_code, "ControlledShutdown", peer.broker_id)
        return {TopicPartition(one.topic_name, one.partition_index) for one in response.remaining_partitions}

    async def create_topics(self, topics: Sequence[NewTopic]) -> Mapping[str, KafkaError | None]:
        """Have topics created; of each why not, or None."""
        peer = self._remote()
        if peer is None:
            results = await self._local.create_topics(topics, validate_only=False)
            return {name: result if isinstance(result, KafkaError) else None for name, result in results.items()}
        response = await peer.ask(CreateTopicsRequest(topics=[_wanted(topic) for topic in topics]), CreateTopicsResponse)
        told = {one.name: one for one in response.topics}
        refused: dict[str, KafkaError | None] = {}
        for topic in topics:
            one = told.get(topic.name)
            code = one.error_code if one is not None else Error.UNKNOWN_SERVER_ERROR
            if code == Error.NOT_CONTROLLER:
                raise KafkaError(Error.NOT_CONTROLLER, f"broker {peer.broker_id} is not the controller any more")
            refused[topic.name] = KafkaError(error_of(code), (one and one.error_message) or "") if code else None
        return refused

    def close(self) -> None:
        """Hang up."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _remote(self) -> Peer | None:
        """The way to the controller; None where it is this broker."""
        controller = self._metadata.image.controller_id
        if controller == NO_LEADER:
            raise KafkaError(Error.NOT_CONTROLLER, "no controller is known yet")
        if controller == self._broker_id:
            return None
        if self._peer is None or self._peer.broker_id != controller:
            self.close()
            self._peer = self._connect(controller)
        return self._peer


def _check(code: int, what: str, controller: int) -> None:
    if code:
        error = error_of(code)
        raise KafkaError(error, f"broker {controller}, asked as the controller, refused {what}: {error.name}")


def _proposed(proposals: Sequence[IsrProposal]) -> list[AlterPartitionRequestTopic]:
    ordered = sorted(proposals, key=lambda one: (one.topic_id, one.tp))
    return [
        AlterPartitionRequestTopic(
            topic_id=topic_id,
            partitions=[
                AlterPartitionRequestPartition(
                    partition_index=one.tp.partition,
                    leader_epoch=one.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=member, broker_epoch=one.broker_epochs.get(member, _UNKNOWN_BROKER_EPOCH))
                        for member in one.isr
                    ],
                    partition_epoch=one.version,
                )
                for one in of_topic
            ],
        )
        for topic_id, of_topic in groupby(ordered, key=lambda one: one.topic_id)
    ]


def _outcome(one: AlterPartitionResponsePartition) -> IsrOutcome:
    if one.error_code:
        return IsrOutcome(error_of(one.error_code))
    return IsrOutcome(Error.NONE, one.leader_id, one.leader_epoch, tuple(one.isr), one.partition_epoch)


def _wanted(topic: NewTopic) -> CreatableTopic:
    by_count = not topic.assignment
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions if by_count else -1,
        replication_factor=topic.replication_factor if by_count else -1,
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=replicas)
            for number, replicas in topic.assignment.items()
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.config.items()],
    )
