"""One fetch request, read: regions of files, never bytes.

A request becomes a list of `Wanted`; reading it gives partitions with regions. If there is too little, the request waits on its
partitions and is read again when enough has come or its time is up. What is not in the page cache is brought there by a thread
before the answer is sent, so that a reader of old data never holds up the others.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from ottla.api.fetch_sessions import FINAL_EPOCH, FIRST_EPOCH, NO_SESSION, Session, Wanted
from ottla.api.registry import Context
from ottla.metrics import TopicCounters
from ottla.model import Error, KafkaError
from ottla.records import legacy
from ottla.records.codecs import Codec
from ottla.replication.isr import LastAsked
from ottla.replication.partition import READ_COMMITTED, Partition
from ottla.replication.selection import RACK_AWARE, preferred
from ottla.replication.waiting import DelayedFetch
from ottla.storage.log import Log
from ottla.storage.slices import FileSlice, NotCached
from ottla.wire.apis.fetch import AbortedTransaction, FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

log = logging.getLogger("ottla.api")

EMPTY = b""
_MAY_READ_FROM_FOLLOWERS = 11
_LOOKUPS = 3  # per partition in cold data, each prepared by a thread; a page that is gone again each time is waited for then
# The beginning of a message that does not fit. Before version 3 a batch larger than the client's bound was not sent at all, and
# a client saw by such a piece that it must raise its bound; without one it would ask for ever.
TOO_LARGE = struct.pack(">qi", -1, 0x7FFFFFFF)


class Reading:
    """One fetch request, from its arrival to its answer.

    `_session` is the client's, or one that lasts as long as the request waits. `_told` holds what was found so far: woken by an
    append, a request looks again at the partitions that have changed and at no others.
    """

    __slots__ = (
        "_bytes", "_cold", "_ctx", "_failed", "_full", "_isolation", "_lookups", "_max_bytes", "_max_wait", "_min_bytes",
        "_missing", "_most_lookups", "_rack", "_session", "_told", "_version", "_wanted",
    )  # fmt: skip

    def __init__(self, ctx: Context, request: FetchRequest) -> None:
        self._ctx = ctx
        self._version = ctx.version
        self._isolation = request.isolation_level
        self._max_wait = request.max_wait_ms / 1000
        self._min_bytes = request.min_bytes
        self._missing = 0
        self._max_bytes = min(request.max_bytes, ctx.services.fetch_max_bytes)
        self._rack = request.rack_id
        self._full = True
        self._wanted: list[Wanted] = []
        self._session = self._open_session(request)
        self._bytes = 0
        self._failed = False
        self._told: dict[Wanted, PartitionData] = {}
        self._cold: list[FileSlice] = []
        self._lookups = 0
        self._most_lookups = _LOOKUPS * (len(self._session.wanted) if self._session is not None else len(self._wanted))

    def _open_session(self, request: FetchRequest) -> Session | None:
        uses_ids = self._version >= 13
        wanted = self._named(request)
        sessions = self._ctx.services.fetch_sessions
        if request.session_epoch in (FIRST_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                sessions.close(request.session_id)
            self._wanted = wanted
            if request.session_epoch == FIRST_EPOCH and self._version >= 7 and wanted:
                return sessions.open(wanted, uses_ids, self._asked())
            return None
        session = sessions.resume(request.session_id, request.session_epoch, uses_ids)
        forgotten = [
            (topic.topic_id if uses_ids else topic.topic, partition)
            for topic in request.forgotten_topics_data
            for partition in topic.partitions
        ]
        session.update(wanted, forgotten)
        self._full = False
        return session

    def _asked(self) -> LastAsked | None:
        """Only followers say by their fetches how far they are."""
        return None

    def _named(self, request: FetchRequest) -> list[Wanted]:
        names = self._ctx.image.topic_names if self._version >= 13 else {}
        return [
            Wanted(
                topic.topic if self._version < 13 else names.get(topic.topic_id),
                topic.topic_id,
                one.partition,
                one.fetch_offset,
                one.partition_max_bytes,
                one.current_leader_epoch,
            )
            for topic in request.topics
            for one in topic.partitions
        ]

    def start(self) -> None:
        """Read, and answer or wait."""
        session = self._session
        try:
            self._read(self._wanted if session is None else tuple(session.pending))
        except NotCached as cold:
            self._lookups += 1
            self._later(cold.warm, self.start)
            return
        self._missing = self._min_bytes - self._bytes
        wanted: Collection[Wanted] = self._wanted if session is None else session.wanted.values()
        if self._missing <= 0 or self._failed or self._max_wait <= 0 or not wanted:
            self._answer()
            return
        if session is None:
            session = self._session = Session.of_one_request(self._wanted)
        elif session.waiter is not None:  # the client came back over another connection: the old request waits no longer
            session.waiter.complete()
        session.waiter = DelayedFetch(
            self._enough, self._read_again, (), self._ctx.services.timer, self._max_wait, session.waited
        )
        self._ctx.connection.waiter = session.waiter

    def _enough(self, size: int) -> bool:
        """Whether `size` bytes more are what was waited for."""
        self._missing -= size
        return self._missing <= 0 and (self._isolation != READ_COMMITTED or self._anything_stable())

    def _anything_stable(self) -> bool:
        """Whether something may be read that belongs to no open transaction: the rest does not count for these readers."""
        assert self._session is not None
        return any(
            isinstance(one.watched, Partition) and one.offset < one.watched.log.last_stable_offset
            for one in self._session.pending
        )

    def _read_again(self) -> None:
        """Enough has come, or the time is up."""
        assert self._session is not None
        try:
            self._read(tuple(self._session.pending))
            self._answer()
        except NotCached as cold:
            self._lookups += 1
            self._later(cold.warm, self._read_again)
        except Exception:
            self._give_up()  # a timer or somebody else's append called us: they must not suffer for it

    def _read(self, candidates: Iterable[Wanted]) -> None:
        """What these have now, within the bounds."""
        self._failed = False
        left = self._max_bytes - self._bytes
        at_least_one = self._version >= 3
        session = self._session
        for one in candidates:
            if left <= 0 and not self._full:
                break  # the rest stays pending
            before = self._told.get(one)
            if before is not None and before.records:  # looked at for the second time: what it had counts anew
                self._bytes -= len(before.records)
                left += len(before.records)
            data = self._told[one] = self._read_one(one, left, at_least_one and not self._bytes)
            size = len(data.records or EMPTY)
            if size:
                left -= size
                self._bytes += size
                if session is not None:
                    session.served(one)
            elif data.error_code:
                self._failed = True
            elif session is not None and one.offset >= self._end(one, data):
                session.pending.pop(one, None)

    def _response(self) -> FetchResponse:
        topics: dict[object, FetchableTopicResponse] = {}
        by_id = self._version >= 13
        for one, data in self._told.items():
            if not self._full and not data.records and not data.error_code and not self._changed(one, data):
                continue
            one.high_watermark, one.log_start_offset = data.high_watermark, data.log_start_offset
            if isinstance(one.watched, Partition):
                self._count(one.watched.counters, len(data.records or EMPTY), bool(data.error_code))
            key = one.topic_id if by_id else one.topic
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(topic=one.topic or "", topic_id=one.topic_id, partitions=[])
            topic.partitions.append(data)  # type: ignore[attr-defined]
        session_id = self._session.id if self._session is not None else NO_SESSION
        return FetchResponse(session_id=session_id, responses=list(topics.values()))

    def _count(self, counters: TopicCounters, size: int, failed: bool) -> None:
        counters.fetches += 1
        counters.bytes_out += size
        if failed:
            counters.failed_fetches += 1

    def _end(self, one: Wanted, data: PartitionData) -> int:
        return data.last_stable_offset if self._isolation == READ_COMMITTED else data.high_watermark

    def _changed(self, one: Wanted, data: PartitionData) -> bool:
        if data.preferred_read_replica >= 0:
            return True
        return data.high_watermark != one.high_watermark or data.log_start_offset != one.log_start_offset

    def _find(self, one: Wanted) -> Partition:
        """The partition that is meant, watched from now on."""
        if one.topic is None:
            one.topic = self._ctx.image.topic_names.get(one.topic_id)
            if one.topic is None:
                raise KafkaError(Error.UNKNOWN_TOPIC_ID)
        replicas = self._ctx.services.replicas
        partition = replicas.partitions.get((one.topic, one.partition)) or replicas.get(one.topic, one.partition)
        one.watch(partition)
        if self._version >= 13 and partition.log.topic_id != one.topic_id:  # another topic of the same name
            one.topic = None
            raise KafkaError(Error.UNKNOWN_TOPIC_ID)
        return partition

    def _read_one(self, one: Wanted, left: int, min_one: bool) -> PartitionData:
        try:
            partition = self._find(one)
            log = partition.log
            region = None
            leader_only = self._version < _MAY_READ_FROM_FOLLOWERS
            if self._rack and (nearer := self._nearer(partition, one)) >= 0:
                self._failed = True  # nothing to wait for here
                return self._sent_elsewhere(one, log, nearer)
            if one.offset == log.high_watermark or (left <= 0 and not min_one):
                partition.check_leader(one.leader_epoch, leader_only)
            else:
                if self._version < 10 and log.config.target_codec is Codec.ZSTD:
                    raise KafkaError(Error.UNSUPPORTED_COMPRESSION_TYPE)
                max_bytes = min(one.max_bytes, max(left, 0))
                nowait = self._lookups < self._most_lookups
                region = partition.read(one.offset, max_bytes, self._isolation, one.leader_epoch, min_one, nowait, leader_only)
                if region is not None:
                    self._look_after(partition, region, old=True)
        except KafkaError as problem:
            return refusal(one, problem.error)
        records: FileSlice | bytes = EMPTY
        if region is not None:
            records = region
        elif self._version < 3 and one.offset < log.high_watermark:
            records = TOO_LARGE
        aborted = None
        if self._isolation == READ_COMMITTED:
            cold = self._lookups < self._most_lookups
            found = log.aborted_within(region, one.offset, nowait=cold) if region is not None else ()
            aborted = [AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset) for txn in found]
        return PartitionData(
            partition_index=one.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=aborted,
            records=records,
        )

    def _look_after(self, partition: Partition, region: FileSlice, *, old: bool) -> None:
        """See that a region is in the page cache before it is sent; whether it is old data then, and rests."""
        # One cold region, and the thread looks after all old ones: asking costs as much as warming what is warm.
        if not partition.is_recent(region) and (self._cold or not region.cached()):
            region.old = old
            self._cold.append(region)

    def _nearer(self, partition: Partition, one: Wanted) -> int:
        """Another replica that the consumer had better read from; -1 if this is the right one."""
        if not partition.is_leader or self._ctx.services.config.text("replica.selector.class") != RACK_AWARE:
            return -1
        brokers = self._ctx.image.brokers

        def rack_of(broker: int) -> str | None:
            found = brokers.get(broker)
            return found.rack if found is not None else None

        partition.check_leader(one.leader_epoch)
        chosen = preferred(self._rack, partition.replicas_with(one.offset), rack_of)
        return -1 if chosen == partition.broker_id else chosen

    def _sent_elsewhere(self, one: Wanted, log: Log, replica: int) -> PartitionData:
        return PartitionData(
            partition_index=one.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=None,
            preferred_read_replica=replica,
            records=EMPTY,
        )

    def _answer(self) -> None:
        response = self._response()
        if self._version < 4 and self._bytes:
            self._later(lambda: _convert_down(response, 0 if self._version < 2 else 1), lambda: self._ctx.answer(response))
        elif self._cold:
            self._later(partial(_warm, list(self._cold)), lambda: self._ctx.answer(response))
        else:
            self._ctx.answer(response)

    def _later(self, blocking: Any, then: Any) -> None:
        """Do something that may wait for a disk in a thread, then go on here."""
        services = self._ctx.services

        async def work() -> None:
            try:
                await services.run_blocking(blocking)
                if not self._ctx.connection.closed:
                    then()
            except Exception:
                self._give_up()

        services.spawn(work())

    def _give_up(self) -> None:
        """Called while an exception is in hand: tell the operator, and let the client try again."""
        log.exception("Reading for %s failed; closing its connection", self._ctx.client_host)
        self._ctx.connection.close()


def refusal(one: Wanted, error: Error) -> PartitionData:
    """A partition that cannot be read, and why."""
    return PartitionData(
        partition_index=one.partition, error_code=error, high_watermark=-1, aborted_transactions=None, records=EMPTY
    )


def _warm(regions: list[FileSlice]) -> None:
    """Bring regions into the page cache. Runs in a thread."""
    for region in regions:
        region.warm()


def _convert_down(response: FetchResponse, magic: int) -> None:
    """For clients older than record batches: the same records as a message set of their time. Runs in a thread."""
    for topic in response.responses:
        for data in topic.partitions:
            if isinstance(data.records, FileSlice):
                try:
                    data.records = legacy.from_v2(data.records.read(), magic)
                except KafkaError as problem:
                    data.records = EMPTY
                    data.error_code = problem.error
