"""The group coordinator: groups and committed offsets of the partitions of `__consumer_offsets` that this broker leads.

The public face of the package. It finds the shard of a group, sees of which kind the group is, and leaves membership to
`ClassicGroups` or `ConsumerGroups`; offsets, and what concerns every group, are dealt with here. Guards: no answer that depends
on a record leaves before the record is safe. Lives on the broker's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.clock import Clock
from ottla.coordinator import classic_groups, consumer_groups, consumer_membership, membership, record_format
from ottla.coordinator.appending import Journal, Writer
from ottla.coordinator.classic_groups import ClassicGroups
from ottla.coordinator.commits import Commits, group_for
from ottla.coordinator.consumer_draft import ClusterTopics
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_groups import ConsumerGroups
from ottla.coordinator.consumer_membership import ConsumerHeartbeat, HeartbeatResult
from ottla.coordinator.descriptions import (
    ConsumerGroupDescription,
    GroupDescription,
    describe,
    describe_consumer_group,
    list_entry,
)
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.group_state import CONSUMER, Group, State
from ottla.coordinator.membership import Join, Leaver, Sync
from ottla.coordinator.offsets import Commit, commit_records, tombstones
from ottla.coordinator.rebalance import JoinResult, SyncResult
from ottla.coordinator.records import CommittedOffset, Record
from ottla.coordinator.runtime import Handle, Offload, Runtime, Timer
from ottla.coordinator.settings import GroupSettings
from ottla.model import NO_TIMESTAMP, Error, KafkaError, TopicPartition

TOPIC: Final = "__consumer_offsets"


class Committing(NamedTuple):
    """Offsets on their way into the log: when they are safe (None: they are), and which are refused for themselves."""

    written: asyncio.Future[None] | None
    refused: Mapping[TopicPartition, Error]


class GroupCoordinator:
    """What names a group raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS where this broker cannot answer for it."""

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        journal: Journal,
        timer: Timer,
        *,
        topics: ClusterTopics,
        new_member_id: Callable[[str], str] = classic_groups.random_member_id,
        new_consumer_id: Callable[[], str] = consumer_groups.random_member_id,
        offload: Offload = asyncio.to_thread,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._journal = journal
        self._timer = timer
        self._runtime: Runtime[GroupShard] = Runtime(
            journal, clock, record_format, GroupShard, loaded=self._loaded, retired=self._retired, offload=offload
        )
        self._classic = ClassicGroups(settings, clock, self._runtime, timer, new_member_id)
        self.commits = Commits(clock, self._runtime, self._classic.turn)
        self._consumer = ConsumerGroups(settings, clock, self._runtime, timer, topics, self._classic.perform, new_consumer_id)
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

    def elect(self, partition: int) -> bool:
        """Load the groups of a partition of the topic that this broker leads; whether it does."""
        return self._runtime.elect(partition)

    def resign(self, partition: int) -> None:
        """This broker no longer leads a partition of the topic."""
        self._runtime.resign(partition)

    async def partition_of(self, group_id: str) -> int:
        """The partition of the topic, whose leader is the group's coordinator. Makes the topic if there is none."""
        return await self._runtime.locate(group_id, self._timer)

    async def loaded(self) -> bool:
        """Wait a little for what is being loaded; whether it is there now."""
        return await self._runtime.await_loads(self._timer)

    # Membership

    async def join(self, request: Join) -> JoinResult:
        """JoinGroup: returns when the rebalance that it leads to is over."""
        try:
            shard = self._shard(request.group_id)
            timeout = request.session_timeout_ms
            if not self._settings.min_session_timeout_ms <= timeout <= self._settings.max_session_timeout_ms:
                raise KafkaError(Error.INVALID_SESSION_TIMEOUT, f"a session timeout of {timeout} ms is not allowed")
            while (group := shard.consumer_groups.get(request.group_id)) is not None:
                if group.members:
                    return await self._consumer.join(shard, group, request)
                if request.member_id:
                    break
                # An empty group belongs to whoever comes first, in either protocol: somebody may have, while we wait.
                await self._write(shard, group.tombstones())
                shard = self._shard(request.group_id)
            return await self._classic.join(shard, request)
        except KafkaError as refusal:
            return JoinResult(refusal.error, request.member_id)

    async def sync(self, request: Sync) -> SyncResult:
        """SyncGroup: returns when the leader's assignment is stored."""
        try:
            shard = self._shard(request.group_id)
            consumer_group = shard.consumer_groups.get(request.group_id)
            if consumer_group is not None:
                return await self._consumer.sync(shard, consumer_group, request)
            return await self._classic.sync(shard, _known(shard, request.group_id, Error.UNKNOWN_MEMBER_ID), request)
        except KafkaError as refusal:
            # A coordinator that loads has lost the rebalance that was under way: joining again is all that helps.
            loading = refusal.error is Error.COORDINATOR_LOAD_IN_PROGRESS
            return SyncResult(Error.REBALANCE_IN_PROGRESS if loading else refusal.error)

    async def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """Heartbeat of a classic member."""
        try:
            shard = self._shard(group_id)
        except KafkaError as refusal:
            if refusal.error is Error.COORDINATOR_LOAD_IN_PROGRESS:
                return  # the member is alive, and nobody can tell yet that it should not be
            raise
        consumer_group = shard.consumer_groups.get(group_id)
        if consumer_group is not None:
            self._consumer.classic_heartbeat(shard, consumer_group, member_id, instance_id, generation)
        else:
            group = _known(shard, group_id, Error.UNKNOWN_MEMBER_ID)
            self._classic.heartbeat(group, member_id, instance_id, generation)

    async def leave(self, group_id: str, leavers: Sequence[Leaver]) -> list[Error]:
        """LeaveGroup: what becomes of each of them."""
        shard = self._shard(group_id)
        consumer_group = shard.consumer_groups.get(group_id)
        if consumer_group is not None:
            return await self._consumer.leave(shard, consumer_group, leavers)
        group = shard.groups.get(group_id)
        if group is None:
            return [Error.UNKNOWN_MEMBER_ID] * len(leavers)
        return self._classic.leave(shard, group, leavers)

    async def consumer_heartbeat(self, request: ConsumerHeartbeat, *, client_makes_id: bool = False) -> HeartbeatResult:
        """ConsumerGroupHeartbeat: join, stay in and leave a group of the consumer protocol."""
        if not self._settings.consumer_protocol_enabled:
            raise KafkaError(Error.UNSUPPORTED_VERSION, "The consumer group protocol is not enabled on this broker.")
        consumer_membership.check_request(self._settings, request, client_makes_id=client_makes_id)
        return await self._consumer.heartbeat(self._shard(request.group_id), request)

    # Offsets

    def commit(
        self,
        group_id: str,
        commits: Sequence[Commit],
        *,
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        retention_ms: int = -1,
        knows_epochs: bool = True,
    ) -> Committing:
        """OffsetCommit: raises where none of the offsets can be committed. Plain ones take a shorter way (`commits`)."""
        shard = self.commits.shard_for(group_id, generation, member_id, instance_id, knows_epochs=knows_epochs)
        records, refused = commit_records(self._settings, self._clock.now_ms(), group_id, commits, retention_ms)
        return Committing(self._runtime.write_now(shard.partition, records), refused)

    def commit_in_transaction(
        self,
        group_id: str,
        writer: Writer,
        commits: Sequence[Commit],
        *,
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
    ) -> Committing:
        """TxnOffsetCommit: like `commit`, but the offsets count when the producer's transaction commits."""
        shard = self._shard(group_id)
        consumer_group = shard.consumer_groups.get(group_id)
        if consumer_group is not None:
            consumer_membership.check_transactional_commit(consumer_group, member_id, instance_id, generation)
        else:
            group = group_for(shard, group_id, generation)
            membership.check_transactional_commit(self._classic.turn(), group, member_id, instance_id, generation)
        records, refused = commit_records(self._settings, self._clock.now_ms(), group_id, commits, NO_TIMESTAMP)
        return Committing(self._runtime.write_now(shard.partition, records, writer), refused)

    def end_transaction(
        self, partition: int, writer: Writer, coordinator_epoch: int, *, committed: bool
    ) -> asyncio.Future[None] | None:
        """WriteTxnMarkers for a partition of the topic: done when the marker is safe; None where it is."""
        return self._runtime.end_transaction(partition, writer, coordinator_epoch, committed=committed)

    async def committed(
        self, group_id: str, *, stable: bool = False, member_id: str | None = None, member_epoch: int = -1
    ) -> Mapping[TopicPartition, CommittedOffset | None]:
        """OffsetFetch: all that a group committed, and nothing that could still be lost.

        Who asks for stable offsets gets None for a partition whose offset an open transaction may still change. Who asks as a
        member of a consumer group must be one, in the right epoch.
        """
        shard = self._shard(group_id, allow_unnamed=True)
        consumer_group = shard.consumer_groups.get(group_id)
        if consumer_group is not None:
            consumer_membership.check_fetch(consumer_group, member_id, member_epoch)
        await self._runtime.settled(shard.partition)
        shard = self._runtime.state(shard.partition)
        offsets = shard.offsets.of(group_id)
        unstable = shard.pending.of(group_id) if stable else ()
        return {**offsets, **dict.fromkeys(unstable)} if unstable else offsets

    async def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Error]:
        """OffsetDelete: forget offsets of partitions that the group does not read."""
        shard = self._shard(group_id)
        group = shard.consumer_groups.get(group_id) or _known(shard, group_id, Error.GROUP_ID_NOT_FOUND)
        empty = group.state is State.EMPTY if isinstance(group, Group) else not group.members
        if isinstance(group, Group) and not empty and group.protocol_type != CONSUMER:
            raise KafkaError(Error.NON_EMPTY_GROUP, f"group {group_id} has members, and what they read cannot be told")
        results = {
            partition: Error.GROUP_SUBSCRIBED_TO_TOPIC if not empty and group.reads(partition.topic) else Error.NONE
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
            for group_id in shard.pending.group_ids():
                unstable = gone.intersection(shard.pending.of(group_id))
                records += tombstones(group_id, unstable.difference(shard.offsets.of(group_id)))
            writes.append(self._write(shard, records))
        await asyncio.gather(*writes, return_exceptions=True)

    # Looking and removing

    async def describe_group(self, group_id: str) -> GroupDescription:
        """DescribeGroups: a group that is not there is dead, and so is one of the other protocol."""
        shard = self._shard(group_id, allow_unnamed=True)
        group = shard.groups.get(group_id)
        return GroupDescription(group_id, State.DEAD.value) if group is None else describe(group)

    async def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescription:
        """ConsumerGroupDescribe, of what is safe."""
        if not self._settings.consumer_protocol_enabled:
            raise KafkaError(Error.UNSUPPORTED_VERSION, "The consumer group protocol is not enabled on this broker.")
        shard = self._shard(group_id)
        await self._runtime.settled(shard.partition)
        group = shard.consumer_groups.get(group_id)
        if group is None:
            raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return describe_consumer_group(group, self._settings, self._consumer.view)

    def list_groups(self) -> list[GroupDescription]:
        """ListGroups: the groups of every shard that is loaded."""
        shards = self._runtime.states()
        return [
            *(describe(group) for shard in shards for group in shard.groups.values()),
            *(list_entry(group) for shard in shards for group in shard.consumer_groups.values()),
        ]

    def all_groups(self) -> list[Group | ConsumerGroup]:
        """The groups of every shard that is loaded, as they are now."""
        shards = self._runtime.states()
        return [one for shard in shards for groups in (shard.groups, shard.consumer_groups) for one in groups.values()]

    async def delete_group(self, group_id: str) -> None:
        """DeleteGroups: remove an empty group with all its offsets."""
        shard = self._shard(group_id, allow_unnamed=True)
        consumer_group = shard.consumer_groups.get(group_id)
        if consumer_group is None:
            empty = _known(shard, group_id, Error.GROUP_ID_NOT_FOUND).state is State.EMPTY
        else:
            empty = not consumer_group.members
        if not empty:
            raise KafkaError(Error.NON_EMPTY_GROUP, f"group {group_id} has members")
        await self._write(shard, shard.deletion(group_id))

    async def expire_offsets(self) -> None:
        """Forget offsets, and groups, that are older than the retention allows."""
        now_ms, retention_ms = self._clock.now_ms(), self._settings.offsets_retention_ms
        writes: list[Awaitable[None]] = []
        for shard in self._runtime.states():
            for group in list(shard.groups.values()):
                if records := shard.expiry(group, now_ms, retention_ms):
                    writes.append(self._write(shard, records))
            for consumer_group in list(shard.consumer_groups.values()):
                if records := shard.consumer_group_expiry(consumer_group, now_ms, retention_ms):
                    writes.append(self._write(shard, records))
        await asyncio.gather(*writes, return_exceptions=True)

    # Inside

    def _shard(self, group_id: str, *, allow_unnamed: bool = False) -> GroupShard:
        if not group_id and not allow_unnamed:
            raise KafkaError(Error.INVALID_GROUP_ID, "a group needs a name")
        return self._runtime.state_of(group_id)

    def _write(self, shard: GroupShard, records: Sequence[Record]) -> Awaitable[None]:
        """Hand records over now; the result says when they are safe."""
        return self._runtime.write(shard.partition, records)

    def _retention_is_due(self) -> None:
        self._expiring = asyncio.get_running_loop().create_task(self.expire_offsets())
        self.start()

    def _loaded(self, shard: GroupShard) -> None:
        shard.complete()
        self._classic.loaded(shard)
        self._consumer.loaded(shard)

    def _retired(self, shard: GroupShard) -> None:
        self._classic.retired(shard)
        self._consumer.retired(shard)


def _known(shard: GroupShard, group_id: str, otherwise: Error) -> Group:
    group = shard.groups.get(group_id)
    if group is None:
        raise KafkaError(otherwise, f"there is no group {group_id}")
    return group
