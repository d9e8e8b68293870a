"""How a classic group goes from one generation to the next: gathering the members, naming the leader, handing out its work.

    Empty --join--> PreparingRebalance --everyone here, or time is up--> CompletingRebalance --assignment stored--> Stable
      ^                    |  ^                                                 |                                     |
      '--- nobody left ----'  '---------- join, leave, loss, or failed store ---'-------------------------------------'

Guards: a generation's answers go out only to members that joined it; an assignment goes out only after the topic has it, so
that a restart cannot forget what members were told. Pure: each function works on the group in hand and leaves its effects, as
values, in the `Turn`. The coordinator performs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ottla.coordinator.group_state import NO_GENERATION, UNKNOWN_MEMBER, Group, Member, Reply, State
from ottla.coordinator.records import StoredGroup
from ottla.coordinator.settings import GroupSettings
from ottla.model import Error


@dataclass(slots=True, frozen=True)
class JoinedMember:
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(slots=True, frozen=True)
class JoinResult:
    """The answer to JoinGroup."""

    error: Error
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = UNKNOWN_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(slots=True, frozen=True)
class SyncResult:
    """The answer to SyncGroup."""

    error: Error
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, frozen=True)
class Answer:
    """Effect: this request is answered."""

    to: Reply
    result: JoinResult | SyncResult


@dataclass(slots=True, frozen=True)
class Store:
    """Effect: write the group down, and go on with `done` when the topic has it or refuses it."""

    group: Group
    value: StoredGroup
    done: Callable[[Turn, Error], None]


Effect = Answer | Store


@dataclass(slots=True)
class Turn:
    """One event's dealing with a group: the time at which it happens, and what shall come of it."""

    settings: GroupSettings
    now: float
    now_ms: int
    effects: list[Effect] = field(default_factory=list)

    def answer_join(self, member: Member, result: JoinResult) -> None:
        """Answer the member's parked JoinGroup, if there is one."""
        if member.awaiting_join is not None:
            self.effects.append(Answer(member.awaiting_join, result))
            member.awaiting_join = None

    def answer_sync(self, member: Member, result: SyncResult) -> bool:
        """Answer the member's parked SyncGroup, if there is one."""
        if member.awaiting_sync is None:
            return False
        self.effects.append(Answer(member.awaiting_sync, result))
        member.awaiting_sync = None
        return True


# Gathering


def maybe_prepare(turn: Turn, group: Group) -> None:
    """Begin a rebalance, unless one is being prepared already."""
    if group.state in (State.EMPTY, State.STABLE, State.COMPLETING_REBALANCE):
        prepare(turn, group)


def prepare(turn: Turn, group: Group) -> None:
    """Call everyone back. A group that was empty first waits a little: members tend to start together."""
    if group.state is State.COMPLETING_REBALANCE:
        refuse_assignment(turn, group, Error.REBALANCE_IN_PROGRESS)
    group.sync_deadline = None
    timeout = group.rebalance_timeout
    if group.state is State.EMPTY:
        delay = turn.settings.initial_rebalance_delay_ms / 1000
        group.initial_delay_left = max(timeout - delay, 0.0)
        group.came_late = False
        group.join_deadline = turn.now + delay
    else:
        group.join_deadline = turn.now + timeout
    group.enter(State.PREPARING_REBALANCE, turn.now_ms)


def try_complete_join(turn: Turn, group: Group) -> None:
    """Finish gathering as soon as there is nobody left to wait for."""
    if group.state is not State.PREPARING_REBALANCE or group.join_deadline is None:
        return
    if turn.now >= group.join_deadline:
        gathering_is_due(turn, group)
    elif group.initial_delay_left is None and group.all_joined:
        complete_join(turn, group)


def gathering_is_due(turn: Turn, group: Group) -> None:
    """The time for gathering is up, unless it is a new group's first and members are still coming in."""
    left = group.initial_delay_left
    delay = turn.settings.initial_rebalance_delay_ms / 1000
    if left is not None and left > 0 and group.came_late and delay > 0:
        wait = min(delay, left)
        group.came_late = False
        group.initial_delay_left = left - wait
        group.join_deadline = turn.now + wait
    else:
        complete_join(turn, group)


def complete_join(turn: Turn, group: Group) -> None:
    """Close the door: who is not here is out, unless it is static, which only its session timeout removes."""
    group.initial_delay_left = None
    for member in [m for m in group.members.values() if m.awaiting_join is None and m.instance_id is None]:
        group.remove(member.member_id)
    if group.members and not group.elect_joined_leader():
        group.join_deadline = turn.now + group.rebalance_timeout
        return
    group.join_deadline = None
    group.next_generation(turn.now_ms)
    if group.state is State.EMPTY:
        turn.effects.append(Store(group, group.stored({}), _emptiness_stored))
        return
    for member in group.members.values():
        turn.answer_join(member, current_generation(group, member))
        member.heard(turn.now)
        member.is_new = False
        group.pending_sync.add(member.member_id)
    group.sync_deadline = turn.now + group.rebalance_timeout


def _emptiness_stored(turn: Turn, error: Error) -> None:
    """Nobody waits for this one. If it was refused, a restart revives members that their session timeouts then remove."""


def current_generation(group: Group, member: Member) -> JoinResult:
    """What a member of this generation is told about it; the leader also learns who the others are."""
    members: tuple[JoinedMember, ...] = ()
    if group.leader == member.member_id:
        members = tuple(JoinedMember(m.member_id, m.instance_id, m.metadata(group.protocol)) for m in group.members.values())
    return JoinResult(
        Error.NONE,
        member.member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or UNKNOWN_MEMBER,
        members=members,
    )


# Handing out


def store_assignment(turn: Turn, group: Group, assignments: dict[str, bytes]) -> None:
    """The leader has decided: write it down first."""
    done = partial(_assignment_stored, group, group.generation, assignments)
    turn.effects.append(Store(group, group.stored(assignments), done))


def _assignment_stored(group: Group, generation: int, assignments: dict[str, bytes], turn: Turn, error: Error) -> None:
    if group.state is not State.COMPLETING_REBALANCE or group.generation != generation:
        return  # another rebalance began meanwhile: what was decided is void, and those who waited were told
    if error is not Error.NONE:
        refuse_assignment(turn, group, error)
        prepare(turn, group)
        return
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
        if turn.answer_sync(member, assignment_of(group, member)):
            member.heard(turn.now)
    group.enter(State.STABLE, turn.now_ms)


def assignment_of(group: Group, member: Member) -> SyncResult:
    return SyncResult(Error.NONE, group.protocol_type, group.protocol, member.assignment)


def refuse_assignment(turn: Turn, group: Group, error: Error) -> None:
    """There will be no assignment in this generation."""
    for member in group.members.values():
        member.assignment = b""
        if turn.answer_sync(member, SyncResult(error)):
            member.heard(turn.now)


# Loss


def lose_member(turn: Turn, group: Group, member: Member) -> None:
    """A member left or was lost: the others divide its work among them."""
    turn.answer_join(member, JoinResult(Error.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER))
    turn.answer_sync(member, SyncResult(Error.UNKNOWN_MEMBER_ID))
    group.remove(member.member_id)
    maybe_prepare(turn, group)
    try_complete_join(turn, group)


def lose_pending(turn: Turn, group: Group, member_id: str) -> None:
    """Someone who was given a member id will not come."""
    del group.pending[member_id]
    try_complete_join(turn, group)


def tick(turn: Turn, group: Group) -> None:
    """Let everything happen that has fallen due."""
    for member_id in [member_id for member_id, deadline in group.pending.items() if deadline <= turn.now]:
        lose_pending(turn, group, member_id)
    for member in [m for m in group.members.values() if m.deadline is not None and m.deadline <= turn.now]:
        if group.members.get(member.member_id) is member:
            lose_member(turn, group, member)
    if group.sync_deadline is not None and group.sync_deadline <= turn.now:
        _sync_is_due(turn, group)
    try_complete_join(turn, group)


def _sync_is_due(turn: Turn, group: Group) -> None:
    """Members that joined a generation but never asked for their part of it are out."""
    group.sync_deadline = None
    late = [group.members[member_id] for member_id in group.pending_sync if member_id in group.members]
    group.pending_sync.clear()
    for member in late:
        group.remove(member.member_id)
    if late:
        maybe_prepare(turn, group)


def kill(turn: Turn, group: Group, error: Error) -> None:
    """This broker no longer speaks for the group: everyone who waits is sent away."""
    for member in group.members.values():
        turn.answer_join(member, JoinResult(error, member.member_id))
        turn.answer_sync(member, SyncResult(error))
        member.deadline = None
    group.pending.clear()
    group.join_deadline = group.sync_deadline = None
    group.enter(State.DEAD, turn.now_ms)
