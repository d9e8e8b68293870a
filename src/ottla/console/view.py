"""A cluster at one moment, taken with a few requests per broker, and what is wrong with it.

Guards: the number of requests follows the number of brokers, not that of topics or groups, and what groups committed is kept as
one figure per topic. A partition that cannot be asked, or a part of the cluster that does not answer, leaves a gap and a line
in `gaps`, and the rest is shown all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeVar

from ottla.client.admin.disks import LogDir, ReplicaOnDisk, describe_log_dirs
from ottla.client.admin.groups import ListedGroup, committed_offsets_of, describe_groups, list_groups
from ottla.client.admin.nodes import ClusterDescription, describe_cluster
from ottla.client.admin.offsets import EARLIEST, LATEST, Found, try_offsets
from ottla.client.cluster import Cluster, PartitionInfo, TopicInfo
from ottla.client.errors import BrokerUnreachable, ClientError
from ottla.model import NO_LEADER, Error, TopicPartition

_R = TypeVar("_R")
_GROUPS_AT_ONCE = 100
_NO_MEMBERS = ("Empty", "Dead")


class Progress(NamedTuple):
    """What a group has read of a topic, and what it has not."""

    committed: int
    lag: int


class GroupView(NamedTuple):
    """A group as lists show it."""

    listed: ListedGroup
    members: int
    topics: Mapping[str, Progress]

    @property
    def lag(self) -> int:
        return sum(one.lag for one in self.topics.values())


@dataclass(frozen=True, slots=True)
class View:
    """What was seen."""

    taken_ms: int
    about: ClusterDescription
    topics: Mapping[str, TopicInfo]
    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]
    disks: Mapping[int, list[LogDir]]
    groups: Mapping[str, GroupView]
    gaps: tuple[str, ...] = ()
    replicas: Mapping[TopicPartition, Mapping[int, ReplicaOnDisk]] = field(default_factory=dict)

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionInfo]]:
        """All partitions, of one topic after the other."""
        for name, topic in self.topics.items():
            for number, info in topic.partitions.items():
                yield TopicPartition(name, number), info

    def messages(self, tp: TopicPartition) -> int:
        """How many offsets a log spans: its records, unless it was compacted."""
        return max(self.latest.get(tp, 0) - self.earliest.get(tp, 0), 0)

    def size(self, tp: TopicPartition) -> int:
        """Bytes of the leader's log, or of the largest replica's where that is not known."""
        found = self.replicas.get(tp, {})
        leader = self.topics[tp.topic].partitions[tp.partition].leader
        if leader in found:
            return found[leader].size
        return max((one.size for one in found.values()), default=0)


PartitionLag = Callable[[str, TopicPartition, int], None]
"""Told of each group's lag in each partition, while it is at hand."""


def take(cluster: Cluster, now_ms: int, before: View | None, tell: PartitionLag) -> View:
    """Look at the cluster. What does not answer is taken over from the view before."""
    gaps: list[str] = []

    def unless(look: Callable[[], _R], otherwise: _R) -> _R:
        try:
            return look()
        except ClientError as problem:
            gaps.append(str(problem))
            return otherwise

    about = describe_cluster(cluster)
    topics = cluster.topics()
    everything = [TopicPartition(name, number) for name, topic in sorted(topics.items()) for number in topic.partitions]
    earliest = unless(
        lambda: _known(try_offsets(cluster, dict.fromkeys(everything, EARLIEST))), before.earliest if before else {}
    )
    latest = unless(lambda: _known(try_offsets(cluster, dict.fromkeys(everything, LATEST))), before.latest if before else {})
    alive = [node.id for node in about.brokers]
    disks = unless(lambda: describe_log_dirs(cluster, alive), before.disks if before else {})
    groups = unless(lambda: _groups(cluster, latest, tell), before.groups if before else {})
    replicas: dict[TopicPartition, dict[int, ReplicaOnDisk]] = {}
    for broker, dirs in disks.items():
        for log_dir in dirs:
            for one in log_dir.replicas:
                if not one.future:
                    replicas.setdefault(one.partition, {})[broker] = one
    return View(now_ms, about, topics, earliest, latest, disks, groups, tuple(dict.fromkeys(gaps)), replicas)


def _known(found: Mapping[TopicPartition, Found | ClientError]) -> dict[TopicPartition, int]:
    unreachable = [one for one in found.values() if isinstance(one, BrokerUnreachable)]
    if unreachable and len(unreachable) == len(found):
        raise unreachable[0]
    return {tp: one.offset for tp, one in found.items() if isinstance(one, Found) and one.offset >= 0}


def _groups(cluster: Cluster, latest: Mapping[TopicPartition, int], tell: PartitionLag) -> dict[str, GroupView]:
    listed = list_groups(cluster)
    busy = [one.id for one in listed if one.state not in _NO_MEMBERS]
    members = {name: len(one.members) for name, one in describe_groups(cluster, busy).items()}
    found = {}
    for first in range(0, len(listed), _GROUPS_AT_ONCE):
        some = listed[first : first + _GROUPS_AT_ONCE]
        committed = committed_offsets_of(cluster, [one.id for one in some])
        for one in some:
            topics: dict[str, Progress] = {}
            for tp, place in committed[one.id].items():
                lag = lag_of(latest.get(tp), place.offset)
                tell(one.id, tp, lag)
                so_far = topics.get(tp.topic, Progress(0, 0))
                topics[tp.topic] = Progress(so_far.committed + place.offset, so_far.lag + lag)
            found[one.id] = GroupView(one, members.get(one.id, 0), topics)
    return found


def lag_of(end: int | None, committed: int) -> int:
    """How far behind; a committed offset beyond the end (of a log that was cut) is not behind at all."""
    return 0 if end is None else max(end - committed, 0)


# ---- what is wrong -------------------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """Something that an operator has to look at. `topic` says where, if it is one topic."""

    severe: bool
    text: str
    topic: str | None = None


def problems(view: View) -> list[Problem]:
    """What is wrong, the worst first."""
    offline = [tp for tp, info in view.partitions() if info.leader == NO_LEADER]
    behind = [tp for tp, info in view.partitions() if info.leader != NO_LEADER and len(info.isr) < len(info.replicas)]
    missing = missing_brokers(view)
    found = [Problem(True, f"{topic}: {_numbers(tps)} offline, nobody leads", topic) for topic, tps in _by_topic(offline)]
    if missing:
        names = ", ".join(map(str, missing))
        found.append(Problem(True, f"Broker {names} is not there" if len(missing) == 1 else f"Brokers {names} are not there"))
    for broker, dirs in view.disks.items():
        for log_dir in dirs:
            if log_dir.error != Error.NONE:
                found.append(Problem(True, f"Broker {broker}: log directory {log_dir.path} has failed ({log_dir.error.name})"))
    if view.about.controller < 0:
        found.append(Problem(True, "The cluster has no controller"))
    found += [Problem(False, f"{topic}: {_numbers(tps)} under-replicated", topic) for topic, tps in _by_topic(behind)]
    found += [Problem(False, gap) for gap in view.gaps]
    return found


def missing_brokers(view: View) -> list[int]:
    """Brokers that have replicas and are not alive."""
    alive = {node.id for node in view.about.brokers}
    return sorted({broker for _, info in view.partitions() for broker in info.replicas} - alive)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    return [(topic, list(tps)) for topic, tps in groupby(partitions, key=lambda tp: tp.topic)]


def _numbers(tps: list[TopicPartition]) -> str:
    shown = ", ".join(str(tp.partition) for tp in tps[:12])
    more = f" and {len(tps) - 12} more" if len(tps) > 12 else ""
    return f"partition {shown}" if len(tps) == 1 else f"partitions {shown}{more}"
