"""The group coordinator: classic groups and committed offsets of the partitions of `__consumer_offsets` that this broker leads.

The public face of the package. It finds the shard of a group, lets the pure rules (`membership`, `rebalance`, `offsets`) work
on it in one step that nothing interrupts, and performs what they ask for: answers to parked requests, records for the log,
and a timer for the group's next deadline. Guards: no answer that depends on a record leaves before the record is safe; a
timer never acts on a group that is no longer in the table. Lives on the broker's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import uuid4

from ottla.clock import Clock
from ottla.coordinator import membership, record_format
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.group_state import CONSUMER, Group, Reply, State
from ottla.coordinator.hashing import partition_for
from ottla.coordinator.membership import Join, Leaver, Sync
from ottla.coordinator.offsets import Commit, commit_records, tombstones
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
from ottla.coordinator.records import CommittedOffset, GroupRecord, Record
from ottla.coordinator.runtime import Handle, Journal, Offload, Runtime, Timer
from ottla.coordinator.settings import GroupSettings
from ottla.model import Error, KafkaError, TopicPartition

TOPIC = "__consumer_offsets"

LOAD_PATIENCE = 0.1
"""Seconds for which whoever asks for a coordinator waits for it to load, so as not to be told to come back."""


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


R = TypeVar("R", JoinResult, SyncResult)


class _Parked(Reply):
    """A request that waits for its answer."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[JoinResult | SyncResult] = asyncio.get_running_loop().create_future()


def _random_member_id(prefix: str) -> str:
    return f"{prefix}-{uuid4()}"


class GroupCoordinator:
    """What names a group raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS where this broker cannot answer for it."""

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        journal: Journal,
        timer: Timer,
        *,
        new_member_id: Callable[[str], str] = _random_member_id,
        offload: Offload = asyncio.to_thread,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._journal = journal
        self._timer = timer
        self._new_member_id = new_member_id
        self._runtime: Runtime[GroupShard] = Runtime(
            journal, clock, record_format, GroupShard, loaded=self._loaded, retired=self._retired, offload=offload
        )
        self._timers: dict[str, tuple[float, Handle]] = {}
        self._retention_timer: Handle | None = None
        self._expiring: asyncio.Task[None] | None = None

    # Life

    def start(self) -> None:
        """Begin to look for offsets that expired, from time to time."""
        self._retention_timer = self._timer(self._settings.offsets_retention_check_interval_ms / 1000, self._retention_is_due)

    def stop(self) -> None:
        """Send everyone who waits away, and stop all timers."""
        if self._retention_timer is not None:
            self._retention_timer.cancel()
            self._retention_timer = None
        self._runtime.resign_all()

    def elect(self, partition: int) -> None:
        """This broker became the leader of a partition of the topic: load its groups."""
        self._runtime.elect(partition)

    def resign(self, partition: int) -> None:
        """This broker no longer leads a partition of the topic."""
        self._runtime.resign(partition)

    async def partition_of(self, group_id: str) -> int:
        """The partition of the topic, whose leader is the group's coordinator. Makes the topic if there is none."""
        partition = partition_for(group_id, await self._journal.ensure_topic())
        if self._journal.leads(partition):
            self._runtime.elect(partition)
        await self.loaded(partition)
        return partition

    async def loaded(self, partition: int | None = None) -> bool:
        """Wait a little for what is being loaded, of one partition or of all; whether it is there now."""
        loads = self._runtime.loads(partition)
        if loads:
            patience = asyncio.get_running_loop().create_future()
            handle = self._timer(LOAD_PATIENCE, lambda: None if patience.done() else patience.set_result(None))
            await asyncio.wait([asyncio.gather(*loads), patience], return_when=asyncio.FIRST_COMPLETED)
            handle.cancel()
        return not self._runtime.loads(partition)

    # Membership

    async def join(self, request: Join) -> JoinResult:
        """JoinGroup: returns when the rebalance that it leads to is over."""
        try:
            shard = await self._shard(request.group_id)
            timeout = request.session_timeout_ms
            if not self._settings.min_session_timeout_ms <= timeout <= self._settings.max_session_timeout_ms:
                raise KafkaError(Error.INVALID_SESSION_TIMEOUT, f"a session timeout of {timeout} ms is not allowed")
            group = shard.groups.get(request.group_id)
            if group is None:
                if request.member_id:
                    raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id}")
                group = shard.groups[request.group_id] = Group(request.group_id)
        except KafkaError as refusal:
            return JoinResult(refusal.error, request.member_id)
        parked = _Parked()
        turn = self._turn()
        membership.join(turn, group, request, parked, self._new_member_id)
        self._perform(shard, group, turn)
        return await _answered(parked, JoinResult)

    async def sync(self, request: Sync) -> SyncResult:
        """SyncGroup: returns when the leader's assignment is stored."""
        try:
            shard = await self._shard(request.group_id)
            group = _known(shard, request.group_id, Error.UNKNOWN_MEMBER_ID)
        except KafkaError as refusal:
            # A coordinator that loads has lost the rebalance that was under way: joining again is all that helps.
            loading = refusal.error is Error.COORDINATOR_LOAD_IN_PROGRESS
            return SyncResult(Error.REBALANCE_IN_PROGRESS if loading else refusal.error)
        parked = _Parked()
        turn = self._turn()
        membership.sync(turn, group, request, parked)
        self._perform(shard, group, turn)
        return await _answered(parked, SyncResult)

    async def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """Heartbeat. Deadlines only move away, so that no timer needs to be set."""
        try:
            shard = await self._shard(group_id)
        except KafkaError as refusal:
            if refusal.error is Error.COORDINATOR_LOAD_IN_PROGRESS:
                return  # the member is alive, and nobody can tell yet that it should not be
            raise
        membership.heartbeat(self._turn(), _known(shard, group_id, Error.UNKNOWN_MEMBER_ID), member_id, instance_id, generation)

    async def leave(self, group_id: str, leavers: Sequence[Leaver]) -> list[Error]:
        """LeaveGroup: what becomes of each of them."""
        shard = await self._shard(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            return [Error.UNKNOWN_MEMBER_ID] * len(leavers)
        turn = self._turn()
        results: list[Error] = []
        for leaver in leavers:
            try:
                membership.leave(turn, group, leaver)
                results.append(Error.NONE)
            except KafkaError as refusal:
                results.append(refusal.error)
        self._perform(shard, group, turn)
        return results

    # Offsets

    async def commit(
        self,
        group_id: str,
        commits: Sequence[Commit],
        *,
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        retention_ms: int = -1,
    ) -> dict[TopicPartition, Error]:
        """OffsetCommit: returns when the offsets are safe; raises where none of them can be."""
        shard = await self._shard(group_id, allow_unnamed=True)
        group = shard.groups.get(group_id)
        if group is None:
            if generation >= 0:
                raise KafkaError(Error.ILLEGAL_GENERATION, f"there is no group {group_id}")
            group = shard.groups[group_id] = Group(group_id)
        turn = self._turn()
        membership.check_commit(turn, group, member_id, instance_id, generation)
        records, errors = commit_records(self._settings, turn.now_ms, group_id, commits, retention_ms)
        await self._write(shard, records)
        return errors

    async def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """OffsetFetch: all that a group committed, and nothing that could still be lost."""
        shard = await self._shard(group_id, allow_unnamed=True)
        await self._runtime.settled(shard.partition)
        return self._runtime.state(shard.partition).offsets.of(group_id)

    async def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Error]:
        """OffsetDelete: forget offsets of partitions that the group does not read."""
        shard = await self._shard(group_id)
        group = _known(shard, group_id, Error.GROUP_ID_NOT_FOUND)
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
            raise KafkaError(Error.NON_EMPTY_GROUP, f"group {group_id} has members, and what they read cannot be told")
        results = {
            partition: Error.GROUP_SUBSCRIBED_TO_TOPIC
            if group.state is not State.EMPTY and group.reads(partition.topic)
            else Error.NONE
            for partition in partitions
        }
        held = shard.offsets.of(group_id)
        await self._write(shard, tombstones(group_id, [p for p, error in results.items() if error is Error.NONE and p in held]))
        return results

    async def partitions_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """Topics are gone: so is what anyone committed for them."""
        gone = set(partitions)
        writes = []
        for shard in self._runtime.states():
            records: list[Record] = []
            for group_id in list(shard.offsets.group_ids()):
                records += tombstones(group_id, gone.intersection(shard.offsets.of(group_id)))
            writes.append(self._write(shard, records))
        await asyncio.gather(*writes, return_exceptions=True)

    # Looking and removing

    async def describe_group(self, group_id: str) -> GroupDescription:
        """DescribeGroups: a group that is not there is dead."""
        shard = await self._shard(group_id, allow_unnamed=True)
        group = shard.groups.get(group_id)
        return GroupDescription(group_id, State.DEAD.value) if group is None else _description(group)

    def list_groups(self) -> list[GroupDescription]:
        """ListGroups: the groups of every shard that is loaded."""
        return [_description(group) for shard in self._runtime.states() for group in shard.groups.values()]

    async def delete_group(self, group_id: str) -> None:
        """DeleteGroups: remove an empty group with all its offsets."""
        shard = await self._shard(group_id, allow_unnamed=True)
        group = _known(shard, group_id, Error.GROUP_ID_NOT_FOUND)
        if group.state is not State.EMPTY:
            raise KafkaError(Error.NON_EMPTY_GROUP, f"group {group_id} has members")
        await self._write(shard, shard.deletion(group_id))

    async def expire_offsets(self) -> None:
        """Forget offsets, and groups, that are older than the retention allows."""
        now_ms, retention_ms = self._clock.now_ms(), self._settings.offsets_retention_ms
        writes: list[Awaitable[None]] = []
        for shard in self._runtime.states():
            for group in list(shard.groups.values()):
                records = shard.expiry(group, now_ms, retention_ms)
                if records:
                    writes.append(self._write(shard, records))
        await asyncio.gather(*writes, return_exceptions=True)

    # Inside

    async def _shard(self, group_id: str, *, allow_unnamed: bool = False) -> GroupShard:
        if not group_id and not allow_unnamed:
            raise KafkaError(Error.INVALID_GROUP_ID, "a group needs a name")
        return self._runtime.state(partition_for(group_id, await self._journal.ensure_topic()))

    def _turn(self) -> Turn:
        return Turn(self._settings, self._clock.monotonic(), self._clock.now_ms())

    def _write(self, shard: GroupShard, records: Sequence[Record]) -> Awaitable[None]:
        """Hand records over now; the result says when they are safe."""
        return self._runtime.write(shard.partition, records)

    def _perform(self, shard: GroupShard, group: Group, turn: Turn) -> None:
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
        turn = self._turn()
        store.done(turn, error)
        self._perform(shard, store.group, turn)

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
        turn = self._turn()
        tick(turn, group)
        self._perform(shard, group, turn)

    def _retention_is_due(self) -> None:
        self._expiring = asyncio.get_running_loop().create_task(self.expire_offsets())
        self.start()

    def _loaded(self, shard: GroupShard) -> None:
        """Members have a whole session timeout from now to find their coordinator again."""
        shard.complete()
        turn = self._turn()
        for group in shard.groups.values():
            for member in group.members.values():
                member.heard(turn.now)
            if len(group.members) > self._settings.max_size:
                maybe_prepare(turn, group)
                try_complete_join(turn, group)
            self._schedule(shard, group)

    def _retired(self, shard: GroupShard) -> None:
        turn = self._turn()
        for group in shard.groups.values():
            kill(turn, group, Error.NOT_COORDINATOR)
            armed = self._timers.pop(group.group_id, None)
            if armed is not None:
                armed[1].cancel()
        for effect in turn.effects:
            if isinstance(effect, Answer):
                _answer(effect)


def _known(shard: GroupShard, group_id: str, otherwise: Error) -> Group:
    group = shard.groups.get(group_id)
    if group is None:
        raise KafkaError(otherwise, f"there is no group {group_id}")
    return group


def _answer(answer: Answer) -> None:
    assert isinstance(answer.to, _Parked)
    if not answer.to.future.done():  # the connection may have gone away
        answer.to.future.set_result(answer.result)


async def _answered(parked: _Parked, kind: type[R]) -> R:
    result = await parked.future
    assert isinstance(result, kind)
    return result


def _description(group: Group) -> GroupDescription:
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
