"""Reading topics as Arrow: `read` from here to there, `tail` from here on.

A `Reader` is an iterator of record batches that fetches ahead in threads (`fetching`) and decodes in the caller's
(`decoding`). A record batch holds records of one partition, in order; batches of several partitions come as they arrive.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from ottla.client.bounds import Bounds, Range, resolve
from ottla.client.cluster import Cluster, as_cluster
from ottla.client.decoding import COLUMNS, Decoder, schema_of
from ottla.client.errors import ClientError, InvalidSetting
from ottla.client.fetching import Arrival, Fetching, Wishes
from ottla.client.settings import Settings
from ottla.model import TopicPartition

MAX_BYTES = 64 << 20
"""What a reader fetches ahead at most, unless it is told otherwise."""

_FEW_PARTITIONS = 16
_LEADERS_FOR = 30.0
"""Seconds for which a leader is asked that we knew; one that leads no more says so."""


class Reader(Iterator[pa.RecordBatch]):
    """Record batches of one or several partitions. Also a context; closed by itself at the end or on an error."""

    def __init__(
        self,
        cluster: Cluster,
        ranges: list[Range],
        columns: Sequence[str],
        wishes: Wishes,
        *,
        own_cluster: bool = False,
    ) -> None:
        self.schema = schema_of(columns)
        self.ranges = {one.partition: one for one in ranges}
        """What was asked for, in offsets."""
        self.positions = {one.partition: one.start for one in ranges}
        """The next offset of each partition, as far as it was handed out."""
        self._cluster = cluster
        self._own_cluster = own_cluster
        # A thousand partitions that each keep the columns of their last batch would keep more than all that is under way.
        shared: dict[str, object] | None = {} if len(ranges) > _FEW_PARTITIONS else None
        self._decoders = {one.partition: Decoder(one.partition, columns, shared) for one in ranges}
        self._ready: Iterator[pa.RecordBatch] = iter(())
        self._fetching = Fetching(cluster, ranges, wishes)
        self._closed = False
        try:
            self._left = self._fetching.start()
        except BaseException:
            self.close()
            raise

    def __next__(self) -> pa.RecordBatch:
        batch = self.poll(None)
        if batch is None:
            raise StopIteration
        return batch

    def poll(self, timeout: float | None = 0.0) -> pa.RecordBatch | None:
        """The next record batch, or None when `timeout` seconds brought none or there are no more (`at_end` tells)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            for batch in self._ready:
                return batch
            if self.at_end:
                self.close()
                return None
            try:
                arrival = self._fetching.arrived.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0))
            except queue.Empty:
                return None
            if isinstance(arrival, ClientError):
                self.close()
                raise arrival
            if arrival is not None:
                self._ready = self._open(arrival)

    @property
    def at_end(self) -> bool:
        """Whether everything that was asked for was handed out, or the reader was closed."""
        return self._closed or self._left == 0

    def table(self) -> pa.Table:
        """All that is left to read, in memory."""
        return pa.Table.from_batches(self, schema=self.schema)

    def arrow(self) -> pa.RecordBatchReader:
        """The same as Arrow's own reader, which many libraries take."""
        return pa.RecordBatchReader.from_batches(self.schema, self)

    @property
    def peak_bytes(self) -> int:
        """The most that was under way at once."""
        return self._fetching.budget.peak

    def close(self) -> None:
        """End, from any thread: whoever waits for the next batch gets none."""
        self._closed = True
        self._fetching.close()
        if self._own_cluster:
            self._cluster.close()

    stop = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed") and not self._closed:
            self.close()

    def _open(self, arrival: Arrival) -> Iterator[pa.RecordBatch]:
        """Decode; the last record batch is handed out after the arrival was given back, so that it is not held up by it."""
        decoder = self._decoders[arrival.partition]
        last: pa.RecordBatch | None = None
        try:
            for batch in decoder.decode(arrival.view, arrival.slice.parts, arrival.first, arrival.end):
                if last is not None:
                    yield last
                last = batch
        except ClientError as problem:
            yield from self._end_with(last, problem)
        finally:
            arrival.lease.release()
        if arrival.slice.problem is not None:
            yield from self._end_with(last, arrival.slice.problem)
        end = arrival.slice.next_offset
        self.positions[arrival.partition] = end if arrival.end is None else min(end, arrival.end)
        if arrival.done:
            self._left -= 1
        if last is not None:
            yield last

    def _end_with(self, last: pa.RecordBatch | None, problem: ClientError) -> Iterator[pa.RecordBatch]:
        """What is sound before it, and then the problem."""
        if last is not None:
            yield last
        self.close()
        raise problem


def read(
    topic: str | Sequence[str],
    start: Bounds = "earliest",
    end: Bounds = "latest",
    *,
    cluster: Cluster | Settings | Mapping[str, object] | str,
    partitions: Sequence[int] | None = None,
    columns: Sequence[str] = COLUMNS,
    isolation: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Reader:
    """Read a topic (or several) from `start` to `end`, as they are now, and stop there.

    `cluster` is a `Cluster`, settings under Kafka's names, or `HOST:PORT`. `start` and `end` are `earliest`, `latest`, an
    offset, a datetime or `At(milliseconds)`, for all partitions or in a mapping for each; what a mapping for `start` does not
    name is not read. `isolation="read_committed"` leaves out what transactions did not commit.
    """
    return _reader(topic, start, end, cluster, partitions, columns, isolation, max_bytes)


def read_known(
    ranges: Mapping[TopicPartition, tuple[int, int]],
    *,
    cluster: Cluster,
    columns: Sequence[str] = COLUMNS,
    isolation: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Reader:
    """Read ranges of offsets that the logs were seen to have, from the first to before the last, without asking again.

    A log that lacks them by now is noticed on the way, and raises what `read` would have raised at once.
    """
    schema_of(columns)
    chosen = _isolation(cluster, isolation)
    wishes = Wishes(chosen, max_bytes, cluster.settings.fetch_wait_ms, leaders_since=_LEADERS_FOR)
    return Reader(cluster, [Range(tp, *bounds) for tp, bounds in ranges.items()], columns, wishes)


def tail(
    topic: str | Sequence[str],
    start: Bounds = "latest",
    *,
    cluster: Cluster | Settings | Mapping[str, object] | str,
    partitions: Sequence[int] | None = None,
    columns: Sequence[str] = COLUMNS,
    isolation: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Reader:
    """Read a topic from `start` on, for ever: until the reader is closed, from whichever thread."""
    return _reader(topic, start, None, cluster, partitions, columns, isolation, max_bytes)


def _reader(
    topic: str | Sequence[str],
    start: Bounds,
    end: Bounds | None,
    given: Cluster | Settings | Mapping[str, object] | str,
    partitions: Sequence[int] | None,
    columns: Sequence[str],
    isolation: str | None,
    max_bytes: int,
) -> Reader:
    schema_of(columns)
    cluster = as_cluster(given)
    try:
        chosen = _isolation(cluster, isolation)
        ranges = resolve(cluster, topic, start, end, partitions, chosen)
        wishes = Wishes(chosen, max_bytes, cluster.settings.fetch_wait_ms)
        return Reader(cluster, ranges, columns, wishes, own_cluster=cluster is not given)
    except BaseException:
        if cluster is not given:
            cluster.close()
        raise


def _isolation(cluster: Cluster, given: str | None) -> str:
    chosen = given or cluster.settings.isolation
    if chosen not in ("read_committed", "read_uncommitted"):
        raise InvalidSetting(f"{chosen!r} is not an isolation: allowed are read_committed and read_uncommitted.")
    return chosen


__all__ = ["MAX_BYTES", "Reader", "TopicPartition", "read", "read_known", "tail"]
