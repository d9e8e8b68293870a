"""Members of a consumer group that still speak the classic protocol: what JoinGroup, SyncGroup, Heartbeat and LeaveGroup mean.

While a group moves from one protocol to the other, clients of both are in it. A classic member has no say in who gets what: it
joins (there is no leader), fetches its assignment with SyncGroup, and is told by its heartbeats to join again whenever the
coordinator has another step for it. Its generation is its member epoch. Guards the same promise as `consumer_membership`, with
what the member's own metadata says of the partitions that it holds. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ottla.coordinator.consumer_draft import ClusterTopics, Draft
from ottla.coordinator.consumer_group import ConsumerGroup, target_of
from ottla.coordinator.consumer_membership import check_room
from ottla.coordinator.consumer_records import ClassicProtocols, ConsumerMember, Current, MemberState, Partitions, flat
from ottla.coordinator.group_state import CONSUMER, UNKNOWN_MEMBER
from ottla.coordinator.membership import Join, Leaver, Sync
from ottla.coordinator.rebalance import JoinResult, SyncResult
from ottla.model import Error, KafkaError
from ottla.wire.apis.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartitions
from ottla.wire.schema import Malformed, encode_versioned, peek_version


@dataclass(slots=True, frozen=True)
class Subscription:
    """What a classic consumer's metadata says."""

    topics: frozenset[str]
    owned: Partitions
    rack_id: str | None


def read_subscription(metadata: bytes, view: ClusterTopics) -> Subscription:
    """Raises Malformed. A version of the future begins with the fields of the last one that is known."""
    version = min(peek_version(metadata), ConsumerProtocolSubscription.max_version)
    if version < 0:
        raise Malformed(f"{version} is no version of a subscription")
    subscription, _ = ConsumerProtocolSubscription.decoder(version)(metadata, 2)
    return Subscription(
        frozenset(subscription.topics), _by_id(subscription.owned_partitions, view), subscription.rack_id or None
    )


def read_assignment(assignment: bytes, view: ClusterTopics) -> Partitions:
    """Raises Malformed. Topics that are gone are left out."""
    if not assignment:
        return {}
    version = min(peek_version(assignment), ConsumerProtocolAssignment.max_version)
    if version < 0:
        raise Malformed(f"{version} is no version of an assignment")
    read, _ = ConsumerProtocolAssignment.decoder(version)(assignment, 2)
    return _by_id(read.assigned_partitions, view)


def _by_id(topics: Iterable[TopicPartitions], view: ClusterTopics) -> Partitions:
    found = [(view.find(topic.topic), topic.partitions) for topic in topics]
    return {topic.topic_id: frozenset(numbers) for topic, numbers in found if topic is not None and numbers}


def write_assignment(partitions: Partitions, metadata: bytes, view: ClusterTopics) -> bytes:
    """An assignment in the version of the member's own metadata."""
    names = {topic_id: view.name_of(topic_id) for topic_id in partitions}
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartitions(topic=name, partitions=tuple(sorted(partitions[topic_id])))
            for topic_id, name in sorted(names.items(), key=lambda item: item[1] or "")
            if name is not None
        ]
    )
    version = max(0, min(peek_version(metadata), ConsumerProtocolAssignment.max_version))
    return encode_versioned(assignment, version)


# Join


def join(draft: Draft, request: Join, new_id: Callable[[], str]) -> JoinResult:
    """A classic client comes, or comes back for the next step. It is answered at once: nobody has to be gathered."""
    group = draft.group
    _check_protocols(group, request)
    if not request.member_id and request.instance_id is None and request.member_id_required:
        return JoinResult(Error.MEMBER_ID_REQUIRED, new_id())
    try:
        subscription = read_subscription(request.protocols[0][1], draft.view)
    except Malformed as problem:
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL, f"the subscription cannot be read: {problem}") from None
    member_id = request.member_id or new_id()
    current = _find(draft, request, member_id)
    if subscription.owned and member_id not in draft.members:
        # Not someone who was given this id and comes back with it, but a member that was removed and does not know: what it
        # holds may be another's by now, and this refusal makes it let go.
        raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"member {member_id} is no longer in group {group.group_id}")
    draft.put_member(
        member_id,
        ConsumerMember(
            request.instance_id,
            subscription.rack_id,
            request.client_id,
            request.client_host,
            subscription.topics,
            None,
            request.rebalance_timeout_ms,
            None,
            ClassicProtocols(request.session_timeout_ms, request.protocols),
        ),
    )
    draft.bring_up_to_date()
    current = draft.reconcile(member_id, current, subscription.owned)
    group.sessions[member_id] = draft.now + request.session_timeout_ms / 1000
    group.awaited_joins.pop(member_id, None)
    group.awaited_syncs[member_id] = draft.now + request.rebalance_timeout_ms / 1000
    return JoinResult(Error.NONE, member_id, current.epoch, CONSUMER, request.protocols[0][0])


def _check_protocols(group: ConsumerGroup, request: Join) -> None:
    names = {name for name, _ in request.protocols}
    others = [
        {name for name, _ in member.classic.protocols}
        for member_id, member in group.members.items()
        if member.classic is not None and member_id != request.member_id
    ]
    if request.protocol_type != CONSUMER or not names.intersection(*others):
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL, f"the protocols of group {group.group_id} are others")


def _find(draft: Draft, request: Join, member_id: str) -> Current:
    group, instance_id = draft.group, request.instance_id
    holder = group.static_ids.get(instance_id) if instance_id is not None else None
    if holder is not None and not request.member_id:
        return draft.replace_member(holder, member_id)
    if holder is not None and holder != member_id:
        raise KafkaError(Error.FENCED_INSTANCE_ID, f"static member {instance_id} was taken over by {holder}")
    if member_id not in group.members:
        check_room(draft)
    return group.current_of(member_id)


# Sync and heartbeat


def sync(group: ConsumerGroup, request: Sync, now: float, view: ClusterTopics) -> SyncResult:
    """A classic member asks for its assignment."""
    member, current = _known(group, request.member_id, request.instance_id, request.generation)
    assert member.classic is not None
    protocol, metadata = member.classic.protocols[0]
    if request.protocol_type not in (None, CONSUMER) or request.protocol not in (None, protocol):
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL, f"group {group.group_id} chose protocol {protocol}")
    # Who has partitions to give up must hear of it now, whatever else changed: it joins again when it has done so.
    if group.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
        _must_join(group, request.member_id, member, now)
    group.awaited_syncs.pop(request.member_id, None)
    group.sessions[request.member_id] = now + member.classic.session_timeout_ms / 1000
    return SyncResult(Error.NONE, CONSUMER, protocol, write_assignment(current.assigned, metadata, view))


def heartbeat(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now: float) -> None:
    """A classic member is alive. It hears from the refusal that there is another step for it."""
    member, current = _known(group, member_id, instance_id, generation)
    assert member.classic is not None
    group.sessions[member_id] = now + member.classic.session_timeout_ms / 1000
    if (
        current.epoch < group.epoch
        or current.state is MemberState.UNREVOKED_PARTITIONS
        or (current.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member_id, current))
    ):
        _must_join(group, member_id, member, now)


def _waits_for_others(group: ConsumerGroup, member_id: str, current: Current) -> bool:
    target = target_of(group.target, member_id)
    return any(group.owners.get(partition) not in (None, member_id) for partition in flat(target))


def _must_join(group: ConsumerGroup, member_id: str, member: ConsumerMember, now: float) -> None:
    group.awaited_joins.setdefault(member_id, now + member.rebalance_timeout_ms / 1000)
    raise KafkaError(Error.REBALANCE_IN_PROGRESS, f"group {group.group_id} has another step for {member_id}")


def _known(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> tuple[ConsumerMember, Current]:
    member = group.member(member_id) if instance_id is None else group.static_member(instance_id, member_id)
    if member.classic is None:
        raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"member {member_id} does not speak the classic protocol")
    current = group.current_of(member_id)
    if generation != current.epoch:
        raise KafkaError(Error.ILLEGAL_GENERATION, f"member {member_id} is in generation {current.epoch}, not {generation}")
    return member, current


# Leave


def leave(draft: Draft, leavers: Iterable[Leaver]) -> list[Error]:
    """Classic members go; what becomes of each of them."""
    results: list[Error] = []
    gone: dict[str, None] = {}
    for leaver in leavers:
        try:
            gone[_leaving(draft.group, leaver)] = None
            results.append(Error.NONE)
        except KafkaError as refusal:
            results.append(refusal.error)
    if gone:
        draft.remove_members(gone)
    return results


def _leaving(group: ConsumerGroup, leaver: Leaver) -> str:
    member_id = leaver.member_id
    if leaver.instance_id is not None:
        if member_id == UNKNOWN_MEMBER:
            member_id = group.static_ids.get(leaver.instance_id, UNKNOWN_MEMBER)
        group.static_member(leaver.instance_id, member_id)
    # An administrator names an instance alone, and may mean members of either protocol.
    if group.member(member_id).classic is None and leaver.member_id != UNKNOWN_MEMBER:
        raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"member {member_id} does not speak the classic protocol")
    return member_id
