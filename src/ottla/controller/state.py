"""What the controller knows and what it decides: events in, actions out. Pure: no clock, no store, no sockets.

Guards: a partition's epoch only grows; a leader is always in its own ISR; nothing is announced that was not written first (the
caller writes the actions' nodes with compare-and-set, and only then applies them here and tells the brokers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ottla.controller import election
from ottla.metadata.image import PartitionState, TopicImage
from ottla.metadata.znodes import PartitionStateNode, TopicNode
from ottla.model import NO_LEADER, TopicPartition

FIRST_LEADER_EPOCH = 0


@dataclass(slots=True, frozen=True)
class WriteState:
    """Write a partition's state; `version` is what the node must have now (None: it must not exist)."""

    tp: TopicPartition
    node: PartitionStateNode
    version: int | None


@dataclass(slots=True)
class ClusterState:
    """The controller's view of topics, partitions and live brokers."""

    controller_epoch: int
    live: dict[int, str | None] = field(default_factory=dict)
    """Live brokers and their racks."""
    topics: dict[str, TopicNode] = field(default_factory=dict)
    topic_versions: dict[str, int] = field(default_factory=dict)
    states: dict[TopicPartition, PartitionStateNode] = field(default_factory=dict)
    state_versions: dict[TopicPartition, int] = field(default_factory=dict)

    def image_of(self, name: str) -> TopicImage:
        """A topic as the brokers are told of it."""
        topic = self.topics[name]
        partitions: dict[int, PartitionState] = {}
        for partition, replicas in topic.partitions.items():
            tp = TopicPartition(name, partition)
            node = self.states.get(tp)
            if node is None:
                partitions[partition] = PartitionState(NO_LEADER, FIRST_LEADER_EPOCH, (), replicas, self.controller_epoch)
            else:
                partitions[partition] = PartitionState(
                    node.leader, node.leader_epoch, node.isr, replicas, node.controller_epoch, self.state_versions.get(tp, 0)
                )
        return TopicImage(name, topic.topic_id, partitions)

    def apply(self, action: WriteState, version: int) -> None:
        """Take in an action that was written."""
        self.states[action.tp] = action.node
        self.state_versions[action.tp] = version

    def forget(self, name: str) -> None:
        """Drop a deleted topic."""
        topic = self.topics.pop(name)
        self.topic_versions.pop(name, None)
        for partition in topic.partitions:
            self.states.pop(TopicPartition(name, partition), None)
            self.state_versions.pop(TopicPartition(name, partition), None)


def partitions_created(state: ClusterState, topic: str, assignment: Mapping[int, tuple[int, ...]]) -> list[WriteState]:
    """First leaders for new partitions."""
    actions: list[WriteState] = []
    for partition, replicas in assignment.items():
        elected = election.first_leader(replicas, state.live)
        if elected is not None:
            leader, isr = elected
            node = PartitionStateNode(leader, FIRST_LEADER_EPOCH, isr, state.controller_epoch)
            actions.append(WriteState(TopicPartition(topic, partition), node, None))
    return actions


def controller_started(state: ClusterState, unclean_allowed: Iterable[str] = ()) -> list[WriteState]:
    """Leaders for every partition that has none alive: what a new controller does first."""
    unclean = frozenset(unclean_allowed)
    actions: list[WriteState] = []
    for name, topic in state.topics.items():
        for partition, replicas in topic.partitions.items():
            tp = TopicPartition(name, partition)
            node = state.states.get(tp)
            if node is None:
                actions += partitions_created(state, name, {partition: replicas})
            elif node.leader not in state.live:
                elected = election.after_failure(replicas, node.isr, state.live, name in unclean)
                if elected is not None:
                    changed = PartitionStateNode(elected[0], node.leader_epoch + 1, elected[1], state.controller_epoch)
                    actions.append(WriteState(tp, changed, state.state_versions[tp]))
    return actions
