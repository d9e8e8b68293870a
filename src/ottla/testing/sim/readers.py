"""Consumers of the simulation: plain ones, and members of a group."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from ottla.model import BrokerUnavailable, Error, TopicPartition
from ottla.records.batch import BatchHeader, ControlType, read_marker, read_records, split
from ottla.testing.sim.clients import PASSING, Client, error_of
from ottla.testing.sim.cluster import Cluster
from ottla.testing.sim.history import (
    Assigned,
    OffsetCommitted,
    OffsetCommitting,
    OffsetFetched,
    OffsetRefused,
    Refused,
    Served,
)
from ottla.wire.apis.fetch import AbortedTransaction, FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from ottla.wire.apis.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.wire.apis.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

_FETCH_VERSION = 12  # the last one that goes by topic names
_GROUP = 0
_READ_COMMITTED = 1


def visible(records: bytes, aborted: Iterable[AbortedTransaction], committed_only: bool) -> list[tuple[int, str]]:
    """The records that an application sees of a fetch answer, by the rules of Apache Kafka's consumer."""
    found: list[tuple[int, str]] = []
    waiting = deque(sorted((one.first_offset, one.producer_id) for one in aborted))
    ignored: set[int] = set()
    for position, header in split(records, cut=True):
        while waiting and waiting[0][0] <= header.last_offset:
            ignored.add(waiting.popleft()[1])
        if header.is_control:
            if _is_abort(records, position, header):
                ignored.discard(header.producer_id)
            continue
        if committed_only and header.is_transactional and header.producer_id in ignored:
            continue
        found += [(one.offset, (one.value or b"").decode()) for one in read_records(records, position, header)]
    return found


def _is_abort(records: bytes, position: int, header: BatchHeader) -> bool:
    marker = read_marker(records, position, header)
    return marker is not None and marker.type is ControlType.ABORT


def end_of(records: bytes, position: int, epoch: int) -> tuple[int, int]:
    """Where to go on after a fetch answer, and the leader epoch of the last record before that."""
    for _, header in split(records, cut=True):
        if header.next_offset > position:
            position, epoch = header.next_offset, header.leader_epoch
    return position, epoch


class Reader(Client):
    """What consumers have in common: fetching, and going on where the last answer ended."""

    committed_only = False

    def __init__(self, cluster: Cluster, name: str, random: Random) -> None:
        super().__init__(cluster, name, random)
        self.read_epochs: dict[TopicPartition, int] = {}

    async def poll(self, positions: dict[TopicPartition, int]) -> None:
        """Fetch from every leader once, all at the same time; positions move."""
        for tp in positions:
            await self.leader_of(tp)
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in positions:  # leader and epoch of one moment: another leader's epoch would make a follower of the one we ask
            if tp in self.leaders:
                by_leader.setdefault(self.leaders[tp], []).append(tp)
        tasks = [
            self.begin(self._fetch(leader, partitions, positions, {tp: self.epochs[tp] for tp in partitions}))
            for leader, partitions in sorted(by_leader.items())
        ]
        await asyncio.gather(*tasks)

    async def _fetch(
        self,
        leader: int,
        partitions: Sequence[TopicPartition],
        positions: dict[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
    ) -> None:
        topics: dict[str, list[FetchPartition]] = {}
        for tp in partitions:
            wanted = FetchPartition(
                partition=tp.partition,
                current_leader_epoch=epochs[tp],
                fetch_offset=positions[tp],
                partition_max_bytes=30_000,
            )
            topics.setdefault(tp.topic, []).append(wanted)
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            isolation_level=_READ_COMMITTED if self.committed_only else 0,
            topics=[FetchTopic(topic=name, partitions=wanted) for name, wanted in topics.items()],
        )
        try:
            answer = await self.ask(leader, request, FetchResponse, _FETCH_VERSION)
        except BrokerUnavailable:
            answer = FetchResponse(error_code=Error.NETWORK_EXCEPTION, responses=[])
        moved = answer.error_code != Error.NONE
        for topic in answer.responses:
            for one in topic.partitions:
                moved |= not self._take(TopicPartition(topic.topic, one.partition_index), one, positions)
        if moved:
            for tp in partitions:
                self.leaders.pop(tp, None)
            await self.back_off()

    def _take(self, tp: TopicPartition, one: PartitionData, positions: dict[TopicPartition, int]) -> bool:
        """Take what came for a partition; whether its leader may be asked again."""
        error = error_of(one.error_code)
        if error is not Error.NONE:
            if error not in PASSING:
                self.note(Refused(self.now, self.name, tp, f"{error.name} at {positions[tp]}"))
            return False
        records = bytes(one.records or b"")
        if records and tp in positions:
            position = positions[tp]
            seen = [
                (offset, value)
                for offset, value in visible(records, one.aborted_transactions or (), self.committed_only)
                if offset >= position
            ]
            positions[tp], self.read_epochs[tp] = end_of(records, position, self.read_epochs.get(tp, -1))
            if seen:
                self.note(Served(self.now, self.name, tp, self.committed_only, tuple(seen)))
        return True


class Consumer(Reader):
    """Reads partitions from their beginning, over and over."""

    async def consume(self, partitions: Sequence[TopicPartition], until: float, committed_only: bool) -> None:
        self.committed_only = committed_only
        positions = dict.fromkeys(partitions, 0)
        while self.now < until:
            await self.poll(positions)
            if self.random.random() < 0.01:  # what was served must stay so: look again from somewhere
                tp = self.random.choice(list(partitions))
                positions[tp] = self.random.randint(0, positions[tp])
            await asyncio.sleep(self.random.uniform(0.0, 0.2))


class Member(Reader):
    """A member of a group of the classic protocol, which reads what it is assigned and commits how far it came."""

    session_timeout_ms = 3000
    rebalance_timeout_ms = 5000

    async def take_part(self, group: str, partitions: Sequence[TopicPartition], until: float) -> None:
        """Join, read, commit, join again, until a time has come."""
        self._group = group
        self._member_id = ""
        self._commits = 0
        self.committed_only = True
        while self.now < until:
            generation = await self._join(partitions)
            if generation is None:
                await self.back_off()
                continue
            number, assigned = generation
            positions = await self._committed(assigned) if assigned else {}
            if positions is not None:
                await self._stay(number, positions, until)

    async def _ask_coordinator(self, request: object, answer: type, timeout: float = 8.0) -> object | None:
        """The coordinator's answer; None where it has to be found again."""
        coordinator = await self.group_coordinator(self._group)
        try:
            return await self.ask(coordinator, request, answer, timeout=timeout)  # type: ignore[arg-type]
        except BrokerUnavailable:
            self.forget_coordinator(self._group, _GROUP)
            return None

    def _trouble(self, error: Error) -> None:
        """What an error means for our place in the group."""
        if error is Error.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        elif error in (Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE):
            self.forget_coordinator(self._group, _GROUP)

    async def _join(self, partitions: Sequence[TopicPartition]) -> tuple[int, list[TopicPartition]] | None:
        answer = await self._ask_coordinator(self._join_request(), JoinGroupResponse)
        if not isinstance(answer, JoinGroupResponse):
            return None
        if answer.error_code == Error.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            answer = await self._ask_coordinator(self._join_request(), JoinGroupResponse)
        if not isinstance(answer, JoinGroupResponse):
            return None
        if answer.error_code != Error.NONE:
            self._trouble(error_of(answer.error_code))
            return None
        self._member_id = answer.member_id
        members = [one.member_id for one in answer.members]
        sync = SyncGroupRequest(
            group_id=self._group,
            generation_id=answer.generation_id,
            member_id=self._member_id,
            protocol_type="sim",
            protocol_name="spread",
            assignments=_spread(members, partitions) if answer.leader == self._member_id else [],
        )
        synced = await self._ask_coordinator(sync, SyncGroupResponse)
        if not isinstance(synced, SyncGroupResponse):
            return None
        if synced.error_code != Error.NONE:
            self._trouble(error_of(synced.error_code))
            return None
        assigned = [TopicPartition(*one) for one in json.loads(bytes(synced.assignment) or b"[]")]
        self.note(Assigned(self.now, self._group, answer.generation_id, self._member_id, tuple(assigned)))
        return answer.generation_id, assigned

    def _join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self._member_id,
            protocol_type="sim",
            protocols=[JoinGroupRequestProtocol(name="spread", metadata=b"")],
        )

    async def _committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int] | None:
        """Where the group is; None if that cannot be told before the next rebalance."""
        topics: dict[str, list[int]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        wanted = [OffsetFetchRequestTopics(name=name, partition_indexes=numbers) for name, numbers in topics.items()]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self._group, topics=wanted)], require_stable=True)
        asked = self.now
        answer = await self._ask_coordinator(request, OffsetFetchResponse)
        if not isinstance(answer, OffsetFetchResponse):
            return None
        found = answer.groups[0]
        if found.error_code != Error.NONE:
            self._trouble(error_of(found.error_code))
            await self.back_off()
            return None
        positions: dict[TopicPartition, int] = {}
        for topic in found.topics:
            for one in topic.partitions:
                if one.error_code != Error.NONE:
                    await self.back_off()
                    return None
                tp = TopicPartition(topic.name, one.partition_index)
                tag = one.metadata if one.committed_offset >= 0 else None
                self.note(OffsetFetched(self.now, self._group, tp, asked, one.committed_offset, tag))
                positions[tp] = max(one.committed_offset, 0)
                if one.committed_leader_epoch > self.epochs.get(tp, -1):  # whoever committed knew a newer leader than we do
                    self.epochs[tp] = one.committed_leader_epoch
                    self.leaders.pop(tp, None)
        return positions

    async def _stay(self, generation: int, positions: dict[TopicPartition, int], until: float) -> None:
        """Read and commit until the group moves on."""
        last_commit = dict(positions)
        while self.now < until:
            beat = HeartbeatRequest(group_id=self._group, generation_id=generation, member_id=self._member_id)
            answer = await self._ask_coordinator(beat, HeartbeatResponse)
            if not isinstance(answer, HeartbeatResponse):
                continue
            error = error_of(answer.error_code)
            if error is Error.REBALANCE_IN_PROGRESS:
                await self._commit(generation, positions, last_commit)
                return
            if error is not Error.NONE:
                self._trouble(error)
                if error in PASSING:
                    await self.back_off()
                    continue
                return
            if positions:
                await self.poll(positions)
                if self.random.random() < 0.5 and not await self._commit(generation, positions, last_commit):
                    return
            await asyncio.sleep(self.random.uniform(0.1, 0.6))

    async def _commit(
        self, generation: int, positions: Mapping[TopicPartition, int], last_commit: dict[TopicPartition, int]
    ) -> bool:
        """Commit what is new; whether we are still of the group."""
        tags: dict[TopicPartition, str] = {}
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for tp, offset in positions.items():
            if offset > last_commit.get(tp, 0):
                self._commits += 1
                tags[tp] = f"{self.name}#{self._commits}"
                self.note(OffsetCommitting(self.now, self._group, tp, offset, tags[tp]))
                one = OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=offset,
                    committed_leader_epoch=self.read_epochs.get(tp, -1),
                    committed_metadata=tags[tp],
                )
                topics.setdefault(tp.topic, []).append(one)
        if not tags:
            return True
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=generation,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
        )
        answer = await self._ask_coordinator(request, OffsetCommitResponse)
        if not isinstance(answer, OffsetCommitResponse):
            return True
        still = True
        for topic in answer.topics:
            for result in topic.partitions:
                tp, error = TopicPartition(topic.name, result.partition_index), error_of(result.error_code)
                if error is Error.NONE:
                    last_commit[tp] = positions[tp]
                    self.note(OffsetCommitted(self.now, tags[tp]))
                elif error in _NOT_DONE:
                    self.note(OffsetRefused(self.now, tags[tp]))
                self._trouble(error)
                still &= error not in _NOT_DONE
        return still


_NOT_DONE = frozenset({Error.ILLEGAL_GENERATION, Error.UNKNOWN_MEMBER_ID, Error.REBALANCE_IN_PROGRESS})
"""Refusals of a commit that was not written."""


def _spread(members: Sequence[str], partitions: Sequence[TopicPartition]) -> list[SyncGroupRequestAssignment]:
    """Each partition to one member, in turn."""
    shares: dict[str, list[TopicPartition]] = {member: [] for member in sorted(members)}
    for at, tp in enumerate(partitions):
        shares[sorted(members)[at % len(members)]].append(tp)
    return [
        SyncGroupRequestAssignment(member_id=member, assignment=json.dumps(share).encode()) for member, share in shares.items()
    ]
