"""What one operation makes of a consumer group: its records so far, and the group as it will be when they are applied.

Guards the order of things in a group: who reads what decides the epoch, the epoch demands a target assignment, the target is
what members are reconciled to. The group itself is not changed (but for noting which state of the cluster it has seen): a draft
that is dropped never was. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from ottla.coordinator.assignors import ASSIGNORS, MemberSpec, Spec
from ottla.coordinator.consumer_group import ConsumerGroup, target_of
from ottla.coordinator.consumer_reconciliation import reconcile
from ottla.coordinator.consumer_records import (
    ConsumerMember,
    Current,
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    Partitions,
    TargetEpochRecord,
    TargetRecord,
    TopicMetadata,
    TopicsRecord,
)
from ottla.coordinator.records import Record
from ottla.coordinator.settings import GroupSettings


class ClusterTopics(Protocol):
    """The topics of the cluster, as the broker knows them now."""

    def token(self) -> object:
        """Another object whenever a topic came, went or grew."""
        ...

    def find(self, name: str) -> TopicMetadata | None: ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def matching(self, pattern: str) -> frozenset[str]:
        """The topics that a client's pattern means."""
        ...


class Draft:
    """One operation on one group."""

    __slots__ = (
        "_copied_members",
        "_copied_target",
        "_replaced",
        "_subscriptions_changed",
        "epoch",
        "group",
        "members",
        "now",
        "records",
        "settings",
        "target",
        "target_epoch",
        "topics",
        "view",
    )

    def __init__(self, group: ConsumerGroup, settings: GroupSettings, now: float, view: ClusterTopics) -> None:
        self.group = group
        self.settings = settings
        self.now = now
        self.view = view
        self.records: list[Record] = []
        self.members: dict[str, ConsumerMember] = group.members
        self.target: dict[str, Partitions] = group.target
        self.epoch = group.epoch
        self.topics = group.topics
        self.target_epoch = group.target_epoch
        self._copied_members = self._copied_target = False
        self._subscriptions_changed = False
        self._replaced: dict[str, str] = {}

    # Members

    def put_member(self, member_id: str, member: ConsumerMember) -> None:
        """A member comes or changes; the epoch follows if it reads something else now."""
        before = self.members.get(member_id)
        if before == member:
            return
        self.records.append(MemberRecord(self.group.group_id, member_id, member))
        self._own_members()[member_id] = member
        if before is None or not member.wants_the_same(before):
            self._subscriptions_changed = True

    def replace_member(self, old_id: str, new_id: str) -> Current:
        """A static member's place goes to a new client, which holds nothing yet: what the member has, as the new one's."""
        group_id = self.group.group_id
        current, target = self.group.current_of(old_id), target_of(self.target, old_id)
        moved = Current(assigned=current.assigned)
        if old_id != new_id:
            member = self.members[old_id]
            self._bury(old_id)
            self._own_members()[new_id] = member
            self.records.append(MemberRecord(group_id, new_id, member))
            self._put_target(new_id, target)
            self._replaced[old_id] = new_id
        return moved

    def remove_members(self, member_ids: Iterable[str]) -> None:
        """Members go: the others divide their work when they next show themselves."""
        for member_id in member_ids:
            self._bury(member_id)
            self._subscriptions_changed = True
        self._refresh_epoch()

    def put_current(self, member_id: str, current: Current) -> None:
        self.records.append(CurrentRecord(self.group.group_id, member_id, current))

    def _bury(self, member_id: str) -> None:
        group_id = self.group.group_id
        if member_id in self.group.current:
            self.records.append(CurrentRecord(group_id, member_id, None))
        if member_id in self.target:
            self.records.append(TargetRecord(group_id, member_id, None))
            del self._own_target()[member_id]
        self.records.append(MemberRecord(group_id, member_id, None))
        del self._own_members()[member_id]
        self.group.forget_deadlines(member_id)

    def _own_members(self) -> dict[str, ConsumerMember]:
        if not self._copied_members:
            self.members, self._copied_members = dict(self.members), True
        return self.members

    def _own_target(self) -> dict[str, Partitions]:
        if not self._copied_target:
            self.target, self._copied_target = dict(self.target), True
        return self.target

    def _put_target(self, member_id: str, target: Partitions) -> None:
        self.records.append(TargetRecord(self.group.group_id, member_id, target))
        self._own_target()[member_id] = target

    # Epoch and target

    def bring_up_to_date(self) -> None:
        """Make sure that the epoch stands for what is read now, and the target assignment for the epoch."""
        self._refresh_epoch()
        if self.target_epoch < self.epoch:
            self._assign()

    def _refresh_epoch(self) -> None:
        token = self.view.token()
        if not self._subscriptions_changed and self.group.metadata_seen is token:
            return
        topics = self._read_topics()
        changed = self._subscriptions_changed
        if topics != self.topics:
            self.records.append(TopicsRecord(self.group.group_id, topics))
            self.topics = topics
            changed = True
        elif not changed:
            self.group.metadata_seen = token  # what changed in the cluster is nothing that this group reads
        if changed:
            self.epoch += 1
            self.records.append(EpochRecord(self.group.group_id, self.epoch))
        self._subscriptions_changed = False

    def _read_topics(self) -> dict[str, TopicMetadata]:
        """The topics that someone reads, and that exist."""
        found = {name: self.view.find(name) for member in self.members.values() for name in self._names(member)}
        return {name: topic for name, topic in found.items() if topic is not None}

    def _names(self, member: ConsumerMember) -> frozenset[str]:
        return member.topics if member.pattern is None else member.topics | self.view.matching(member.pattern)

    def _assign(self) -> None:
        group_id = self.group.group_id
        by_names: dict[frozenset[str], frozenset[bytes]] = {}  # most members read the same
        specs: dict[str, MemberSpec] = {}
        for member_id, member in self.members.items():
            names = self._names(member)
            if names not in by_names:
                by_names[names] = frozenset(self.topics[name].topic_id for name in names if name in self.topics)
            specs[member_id] = MemberSpec(by_names[names], target_of(self.target, member_id), member.instance_id)
        counts = {topic.topic_id: topic.partitions for topic in self.topics.values()}
        for member_id, target in ASSIGNORS[self.assignor_name()](Spec(specs, counts)).items():
            if self.target.get(member_id) != target:
                self._put_target(member_id, target)
        self.target_epoch = self.epoch
        self.records.append(TargetEpochRecord(group_id, self.epoch))

    def assignor_name(self) -> str:
        return preferred_assignor(self.members, self.settings)

    # Reconciliation

    def reconcile(self, member_id: str, current: Current, owned: Partitions | None) -> Current:
        """One member's next step towards its target."""
        after = reconcile(current, self.target_epoch, target_of(self.target, member_id), owned, self._owner_of, member_id)
        if after is not self.group.current.get(member_id):
            self.put_current(member_id, after)
        return after

    def _owner_of(self, partition: tuple[bytes, int]) -> str | None:
        owner = self.group.owners.get(partition)
        return None if owner is None else self._replaced.get(owner, owner)


def preferred_assignor(members: Mapping[str, ConsumerMember], settings: GroupSettings) -> str:
    """The assignor that most members ask for; if nobody asks, the first of `group.consumer.assignors`."""
    votes = Counter(member.assignor for member in members.values() if member.assignor in settings.consumer_assignors)
    return next((name for name, _ in votes.most_common(1) if name is not None), settings.consumer_assignors[0])
