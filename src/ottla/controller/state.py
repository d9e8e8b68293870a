"""What the controller knows and what it decides: events in, actions out. Pure: no clock, no store, no sockets.

Guards: a partition's epoch only grows; a leader is always in its own ISR; the ISR is never empty (its last members stay in it
without a leader: only they have everything); nothing is announced that was not written first (the caller writes the actions'
nodes with compare-and-set, and only then applies them here and tells the brokers).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ottla.controller import election
from ottla.metadata.image import BrokerImage, PartitionState, TopicImage
from ottla.metadata.znodes import PartitionStateNode, TopicNode
from ottla.model import LEADER_DURING_DELETE, NO_LEADER, TopicPartition

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
    brokers: dict[int, BrokerImage] = field(default_factory=dict)
    """Those that are registered."""
    shutting_down: set[int] = field(default_factory=set)
    """Of them, those that asked for leave: they lead nothing new."""
    offline: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Replicas that a live broker cannot serve, because their disk failed."""
    restarted: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """In-sync replicas whose broker was started again, and of which whoever wrote the partition's state did not know that, as a
    new controller finds them: nobody has seen yet whether they lost something."""
    topics: dict[str, TopicNode] = field(default_factory=dict)
    topic_versions: dict[str, int] = field(default_factory=dict)
    states: dict[TopicPartition, PartitionStateNode] = field(default_factory=dict)
    state_versions: dict[TopicPartition, int] = field(default_factory=dict)
    deleting: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """Topics that are marked for deletion, with the replicas (partition, broker) that may still have data."""

    @property
    def racks(self) -> dict[int, str | None]:
        """Where new replicas may go."""
        return {broker.id: broker.rack for broker in self.brokers.values()}

    @property
    def eligible(self) -> set[int]:
        """The brokers that may get something new to lead."""
        return self.brokers.keys() - self.shutting_down

    def serves(self, broker: int, tp: TopicPartition) -> bool:
        """Whether a broker lives, and has the disk of a replica."""
        return broker in self.brokers and not (broker in self.offline and tp in self.offline[broker])

    def may_lead(self, tp: TopicPartition) -> set[int]:
        """Which brokers may become the leader of a partition as far as they are concerned."""
        eligible = self.eligible
        return {broker for broker in eligible if tp not in self.offline.get(broker, ())} if self.offline else eligible

    def partitions(self) -> Iterator[TopicPartition]:
        """All partitions that are not being deleted."""
        for name, topic in self.topics.items():
            if name not in self.deleting:
                for partition in topic.partitions:
                    yield TopicPartition(name, partition)

    def partitions_on(self, brokers: Collection[int]) -> list[TopicPartition]:
        """Those of them with a replica on one of the brokers."""
        return [
            TopicPartition(name, partition)
            for name, topic in self.topics.items()
            if name not in self.deleting
            for partition, replicas in topic.partitions.items()
            if not set(replicas).isdisjoint(brokers)
        ]

    def leaderless(self) -> list[TopicPartition]:
        """Those of them that nobody leads."""
        return [tp for tp in self.partitions() if tp not in self.states or self.states[tp].leader == NO_LEADER]

    def knows(self, tp: TopicPartition) -> bool:
        """Whether there is such a partition, and will be."""
        return tp.topic in self.topics and tp.topic not in self.deleting and tp.partition in self.topics[tp.topic].partitions

    def replicas(self, tp: TopicPartition) -> tuple[int, ...]:
        return self.topics[tp.topic].partitions[tp.partition]

    def image(self, tp: TopicPartition) -> PartitionState:
        """A partition as the brokers are told of it."""
        topic, partition = self.topics[tp.topic], tp.partition
        replicas = topic.partitions[partition]
        node = self.states.get(tp)
        if node is None:
            return PartitionState(NO_LEADER, FIRST_LEADER_EPOCH, (), replicas, self.controller_epoch)
        made = PartitionState(
            node.leader, node.leader_epoch, node.isr, replicas, node.controller_epoch, self.state_versions.get(tp, 0)
        )
        if partition not in topic.adding and partition not in topic.removing:
            return made
        removing = tuple(one for one in topic.removing.get(partition, ()) if one in replicas)
        return replace(made, adding=topic.adding.get(partition, ()), removing=removing)

    def image_of(self, name: str) -> TopicImage:
        """A topic as the brokers are told of it."""
        topic = self.topics[name]
        return TopicImage(
            name, topic.topic_id, {number: self.image(TopicPartition(name, number)) for number in topic.partitions}
        )

    def image_of_deleted(self, name: str) -> TopicImage:
        """How the brokers are told that a topic is gone."""
        topic = self.topics[name]
        return TopicImage(
            name,
            topic.topic_id,
            {
                number: replace(self.image(TopicPartition(name, number)), leader=LEADER_DURING_DELETE, isr=())
                for number in topic.partitions
            },
        )

    def apply(self, action: WriteState, version: int) -> None:
        """Take in an action that was written."""
        self.states[action.tp] = action.node
        self.state_versions[action.tp] = version
        self.restarted.pop(action.tp, None)

    def forget(self, name: str) -> None:
        """Drop a deleted topic."""
        topic = self.topics.pop(name)
        self.topic_versions.pop(name, None)
        self.deleting.pop(name, None)
        for partition in topic.partitions:
            self.states.pop(TopicPartition(name, partition), None)
            self.state_versions.pop(TopicPartition(name, partition), None)

    def lose(self, brokers: Iterable[int]) -> None:
        """These brokers are gone; what they led is looked after by `settled`."""
        for broker in brokers:
            self.brokers.pop(broker, None)
            self.shutting_down.discard(broker)
            self.offline.pop(broker, None)

    def changed(self, tp: TopicPartition, leader: int, isr: tuple[int, ...]) -> WriteState:
        """The action that gives a partition another leader or ISR, in a new epoch."""
        node = self.states[tp]
        made = PartitionStateNode(leader, node.leader_epoch + 1, isr, self.controller_epoch)
        return WriteState(tp, made, self.state_versions[tp])


def partitions_created(state: ClusterState, topic: str, assignment: Mapping[int, tuple[int, ...]]) -> list[WriteState]:
    """First leaders for new partitions."""
    actions: list[WriteState] = []
    eligible = state.eligible
    for partition, replicas in assignment.items():
        elected = election.first_leader(replicas, eligible)
        if elected is not None:
            leader, isr = elected
            node = PartitionStateNode(leader, FIRST_LEADER_EPOCH, isr, state.controller_epoch)
            actions.append(WriteState(TopicPartition(topic, partition), node, None))
    return actions


def settled(
    state: ClusterState, partitions: Iterable[TopicPartition], unclean_allowed: Collection[str] = ()
) -> list[WriteState]:
    """What must change so that each of these partitions has a leader that serves it, and only serving replicas in its ISR.

    The one answer to brokers that failed, came back or lost a disk, and what a new controller does first: the state tells who
    lives, whatever happened. Where nobody may lead, the partition is without a leader and keeps the last of its ISR. A replica
    that was started again leaves the ISR if others in it were not; if there are none, it leads in a new epoch.
    """
    actions: list[WriteState] = []
    for tp in partitions:
        node = state.states.get(tp)
        replicas = state.replicas(tp)
        if node is None:
            actions += partitions_created(state, tp.topic, {tp.partition: replicas})
            continue
        restarted = state.restarted.get(tp, ())
        serving = tuple(one for one in node.isr if state.serves(one, tp))
        isr = tuple(one for one in serving if one not in restarted) or serving or node.isr
        if node.leader in isr and state.serves(node.leader, tp):
            leader = node.leader
        else:
            elected = election.after_failure(replicas, isr, state.may_lead(tp), tp.topic in unclean_allowed)
            leader, isr = elected or (NO_LEADER, isr)
        if leader != node.leader or isr != node.isr or leader in restarted:
            actions.append(state.changed(tp, leader, isr))
    return actions


def wanting_unclean(state: ClusterState, partitions: Iterable[TopicPartition]) -> set[str]:
    """The topics of those partitions that only a replica out of sync could lead: whether it may is a setting of the topic."""
    wanting: set[str] = set()
    for tp in partitions:
        node = state.states.get(tp)
        if node is None or tp.topic in wanting or state.serves(node.leader, tp):
            continue
        candidates = state.may_lead(tp).intersection(state.replicas(tp))
        if candidates and candidates.isdisjoint(node.isr):
            wanting.add(tp.topic)
    return wanting


def shut_down(state: ClusterState, broker: int) -> list[WriteState]:
    """Move away what a broker leads and take it out of the ISRs, as far as others can take over. It stays alive meanwhile."""
    actions: list[WriteState] = []
    for tp in state.partitions_on({broker}):
        node = state.states.get(tp)
        if node is None or len(state.replicas(tp)) == 1:
            continue
        after = election.without(state.replicas(tp), node.isr, node.leader, broker, state.may_lead(tp))
        if after is not None:
            actions.append(state.changed(tp, *after))
    return actions


def still_led(state: ClusterState, broker: int) -> list[TopicPartition]:
    """What a broker that wants to leave leads, where another one could some day."""
    return [
        tp
        for tp in state.partitions_on({broker})
        if tp in state.states and state.states[tp].leader == broker and len(state.replicas(tp)) > 1
    ]


def to_preferred(state: ClusterState, percentage: int) -> list[TopicPartition]:
    """The partitions that go back to their preferred leader, because a broker leads too little of what it should."""
    led = {tp: node.leader for tp in state.partitions() if (node := state.states.get(tp)) is not None}
    first: Callable[[TopicPartition], int] = lambda tp: state.replicas(tp)[0]  # noqa: E731
    poor = election.imbalanced(((first(tp), leader) for tp, leader in led.items()), percentage) & state.eligible
    return [
        tp
        for tp, leader in led.items()
        if first(tp) in poor
        and leader != first(tp)
        and not _being_reassigned(state, tp)
        and election.preferred(state.replicas(tp), state.states[tp].isr, state.may_lead(tp)) is not None
    ]


def _being_reassigned(state: ClusterState, tp: TopicPartition) -> bool:
    topic = state.topics[tp.topic]
    return tp.partition in topic.adding or tp.partition in topic.removing
