"""The cluster as every broker knows it: one immutable value, swapped whole.

A request that holds an image sees one state of the world from begin to end. A new image shares the parts that did not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ottla.model import LEADER_DURING_DELETE, NO_LEADER, Error, KafkaError, TopicPartition


@dataclass(slots=True, frozen=True)
class Endpoint:
    """Where clients of one listener reach a broker."""

    host: str
    port: int
    protocol: str = "PLAINTEXT"


@dataclass(slots=True, frozen=True)
class BrokerImage:
    """A live broker."""

    id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    epoch: int = -1
    """Which life of this broker id it is; known to the controller only."""


@dataclass(slots=True, frozen=True)
class PartitionState:
    """Who holds a partition, who leads it, and in which epoch."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    controller_epoch: int = 0
    version: int = 0
    """The version of the state's node: what a compare-and-set of the ISR expects."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    """Of the replicas, those that a reassignment brings or takes away."""


@dataclass(slots=True, frozen=True)
class TopicImage:
    """A topic: its id and its partitions."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionState]


@dataclass(slots=True, frozen=True)
class MetadataUpdate:
    """What the controller tells of the cluster: all live brokers, and those partitions of topics that changed.

    A partition whose leader is LEADER_DURING_DELETE is gone.
    """

    controller_id: int
    brokers: Mapping[int, BrokerImage]
    topics: Sequence[TopicImage] = ()


@dataclass(slots=True, frozen=True)
class Image:
    """All of it."""

    cluster_id: str = ""
    controller_id: int = NO_LEADER
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[bytes, str] = field(default_factory=dict)

    def partition(self, tp: TopicPartition) -> PartitionState:
        """The state of one partition; raises where it is not known."""
        topic = self.topics.get(tp.topic)
        state = topic.partitions.get(tp.partition) if topic is not None else None
        if state is None:
            raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return state

    def has(self, tp: TopicPartition) -> bool:
        """Whether there is such a partition."""
        topic = self.topics.get(tp.topic)
        return topic is not None and tp.partition in topic.partitions

    def updated(self, update: MetadataUpdate) -> Image:
        """This image after what the controller told. A topic with another id than before is another topic."""
        changed: list[TopicImage] = []
        removed: list[str] = []
        for told in update.topics:
            known = self.topics.get(told.name)
            partitions = dict(known.partitions) if known is not None and known.topic_id == told.topic_id else {}
            partitions.update(told.partitions)
            left = {number: state for number, state in partitions.items() if state.leader != LEADER_DURING_DELETE}
            if left:
                changed.append(TopicImage(told.name, told.topic_id, left))
            if not left or (known is not None and known.topic_id != told.topic_id):
                removed.append(told.name)
        return replace(self.with_topics(changed, removed), controller_id=update.controller_id, brokers=dict(update.brokers))

    def with_topics(self, changed: Iterable[TopicImage], removed: Iterable[str] = ()) -> Image:
        """This image with some topics replaced and others gone."""
        topics = dict(self.topics)
        names = dict(self.topic_names)
        for name in removed:
            gone = topics.pop(name, None)
            if gone is not None:
                names.pop(gone.topic_id, None)
        for topic in changed:
            topics[topic.name] = topic
            names[topic.topic_id] = topic.name
        return replace(self, topics=topics, topic_names=names)
