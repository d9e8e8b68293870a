"""Batches on their way to the leaders: several requests under way to each, in order, once, whatever moves meanwhile.

Guards: batches of a partition are acknowledged in the order of their sequences. When one fails in a way that passes, nothing
more of its partition is sent until all that is under way was answered; then it goes on from the failed one, with the same
sequences, so that a leader that has a batch already says so and does not append it again. Without idempotence one batch of a
partition is under way at a time. What waits here is bounded: `add` waits for answers when it is too much.

No thread: `add` and `flush` do the work. A batch that finds no leader within `delivery.timeout.ms` fails the write.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.errors import (
    PASSING,
    BrokerUnreachable,
    ClientError,
    ProducerFenced,
    TransactionAborted,
    WriteFailed,
    describe,
)
from ottla.client.transactions import ABORTED, FENCED, Identity
from ottla.model import Error, KafkaError, TopicPartition, error_of
from ottla.wire.apis.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

_WINDOW = 5  # requests under way to a leader: as many as a broker remembers batches of a producer
_WAITING = 32 << 20  # bytes that wait here for their answers before `add` waits for some
_V2_BATCHES = 3
_ZSTD = 7
_MISSING_FOR = 5.0  # seconds for which a partition that is not known may be one that is just coming


class Written(NamedTuple):
    """The offsets that records got in one partition: the first, and the one after the last. -1 where no broker said."""

    first: int
    end: int
    records: int


@dataclass(slots=True, eq=False)
class Outgoing:
    """One batch, until it is acknowledged."""

    partition: TopicPartition
    data: bytes | bytearray
    records: int
    deadline: float
    since: float
    under_way: bool = False
    done: bool = False


@dataclass(slots=True)
class _Line:
    """What waits for one partition, in order."""

    batches: deque[Outgoing]
    broken: bool = False
    """Something of it failed: nothing is sent until all that is under way was answered."""
    known: bool = False
    """Its leader knows the producer. Until then any sequence is taken for the first: a second batch could pass a failed one."""

    def next(self, window: int) -> Outgoing | None:
        if self.broken:
            return None
        alone = window == 1 or not self.known
        if alone and any(one.under_way for one in self.batches):
            return None
        return next((one for one in self.batches if not one.under_way and not one.done), None)


class _Lane:
    """A leader's connection and the requests that are under way on it, oldest first."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.requests: deque[list[Outgoing]] = deque()


class Sender:
    """Sends the batches of one producer."""

    def __init__(
        self, cluster: Cluster, identity: Identity, acks: int, *, zstd: bool, before: Callable[[Iterable[TopicPartition]], None]
    ) -> None:
        """`before` is told of the partitions that a request is for, before it goes out: a transaction wants to know."""
        self._cluster = cluster
        self._identity = identity
        self._acks = acks
        self._at_least = _ZSTD if zstd else _V2_BATCHES
        self._before = before
        self._window = _WINDOW if identity.producer_id >= 0 else 1
        self._lines: dict[TopicPartition, _Line] = {}
        self._lanes: dict[int, _Lane] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._order: deque[int] = deque()  # brokers, one entry for each request under way, oldest first
        self._bytes = 0
        self._unsent = 0
        self.written: dict[TopicPartition, Written] = {}

    def add(self, partition: TopicPartition, data: bytes | bytearray, records: int) -> None:
        """Take a batch; waits while too much is waiting already."""
        now = time.monotonic()
        deadline = now + self._cluster.settings.delivery_timeout_ms / 1000
        line = self._lines.setdefault(partition, _Line(deque()))
        line.batches.append(Outgoing(partition, data, records, deadline, now))
        self._bytes += len(data)
        self._unsent += len(data)
        if self._unsent >= self._cluster.settings.request_size:
            self._send()
        while self._bytes > _WAITING:
            self._step()

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        while any(line.batches for line in self._lines.values()):
            self._step()

    def close(self) -> None:
        """Close the connections; what is under way may or may not arrive."""
        for lane in self._lanes.values():
            lane.connection.close()
        self._lanes.clear()
        self._order.clear()

    # ---- out -------------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Send what may be sent, then wait for the oldest answer."""
        self._send()
        if self._order:
            self._receive(self._order[0])
        elif any(line.batches for line in self._lines.values()):
            time.sleep(self._cluster.settings.retry_backoff_ms / 1000)

    def _send(self) -> None:
        self._unsent = 0
        ready = [tp for tp, line in self._lines.items() if line.next(self._window) is not None]
        self._find(ready)
        for broker in {self._leaders[tp] for tp in ready if tp in self._leaders}:
            mine = [tp for tp in ready if self._leaders.get(tp) == broker]
            try:
                while self._send_one(broker, mine):
                    pass
            except BrokerUnreachable as problem:
                self._lose(broker, problem)

    def _find(self, partitions: list[TopicPartition]) -> None:
        unknown = [tp for tp in partitions if tp not in self._leaders]
        if not unknown:
            return
        try:
            self._leaders |= self._cluster.leaders(unknown)
        except KafkaError as problem:
            if problem.error not in PASSING:
                raise
            self._check_deadlines(unknown, problem.message)

    def _send_one(self, broker: int, partitions: list[TopicPartition]) -> bool:
        """One request with at most one batch of each partition; false when there is nothing to send or the window is full."""
        lane = self._lanes.get(broker)
        if lane is not None and len(lane.requests) >= _WINDOW:
            return False
        chosen: list[Outgoing] = []
        size = 0
        for tp in partitions:
            batch = self._lines[tp].next(self._window)
            if batch is not None and (not chosen or size + len(batch.data) <= self._cluster.settings.request_size):
                chosen.append(batch)
                size += len(batch.data)
        if not chosen:
            return False
        self._before(batch.partition for batch in chosen)
        if lane is None:
            lane = self._lanes[broker] = _Lane(self._cluster.connect(broker))
        for batch in chosen:
            batch.under_way = True
        lane.requests.append(chosen)
        self._order.append(broker)
        lane.connection.send(self._request(chosen), at_least=self._at_least, answered=self._acks != 0)
        if self._acks == 0:
            lane.requests.pop()
            self._order.pop()
            for batch in chosen:
                self._acknowledge(batch, -1)
        return True

    def _request(self, chosen: list[Outgoing]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in chosen:
            data = PartitionProduceData(index=batch.partition.partition, records=memoryview(batch.data))
            topics.setdefault(batch.partition.topic, []).append(data)
        return ProduceRequest(
            transactional_id=self._identity.transactional_id,
            acks=self._acks,
            timeout_ms=self._cluster.settings.request_timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )

    # ---- back ------------------------------------------------------------------------------------------------------------

    def _receive(self, broker: int) -> None:
        lane = self._lanes[broker]
        try:
            answer = lane.connection.receive()
        except BrokerUnreachable as problem:
            self._lose(broker, problem)
            return
        assert isinstance(answer, ProduceResponse)
        batches = {batch.partition: batch for batch in lane.requests.popleft()}
        self._order.remove(broker)
        for topic in answer.responses:
            for one in topic.partition_responses:
                batch = batches.pop(TopicPartition(topic.name, one.index), None)
                if batch is not None:
                    self._answered(batch, one)
        for batch in batches.values():
            self._retry(batch, Error.UNKNOWN_SERVER_ERROR, "the answer does not name it")

    def _answered(self, batch: Outgoing, answer: PartitionProduceResponse) -> None:
        error = error_of(answer.error_code)
        if error in (Error.NONE, Error.DUPLICATE_SEQUENCE_NUMBER):
            self._acknowledge(batch, answer.base_offset)
        elif error in PASSING or error is Error.UNKNOWN_TOPIC_OR_PARTITION:
            missing = error is Error.UNKNOWN_TOPIC_OR_PARTITION and time.monotonic() - batch.since > _MISSING_FOR
            if missing:
                raise WriteFailed(error, batch.partition, "it does not exist")
            self._retry(batch, error, answer.error_message)
        elif error is Error.OUT_OF_ORDER_SEQUENCE_NUMBER and self._lines[batch.partition].broken:
            self._retry(batch, error, answer.error_message)  # it came behind one that failed
        elif error in FENCED:
            raise ProducerFenced(error, f"Records for {batch.partition} were refused: another producer has taken over.")
        elif error in ABORTED and self._identity.transactional_id is not None:
            raise TransactionAborted(error, f"Records for partition {batch.partition} were refused: {describe(error)}.")
        elif error in (Error.MESSAGE_TOO_LARGE, Error.RECORD_LIST_TOO_LARGE):
            what = f"a batch of {len(batch.data)} bytes with {batch.records} records"
            why = f"{what}: lower batch.size, or raise max.message.bytes"
            raise WriteFailed(error, batch.partition, why)
        else:
            raise WriteFailed(error, batch.partition, answer.error_message or "")

    def _acknowledge(self, batch: Outgoing, offset: int) -> None:
        line = self._lines[batch.partition]
        batch.under_way, batch.done = False, True
        line.known = True
        self._bytes -= len(batch.data)
        batch.data = b""
        while line.batches and line.batches[0].done:
            line.batches.popleft()
        self._mend(line)
        known = self.written.get(batch.partition)
        count = batch.records if known is None else known.records + batch.records
        if offset < 0:
            first, end = (-1, -1) if known is None else known[:2]
        elif known is None or known.first < 0:
            first, end = offset, offset + batch.records
        else:
            first, end = min(known.first, offset), max(known.end, offset + batch.records)
        self.written[batch.partition] = Written(first, end, count)

    def _retry(self, batch: Outgoing, error: Error, why: str | None) -> None:
        batch.under_way = False
        line = self._lines[batch.partition]
        line.broken = True
        self._leaders.pop(batch.partition, None)
        if time.monotonic() >= batch.deadline:
            last = f"not acknowledged in time, at last {describe(error, why)}"
            raise WriteFailed(Error.REQUEST_TIMED_OUT, batch.partition, last)
        self._mend(line)
        if not line.broken:
            time.sleep(self._cluster.settings.retry_backoff_ms / 1000)

    def _mend(self, line: _Line) -> None:
        if line.broken and not any(batch.under_way for batch in line.batches):
            line.broken = False

    def _lose(self, broker: int, problem: ClientError) -> None:
        """A leader that is gone: nobody knows what it did with what was under way."""
        lane = self._lanes.pop(broker, None)
        lost = [] if lane is None else [batch for request in lane.requests for batch in request]
        if lane is not None:
            lane.connection.close()
        self._order = deque(one for one in self._order if one != broker)
        self._leaders = {tp: leader for tp, leader in self._leaders.items() if leader != broker}
        for batch in lost:
            batch.under_way = False
        for tp in {batch.partition for batch in lost}:
            self._mend(self._lines[tp])
        self._check_deadlines(list(self._lines), problem.message)
        time.sleep(self._cluster.settings.retry_backoff_ms / 1000)

    def _check_deadlines(self, partitions: Iterable[TopicPartition], why: str) -> None:
        for tp in partitions:
            batches = self._lines[tp].batches
            if batches and time.monotonic() >= batches[0].deadline:
                raise WriteFailed(Error.REQUEST_TIMED_OUT, tp, f"not acknowledged in time, at last: {why}")
