"""Fetch: the way out. Regions of files, never bytes.

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
from ottla.api.registry import LATER, Context, handles, shapes_errors_of
from ottla.model import Error, KafkaError
from ottla.records import legacy
from ottla.records.codecs import Codec
from ottla.replication.partition import READ_COMMITTED
from ottla.replication.waiting import Waiter
from ottla.storage.slices import FileSlice, NotCached
from ottla.wire.apis.fetch import AbortedTransaction, FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

log = logging.getLogger("ottla.api")

NO_TOPIC_ID = bytes(16)
EMPTY = b""
_LOOKUPS = 3  # per partition in cold data, each prepared by a thread; a page that is gone again each time is waited for then
# The beginning of a message that does not fit. Before version 3 a batch larger than the client's bound was not sent at all, and
# a client saw by such a piece that it must raise its bound; without one it would ask for ever.
TOO_LARGE = struct.pack(">qi", -1, 0x7FFFFFFF)


@handles(FetchRequest)
def fetch(ctx: Context, request: FetchRequest) -> Any:
    try:
        reading = _Reading(ctx, request)
    except KafkaError as problem:
        return FetchResponse(error_code=problem.error)
    reading.start()
    return LATER


@shapes_errors_of(FetchRequest)
def fetch_error(request: FetchRequest, error: Error, message: str) -> FetchResponse:
    return FetchResponse(
        error_code=error,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(partition_index=one.partition, error_code=error, high_watermark=-1, records=EMPTY)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


class _Reading:
    """One fetch request, from its arrival to its answer.

    `_session` is the client's, or one that lasts as long as the request waits. `_told` holds what was found so far: woken by an
    append, a request looks again at the partitions that have changed and at no others.
    """

    __slots__ = (
        "_bytes", "_cold", "_ctx", "_failed", "_full", "_isolation", "_lookups", "_max_bytes", "_max_wait", "_min_bytes",
        "_most_lookups", "_session", "_told", "_version", "_wanted",
    )  # fmt: skip

    def __init__(self, ctx: Context, request: FetchRequest) -> None:
        self._ctx = ctx
        self._version = ctx.version
        self._isolation = request.isolation_level
        self._max_wait = request.max_wait_ms / 1000
        self._min_bytes = request.min_bytes
        self._max_bytes = min(request.max_bytes, ctx.services.fetch_max_bytes)
        self._session: Session | None = None
        self._full = True
        self._wanted: list[Wanted] = []
        self._open_session(request)
        self._bytes = 0
        self._failed = False
        self._told: dict[Wanted, PartitionData] = {}
        self._cold: list[FileSlice] = []
        self._lookups = 0
        self._most_lookups = _LOOKUPS * (len(self._session.wanted) if self._session is not None else len(self._wanted))

    def _open_session(self, request: FetchRequest) -> None:
        uses_ids = self._version >= 13
        wanted = self._named(request)
        sessions = self._ctx.services.fetch_sessions
        if request.session_epoch in (FIRST_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                sessions.close(request.session_id)
            self._wanted = wanted
            if request.session_epoch == FIRST_EPOCH and self._version >= 7 and wanted:
                self._session = sessions.open(wanted, uses_ids)
            return
        session = sessions.resume(request.session_id, request.session_epoch, uses_ids)
        forgotten = [
            (topic.topic_id if uses_ids else topic.topic, partition)
            for topic in request.forgotten_topics_data
            for partition in topic.partitions
        ]
        session.update(wanted, forgotten)
        self._session = session
        self._full = False

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
        missing = self._min_bytes - self._bytes
        wanted: Collection[Wanted] = self._wanted if session is None else session.wanted.values()
        if missing <= 0 or self._failed or self._max_wait <= 0 or not wanted:
            self._answer()
            return

        def enough(size: int) -> bool:
            nonlocal missing
            missing -= size
            return missing <= 0

        if session is None:
            session = self._session = Session.of_one_request(self._wanted)
        elif session.waiter is not None:  # the client came back over another connection: the old request waits no longer
            session.waiter.complete()
        session.waiter = Waiter(enough, self._read_again, (), self._ctx.services.timer, self._max_wait, session.waited)
        self._ctx.connection.waiter = session.waiter

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
            elif session is not None and one.offset >= self._end(data):
                session.pending.pop(one, None)

    def _response(self) -> FetchResponse:
        topics: dict[object, FetchableTopicResponse] = {}
        by_id = self._version >= 13
        for one, data in self._told.items():
            if not self._full and not data.records and not data.error_code and not self._changed(one, data):
                continue
            one.high_watermark, one.log_start_offset = data.high_watermark, data.log_start_offset
            key = one.topic_id if by_id else one.topic
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(topic=one.topic or "", topic_id=one.topic_id, partitions=[])
            topic.partitions.append(data)  # type: ignore[attr-defined]
        session_id = self._session.id if self._session is not None else NO_SESSION
        return FetchResponse(session_id=session_id, responses=list(topics.values()))

    def _end(self, data: PartitionData) -> int:
        return data.last_stable_offset if self._isolation == READ_COMMITTED else data.high_watermark

    @staticmethod
    def _changed(one: Wanted, data: PartitionData) -> bool:
        return data.high_watermark != one.high_watermark or data.log_start_offset != one.log_start_offset

    def _read_one(self, one: Wanted, left: int, min_one: bool) -> PartitionData:
        try:
            if one.topic is None:
                one.topic = self._ctx.image.topic_names.get(one.topic_id)
                if one.topic is None:
                    raise KafkaError(Error.UNKNOWN_TOPIC_ID)
            replicas = self._ctx.services.replicas
            partition = replicas.partitions.get((one.topic, one.partition)) or replicas.get(one.topic, one.partition)
            one.watch(partition)
            log = partition.log
            if self._version >= 13 and log.topic_id != one.topic_id:  # another topic of the same name
                one.topic = None
                raise KafkaError(Error.UNKNOWN_TOPIC_ID)
            region = None
            if one.offset == log.high_watermark or (left <= 0 and not min_one):
                partition.check_leader(one.leader_epoch)
            else:
                if self._version < 10 and log.config.target_codec is Codec.ZSTD:
                    raise KafkaError(Error.UNSUPPORTED_COMPRESSION_TYPE)
                max_bytes = min(one.max_bytes, max(left, 0))
                region = partition.read(
                    one.offset, max_bytes, self._isolation, one.leader_epoch, min_one, nowait=self._lookups < self._most_lookups
                )
                # One cold region, and the thread looks after all old ones: asking costs as much as warming what is warm.
                if region is not None and not partition.is_recent(region) and (self._cold or not region.cached()):
                    self._cold.append(region)
        except KafkaError as problem:
            return PartitionData(
                partition_index=one.partition,
                error_code=problem.error,
                high_watermark=-1,
                aborted_transactions=None,
                records=EMPTY,
            )
        records: FileSlice | bytes = EMPTY
        if region is not None:
            records = region
        elif self._version < 3 and one.offset < log.high_watermark:
            records = TOO_LARGE
        aborted = None
        if self._isolation == READ_COMMITTED:
            found = log.aborted_transactions(one.offset, log.last_stable_offset) if region is not None else ()
            aborted = [AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset) for txn in found]
        return PartitionData(
            partition_index=one.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=aborted,
            records=records,
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
