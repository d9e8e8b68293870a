"""What a heartbeat of the consumer protocol may say, and what becomes of it: join, stay, change, leave, and be replaced.

Guards: a member is listened to only in its own epoch (or the one before, if it lost an answer and holds nothing it should not);
a static member's place is taken over only when it was given up. Pure: each function reads the group, writes records into a
`Draft`, and touches nothing of the group but deadlines; the coordinator hands the records to the runtime, which applies them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ottla.coordinator.consumer_draft import Draft
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_records import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    Current,
    MemberState,
    Partitions,
    is_subset,
)
from ottla.coordinator.settings import GroupSettings
from ottla.coordinator.topic_patterns import Pattern
from ottla.model import Error, KafkaError

NOT_SAID = -1


@dataclass(slots=True, frozen=True)
class ConsumerHeartbeat:
    """A heartbeat. What is None, or NOT_SAID, is as it was."""

    group_id: str
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NOT_SAID
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    """What the member says it holds."""

    @property
    def is_full(self) -> bool:
        """The member says everything, as one does that does not know what was heard of it: it is told everything."""
        said = self.rebalance_timeout_ms != NOT_SAID and self.owned is not None
        return self.epoch == JOIN_EPOCH or (said and (self.topics is not None or self.pattern is not None))

    def applied_to(self, member: ConsumerMember | None) -> ConsumerMember:
        """The member as it is after this."""
        known = member or ConsumerMember(None, None, "", "", frozenset(), None, NOT_SAID, None)
        return ConsumerMember(
            instance_id=self.instance_id if self.instance_id is not None else known.instance_id,
            rack_id=self.rack_id if self.rack_id is not None else known.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            topics=self.topics if self.topics is not None else known.topics,
            pattern=(self.pattern or None) if self.pattern is not None else known.pattern,
            rebalance_timeout_ms=self.rebalance_timeout_ms
            if self.rebalance_timeout_ms != NOT_SAID
            else known.rebalance_timeout_ms,
            assignor=self.assignor if self.assignor is not None else known.assignor,
        )


@dataclass(slots=True, frozen=True)
class HeartbeatResult:
    """The answer: the member's epoch, and its assignment where that is news."""

    member_id: str
    epoch: int
    interval_ms: int = 0
    assignment: Partitions | None = None


def check_request(settings: GroupSettings, request: ConsumerHeartbeat, *, client_makes_id: bool) -> None:
    """What no group needs to be asked for."""
    if not request.group_id:
        raise _invalid("GroupId can't be empty.")
    if request.instance_id == "":
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if request.epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if not request.member_id and (client_makes_id or request.epoch != JOIN_EPOCH):
        raise _invalid("MemberId can't be empty.")
    if request.epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    if request.epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == NOT_SAID:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if not request.topics and not request.pattern:
            raise _invalid("SubscribedTopicNames must be set in first request.")
    if request.assignor is not None and request.assignor not in settings.consumer_assignors:
        allowed = ", ".join(settings.consumer_assignors)
        raise KafkaError(
            Error.UNSUPPORTED_ASSIGNOR, f"ServerAssignor {request.assignor} is not supported. Supported assignors: {allowed}."
        )
    if request.pattern:
        Pattern.of(request.pattern)  # raises for one that cannot be understood


def _invalid(message: str) -> KafkaError:
    return KafkaError(Error.INVALID_REQUEST, message)


# Join and stay


def heartbeat(draft: Draft, request: ConsumerHeartbeat) -> HeartbeatResult:
    """A member joins, or says that it is there, and perhaps what changed."""
    group, member_id = draft.group, request.member_id
    current = _find(draft, request)
    told = current.assigned
    draft.put_member(member_id, request.applied_to(draft.members.get(member_id)))
    draft.bring_up_to_date()
    current = draft.reconcile(member_id, current, request.owned)
    group.sessions[member_id] = draft.now + draft.settings.consumer_session_timeout_ms / 1000
    await_revocation(draft, member_id, current)
    group.awaited_joins.pop(member_id, None)
    group.awaited_syncs.pop(member_id, None)
    return HeartbeatResult(
        member_id,
        current.epoch,
        draft.settings.consumer_heartbeat_interval_ms,
        current.assigned if request.is_full or current.assigned != told else None,
    )


def _find(draft: Draft, request: ConsumerHeartbeat) -> Current:
    """The member that a request speaks for, as the group knows it; a new one, or one that takes a static place over."""
    group, member_id, instance_id = draft.group, request.member_id, request.instance_id
    if request.epoch == JOIN_EPOCH and instance_id is not None and instance_id in group.static_ids:
        return _take_over(draft, request, instance_id, group.static_ids[instance_id])
    if request.epoch == JOIN_EPOCH and member_id not in group.members:
        check_room(draft)
        return Current()
    if instance_id is not None:
        group.static_member(instance_id, member_id)
    group.member(member_id)
    current = group.current_of(member_id)
    check_epoch(request, current)
    return current


def _take_over(draft: Draft, request: ConsumerHeartbeat, instance_id: str, holder: str) -> Current:
    """A static member starts again. Its place must have been given up, unless its old client spoke the classic protocol."""
    group = draft.group
    current = group.current_of(holder)
    released = current.epoch == STATIC_LEAVE_EPOCH or group.members[holder].classic is not None
    if holder == request.member_id and not released:
        check_epoch(request, current)  # the answer to its join was lost
        return current
    if not released:
        raise KafkaError(
            Error.UNRELEASED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the instance id "
            "is owned by a member.",
        )
    return draft.replace_member(holder, request.member_id)


def check_room(draft: Draft) -> None:
    """Whether one more member may come in."""
    limit = draft.settings.consumer_max_size
    if len(draft.members) >= limit:
        raise KafkaError(Error.GROUP_MAX_SIZE_REACHED, f"Group {draft.group.group_id} has its {limit} members.")


def check_epoch(request: ConsumerHeartbeat, current: Current) -> None:
    """A member that is elsewhere in time may hold what is no longer its own: it is told to begin anew."""
    if request.epoch == current.epoch:
        return
    lost_answer = request.epoch == current.previous_epoch and request.owned is not None
    if lost_answer and is_subset(request.owned or NO_PARTITIONS, current.assigned):
        return
    word = "greater" if request.epoch > current.epoch else "smaller"
    raise KafkaError(
        Error.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {word} member epoch ({request.epoch}) than the one known by the group coordinator "
        f"({current.epoch}). The member must abandon all its partitions and rejoin.",
    )


def await_revocation(draft: Draft, member_id: str, current: Current) -> None:
    """A member that has to give partitions up may take as long as it asked for, in each epoch; others wait for it."""
    waits = draft.group.awaited_revocations
    if current.state is not MemberState.UNREVOKED_PARTITIONS:
        waits.pop(member_id, None)
    elif waits.get(member_id, (None,))[0] != current.epoch:
        waits[member_id] = (current.epoch, draft.now + draft.members[member_id].rebalance_timeout_ms / 1000)


# Leave


def leave(draft: Draft, request: ConsumerHeartbeat) -> HeartbeatResult:
    """A member goes for good, or a static one for a while."""
    group, member_id = draft.group, request.member_id
    if request.instance_id is not None:
        group.static_member(request.instance_id, member_id)
    group.member(member_id)
    if request.epoch == STATIC_LEAVE_EPOCH:
        draft.put_current(member_id, group.current_of(member_id).away())
        group.awaited_revocations.pop(member_id, None)
        return HeartbeatResult(member_id, STATIC_LEAVE_EPOCH)
    draft.remove_members([member_id])
    return HeartbeatResult(member_id, LEAVE_EPOCH)


def overdue(group: ConsumerGroup, now: float) -> list[str]:
    """The members that kept the group waiting for too long."""
    late = {
        *_late(group.sessions.items(), now),
        *_late(group.awaited_joins.items(), now),
        *_late(group.awaited_syncs.items(), now),
        *_late(((member_id, deadline) for member_id, (_, deadline) in group.awaited_revocations.items()), now),
    }
    return [member_id for member_id in group.members if member_id in late]


def _late(deadlines: Iterable[tuple[str, float]], now: float) -> list[str]:
    return [member_id for member_id, deadline in deadlines if deadline <= now]


def start_sessions(group: ConsumerGroup, settings: GroupSettings, now: float) -> None:
    """The group was loaded, or made of a classic one: its members have a whole session timeout to show themselves."""
    for member_id, member in group.members.items():
        timeout_ms = settings.consumer_session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
        group.sessions[member_id] = now + timeout_ms / 1000
        current = group.current_of(member_id)
        if current.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
            group.awaited_revocations[member_id] = (current.epoch, now + member.rebalance_timeout_ms / 1000)


# The right to commit and to fetch


def check_commit(group: ConsumerGroup, member_id: str, epoch: int, *, knows_epochs: bool) -> None:
    """Whether this client may commit offsets: a member in its epoch, or anyone while the group has no members."""
    if epoch < 0 and not group.members:
        return
    member = group.member(member_id)
    if member.classic is None and not knows_epochs:
        raise KafkaError(Error.UNSUPPORTED_VERSION, "Members of a consumer group commit with OffsetCommit version 9 or above.")
    _check_current(group, member_id, member, epoch)


def check_transactional_commit(group: ConsumerGroup, member_id: str, instance_id: str | None, epoch: int) -> None:
    """The same for offsets of a transaction; old producers do not say for whom they commit."""
    if epoch < 0 and (not group.members or (not member_id and instance_id is None)):
        return
    try:
        _check_current(group, member_id, group.member(member_id), epoch)
    except KafkaError as refusal:
        if refusal.error is not Error.STALE_MEMBER_EPOCH:
            raise
        raise KafkaError(Error.ILLEGAL_GENERATION, refusal.message) from None  # producers do not know the other word


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Whether what a member asks for is what it will go on from; who is no member may look at any time."""
    if member_id is None and epoch < 0:
        return
    _check_current(group, member_id or "", replace(group.member(member_id or ""), classic=None), epoch)


def _check_current(group: ConsumerGroup, member_id: str, member: ConsumerMember, epoch: int) -> None:
    known = group.current_of(member_id).epoch
    if epoch != known:
        error = Error.STALE_MEMBER_EPOCH if member.classic is None else Error.ILLEGAL_GENERATION
        raise KafkaError(error, f"Member {member_id} of group {group.group_id} is in epoch {known}, not {epoch}.")
