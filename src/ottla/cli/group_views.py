"""What `ottla consumer-groups --describe` shows, gathered: partitions with lag, members, states.

Guards: a handful of requests for all groups together, however many there are; what no longer exists leaves a gap in its row and
does not end the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.client.admin.groups import Committed, GroupDescription, Member, committed_offsets_of, describe_groups
from ottla.client.admin.offsets import LATEST, Found, try_offsets
from ottla.client.cluster import Cluster
from ottla.client.errors import UnknownTopic
from ottla.model import TopicPartition

REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})


class PartitionView(NamedTuple):
    """A partition of a group: how far it is read, and by whom. None where there is nothing to say."""

    topic: str
    partition: int
    offset: int | None
    end: int | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        return None if self.offset is None or self.end is None else self.end - self.offset


class GroupView(NamedTuple):
    """A group with its partitions."""

    group: GroupDescription
    partitions: list[PartitionView]


def describe_sorted(cluster: Cluster, groups: Sequence[str]) -> list[GroupDescription]:
    """The groups by name, each once."""
    described = describe_groups(cluster, sorted(set(groups)))
    return list(described.values())


def view_offsets(cluster: Cluster, groups: Sequence[str]) -> list[GroupView]:
    """Groups by name, with the partitions that they read or committed offsets for."""
    described = describe_sorted(cluster, groups)
    committed = committed_offsets_of(cluster, [one.id for one in described])
    wanted = {tp for one in described for tp in _partitions(one, committed[one.id])}
    ends = end_offsets(cluster, wanted)
    return [GroupView(one, _rows(one, committed[one.id], ends)) for one in described]


def _partitions(group: GroupDescription, committed: Mapping[TopicPartition, Committed]) -> set[TopicPartition]:
    return {tp for member in group.members for tp in member.assignment}.union(committed)


def _rows(
    group: GroupDescription, committed: Mapping[TopicPartition, Committed], ends: Mapping[TopicPartition, int]
) -> list[PartitionView]:
    """First what has a reader, those with most of it before the others; then what was only committed."""
    rows: list[PartitionView] = []
    rest = set(committed)

    def add(partitions: Iterable[TopicPartition], member: Member | None) -> None:
        for tp in sorted(partitions):
            found = committed.get(tp)
            rows.append(PartitionView(*tp, found.offset if found else None, ends.get(tp), member))

    for member in sorted(group.members, key=lambda one: -len(one.assignment)):
        add(member.assignment, member)
        rest.difference_update(member.assignment)
    add(rest, None)
    return rows


def end_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Where logs end; a partition that does not exist any more, or has no leader, is left out."""
    existing = existing_partitions(cluster, {tp.topic for tp in partitions})
    found = try_offsets(cluster, {tp: LATEST for tp in partitions if tp in existing})
    return {tp: one.offset for tp, one in found.items() if isinstance(one, Found)}


def existing_partitions(cluster: Cluster, topics: Iterable[str]) -> set[TopicPartition]:
    """The partitions of those among the topics that exist."""
    names = sorted(topics)
    if not names:
        return set()
    try:
        found = cluster.topics(names)
    except UnknownTopic:  # one of them is missing: look which
        found = {name: info for name, info in cluster.topics().items() if name in set(names)}
    return {TopicPartition(name, number) for name, info in found.items() for number in info.partitions}
