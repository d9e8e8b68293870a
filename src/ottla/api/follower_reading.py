"""What a follower's fetch says, and what it reads.

Guards: a follower counts for the high watermark by what it asks for, once, when its request comes; where its log parts from
ours it is told so and gets nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.api.fetch_sessions import Wanted, WantedByFollower
from ottla.api.reading import EMPTY, Reading, refusal
from ottla.api.registry import Context
from ottla.metrics import TopicCounters
from ottla.model import UNKNOWN_OFFSET, KafkaError
from ottla.replication.isr import LastAsked
from ottla.replication.leaders import EpochEnd
from ottla.replication.partition import Partition
from ottla.storage.log import Log
from ottla.storage.log_config import MAX_LONG
from ottla.wire.apis.fetch import EpochEndOffset, FetchRequest, FetchResponse, PartitionData


class FollowersReading(Reading):
    """One fetch request of a follower: it says how far the follower is, and reads up to the log's end.

    What it says counts once, when it comes, for all partitions that it names, also those that the answer has no room for. Those
    who wait for what it changed are told before anything is read.
    """

    __slots__ = ("_answering", "_refused", "_replica")

    def __init__(self, ctx: Context, request: FetchRequest) -> None:
        state = request.replica_state
        self._replica = request.replica_id if state is None else state.replica_id
        self._refused: dict[Wanted, PartitionData] = {}
        super().__init__(ctx, request)
        self._rack = ""
        session = self._session
        asked = LastAsked(0.0) if session is None or session.asked is None else session.asked
        asked.at = ctx.services.clock.monotonic()
        self._answering = asked.answering
        self._answering.asked(asked.at)
        asked.broker_epoch = -1 if state is None else state.replica_epoch
        self._hear(asked)

    def _asked(self) -> LastAsked | None:
        return LastAsked(0.0)

    def _named(self, request: FetchRequest) -> list[Wanted]:
        names = self._ctx.image.topic_names if self._version >= 13 else {}
        self._wanted = [
            WantedByFollower(
                topic.topic if self._version < 13 else names.get(topic.topic_id),
                topic.topic_id,
                one.partition,
                one.fetch_offset,
                one.partition_max_bytes,
                one.current_leader_epoch,
                one.log_start_offset,
                one.last_fetched_epoch,
            )
            for topic in request.topics
            for one in topic.partitions
        ]
        return self._wanted

    def _hear(self, asked: LastAsked) -> None:
        """What the request says of the follower."""
        session = self._session
        changed: list[Partition] = []
        for named in self._wanted:
            one = named if session is None else session.wanted[named.key]
            assert isinstance(one, WantedByFollower)
            try:
                partition = self._find(one)
                parted = partition.follower_asks(
                    self._replica, one.offset, one.start, one.leader_epoch, one.last_fetched_epoch, asked
                )
            except KafkaError as problem:
                self._refused[one] = refusal(one, problem.error)
                continue
            if parted is not None:
                self._refused[one] = _diverging(one, partition.log, parted)
            elif partition.news:
                changed.append(partition)
        for partition in changed:
            partition.wake()

    def _read(self, candidates: Iterable[Wanted]) -> None:
        super()._read(candidates)
        if self._refused:
            self._failed = True

    def _read_one(self, one: Wanted, left: int, min_one: bool) -> PartitionData:
        refused = self._refused.get(one)
        if refused is not None:
            return refused
        try:
            partition = self._find(one)
            partition.check_leader(one.leader_epoch)
            if self._replica not in partition.state.isr:
                partition.let_join(self._replica)
            log = partition.log
            end = log.log_end_offset
            region = None
            if one.offset < end and (left > 0 or min_one):
                throttle = self._ctx.services.replicas.leader_throttle
                if not throttle.active or not throttle.seconds_to_wait(partition, self._replica):
                    nowait = self._lookups < self._most_lookups
                    region = log.read(one.offset, min(one.max_bytes, max(left, 0)), end, min_one, nowait)
                if region is not None:
                    # What a replica catches up with travels with what the ISR waits for: only a throttle slows that down.
                    self._look_after(partition, region, old=False)
                    if throttle.active:
                        throttle.record(partition, region.length, self._replica)
        except KafkaError as problem:
            return refusal(one, problem.error)
        return PartitionData(
            partition_index=one.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=None,
            records=EMPTY if region is None else region,
        )

    def _response(self) -> FetchResponse:
        response = super()._response()
        for one in self._refused:  # a follower that has to cut its log takes nothing else from this answer: it is told again
            one.high_watermark = UNKNOWN_OFFSET
        return response

    def _count(self, counters: TopicCounters, size: int, failed: bool) -> None:
        counters.replication_bytes_out += size

    def _end(self, one: Wanted, data: PartitionData) -> int:
        """Up to where there is something to say: who is outside the ISR is looked at with every fetch, until it may join."""
        partition = one.watched
        if not isinstance(partition, Partition) or self._replica not in partition.state.isr:
            return MAX_LONG
        return partition.log.log_end_offset

    def _changed(self, one: Wanted, data: PartitionData) -> bool:
        return one in self._refused or super()._changed(one, data)

    def _enough(self, size: int) -> bool:
        self._missing -= size
        if self._missing <= 0:
            services = self._ctx.services
            wait = self._answering.came(services.clock.monotonic(), -self._missing, services.replicas.gathering)
            if wait >= 0:
                assert self._session is not None
                assert self._session.waiter is not None
                services.timer(wait, self._session.waiter.complete)
        return False

    def _answer(self) -> None:
        services = self._ctx.services
        self._answering.answered(services.clock.monotonic(), self._bytes, services.replicas.gathering)
        super()._answer()


def _diverging(one: Wanted, log: Log, parted: EpochEnd) -> PartitionData:
    return PartitionData(
        partition_index=one.partition,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        diverging_epoch=EpochEndOffset(epoch=parted.epoch, end_offset=parted.end_offset),
        aborted_transactions=None,
        records=EMPTY,
    )
