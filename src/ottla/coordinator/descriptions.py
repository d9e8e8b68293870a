"""Groups as those who look at them see them: ListGroups, DescribeGroups, ConsumerGroupDescribe. Values."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.coordinator.consumer_draft import ClusterTopics, preferred_assignor
from ottla.coordinator.consumer_group import ConsumerGroup, target_of
from ottla.coordinator.consumer_records import Partitions
from ottla.coordinator.group_state import CONSUMER, Group, State
from ottla.coordinator.settings import GroupSettings

CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"


@dataclass(slots=True, frozen=True)
class MemberDescription:
    """One member, as DescribeGroups shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True, frozen=True)
class GroupDescription:
    """One group, as DescribeGroups and ListGroups show it."""

    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberDescription, ...] = ()
    type: str = CLASSIC_TYPE


def describe(group: Group) -> GroupDescription:
    """While a group is not stable its members' parts are in flux, and not shown."""
    stable = group.state is State.STABLE
    return GroupDescription(
        group.group_id,
        group.state.value,
        group.protocol_type or "",
        (group.protocol or "") if stable else "",
        tuple(
            MemberDescription(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in group.members.values()
        ),
    )


def list_entry(group: ConsumerGroup) -> GroupDescription:
    """A consumer group as ListGroups shows it."""
    return GroupDescription(group.group_id, group.state.value, CONSUMER, type=CONSUMER_TYPE)


@dataclass(slots=True, frozen=True)
class NamedPartitions:
    """Partitions of one topic."""

    topic_id: bytes
    name: str
    partitions: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class ConsumerMemberDescription:
    """One member, as ConsumerGroupDescribe shows it."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str
    assignment: tuple[NamedPartitions, ...]
    target: tuple[NamedPartitions, ...]


@dataclass(slots=True, frozen=True)
class ConsumerGroupDescription:
    """One group, as ConsumerGroupDescribe shows it."""

    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]


def describe_consumer_group(group: ConsumerGroup, settings: GroupSettings, view: ClusterTopics) -> ConsumerGroupDescription:
    return ConsumerGroupDescription(
        group.group_id,
        group.state.value,
        group.epoch,
        group.target_epoch,
        preferred_assignor(group.members, settings),
        tuple(
            ConsumerMemberDescription(
                member_id,
                member.instance_id,
                member.rack_id,
                group.current_of(member_id).epoch,
                member.client_id,
                member.client_host,
                tuple(sorted(member.topics)),
                member.pattern or "",
                _named(group.current_of(member_id).assigned, view),
                _named(target_of(group.target, member_id), view),
            )
            for member_id, member in group.members.items()
        ),
    )


def _named(partitions: Partitions, view: ClusterTopics) -> tuple[NamedPartitions, ...]:
    """Topics that are gone have no name, and are left out."""
    named = [(view.name_of(topic_id), topic_id, numbers) for topic_id, numbers in partitions.items()]
    return tuple(
        NamedPartitions(topic_id, name, tuple(sorted(numbers))) for name, topic_id, numbers in named if name is not None
    )
