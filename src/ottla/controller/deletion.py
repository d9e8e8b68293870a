"""Topics on their way out: which replicas may still have data. Pure.

Guards: a topic is forgotten only when every replica has said that its data is gone; one on a broker that is away is waited for,
and asked when it returns. Until then the topic stays marked, is not served, and its name is not given away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ottla.controller.channels import Stop
from ottla.controller.state import ClusterState
from ottla.model import UNKNOWN_EPOCH, TopicPartition


def mark(state: ClusterState, name: str) -> None:
    """From now on the topic is being deleted, with all replicas that a reassignment brought or took away."""
    topic = state.topics[name]
    state.deleting[name] = {
        (partition, broker)
        for partition, replicas in topic.partitions.items()
        for broker in (*replicas, *topic.removing.get(partition, ()))
    }


def stops(state: ClusterState, names: Iterable[str], broker: int) -> list[Stop]:
    """What a broker is to delete of these topics."""
    found: list[Stop] = []
    for name in names:
        for partition, holder in sorted(state.deleting.get(name, ())):
            if holder == broker:
                tp = TopicPartition(name, partition)
                node = state.states.get(tp)
                found.append(Stop(tp, node.leader_epoch if node is not None else UNKNOWN_EPOCH, delete=True))
    return found


def deleted(state: ClusterState, broker: int, partitions: Collection[TopicPartition]) -> list[str]:
    """Take in that a broker has no data of these partitions any more; the topics that nobody has any more."""
    touched: dict[str, None] = {}
    for tp in partitions:
        left = state.deleting.get(tp.topic)
        if left is not None:
            left.discard((tp.partition, broker))
            touched[tp.topic] = None
    return [name for name in touched if not state.deleting[name]]
