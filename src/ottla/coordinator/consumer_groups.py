"""The coordinator's part for groups of the consumer protocol: drafts by pure rules, records, timers.

An operation is one step that nothing interrupts: the rules read the group and write records, the runtime applies the records,
and the answer waits until the log has them. Guards: an answer that needed no record waits for those before it, and is not given
if they were taken back; a group whose records were refused goes on with the deadlines that it needs. Owned by
`GroupCoordinator`, which finds the shard and sends classic requests here where the group is of this kind.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from uuid import uuid4

from ottla.clock import Clock
from ottla.coordinator import consumer_classic as classic
from ottla.coordinator import consumer_membership as rules
from ottla.coordinator import consumer_migration as migration
from ottla.coordinator.consumer_draft import ClusterTopics, Draft
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_membership import ConsumerHeartbeat, HeartbeatResult
from ottla.coordinator.consumer_records import JOIN_EPOCH
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.group_state import Group, State
from ottla.coordinator.membership import Join, Leaver, Sync
from ottla.coordinator.rebalance import JoinResult, SyncResult, Turn, kill, maybe_prepare
from ottla.coordinator.records import GroupRecord, Record
from ottla.coordinator.runtime import Handle, Runtime, Timer
from ottla.coordinator.settings import GroupSettings
from ottla.model import Error, KafkaError


def random_member_id() -> str:
    """A member id as Apache Kafka's coordinator makes them for consumer groups."""
    return urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


class ConsumerGroups:
    """All groups of the consumer protocol on this broker."""

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        runtime: Runtime[GroupShard],
        timer: Timer,
        view: ClusterTopics,
        perform: Callable[[GroupShard, Group, Turn], None],
        new_member_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._runtime = runtime
        self._timer = timer
        self.view = view
        self._perform = perform
        self._new_member_id = new_member_id
        self._timers: dict[str, tuple[float, Handle]] = {}

    # Life

    def loaded(self, shard: GroupShard) -> None:
        """Members have a whole session timeout from now to find their coordinator again."""
        for group in shard.consumer_groups.values():
            rules.start_sessions(group, self._settings, self._clock.monotonic())
            self._schedule(shard, group)

    def retired(self, shard: GroupShard) -> None:
        """This broker no longer speaks for these groups."""
        for group_id in shard.consumer_groups:
            armed = self._timers.pop(group_id, None)
            if armed is not None:
                armed[1].cancel()
        shard.consumer_groups.clear()  # what comes back later finds no group, and arms no timer

    # The consumer protocol

    async def heartbeat(self, shard: GroupShard, request: ConsumerHeartbeat) -> HeartbeatResult:
        """ConsumerGroupHeartbeat: returns when what it led to is safe."""
        if not request.member_id:
            request = replace(request, member_id=self._new_member_id())
        group, opening, upgraded = self._group_for(shard, request)
        draft = self._draft(group)
        if request.epoch < JOIN_EPOCH:
            result = rules.leave(draft, request)
            await self._write_departure(shard, draft)
            return result
        result = rules.heartbeat(draft, request)
        if upgraded is not None:
            turn = self._turn()
            migration.call_back(turn, upgraded)
            self._perform(shard, upgraded, turn)
        await self._write(shard, draft, request.member_id, opening)
        return result

    def _group_for(self, shard: GroupShard, request: ConsumerHeartbeat) -> tuple[ConsumerGroup, list[Record], Group | None]:
        """The group; if it has yet to be made, by which records, and from which classic one with members."""
        group_id = request.group_id
        group = shard.consumer_groups.get(group_id)
        if group is not None:
            return group, [], None
        old = shard.groups.get(group_id)
        if old is not None and (request.epoch != JOIN_EPOCH or old.state is State.DEAD):
            raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if request.epoch != JOIN_EPOCH:
            raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        group = ConsumerGroup(group_id)
        if old is None:
            return group, [], None
        opening: list[Record] = [GroupRecord(group_id, None)]
        if old.state is State.EMPTY:
            return group, opening, None
        for record in migration.upgrade(self._settings, old, self.view):
            group.put(record)
            opening.append(record)
        rules.start_sessions(group, self._settings, self._clock.monotonic())
        return group, opening, old

    # Classic members

    async def join(self, shard: GroupShard, group: ConsumerGroup, request: Join) -> JoinResult:
        """JoinGroup to a consumer group."""
        draft = self._draft(group)
        result = classic.join(draft, request, self._new_member_id)
        if result.error is Error.NONE:
            await self._write(shard, draft, result.member_id)
        return result

    async def sync(self, shard: GroupShard, group: ConsumerGroup, request: Sync) -> SyncResult:
        """SyncGroup to a consumer group."""
        try:
            result = classic.sync(group, request, self._clock.monotonic(), self.view)
        finally:
            self._schedule(shard, group)
        await self._settled(shard, group, request.member_id)
        return result

    def classic_heartbeat(
        self, shard: GroupShard, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        """Heartbeat to a consumer group."""
        try:
            classic.heartbeat(group, member_id, instance_id, generation, self._clock.monotonic())
        except KafkaError:
            self._schedule(shard, group)
            raise

    async def leave(self, shard: GroupShard, group: ConsumerGroup, leavers: Sequence[Leaver]) -> list[Error]:
        """LeaveGroup to a consumer group."""
        draft = self._draft(group)
        results = classic.leave(draft, leavers)
        await self._write_departure(shard, draft)
        return results

    # Inside

    def _draft(self, group: ConsumerGroup) -> Draft:
        return Draft(group, self._settings, self._clock.monotonic(), self.view)

    def _turn(self) -> Turn:
        return Turn(self._settings, self._clock.monotonic(), self._clock.now_ms())

    async def _write(self, shard: GroupShard, draft: Draft, member_id: str, opening: Sequence[Record] = ()) -> None:
        """Hand a draft's records over, and return when they are safe."""
        if opening or draft.records:
            await _safe(self._hand_over(shard, draft, opening))
        else:
            await self._settled(shard, draft.group, member_id)

    def _hand_over(self, shard: GroupShard, draft: Draft, opening: Sequence[Record] = ()) -> asyncio.Future[None]:
        group = draft.group
        written = self._runtime.write(shard.partition, [*opening, *draft.records])
        made = shard.consumer_groups.get(group.group_id)
        if made is not None and made is not group:
            made.take_deadlines(group)  # the records made the group anew: what was drafted was its likeness
            group = made
        written.add_done_callback(partial(self._written, shard, group))
        self._schedule(shard, group)
        return written

    async def _settled(self, shard: GroupShard, group: ConsumerGroup, member_id: str) -> None:
        """Nothing was written for this answer: wait for what was written before it, and see that it still stands."""
        current = group.current.get(member_id)
        await self._runtime.settled(shard.partition)
        if group.current.get(member_id) is not current:
            raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE, "what this answer rests on could not be written")

    async def _write_departure(self, shard: GroupShard, draft: Draft) -> None:
        if draft.records:
            await _safe(self._hand_over_departure(shard, draft))
        else:
            await self._runtime.settled(shard.partition)

    def _hand_over_departure(self, shard: GroupShard, draft: Draft) -> asyncio.Future[None]:
        """Members go. If the last that speak the consumer protocol do, the group becomes a classic one."""
        group = draft.group
        if len(draft.members) == len(group.members) or not migration.may_downgrade(self._settings, draft.members):
            return self._hand_over(shard, draft)
        turn = self._turn()
        old = migration.downgrade(group, draft.members, turn.now_ms, self.view)
        stored = old.stored({member.member_id: member.assignment for member in old.members.values()})
        written = self._runtime.write(shard.partition, [*group.tombstones(), GroupRecord(group.group_id, stored)])
        written.add_done_callback(partial(self._written, shard, group))
        made = shard.groups.get(group.group_id)
        if made is not None:
            written.add_done_callback(partial(self._downgraded, shard, made))
            for member in made.members.values():
                member.protocols = old.members[member.member_id].protocols
                member.heard(turn.now)
            maybe_prepare(turn, made)
            self._perform(shard, made, turn)
        return written

    def _downgraded(self, shard: GroupShard, made: Group, written: asyncio.Future[None]) -> None:
        """If the downgrade was refused, whoever has joined the classic group meanwhile has to look again."""
        if written.cancelled() or written.exception() is None:
            return
        turn = self._turn()
        kill(turn, made, Error.COORDINATOR_NOT_AVAILABLE)
        self._perform(shard, made, turn)

    def _written(self, shard: GroupShard, group: ConsumerGroup, written: asyncio.Future[None]) -> None:
        """What was refused was taken back: members that are in the group again need their deadlines again."""
        if written.cancelled() or written.exception() is None:
            return
        rules.start_sessions(group, self._settings, self._clock.monotonic())
        self._schedule(shard, group)

    # Time

    def _schedule(self, shard: GroupShard, group: ConsumerGroup) -> None:
        """Keep one timer per group, at or before its next deadline: one that rings too early only looks again."""
        due = min(group.deadlines(), default=None)
        armed = self._timers.get(group.group_id)
        if due is None or (armed is not None and armed[0] <= due) or shard.consumer_groups.get(group.group_id) is not group:
            return
        if armed is not None:
            armed[1].cancel()
        delay = max(due - self._clock.monotonic(), 0.0)
        self._timers[group.group_id] = (due, self._timer(delay, partial(self._group_is_due, shard, group.group_id)))

    def _group_is_due(self, shard: GroupShard, group_id: str) -> None:
        self._timers.pop(group_id, None)
        group = shard.consumer_groups.get(group_id)
        if group is None:
            return
        group.forget_strangers()
        late = rules.overdue(group, self._clock.monotonic())
        if late:
            draft = self._draft(group)
            draft.remove_members(late)
            self._hand_over_departure(shard, draft)
        self._schedule(shard, group)


async def _safe(written: asyncio.Future[None]) -> None:
    """Wait until records are safe. They go their way even if who asked for them does not wait any more."""
    try:
        await asyncio.shield(written)
    except KafkaError as refusal:
        if refusal.error is Error.INVALID_COMMIT_OFFSET_SIZE:  # a word for those who commit
            raise KafkaError(Error.UNKNOWN_SERVER_ERROR, refusal.message) from None
        raise
