"""How the controller's word reaches a broker: the three things it says, as values.

The broker that is the controller itself is reached without a socket (`Replicas` is a `Channel`); any other through
`network/control`, which speaks Apache Kafka's requests. Order, batching and repetition are the business of `outbox`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ottla.metadata.image import MetadataUpdate, TopicImage
from ottla.model import Error, TopicPartition


@dataclass(slots=True, frozen=True)
class Stamp:
    """Who speaks, and to which life of the broker: both sides' epochs, so that nothing old is taken for new."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int = -1


@dataclass(slots=True, frozen=True)
class Stop:
    """Give a replica up, and remove its data if asked to. `leader_epoch` is the partition's when this was decided."""

    tp: TopicPartition
    leader_epoch: int
    delete: bool


class Channel(Protocol):
    """What a controller tells a broker. Each call returns when the broker has done it.

    Raises KafkaError where the whole message was refused: STALE_CONTROLLER_EPOCH (another controller is known there),
    STALE_BROKER_EPOCH (meant for an earlier life of the broker), or BrokerUnavailable.
    """

    async def leader_and_isr(
        self, stamp: Stamp, topics: Sequence[TopicImage], brokers: Collection[int], new: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Error]:
        """Lead or follow these partitions (topics with just the partitions that are meant); `brokers` live, `new` ones are
        being created and have no data anywhere yet. What could not be done, by partition."""
        ...

    async def stop_replicas(self, stamp: Stamp, stops: Sequence[Stop]) -> Mapping[TopicPartition, Error]:
        """Give these replicas up. What could not be done, by partition."""
        ...

    async def update_metadata(self, stamp: Stamp, update: MetadataUpdate) -> None:
        """Answer clients from this."""
        ...
