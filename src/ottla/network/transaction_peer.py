"""Transactions between brokers: is this write part of one (asked of a coordinator), and this one has ended (told to leaders).

Questions to one broker travel together, one request after the other; the two purposes have a connection each, because
whoever writes markers may wait for other replicas. Nothing is repeated here: producers and coordinators try again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from ottla.coordinator.markers import Marker
from ottla.coordinator.transaction_state import ProducerIdentity
from ottla.model import Error, KafkaError, TopicPartition, error_of
from ottla.network.batching import Batching
from ottla.network.peer import Peer
from ottla.wire.apis.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

Errors = Mapping[TopicPartition, Error]


class _Question(NamedTuple):
    transactional_id: str
    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]


class Verifications:
    """Asks coordinators on other brokers whether partitions are in a producer's open transaction (AddPartitionsToTxn)."""

    def __init__(self, connect: Callable[[int], Peer]) -> None:
        self._connect = connect
        self._peers: list[Peer] = []
        self._brokers: dict[int, Batching[_Question, Errors]] = {}

    async def verify(
        self, broker: int, transactional_id: str, producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> Errors:
        """What the coordinator says of each partition: Error.NONE where a write may follow."""
        lane = self._brokers.get(broker)
        if lane is None:
            self._peers.append(self._connect(broker))
            ask = partial(_verify, self._peers[-1])
            lane = self._brokers[broker] = Batching(ask, lambda one: one.transactional_id)
        try:
            return await lane.put(_Question(transactional_id, producer, tuple(partitions)))
        except KafkaError:
            return dict.fromkeys(partitions, Error.NETWORK_EXCEPTION)

    def close(self) -> None:
        """Ask nothing more, and hang up."""
        for lane in self._brokers.values():
            lane.close()
        for peer in self._peers:
            peer.close()


async def _verify(peer: Peer, questions: Sequence[_Question]) -> list[Errors]:
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=one.transactional_id,
                producer_id=one.producer.producer_id,
                producer_epoch=one.producer.epoch,
                verify_only=True,
                topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=numbers) for topic, numbers in _by_topic(one.partitions)
                ],
            )
            for one in questions
        ]
    )
    response = await peer.ask(request, AddPartitionsToTxnResponse)
    if response.error_code:
        whole = error_of(response.error_code)
        return [dict.fromkeys(one.partitions, whole) for one in questions]
    told = {
        (result.transactional_id, TopicPartition(topic.name, one.partition_index)): error_of(one.partition_error_code)
        for result in response.results_by_transaction
        for topic in result.topic_results
        for one in topic.results_by_partition
    }
    return [
        {tp: told.get((one.transactional_id, tp), Error.UNKNOWN_SERVER_ERROR) for tp in one.partitions} for one in questions
    ]


class _Ending(NamedTuple):
    marker: Marker
    partitions: tuple[TopicPartition, ...]


class MarkerSender:
    """Has the leaders of partitions on other brokers write markers (WriteTxnMarkers)."""

    def __init__(self, connect: Callable[[int], Peer]) -> None:
        self._connect = connect
        self._peers: list[Peer] = []
        self._brokers: dict[int, Batching[_Ending, Errors]] = {}

    async def send(self, broker: int, marker: Marker, partitions: Collection[TopicPartition]) -> Errors:
        """What came of the marker in each partition."""
        lane = self._brokers.get(broker)
        if lane is None:
            self._peers.append(self._connect(broker))
            ask = partial(_write, self._peers[-1])
            lane = self._brokers[broker] = Batching(ask, lambda one: one.marker.producer_id)
        try:
            return await lane.put(_Ending(marker, tuple(partitions)))
        except KafkaError as problem:
            return dict.fromkeys(partitions, problem.error)

    def close(self) -> None:
        """Ask nothing more, and hang up."""
        for lane in self._brokers.values():
            lane.close()
        for peer in self._peers:
            peer.close()


async def _write(peer: Peer, endings: Sequence[_Ending]) -> list[Errors]:
    request = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=one.marker.producer_id,
                producer_epoch=one.marker.producer_epoch,
                transaction_result=one.marker.committed,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=numbers)
                    for topic, numbers in _by_topic(one.partitions)
                ],
                coordinator_epoch=one.marker.coordinator_epoch,
            )
            for one in endings
        ]
    )
    response = await peer.ask(request, WriteTxnMarkersResponse)
    told = {
        (result.producer_id, TopicPartition(topic.name, one.partition_index)): error_of(one.error_code)
        for result in response.markers
        for topic in result.topics
        for one in topic.partitions
    }
    return [
        {tp: told.get((one.marker.producer_id, tp), Error.UNKNOWN_SERVER_ERROR) for tp in one.partitions} for one in endings
    ]


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    ordered = sorted(partitions)
    return [(topic, [tp.partition for tp in group]) for topic, group in groupby(ordered, key=lambda tp: tp.topic)]
