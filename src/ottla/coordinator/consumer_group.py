"""A group of the consumer protocol as data: what its records say, who holds which partition, and when someone falls due.

Guards: `owners` names exactly one holder for each partition that some member has or has yet to give up, and follows from the
members' current assignments alone. The tables are changed only by `put`, which takes a record in and returns how to take it
back; deadlines (seconds of the monotonic clock) are no part of what the topic keeps. Nothing here decides anything and nothing
awaits: `consumer_membership` and `consumer_classic` make the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial

from ottla.coordinator.consumer_records import (
    NO_PARTITIONS,
    ConsumerMember,
    ConsumerRecord,
    Current,
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    Partitions,
    TargetEpochRecord,
    TargetRecord,
    TopicMetadata,
    TopicsRecord,
    flat,
)
from ottla.model import Error, KafkaError

NOT_ASSIGNED = Current()
"""What a member has that was never given anything."""


class ConsumerState(Enum):
    """The life of a consumer group, under the names that ConsumerGroupDescribe shows."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """One group of the consumer protocol."""

    __slots__ = (
        "awaited_joins",
        "awaited_revocations",
        "awaited_syncs",
        "current",
        "epoch",
        "group_id",
        "members",
        "metadata_seen",
        "owners",
        "sessions",
        "static_ids",
        "target",
        "target_epoch",
        "topics",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.topics: Mapping[str, TopicMetadata] = {}
        self.members: dict[str, ConsumerMember] = {}
        self.target_epoch = 0
        self.target: dict[str, Partitions] = {}
        self.current: dict[str, Current] = {}
        self.owners: dict[tuple[bytes, int], str] = {}
        self.static_ids: dict[str, str] = {}
        self.metadata_seen: object = None
        """The state of the cluster's topics that `topics` was made from."""
        self.sessions: dict[str, float] = {}
        self.awaited_revocations: dict[str, tuple[int, float]] = {}
        """Members that have to give partitions up: in which epoch, and by when."""
        self.awaited_joins: dict[str, float] = {}
        """Classic members that were told to join again, and by when they must."""
        self.awaited_syncs: dict[str, float] = {}
        """Classic members that joined and have not asked for their assignment yet."""

    # Questions

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        if all(self.current_of(member_id).is_reconciled_to(self.target_epoch) for member_id in self.members):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    def member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def current_of(self, member_id: str) -> Current:
        return self.current.get(member_id, NOT_ASSIGNED)

    def static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
        """The static member that a request speaks for; an instance id that moved on fences whoever had it before."""
        holder = self.static_ids.get(instance_id)
        if holder is None:
            raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if holder != member_id:
            raise KafkaError(
                Error.FENCED_INSTANCE_ID, f"Static member {member_id} with instance id {instance_id} was fenced by {holder}."
            )
        return self.members[holder]

    def reads(self, topic: str) -> bool:
        """Whether a member reads this topic."""
        return bool(self.members) and (topic in self.topics or any(topic in m.topics for m in self.members.values()))

    def deadlines(self) -> Iterator[float]:
        """Every moment at which something falls due."""
        yield from self.sessions.values()
        yield from self.awaited_joins.values()
        yield from self.awaited_syncs.values()
        for _, deadline in self.awaited_revocations.values():
            yield deadline

    def forget_deadlines(self, member_id: str) -> None:
        """The member is no longer waited for."""
        for table in (self.sessions, self.awaited_revocations, self.awaited_joins, self.awaited_syncs):
            table.pop(member_id, None)

    def forget_strangers(self) -> None:
        """Drop deadlines of members that never were: what brought them in was refused."""
        for table in (self.sessions, self.awaited_revocations, self.awaited_joins, self.awaited_syncs):
            for member_id in [one for one in table if one not in self.members]:
                del table[member_id]

    def take_deadlines(self, other: ConsumerGroup) -> None:
        """Go on with the deadlines of this group's likeness."""
        self.sessions = other.sessions
        self.awaited_revocations = other.awaited_revocations
        self.awaited_joins = other.awaited_joins
        self.awaited_syncs = other.awaited_syncs

    # Records

    def put(self, record: ConsumerRecord) -> Callable[[], object]:
        """Take a record in; returns how to take it back."""
        match record:
            case MemberRecord(member_id=member_id, value=member):
                return partial(self.put, MemberRecord(self.group_id, member_id, self._set_member(member_id, member)))
            case CurrentRecord(member_id=member_id, value=current):
                return partial(self.put, CurrentRecord(self.group_id, member_id, self._set_current(member_id, current)))
            case TargetRecord(member_id=member_id, value=target):
                before = self.target.pop(member_id, None)
                if target is not None:
                    self.target[member_id] = target
                return partial(self.put, TargetRecord(self.group_id, member_id, before))
            case EpochRecord(value=epoch):
                undo = partial(self.put, EpochRecord(self.group_id, self.epoch))
                self.epoch = epoch or 0
                return undo
            case TargetEpochRecord(value=epoch):
                undo = partial(self.put, TargetEpochRecord(self.group_id, self.target_epoch))
                self.target_epoch = epoch or 0
                return undo
            case TopicsRecord(value=topics):
                undo = partial(self.put, TopicsRecord(self.group_id, self.topics))
                self.topics = topics or {}
                self.metadata_seen = None  # whoever made this record says afterwards what it was made from
                return undo

    def _set_member(self, member_id: str, member: ConsumerMember | None) -> ConsumerMember | None:
        before = self.members.pop(member_id, None)
        if before is not None and before.instance_id is not None and self.static_ids.get(before.instance_id) == member_id:
            del self.static_ids[before.instance_id]
        if member is not None:
            self.members[member_id] = member
            if member.instance_id is not None:
                self.static_ids[member.instance_id] = member_id
        return before

    def _set_current(self, member_id: str, current: Current | None) -> Current | None:
        before = self.current.pop(member_id, None)
        if before is not None:
            for partition in (*flat(before.assigned), *flat(before.pending_revocation)):
                if self.owners.get(partition) == member_id:
                    del self.owners[partition]
        if current is not None:
            self.current[member_id] = current
            for partition in (*flat(current.assigned), *flat(current.pending_revocation)):
                self.owners[partition] = member_id
        return before

    def tombstones(self) -> list[ConsumerRecord]:
        """The records that remove the group."""
        return [
            *(CurrentRecord(self.group_id, member_id, None) for member_id in self.current),
            *(TargetRecord(self.group_id, member_id, None) for member_id in self.target),
            *(MemberRecord(self.group_id, member_id, None) for member_id in self.members),
            TargetEpochRecord(self.group_id, None),
            TopicsRecord(self.group_id, None),
            EpochRecord(self.group_id, None),
        ]


def target_of(target: Mapping[str, Partitions], member_id: str) -> Partitions:
    """What a member shall have: nothing, if nobody said so."""
    return target.get(member_id, NO_PARTITIONS)
