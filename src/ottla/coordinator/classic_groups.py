"""The coordinator's part for classic groups: performs what the pure rules decide, and watches the clock.

The rules (`membership`, `rebalance`) work on a group in one step that nothing interrupts and leave effects: answers to parked
requests, records for the log. Here they happen, with a timer for the group's next deadline. Guards: no answer that depends on a
record leaves before the record is safe; a timer never acts on a group that is no longer in the table. Owned by
`GroupCoordinator`, like its twin for the consumer protocol, `consumer_groups`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar
from uuid import uuid4

from ottla.clock import Clock
from ottla.coordinator import membership
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.group_state import Group, Reply
from ottla.coordinator.membership import Join, Leaver, Sync
from ottla.coordinator.rebalance import (
    Answer,
    JoinResult,
    Store,
    SyncResult,
    Turn,
    kill,
    maybe_prepare,
    tick,
    try_complete_join,
)
from ottla.coordinator.records import GroupRecord
from ottla.coordinator.runtime import Handle, Runtime, Timer
from ottla.coordinator.settings import GroupSettings
from ottla.model import Error, KafkaError

R = TypeVar("R", JoinResult, SyncResult)


class _Parked(Reply):
    """A request that waits for its answer."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[JoinResult | SyncResult] = asyncio.get_running_loop().create_future()


def random_member_id(prefix: str) -> str:
    """A member id as the classic protocol has them: whose it is can be seen."""
    return f"{prefix}-{uuid4()}"


class ClassicGroups:
    """All classic groups on this broker."""

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        runtime: Runtime[GroupShard],
        timer: Timer,
        new_member_id: Callable[[str], str],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._runtime = runtime
        self._timer = timer
        self._new_member_id = new_member_id
        self._timers: dict[str, tuple[float, Handle]] = {}

    # Life

    def loaded(self, shard: GroupShard) -> None:
        """Members have a whole session timeout from now to find their coordinator again."""
        turn = self.turn()
        for group in shard.groups.values():
            for member in group.members.values():
                member.heard(turn.now)
            if len(group.members) > self._settings.max_size:
                maybe_prepare(turn, group)
                try_complete_join(turn, group)
            self._schedule(shard, group)

    def retired(self, shard: GroupShard) -> None:
        """This broker no longer speaks for these groups: everyone who waits is sent away."""
        turn = self.turn()
        for group in shard.groups.values():
            kill(turn, group, Error.NOT_COORDINATOR)
            armed = self._timers.pop(group.group_id, None)
            if armed is not None:
                armed[1].cancel()
        for effect in turn.effects:
            if isinstance(effect, Answer):
                _answer(effect)

    # Membership

    async def join(self, shard: GroupShard, request: Join) -> JoinResult:
        """JoinGroup: returns when the rebalance that it leads to is over."""
        group = shard.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id}")
            group = shard.groups[request.group_id] = Group(request.group_id)
        parked = _Parked()
        turn = self.turn()
        membership.join(turn, group, request, parked, self._new_member_id)
        self.perform(shard, group, turn)
        return await _answered(parked, JoinResult)

    async def sync(self, shard: GroupShard, group: Group, request: Sync) -> SyncResult:
        """SyncGroup: returns when the leader's assignment is stored."""
        parked = _Parked()
        turn = self.turn()
        membership.sync(turn, group, request, parked)
        self.perform(shard, group, turn)
        return await _answered(parked, SyncResult)

    def heartbeat(self, group: Group, member_id: str, instance_id: str | None, generation: int) -> None:
        """Heartbeat. Deadlines only move away, so that no timer needs to be set."""
        membership.heartbeat(self.turn(), group, member_id, instance_id, generation)

    def leave(self, shard: GroupShard, group: Group, leavers: Sequence[Leaver]) -> list[Error]:
        """LeaveGroup: what becomes of each of them."""
        turn = self.turn()
        results: list[Error] = []
        for leaver in leavers:
            try:
                membership.leave(turn, group, leaver)
                results.append(Error.NONE)
            except KafkaError as refusal:
                results.append(refusal.error)
        self.perform(shard, group, turn)
        return results

    # Effects

    def turn(self) -> Turn:
        """One event's dealing with a group, now."""
        return Turn(self._settings, self._clock.monotonic(), self._clock.now_ms())

    def perform(self, shard: GroupShard, group: Group, turn: Turn) -> None:
        """Do what the rules decided, and wake up when the group is next due."""
        for effect in turn.effects:
            if isinstance(effect, Answer):
                _answer(effect)
            else:
                self._store(shard, effect)
        self._schedule(shard, group)

    def _store(self, shard: GroupShard, store: Store) -> None:
        record = GroupRecord(store.group.group_id, store.value)
        written = self._runtime.write(shard.partition, [record], apply=False)
        written.add_done_callback(partial(self._stored, shard, store))

    def _stored(self, shard: GroupShard, store: Store, written: asyncio.Future[None]) -> None:
        problem = written.exception()
        error = problem.error if isinstance(problem, KafkaError) else Error.NONE
        if error is Error.INVALID_COMMIT_OFFSET_SIZE:
            error = Error.UNKNOWN_SERVER_ERROR  # the other word is for those who commit
        turn = self.turn()
        store.done(turn, error)
        self.perform(shard, store.group, turn)

    def _schedule(self, shard: GroupShard, group: Group) -> None:
        """Keep one timer per group, at or before its next deadline: one that rings too early only looks again."""
        due = min(group.deadlines(), default=None)
        armed = self._timers.get(group.group_id)
        if due is None or (armed is not None and armed[0] <= due) or shard.groups.get(group.group_id) is not group:
            return
        if armed is not None:
            armed[1].cancel()
        delay = max(due - self._clock.monotonic(), 0.0)
        self._timers[group.group_id] = (due, self._timer(delay, partial(self._group_is_due, shard, group.group_id)))

    def _group_is_due(self, shard: GroupShard, group_id: str) -> None:
        self._timers.pop(group_id, None)
        group = shard.groups.get(group_id)
        if group is None:
            return
        turn = self.turn()
        tick(turn, group)
        self.perform(shard, group, turn)


def _answer(answer: Answer) -> None:
    assert isinstance(answer.to, _Parked)
    if not answer.to.future.done():  # the connection may have gone away
        answer.to.future.set_result(answer.result)


async def _answered(parked: _Parked, kind: type[R]) -> R:
    result = await parked.future
    assert isinstance(result, kind)
    return result
