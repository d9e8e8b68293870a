"""Who is told what: from the state to the outbox, grouped by broker. Nothing waits here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ottla.controller.outbox import Outbox
from ottla.controller.state import ClusterState
from ottla.metadata.image import PartitionState, TopicImage
from ottla.model import TopicPartition

Partitions = dict[str, dict[int, PartitionState]]


def tell(
    state: ClusterState,
    outbox: Outbox,
    partitions: Iterable[TopicPartition],
    new: Collection[TopicPartition],
    added: Collection[TopicPartition],
    but: int | None,
) -> None:
    """Roles to the brokers (`but` one) that hold these partitions, metadata to all; see `Reign.tell`."""
    topics: Partitions = {}
    roles: dict[int, Partitions] = {}
    fresh: dict[int, set[TopicPartition]] = {}
    for tp in partitions:
        told = state.image(tp)
        topics.setdefault(tp.topic, {})[tp.partition] = told
        if tp not in state.states:
            continue  # without a first leader there is nothing to do for anybody
        for broker in told.replicas:
            if broker != but:
                roles.setdefault(broker, {}).setdefault(tp.topic, {})[tp.partition] = told
                if tp in new or (tp in added and broker in told.adding):
                    fresh.setdefault(broker, set()).add(tp)
    for broker, theirs in roles.items():
        outbox.roles(broker, _images(state, theirs), fresh.get(broker, ()))
    if topics:
        outbox.metadata(_images(state, topics))


def tell_metadata(state: ClusterState, outbox: Outbox, partitions: Iterable[TopicPartition]) -> None:
    """Metadata to all."""
    topics: Partitions = {}
    for tp in partitions:
        topics.setdefault(tp.topic, {})[tp.partition] = state.image(tp)
    if topics:
        outbox.metadata(_images(state, topics))


def tell_roles(state: ClusterState, outbox: Outbox, broker: int) -> None:
    """All its roles to one broker."""
    roles: Partitions = {}
    for tp in state.partitions_on({broker}):
        if tp in state.states:
            roles.setdefault(tp.topic, {})[tp.partition] = state.image(tp)
    outbox.roles(broker, _images(state, roles))


def tell_everything(
    state: ClusterState, outbox: Outbox, to: Collection[int] | None = None, new: Collection[TopicPartition] = ()
) -> None:
    """The whole world, to all brokers or to those that have just come. Each partition is looked at once."""
    everything: list[TopicImage] = []
    roles: dict[int, list[TopicImage]] = {broker: [] for broker in (state.brokers if to is None else to)}
    for name in state.topics:
        if name in state.deleting:
            everything.append(state.image_of_deleted(name))
            continue
        topic = state.image_of(name)
        everything.append(topic)
        theirs: dict[int, dict[int, PartitionState]] = {}
        for number, told in topic.partitions.items():
            if (name, number) in state.states:
                for broker in told.replicas:
                    if broker in roles:
                        theirs.setdefault(broker, {})[number] = told
        for broker, partitions in theirs.items():
            roles[broker].append(TopicImage(name, topic.topic_id, partitions))
    for broker, topics in roles.items():
        outbox.roles(broker, topics, new)
    outbox.metadata(everything, to)


def _images(state: ClusterState, topics: Mapping[str, Mapping[int, PartitionState]]) -> list[TopicImage]:
    return [TopicImage(name, state.topics[name].topic_id, partitions) for name, partitions in topics.items()]
