"""Fetching ahead: one thread for each broker that leads something we read, and a bounded amount of bytes before the reader.

Guards: what was fetched and is not yet decoded, together with what was asked for, stays within `max_bytes` (a batch that is
larger comes alone); the records of a partition arrive in order and once; a partition whose leader moved or died is looked for
again and goes on where it was, until `default.api.timeout.ms` passes without success, and then its reader is told why.

Life: `start` places the partitions, each `Fetcher` asks for its own until they are done or lost; lost ones go to the finder's
thread, which asks the cluster who leads them now. `close` ends all threads, also those that wait. The reader takes from
`arrived`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple

from ottla.client.admin.offsets import EARLIEST, ISOLATION, LATEST, list_offsets
from ottla.client.bounds import Range
from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.decoding import Slice, split
from ottla.client.errors import PASSING, BrokerUnreachable, ClientError, OffsetOutOfRange, TimedOut, UnknownTopic, describe
from ottla.client.leases import Budget, Buffers, Lease
from ottla.model import Error, TopicPartition, error_of
from ottla.wire.apis.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

_BY_NAME = 12  # the last version of Fetch that names topics
_TRANSACTIONS = 4  # the first that says what was aborted
_ONE_REQUEST = 4 << 20  # bytes asked for at once: they stay in the processor's cache until they are decoded
_LEAST_REQUEST = 64 << 10
_RECORD_BYTES = 1024.0  # until we know better
_ENDLESS = float("inf")
_SHORT_FOR = 5.0  # seconds for which a log may end before what is to be read, before we ask what it has
_MISSING_FOR = 5.0  # seconds for which a topic that is not known may be one that is just coming


@dataclass(slots=True, eq=False)
class Position:
    """How far a partition was fetched, and since when it has no broker that answers."""

    partition: TopicPartition
    offset: int
    end: int | None
    replica: int = -1
    """A broker nearer than the leader, if the leader named one."""
    lost_at: float | None = None
    why: str = ""
    short_since: float | None = None
    """Since when the log seems to end before what is to be read."""
    record_bytes: float = _RECORD_BYTES
    """What a record takes, as far as we have seen."""

    def bytes_left(self) -> float:
        """What is still to come, by the size of what has come: nobody should send megabytes for a hundred records."""
        return _ENDLESS if self.end is None else (self.end - self.offset) * self.record_bytes

    @property
    def done(self) -> bool:
        return self.end is not None and self.offset >= self.end


class Arrival(NamedTuple):
    """What came of a partition. The reader gives `lease` back when it has decoded it."""

    partition: TopicPartition
    view: memoryview
    first: int
    end: int | None
    slice: Slice
    done: bool
    lease: Lease


@dataclass(slots=True)
class Wishes:
    """What a reader wants of every fetch."""

    isolation: str
    max_bytes: int
    wait_ms: int
    leaders_since: float | None = None
    """How old what we know of leaders may be at the start, in seconds."""
    request_bytes: int = field(init=False, default=_ONE_REQUEST)


class Fetching:
    """All fetchers of one reader."""

    def __init__(self, cluster: Cluster, ranges: list[Range], wishes: Wishes) -> None:
        self.cluster = cluster
        self.wishes = wishes
        self.arrived: SimpleQueue[Arrival | ClientError | None] = SimpleQueue()
        self.budget = Budget(wishes.max_bytes)
        self.buffers = Buffers()
        self.closed = False
        self._positions = [Position(*one) for one in ranges]
        self._fetchers: dict[int, Fetcher] = {}
        self._lost: list[Position] = []
        self._changed = threading.Condition()
        self._finder: threading.Thread | None = None

    def start(self) -> int:
        """Begin; how many partitions have something to read."""
        positions = [position for position in self._positions if not position.done]
        wanted = [position.partition for position in positions]
        leaders = self.cluster.leaders(wanted, self.wishes.leaders_since) if positions else {}
        share = self.wishes.max_bytes // (2 * max(len(set(leaders.values())), 1))
        self.wishes.request_bytes = max(min(_ONE_REQUEST, share), _LEAST_REQUEST)
        for position in positions:
            self._place(position, leaders[position.partition])
        return len(positions)

    def close(self) -> None:
        """End all threads. What was fetched and not taken is dropped."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
            fetchers = list(self._fetchers.values())
        self.budget.close()
        for fetcher in fetchers:
            fetcher.close()
        self.arrived.put(None)
        me = threading.current_thread()
        for thread in (*(fetcher.thread for fetcher in fetchers), self._finder):
            if thread is not None and thread is not me:
                thread.join(self.cluster.settings.request_timeout_ms / 1000)

    def lose(self, position: Position, why: str) -> None:
        """A partition whose broker does not serve it (any more)."""
        with self._changed:
            if self.closed:
                return
            if position.lost_at is None:
                position.lost_at = time.monotonic()
            position.why = why
            self._lost.append(position)
            if self._finder is None:
                self._finder = threading.Thread(target=self._find, name="ottla-find-leaders", daemon=True)
                self._finder.start()
            self._changed.notify_all()

    def move(self, position: Position, replica: int) -> None:
        """A partition that another replica serves better."""
        position.replica = replica
        self._place(position, replica)

    def fail(self, problem: ClientError) -> None:
        """Nothing can be read any more: the reader is told."""
        self.arrived.put(problem)

    def _place(self, position: Position, broker: int) -> None:
        with self._changed:
            if self.closed:
                return
            fetcher = self._fetchers.get(broker)
            if fetcher is None:
                fetcher = self._fetchers[broker] = Fetcher(self, broker)
            fetcher.add(position)

    def _find(self) -> None:
        """Ask who leads what was lost, and again a moment later, until somebody does or time is up."""
        settings = self.cluster.settings
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.closed or self._lost)
                if self._changed.wait_for(lambda: self.closed, settings.retry_backoff_ms / 1000):
                    return
                lost, self._lost = self._lost, []
            try:
                infos = self.cluster.topics({position.partition.topic for position in lost})
            except ClientError as problem:
                self._still_lost(lost, problem, isinstance(problem, UnknownTopic))
                continue
            except Exception as problem:
                self.fail(ClientError(Error.UNKNOWN_SERVER_ERROR, f"Who leads is not known: {problem!r}"))
                return
            for position in lost:
                info = infos[position.partition.topic].partitions.get(position.partition.partition)
                if info is None:
                    self._still_lost([position], UnknownTopic(f"Partition {position.partition} does not exist."), True)
                elif info.leader < 0:
                    self._still_lost([position], BrokerUnreachable("it has no leader"), False)
                elif not self._expired(position, settings.api_timeout_ms / 1000):
                    self._place(position, info.leader)

    def _still_lost(self, lost: list[Position], problem: ClientError, missing: bool) -> None:
        limit = self.cluster.settings.api_timeout_ms / 1000
        for position in lost:
            since = time.monotonic() - (position.lost_at or 0)
            if since > min(_MISSING_FOR, limit) if missing else problem.error not in PASSING:
                self.fail(problem)
            elif not self._expired(position, limit):
                self.lose(position, problem.message)

    def _expired(self, position: Position, limit: float) -> bool:
        if position.lost_at is None or time.monotonic() - position.lost_at < limit:
            return False
        self.fail(
            TimedOut(
                f"Partition {position.partition} could not be read from offset {position.offset} for {limit:g} s:"
                f" {position.why}"
            )
        )
        return True


class Fetcher:
    """One broker's thread."""

    def __init__(self, fetching: Fetching, broker: int) -> None:
        self._of = fetching
        self._broker = broker
        self._connection: Connection | None = None
        self._positions: list[Position] = []
        self._changed = threading.Condition()
        self._closed = False
        self._asking = False
        self.thread = threading.Thread(target=self._run, name=f"ottla-fetch-{broker}", daemon=True)
        self.thread.start()

    def add(self, position: Position) -> None:
        with self._changed:
            self._positions.append(position)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._asking and self._connection is not None:
                self._connection.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._asking = False
                self._changed.wait_for(lambda: self._closed or self._positions)
                if self._closed:
                    break
                self._asking = True
            try:
                if not self._fetch():
                    break
            except ClientError as problem:
                if problem.error not in PASSING:
                    self._of.fail(problem)
                    break
                self._lose_all(problem.message)
            except Exception as problem:
                self._of.fail(
                    ClientError(Error.UNKNOWN_SERVER_ERROR, f"Fetching from broker {self._broker} failed: {problem!r}")
                )
                break
        self._disconnect()

    def _disconnect(self) -> None:
        """Another reader of this cluster may go on with the connection, if it is sound."""
        with self._changed:
            connection, self._connection = self._connection, None
        if connection is not None:
            self._of.cluster.give_back(connection)

    def _lose_all(self, why: str) -> None:
        with self._changed:
            if self._connection is not None:
                self._connection.close()
            lost, self._positions = self._positions, []
        self._disconnect()
        for position in lost:
            position.replica = -1
            self._of.lose(position, why)

    def _fetch(self) -> bool:
        """One request and its answer; false when the reader has ended."""
        wishes = self._of.wishes
        if not self._of.budget.take(wishes.request_bytes):
            return False
        lease = Lease(self._of.budget, self._of.buffers, wishes.request_bytes)
        try:
            connection = self._connected()
            with self._changed:
                asked = list(self._positions)
                self._positions = self._positions[1:] + self._positions[:1]  # another one is first in the next answer
            connection.send(self._request(asked), at_least=_TRANSACTIONS if self._committed else 0, at_most=_BY_NAME)
            answer = connection.receive(lease.room)
            assert isinstance(answer, FetchResponse)
            if answer.error_code != Error.NONE:
                raise ClientError(
                    error_of(answer.error_code), f"Broker {self._broker} does not serve fetches: {describe(answer.error_code)}"
                )
            by_name = {position.partition: position for position in asked}
            for topic in answer.responses:
                for data in topic.partitions:
                    position = by_name.get(TopicPartition(topic.topic, data.partition_index))
                    if position is not None:
                        self._take(position, data, lease)
        finally:
            lease.release()
        return True

    @property
    def _committed(self) -> bool:
        return self._of.wishes.isolation == "read_committed"

    def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or connection.closed:
            self._disconnect()
            connection = self._of.cluster.borrow(self._broker)
            with self._changed:
                self._connection = connection
                if self._closed:
                    connection.close()
        return connection

    def _request(self, asked: list[Position]) -> FetchRequest:
        wishes, settings = self._of.wishes, self._of.cluster.settings
        share = min(max(wishes.request_bytes // len(asked), 1 << 20), wishes.request_bytes)
        topics: dict[str, list[FetchPartition]] = {}
        for position in asked:
            most = int(min(max(position.bytes_left(), _LEAST_REQUEST), share))
            wanted = FetchPartition(
                partition=position.partition.partition, fetch_offset=position.offset, partition_max_bytes=most
            )
            topics.setdefault(position.partition.topic, []).append(wanted)
        return FetchRequest(
            max_wait_ms=wishes.wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=wishes.request_bytes,
            isolation_level=ISOLATION[wishes.isolation],
            topics=[FetchTopic(topic=name, partitions=wanted) for name, wanted in topics.items()],
            rack_id=settings.rack,
        )

    def _take(self, position: Position, data: PartitionData, lease: Lease) -> None:
        error = error_of(data.error_code)
        if error is Error.OFFSET_OUT_OF_RANGE and position.replica < 0:
            self._drop(position)
            earliest, latest = self._bounds(position)
            if position.offset == latest:  # a leader that has just begun, and is not yet sure of its own end
                self._of.lose(position, describe(error))
            else:
                self._of.fail(OffsetOutOfRange(position.partition, position.offset, earliest, latest))
        elif error is not Error.NONE:
            self._drop(position)
            if error in PASSING or error in (Error.UNKNOWN_TOPIC_OR_PARTITION, Error.OFFSET_OUT_OF_RANGE):
                position.replica = -1
                self._of.lose(position, describe(error))
            else:
                self._of.fail(ClientError(error, f"Partition {position.partition} cannot be read: {describe(error)}"))
        elif data.preferred_read_replica >= 0 and data.preferred_read_replica != self._broker:
            self._drop(position)
            self._of.move(position, data.preferred_read_replica)
        else:
            position.lost_at = None
            self._arrived(position, data, lease)

    def _arrived(self, position: Position, data: PartitionData, lease: Lease) -> None:
        view = data.records
        if not view:
            self._look_for(position, data.high_watermark)
            return
        position.short_since = None
        aborted = None
        if self._committed:
            aborted = [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]
        crcs = self._of.cluster.settings.check_crcs
        found = split(position.partition, view, position.offset, aborted, end=position.end, check_crcs=crcs)
        if position.end is not None and found.next_offset >= position.end:  # what is wrong is behind all that was asked for
            found = found._replace(problem=None)
        first, position.offset = position.offset, found.next_offset
        position.record_bytes = 1.25 * len(view) / max(found.next_offset - first, 1)
        if position.done or found.problem is not None:
            self._drop(position)
        if found.next_offset > first or found.problem is not None:
            lease.share()
            self._of.arrived.put(Arrival(position.partition, view, first, position.end, found, position.done, lease))
        else:  # only brokers that speak Fetch below version 3 send a piece of a batch and nothing else
            self._drop(position)
            what = f"The batch at offset {first} of partition {position.partition} is larger than a fetch may be"
            self._of.fail(ClientError(Error.RECORD_LIST_TOO_LARGE, f"{what}: raise max_bytes."))

    def _look_for(self, position: Position, high_watermark: int) -> None:
        """Nothing came of records that should be there: others filled the answer, a leader that has just begun is not yet sure
        of its own end, or the log has been cut."""
        if position.end is None or position.end <= high_watermark:
            position.short_since = None
            return
        now = time.monotonic()
        if position.short_since is None:
            position.short_since = now
        if now - position.short_since < _SHORT_FOR:
            return
        position.short_since = None
        earliest, latest = self._bounds(position)
        if position.end > latest:
            self._drop(position)
            self._of.fail(OffsetOutOfRange(position.partition, position.end, earliest, latest))

    def _bounds(self, position: Position) -> tuple[int, int]:
        earliest, latest = (
            list_offsets(self._of.cluster, {position.partition: end})[position.partition] for end in (EARLIEST, LATEST)
        )
        return earliest, latest

    def _drop(self, position: Position) -> None:
        with self._changed:
            if position in self._positions:
                self._positions.remove(position)
