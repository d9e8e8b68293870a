"""What the topic keeps of a group of the consumer protocol (KIP-848), as values.

Such a group has no single record: its epoch, its topics, the target assignment's epoch, and for each member who it is, what it
shall have and what it has, are records of their own, so that a heartbeat writes only what it changes. A record without a value
is a tombstone. How they look as bytes is `consumer_record_format`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""A static member is away for a while: its place and its partitions are kept for its session timeout."""

Partitions = Mapping[bytes, frozenset[int]]
"""Partitions by topic id; a topic that is named has at least one."""

NO_PARTITIONS: Partitions = {}


def flat(partitions: Partitions) -> Iterator[tuple[bytes, int]]:
    """Topic id and number of each partition."""
    for topic_id, numbers in partitions.items():
        for number in numbers:
            yield topic_id, number


def by_topic(pairs: Iterable[tuple[bytes, int]]) -> Partitions:
    """Single partitions, gathered by topic."""
    gathered: dict[bytes, set[int]] = {}
    for topic_id, number in pairs:
        gathered.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in gathered.items()}


def is_subset(inner: Partitions, outer: Partitions) -> bool:
    return all(numbers <= outer.get(topic_id, frozenset()) for topic_id, numbers in inner.items())


def overlap(one: Partitions, other: Partitions) -> bool:
    return any(not numbers.isdisjoint(other.get(topic_id, frozenset())) for topic_id, numbers in one.items())


class TopicMetadata(NamedTuple):
    """A topic as a group saw it when its epoch was made."""

    topic_id: bytes
    name: str
    partitions: int


@dataclass(slots=True, frozen=True)
class ClassicProtocols:
    """What a member that still speaks the classic protocol brought along: enough to make it a classic member again."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(slots=True, frozen=True)
class ConsumerMember:
    """Who a member is, and what it wants to read."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: frozenset[str]
    pattern: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicProtocols | None = None
    """Of a member that speaks the classic protocol; None for one that sends ConsumerGroupHeartbeat."""

    def wants_the_same(self, other: ConsumerMember) -> bool:
        return self.topics == other.topics and self.pattern == other.pattern


class MemberState(IntEnum):
    """How far a member is on its way to its target assignment."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It was told to give partitions up, and has not said yet that it did."""
    UNRELEASED_PARTITIONS = 2
    """It is in the newest epoch, and others still hold partitions that shall be its own."""


@dataclass(slots=True, frozen=True)
class Current:
    """What a member has. It may use what is `assigned`; it may still hold, but shall give up, what is `pending_revocation`."""

    epoch: int = 0
    previous_epoch: int = -1
    """The one before, which is accepted once more: the answer that told of the newer one may have been lost."""
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=dict)
    pending_revocation: Partitions = field(default_factory=dict)

    def moved_to(self, epoch: int, state: MemberState, assigned: Partitions, pending_revocation: Partitions) -> Current:
        """The next step. A step within one epoch forgets the epoch before: it is surely known by now."""
        return Current(epoch, self.epoch, state, assigned, pending_revocation)

    def away(self) -> Current:
        """A static member left for a while: nothing is left for it to give up."""
        return replace(
            self,
            epoch=STATIC_LEAVE_EPOCH,
            previous_epoch=self.epoch,
            state=MemberState.STABLE,
            pending_revocation=NO_PARTITIONS,
        )

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch


class EpochRecord(NamedTuple):
    """The group's epoch, which counts changes of who reads what; without it the group is gone."""

    group_id: str
    value: int | None


class TopicsRecord(NamedTuple):
    """The topics that the members read, as they were when the epoch was made."""

    group_id: str
    value: Mapping[str, TopicMetadata] | None


class MemberRecord(NamedTuple):
    """A member came, changed, or is gone."""

    group_id: str
    member_id: str
    value: ConsumerMember | None


class TargetEpochRecord(NamedTuple):
    """The group's epoch for which the target assignment was made."""

    group_id: str
    value: int | None


class TargetRecord(NamedTuple):
    """What a member shall have."""

    group_id: str
    member_id: str
    value: Partitions | None


class CurrentRecord(NamedTuple):
    """What a member has."""

    group_id: str
    member_id: str
    value: Current | None


ConsumerRecord = EpochRecord | TopicsRecord | MemberRecord | TargetEpochRecord | TargetRecord | CurrentRecord
