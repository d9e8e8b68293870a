"""The controller's word to another broker: Apache Kafka 3.9's LeaderAndIsr, StopReplica and UpdateMetadata over a `Peer`.

The fields are filled as Apache Kafka's controller in ZooKeeper mode fills them, so that its brokers understand us too. Guards:
a call returns when the broker has done what it was told, and raises where it refused the whole or could not be reached; then
it is not known what it did, and the sender says it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby

from ottla.controller.channels import Stamp, Stop
from ottla.metadata.image import BrokerImage, Endpoint, MetadataUpdate, PartitionState, TopicImage
from ottla.model import SECURITY_PROTOCOLS, Error, KafkaError, TopicPartition, error_of
from ottla.network.peer import Peer
from ottla.wire.apis.replication import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)


class Announcements:
    """The last UpdateMetadata in the form of the wire: all brokers are told the same, so it is made once for all of them."""

    __slots__ = ("_brokers", "_made_of", "_topics")

    def __init__(self) -> None:
        self._made_of: MetadataUpdate | None = None
        self._topics: list[UpdateMetadataTopicState] = []
        self._brokers: list[UpdateMetadataBroker] = []

    def request(self, stamp: Stamp, update: MetadataUpdate) -> UpdateMetadataRequest:
        """A request of its own for each broker, with the great parts in common."""
        if update is not self._made_of:
            self._topics = [_told_topic(topic, update.brokers) for topic in update.topics]
            self._brokers = [_told_broker(broker) for broker in update.brokers.values()]
            self._made_of = update
        return UpdateMetadataRequest(
            controller_id=stamp.controller_id,
            controller_epoch=stamp.controller_epoch,
            broker_epoch=stamp.broker_epoch,
            topic_states=self._topics,
            live_brokers=self._brokers,
        )


class RemoteChannel:
    """A `Channel` to another broker. `address_of` tells where brokers reach a leader; `announcements` is shared by all."""

    def __init__(
        self, peer: Peer, address_of: Callable[[int], Endpoint | None], announcements: Announcements | None = None
    ) -> None:
        self._peer = peer
        self._address_of = address_of
        self._announcements = announcements or Announcements()

    async def leader_and_isr(
        self, stamp: Stamp, topics: Sequence[TopicImage], brokers: Collection[int], new: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Error]:
        request = LeaderAndIsrRequest(
            controller_id=stamp.controller_id,
            controller_epoch=stamp.controller_epoch,
            broker_epoch=stamp.broker_epoch,
            topic_states=[_roles(topic, new) for topic in topics],
            live_leaders=self._live_leaders(topics, brokers),
        )
        response = await self._peer.ask(request, LeaderAndIsrResponse)
        _check(response.error_code, "LeaderAndIsr", self._peer.broker_id)
        names = {topic.topic_id: topic.name for topic in topics}
        return {
            TopicPartition(names[topic.topic_id], one.partition_index): error_of(one.error_code)
            for topic in response.topics
            if topic.topic_id in names
            for one in topic.partition_errors
            if one.error_code
        }

    def _live_leaders(self, topics: Iterable[TopicImage], brokers: Collection[int]) -> list[LeaderAndIsrLiveLeader]:
        leaders = {state.leader for topic in topics for state in topic.partitions.values()}
        return [
            LeaderAndIsrLiveLeader(broker_id=leader, host_name=address.host, port=address.port)
            for leader in sorted(leaders.intersection(brokers))
            if (address := self._address_of(leader)) is not None
        ]

    async def stop_replicas(self, stamp: Stamp, stops: Sequence[Stop]) -> Mapping[TopicPartition, Error]:
        request = StopReplicaRequest(
            controller_id=stamp.controller_id,
            controller_epoch=stamp.controller_epoch,
            broker_epoch=stamp.broker_epoch,
            topic_states=[
                StopReplicaTopicState(
                    topic_name=topic,
                    partition_states=[
                        StopReplicaPartitionState(
                            partition_index=stop.tp.partition, leader_epoch=stop.leader_epoch, delete_partition=stop.delete
                        )
                        for stop in of_topic
                    ],
                )
                for topic, of_topic in groupby(sorted(stops, key=lambda stop: stop.tp), key=lambda stop: stop.tp.topic)
            ],
        )
        response = await self._peer.ask(request, StopReplicaResponse)
        _check(response.error_code, "StopReplica", self._peer.broker_id)
        return {
            TopicPartition(one.topic_name, one.partition_index): error_of(one.error_code)
            for one in response.partition_errors
            if one.error_code
        }

    async def update_metadata(self, stamp: Stamp, update: MetadataUpdate) -> None:
        response = await self._peer.ask(self._announcements.request(stamp, update), UpdateMetadataResponse)
        _check(response.error_code, "UpdateMetadata", self._peer.broker_id)


def _check(code: int, what: str, broker: int) -> None:
    if code:
        error = error_of(code)
        raise KafkaError(error, f"broker {broker} refused {what}: {error.name}")


def _roles(topic: TopicImage, new: Collection[TopicPartition]) -> LeaderAndIsrTopicState:
    name = topic.name
    return LeaderAndIsrTopicState(
        topic_name=name,
        topic_id=topic.topic_id,
        partition_states=[
            LeaderAndIsrPartitionState(
                partition_index=number,
                controller_epoch=state.controller_epoch,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=state.isr,
                partition_epoch=state.version,
                replicas=state.replicas,
                adding_replicas=state.adding,
                removing_replicas=state.removing,
                is_new=TopicPartition(name, number) in new,
            )
            for number, state in topic.partitions.items()
        ],
    )


def _told_topic(topic: TopicImage, live: Mapping[int, BrokerImage]) -> UpdateMetadataTopicState:
    return UpdateMetadataTopicState(
        topic_name=topic.name,
        topic_id=topic.topic_id,
        partition_states=[_told_partition(number, state, live) for number, state in topic.partitions.items()],
    )


def _told_partition(number: int, state: PartitionState, live: Mapping[int, BrokerImage]) -> UpdateMetadataPartitionState:
    replicas = state.replicas
    return UpdateMetadataPartitionState(
        partition_index=number,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        zk_version=state.version,
        replicas=replicas,
        offline_replicas=[replica for replica in replicas if replica not in live],
    )


def _told_broker(broker: BrokerImage) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=broker.id,
        endpoints=[
            UpdateMetadataEndpoint(
                port=endpoint.port,
                host=endpoint.host,
                listener=name,
                security_protocol=SECURITY_PROTOCOLS.index(endpoint.protocol),
            )
            for name, endpoint in broker.endpoints.items()
        ],
        rack=broker.rack,
    )
