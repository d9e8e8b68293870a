"""From one protocol to the other while a group is at work: a classic group becomes a consumer group, and back.

A group with members is upgraded when the first client of the consumer protocol joins it, and downgraded when the last one goes
and classic members are left; `group.consumer.migration.policy` says which of the two is allowed. Guards: what members hold goes
over with them, so that nobody gets a partition that another still reads. Empty groups go over in either direction at any time.
Pure: conversions are records, which the coordinator writes in one piece.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.coordinator.consumer_classic import Subscription, read_assignment, read_subscription, write_assignment
from ottla.coordinator.consumer_draft import ClusterTopics
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_records import (
    ClassicProtocols,
    ConsumerMember,
    ConsumerRecord,
    Current,
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicsRecord,
    by_topic,
    flat,
)
from ottla.coordinator.group_state import CONSUMER, Group, Member
from ottla.coordinator.rebalance import JoinResult, SyncResult, Turn
from ottla.coordinator.settings import GroupSettings
from ottla.model import Error, KafkaError
from ottla.wire.schema import Malformed

UPGRADE = frozenset({"upgrade", "bidirectional"})
DOWNGRADE = frozenset({"downgrade", "bidirectional"})


# Classic to consumer


def upgrade(settings: GroupSettings, group: Group, view: ClusterTopics) -> list[ConsumerRecord]:
    """The records of the consumer group that a classic one with members becomes; raises where it may not."""
    refusal = KafkaError(Error.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.")
    if (
        settings.consumer_migration_policy not in UPGRADE
        or group.protocol_type != CONSUMER
        or len(group.members) > settings.consumer_max_size
    ):
        raise refusal
    try:
        return _consumer_records(group, view)
    except Malformed:
        raise refusal from None


def _consumer_records(group: Group, view: ClusterTopics) -> list[ConsumerRecord]:
    group_id, epoch = group.group_id, group.generation
    subscriptions = {
        member.member_id: read_subscription(member.metadata(group.protocol) or member.protocols[0][1], view)
        for member in group.members.values()
    }
    names = frozenset().union(*(subscription.topics for subscription in subscriptions.values()))
    topics = {name: topic for name in names if (topic := view.find(name)) is not None}
    records: list[ConsumerRecord] = [
        EpochRecord(group_id, epoch),
        TopicsRecord(group_id, topics),
        TargetEpochRecord(group_id, epoch),
    ]
    held = _held(group, subscriptions, view)
    for member in group.members.values():
        subscription = subscriptions[member.member_id]
        upgraded = ConsumerMember(
            member.instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            subscription.topics,
            None,
            member.rebalance_timeout_ms,
            None,
            ClassicProtocols(member.session_timeout_ms, member.protocols),
        )
        assigned = by_topic(held[member.member_id])
        records += (
            MemberRecord(group_id, member.member_id, upgraded),
            TargetRecord(group_id, member.member_id, assigned),
            CurrentRecord(group_id, member.member_id, Current(epoch, epoch, assigned=assigned)),
        )
    return records


def _held(group: Group, subscriptions: Mapping[str, Subscription], view: ClusterTopics) -> dict[str, list[tuple[bytes, int]]]:
    """What each member may still read: what its generation's leader gave it, and what it held when it joined last.

    The latter counts because a rebalance may be under way, whose assignment is not there yet or has not reached everyone. A
    leader may hand a partition out twice; a consumer group knows one owner.
    """
    held: dict[str, list[tuple[bytes, int]]] = {member_id: [] for member_id in group.members}
    taken: set[tuple[bytes, int]] = set()
    assigned = {member.member_id: read_assignment(member.assignment, view) for member in group.members.values()}
    claimed = {member_id: subscription.owned for member_id, subscription in subscriptions.items()}
    for parts in (assigned, claimed):
        for member_id, partitions in parts.items():
            free = [partition for partition in flat(partitions) if partition not in taken]
            held[member_id] += free
            taken.update(free)
    return held


def call_back(turn: Turn, group: Group) -> None:
    """Whoever waits in a rebalance of the classic group is sent to join the consumer group."""
    for member in group.members.values():
        turn.answer_join(member, JoinResult(Error.REBALANCE_IN_PROGRESS, member.member_id))
        turn.answer_sync(member, SyncResult(Error.REBALANCE_IN_PROGRESS))
        member.heard(turn.now)


# Consumer to classic


def may_downgrade(settings: GroupSettings, members: Mapping[str, ConsumerMember]) -> bool:
    """Whether a group of which these members are left becomes a classic one."""
    return (
        settings.consumer_migration_policy in DOWNGRADE
        and 0 < len(members) <= settings.max_size
        and all(member.classic is not None for member in members.values())
    )


def downgrade(group: ConsumerGroup, left: Mapping[str, ConsumerMember], now_ms: int, view: ClusterTopics) -> Group:
    """The classic group that these members of a consumer group make up. A rebalance has to follow."""
    classic = Group(group.group_id, state_timestamp=now_ms, generation=group.epoch, protocol_type=CONSUMER)
    for member_id, member in left.items():
        protocols = member.classic
        assert protocols is not None
        classic.add(
            Member(
                member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                protocols.session_timeout_ms,
                protocols.protocols,
                write_assignment(group.current_of(member_id).assigned, protocols.protocols[0][1], view),
            )
        )
    classic.protocol = classic.select_protocol()
    return classic
