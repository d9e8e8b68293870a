"""What members of a classic group may say, and what becomes of it: join, sync, heartbeat, leave, and the right to commit.

Guards: only a known member of the current generation is listened to; a static member's place belongs to the client that came
last. Pure, like `rebalance`, to which every change of the membership leads. A refusal is a KafkaError, except where an answer
must carry more than a code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ottla.coordinator.group_state import UNKNOWN_MEMBER, Group, Member, Reply, State
from ottla.coordinator.rebalance import (
    Answer,
    JoinResult,
    Store,
    SyncResult,
    Turn,
    assignment_of,
    current_generation,
    lose_member,
    lose_pending,
    maybe_prepare,
    store_assignment,
    try_complete_join,
)
from ottla.model import Error, KafkaError

NEW_MEMBER_PATIENCE = 300.0
"""Seconds for which a new member may wait in its first JoinGroup: it cannot send heartbeats before it knows its id."""


@dataclass(slots=True, frozen=True)
class Join:
    """A request to be in the next generation."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    member_id_required: bool = False
    """The client understands MEMBER_ID_REQUIRED: it comes back with its id, and a lost answer leaves no ghost member."""
    may_skip_assignment: bool = False
    """The client understands `skip_assignment`: a static leader that came back can be told that it leads a stable group."""


@dataclass(slots=True, frozen=True)
class Sync:
    """A member asks for its part; the leader brings everyone's."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


@dataclass(slots=True, frozen=True)
class Leaver:
    """One member that goes, by member id, or by instance id alone when an administrator removes it."""

    member_id: str
    instance_id: str | None = None


# Join


def join(turn: Turn, group: Group, request: Join, reply: Reply, new_id: Callable[[str], str]) -> None:
    """Take a member in, or back. Its answer comes with the end of the rebalance, if there is one."""
    try:
        if not _has_room(turn, group, request.member_id):
            group.remove(request.member_id)
            turn.effects.append(Answer(reply, JoinResult(Error.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER)))
            return
        _check_alive(group)
        if not group.supports(request.protocol_type, [name for name, _ in request.protocols]):
            raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL, f"the protocols of group {group.group_id} are others")
        if request.member_id == UNKNOWN_MEMBER:
            _join_new(turn, group, request, reply, new_id)
        else:
            _join_known(turn, group, request, reply)
    except KafkaError as refusal:
        turn.effects.append(Answer(reply, JoinResult(refusal.error, request.member_id)))
    try_complete_join(turn, group)


def _has_room(turn: Turn, group: Group, member_id: str) -> bool:
    """While a group gathers, room goes to whoever is here; a stable one keeps its members."""
    limit = turn.settings.max_size
    member = group.members.get(member_id)
    if group.state is State.PREPARING_REBALANCE:
        return (member is not None and member.awaiting_join is not None) or group.awaiting_join < limit
    if group.state in (State.COMPLETING_REBALANCE, State.STABLE):
        return member is not None or len(group.members) < limit
    return True


def _join_new(turn: Turn, group: Group, request: Join, reply: Reply, new_id: Callable[[str], str]) -> None:
    fresh = new_id(request.instance_id if request.instance_id is not None else request.client_id)
    if request.instance_id is not None and request.instance_id in group.static_ids:
        _take_place_back(turn, group, request, reply, fresh=fresh)
    elif request.instance_id is None and request.member_id_required:
        group.pending[fresh] = turn.now + request.session_timeout_ms / 1000
        turn.effects.append(Answer(reply, JoinResult(Error.MEMBER_ID_REQUIRED, fresh)))
    else:
        _add(turn, group, fresh, request, reply)


def _join_known(turn: Turn, group: Group, request: Join, reply: Reply) -> None:
    if request.member_id in group.pending and request.instance_id is None:
        _add(turn, group, request.member_id, request, reply)
        return
    member = group.check_member(request.member_id, request.instance_id)
    unchanged = member.protocols == request.protocols
    leads = group.leader == member.member_id
    if group.state is State.EMPTY:
        raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"group {group.group_id} is empty")
    if unchanged and (group.state is State.COMPLETING_REBALANCE or (group.state is State.STABLE and not leads)):
        # The member lost its answer, or has nothing new to say: the generation stands. (A leader that joins again in a stable
        # group wants a rebalance: it saw something that is not in its metadata, such as a topic that grew.)
        turn.effects.append(Answer(reply, current_generation(group, member)))
        return
    _update(turn, member, request, reply)
    maybe_prepare(turn, group)


def _add(turn: Turn, group: Group, member_id: str, request: Join, reply: Reply) -> None:
    if group.state is State.PREPARING_REBALANCE and group.generation == 0:
        group.came_late = True
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(
        Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            awaiting_join=reply,
            is_new=True,
            deadline=turn.now + NEW_MEMBER_PATIENCE,
        )
    )
    maybe_prepare(turn, group)


def _update(turn: Turn, member: Member, request: Join, reply: Reply) -> None:
    """Note what a member says now; a request of it that is parked already will not be waited for any more."""
    turn.answer_join(member, JoinResult(Error.REBALANCE_IN_PROGRESS, member.member_id))
    member.protocols = request.protocols
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.awaiting_join = reply
    if not member.is_new:
        member.deadline = None


def _take_place_back(turn: Turn, group: Group, request: Join, reply: Reply, *, fresh: str) -> None:
    """A static member started again. Its place is kept; whoever still speaks under the old member id is fenced."""
    member = group.members[group.static_ids[request.instance_id or ""]]
    comeback = _Comeback(group, member, replace(member), group.leader, reply, request.may_skip_assignment)
    turn.answer_join(member, JoinResult(Error.FENCED_INSTANCE_ID, member.member_id))
    turn.answer_sync(member, SyncResult(Error.FENCED_INSTANCE_ID))
    group.rename(member, fresh)
    _update(turn, member, request, reply)
    member.client_id, member.client_host = request.client_id, request.client_host
    if group.state is State.STABLE and group.select_protocol() == group.protocol:
        turn.effects.append(Store(group, group.stored({m.member_id: m.assignment for m in group.members.values()}), comeback))
    else:
        # In CompletingRebalance the leader may be deciding over the old member id: its decision would miss this member.
        maybe_prepare(turn, group)


@dataclass(slots=True, frozen=True)
class _Comeback:
    """A static member's new id is being written down; only then may the member hear of it."""

    group: Group
    member: Member
    before: Member
    leader_before: str | None
    reply: Reply
    may_skip_assignment: bool

    def __call__(self, turn: Turn, error: Error) -> None:
        member = self.member
        if self.group.state is not State.STABLE or member.awaiting_join is not self.reply:
            return  # a rebalance began, whose end answers the member; or it came back once more
        if error is Error.NONE:
            turn.answer_join(member, self._result())
        else:
            turn.answer_join(member, JoinResult(error, UNKNOWN_MEMBER))
            member.protocols = self.before.protocols
            member.rebalance_timeout_ms = self.before.rebalance_timeout_ms
            member.session_timeout_ms = self.before.session_timeout_ms
            self.group.rename(member, self.before.member_id)
        member.heard(turn.now)

    def _result(self) -> JoinResult:
        result = current_generation(self.group, self.member)
        if self.may_skip_assignment:
            return replace(result, skip_assignment=result.leader == result.member_id)
        # An older client divides the work anew when it hears that it leads: name the leader by the id it had before.
        return replace(result, leader=self.leader_before or UNKNOWN_MEMBER, members=())


# Sync


def sync(turn: Turn, group: Group, request: Sync, reply: Reply) -> None:
    """A member wants its assignment: now if there is one, else when the leader's has been stored."""
    try:
        _sync(turn, group, request, reply)
    except KafkaError as refusal:
        turn.effects.append(Answer(reply, SyncResult(refusal.error)))


def _sync(turn: Turn, group: Group, request: Sync, reply: Reply) -> None:
    _check_alive(group)
    member = group.check_member(request.member_id, request.instance_id)
    group.check_generation(request.generation)
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL, f"group {group.group_id} is of type {group.protocol_type}")
    if request.protocol is not None and request.protocol != group.protocol:
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL, f"group {group.group_id} chose protocol {group.protocol}")
    if group.state is State.PREPARING_REBALANCE:
        raise KafkaError(Error.REBALANCE_IN_PROGRESS, f"group {group.group_id} is being rebalanced")
    group.pending_sync.discard(member.member_id)
    if not group.pending_sync:
        group.sync_deadline = None
    if group.state is State.STABLE:
        member.heard(turn.now)
        turn.effects.append(Answer(reply, assignment_of(group, member)))
        return
    turn.answer_sync(member, SyncResult(Error.REBALANCE_IN_PROGRESS))
    member.awaiting_sync = reply
    member.deadline = None
    if member.member_id == group.leader:
        store_assignment(turn, group, dict(request.assignments))


# Heartbeat, leave, commit


def heartbeat(turn: Turn, group: Group, member_id: str, instance_id: str | None, generation: int) -> None:
    """A member is alive. It hears of a rebalance from the refusal."""
    _check_alive(group)
    member = group.check_member(member_id, instance_id)
    group.check_generation(generation)
    _heard(turn, member)
    if group.state is State.PREPARING_REBALANCE:
        raise KafkaError(Error.REBALANCE_IN_PROGRESS, f"group {group.group_id} is being rebalanced")


def _heard(turn: Turn, member: Member) -> None:
    if member.awaiting_join is None and member.awaiting_sync is None:
        member.heard(turn.now)


def leave(turn: Turn, group: Group, leaver: Leaver) -> None:
    """One member goes."""
    _check_alive(group)
    member_id = leaver.member_id
    if member_id == UNKNOWN_MEMBER and leaver.instance_id is not None:
        member_id = group.static_ids.get(leaver.instance_id, UNKNOWN_MEMBER)
    if member_id in group.pending:
        lose_pending(turn, group, member_id)
    else:
        lose_member(turn, group, group.check_member(member_id, leaver.instance_id))


def check_commit(turn: Turn, group: Group, member_id: str, instance_id: str | None, generation: int) -> None:
    """Whether this client may commit offsets: a member of this generation, or anyone while the group has no members."""
    _check_alive(group)
    if generation < 0 and group.state is State.EMPTY:
        return
    if generation < 0 and member_id == UNKNOWN_MEMBER and instance_id is None:
        raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"group {group.group_id} has members, and only they may commit")
    member = group.check_member(member_id, instance_id)
    group.check_generation(generation)
    _heard(turn, member)
    if group.state is State.COMPLETING_REBALANCE:
        raise KafkaError(Error.REBALANCE_IN_PROGRESS, f"group {group.group_id} waits for its assignment")


def check_transactional_commit(turn: Turn, group: Group, member_id: str, instance_id: str | None, generation: int) -> None:
    """Whether offsets may be committed within a transaction: by a member of this generation, or by an old client that names
    no member; its transactional id fences it instead."""
    _check_alive(group)
    if generation < 0 and member_id == UNKNOWN_MEMBER and instance_id is None:
        return
    member = group.check_member(member_id, instance_id)
    group.check_generation(generation)
    _heard(turn, member)


def _check_alive(group: Group) -> None:
    if group.state is State.DEAD:
        raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE, f"group {group.group_id} is gone")
