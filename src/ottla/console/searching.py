"""Searching a topic: whole Arrow columns are compared at once, forwards from a place or backwards from the end.

Guards: no Python object is made for a record that does not match; what is read ahead is bounded, so memory stays flat however
long the topic is; who stops listening ends the search within a quarter of a second. Backwards goes in windows that grow from
the end to the start: the newest hits come first, without a pass over all that is older.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.admin.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, find_offsets, list_offsets
from ottla.client.cluster import Cluster
from ottla.client.decoding import SCHEMA
from ottla.client.reading import Reader, read
from ottla.console.asking import BadRequest
from ottla.console.payloads import row
from ottla.model import TopicPartition

FIELDS = ("key", "value", "headers")
MODES = ("contains", "exact", "regex")
MAX_BYTES = 2 << 20
"""Read ahead at most: enough to keep the kernel busy, and little beside what the process has anyway."""
COLUMNS = ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers")
# Windows of a search backwards, in messages of each partition. A broker hands out whole batches: with many partitions even a
# small window costs as much as a batch of each, so it has to be worth that.
_FEW_PARTITIONS = 16
_SHARE_OF_FEW, _FAST = 2_000, 8
_SHARE_OF_MANY, _FASTER = 200, 32
_LARGEST_SHARE = 2_000_000
_SORTED_UP_TO = 200_000
_TELL_EVERY = 0.25


@dataclass(frozen=True, slots=True)
class Filter:
    """What a record must hold. Without words everything matches."""

    words: str = ""
    fields: tuple[str, ...] = FIELDS
    mode: str = "contains"
    ignore_case: bool = True

    def check(self) -> None:
        """Refuse what cannot be searched for, before anything is read."""
        if self.mode not in MODES or not set(self.fields) <= set(FIELDS) or not self.fields:
            raise BadRequest(f"A search is by {', '.join(MODES)}, in {', '.join(FIELDS)}.")
        try:
            self._match(pa.array([b""], pa.binary()))
        except pa.ArrowInvalid as problem:
            raise BadRequest(f"{self.words!r} is not a regular expression: {str(problem).rpartition(': ')[2]}.") from None

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records that match."""
        if not self.words or not batch.num_rows:
            return batch
        found = None
        for name in self.fields:
            column = batch.column(name)
            mask = self._in_headers(column) if name == "headers" else pc.fill_null(self._match(column), False)
            found = mask if found is None else pc.or_(found, mask)
        return batch.filter(found)

    def _match(self, column: pa.Array) -> pa.Array:
        if self.mode == "regex":
            return pc.match_substring_regex(column, self.words, ignore_case=self.ignore_case)
        if self.mode == "exact" and not self.ignore_case:
            return pc.equal(column, pa.scalar(self.words.encode(), column.type))
        if self.mode == "exact":
            return pc.match_substring_regex(column, f"\\A{_quoted(self.words)}\\z", ignore_case=True)
        return pc.match_substring(column, self.words, ignore_case=self.ignore_case)

    def _in_headers(self, column: pa.Array) -> pa.Array:
        """Whether any name or value of a record's headers matches."""
        pairs = pc.list_flatten(column)
        hit = pc.or_(
            pc.fill_null(self._match(pairs.field("key").cast(pa.binary())), False),
            pc.fill_null(self._match(pairs.field("value")), False),
        )
        rows = pc.filter(pc.list_parent_indices(column), hit)
        return pc.is_in(_numbers(len(column)), value_set=rows.cast(pa.int64()))


def _numbers(count: int) -> pa.Array:
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=-1)


def _quoted(words: str) -> str:
    return "".join(char if char.isalnum() or ord(char) > 127 else f"\\{char}" for char in words)


class Span(NamedTuple):
    """What is to be searched of a partition: from the first offset to before the last."""

    first: int
    last: int


Place = tuple[int, int]
"""Partition and offset."""

Spans = Mapping[TopicPartition, Span]
Tell = Callable[[str, Mapping[str, Any]], None]
"""Takes an event; raises when nobody listens any more."""


def all_of(cluster: Cluster, topic: str, partitions: Sequence[int] | None, isolation: str) -> dict[TopicPartition, Span]:
    """Everything that the partitions have now, or all partitions of the topic. What is not committed may be beyond the end."""
    numbers = sorted(cluster.topic(topic, fresh=True).partitions)
    unknown = set(partitions or ()) - set(numbers)
    if unknown:
        raise BadRequest(f"Partition {min(unknown)} does not exist: the topic has {len(numbers)} partitions, from 0 on.")
    wanted = [TopicPartition(topic, number) for number in partitions or numbers]
    lowest = list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    highest = list_offsets(cluster, dict.fromkeys(wanted, LATEST), isolation)
    return {tp: Span(lowest[tp], max(lowest[tp], highest[tp])) for tp in wanted}


def from_offset(spans: Spans, offset: int) -> dict[TopicPartition, Span]:
    """What is at an offset or behind it, in each partition."""
    return {tp: Span(min(max(span.first, offset), span.last), span.last) for tp, span in spans.items()}


def from_time(cluster: Cluster, spans: Spans, milliseconds: int) -> dict[TopicPartition, Span]:
    """What is at least as late, in each partition."""
    found = list_offsets(cluster, dict.fromkeys(spans, milliseconds))
    return {
        tp: Span(min(max(span.first, found[tp] if found[tp] >= 0 else span.last), span.last), span.last)
        for tp, span in spans.items()
    }


class Search:
    """One search. Tells of `hits` and `progress`; what is left when it has found enough is in `left`."""

    def __init__(
        self,
        cluster: Cluster,
        spans: Spans,
        wanted: Filter,
        limit: int,
        tell: Tell,
        isolation: str,
        told: Iterable[Place] = (),
    ) -> None:
        self.left: dict[TopicPartition, Span] = dict(spans)
        self.told: set[Place] = set(told)
        """Hits within what is left that the page has already: of searches that this one goes on with."""
        self._cluster = cluster
        self._wanted = wanted
        self._limit = limit
        self._tell = tell
        self._isolation = isolation
        self._total = sum(span.last - span.first for span in spans.values())
        self._begun = self._told = time.monotonic()
        self._read = 0
        self._last_shown = 0
        self.found = 0

    def forwards(self) -> None:
        """From the first offset on, all partitions side by side."""
        with self._reader(self.left) as reader:
            for batch in self._batches(reader, self.left):
                hits = self._wanted.of(batch)
                self._give(hits.slice(0, self._limit - self.found))
                if self.found >= self._limit:
                    self._stop_at(reader, batch, hits)
                    break
        self._progress()

    def _stop_at(self, reader: Reader, batch: pa.RecordBatch, hits: pa.RecordBatch) -> None:
        """Go on behind the last hit that was told of, where hits of the batch are left, and behind the batch elsewhere."""
        for tp, position in reader.positions.items():
            self.left[tp] = Span(min(position, self.left[tp].last), self.left[tp].last)
        if hits.num_rows:
            shown = hits.slice(0, self._last_shown)
            tp = TopicPartition(next(iter(self.left)).topic, batch.column("partition")[0].as_py())
            self.left[tp] = Span(shown.column("offset")[shown.num_rows - 1].as_py() + 1, self.left[tp].last)

    def backwards(self) -> None:
        """From the end to the start, in windows that grow: the newest hits come first.

        A window that is read in no time is sorted before it is told of. The hits of a large one come as they are found, and
        where there are too many the rest of them is left for the next search, which knows what was told already.
        """
        many = len(self.left) > _FEW_PARTITIONS
        share = _SHARE_OF_MANY if many else _SHARE_OF_FEW
        if not self._wanted.words:
            share = self._limit if not many else max(2 * self._limit // len(self.left), 1)
        while any(span.last > span.first for span in self.left.values()) and self.found < self._limit:
            chosen = self.left if self._wanted.words else self._latest(self.left)
            spans = {tp: Span(max(span.first, span.last - share), span.last) for tp, span in chosen.items()}
            if sum(span.last - span.first for span in spans.values()) <= _SORTED_UP_TO:
                self._sorted(spans)
            else:
                self._streamed(spans)
            share = min(share * (_FASTER if many else _FAST), _LARGEST_SHARE)
        self._progress()

    def _latest(self, spans: Spans) -> Spans:
        """Of very many partitions, as many as there are messages wanted: those that were written to last."""
        open_spans = {tp: span for tp, span in spans.items() if span.last > span.first}
        if len(open_spans) <= self._limit:
            return open_spans
        found = find_offsets(self._cluster, dict.fromkeys(open_spans, MAX_TIMESTAMP))
        newest = sorted(open_spans, key=lambda tp: -found[tp].timestamp)[: self._limit]
        return {tp: open_spans[tp] for tp in newest}

    def _sorted(self, spans: Spans) -> None:
        hits: list[dict[str, Any]] = []
        matched = 0
        with self._reader(spans) as reader:
            for batch in self._batches(reader, spans):
                found = self._wanted.of(batch)
                matched += found.num_rows
                hits += records(found.slice(max(found.num_rows - self._limit, 0)))
                if len(hits) > 4 * self._limit:
                    hits = sorted(hits, key=_newest_first)[: self._limit]
        told = sorted(hits, key=_newest_first)[: self._limit - self.found]
        self.found += len(told)
        # What was cut off is found again: below the oldest that was told of a partition, or in the whole window.
        cut = len(told) < matched
        for tp, span in spans.items():
            offsets = [one["offset"] for one in told if one["partition"] == tp.partition]
            last = span.first if not cut else min(offsets, default=span.last)
            self.left[tp] = Span(self.left[tp].first, last)
        if told:
            self._tell("hits", {"rows": [row(one) for one in told]})

    def _streamed(self, spans: Spans) -> None:
        told: set[Place] = set()
        with self._reader(spans) as reader:
            for batch in self._batches(reader, spans):
                found = self._wanted.of(batch)
                hits = [one for one in records(found.slice(0, 2 * self._limit)) if place_of(one) not in self.told]
                some = hits[: self._limit - self.found]
                if some:
                    self.found += len(some)
                    told |= {place_of(one) for one in some}
                    self._tell("hits", {"rows": [row(one) for one in some]})
                if self.found >= self._limit:
                    self.told |= told
                    return  # the whole window is left, but for what was told of
        self.told.clear()
        for tp, span in spans.items():
            self.left[tp] = Span(self.left[tp].first, span.first)

    # ---- reading ---------------------------------------------------------------------------------------------------------

    def _reader(self, spans: Spans) -> Reader:
        topic = next(iter(spans)).topic
        starts = {tp.partition: span.first for tp, span in spans.items() if span.last > span.first}
        ends = {tp.partition: span.last for tp, span in spans.items() if span.last > span.first}
        return read(topic, starts, ends, cluster=self._cluster, columns=COLUMNS, isolation=self._isolation, max_bytes=MAX_BYTES)

    def _batches(self, reader: Reader, spans: Spans) -> Iterable[pa.RecordBatch]:
        before = self._read
        while True:
            batch = reader.poll(_TELL_EVERY)
            done = sum(reader.positions[tp] - span.first for tp, span in spans.items() if tp in reader.positions)
            self._read = before + done
            if time.monotonic() - self._told >= _TELL_EVERY:
                self._progress()
            if batch is not None:
                yield batch
            elif reader.at_end:
                return

    def _give(self, hits: pa.RecordBatch) -> None:
        self._last_shown = hits.num_rows
        if hits.num_rows:
            self.found += hits.num_rows
            self._tell("hits", {"rows": [row(one) for one in records(hits)]})

    def _progress(self) -> None:
        self._told = time.monotonic()
        seconds = self._told - self._begun
        self._tell(
            "progress",
            {"read": self._read, "total": self._total, "found": self.found, "seconds": round(seconds, 2)},
        )


def place_of(record: Mapping[str, Any]) -> Place:
    return record["partition"], record["offset"]


def _newest_first(record: Mapping[str, Any]) -> tuple[int, int, int]:
    return -record["time"], record["partition"], -record["offset"]


def records(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Records as dicts, with the time in milliseconds: only for those that are shown."""
    if not batch.num_rows:
        return []
    times = pc.divide(batch.column("timestamp").cast(pa.int64()), 1000)
    at = batch.schema.get_field_index("timestamp")
    found: list[dict[str, Any]] = batch.set_column(at, "time", times).to_pylist()
    return found


def give_back() -> None:
    """After much was read, what the allocators still hold goes back to the machine: the console is idle most of the time."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def one_record(cluster: Cluster, tp: TopicPartition, offset: int) -> dict[str, Any] | None:
    """One record whole; None where there is none any more at that offset."""
    with read(tp.topic, {tp.partition: offset}, {tp.partition: offset + 1}, cluster=cluster, columns=COLUMNS) as reader:
        for batch in reader:
            for record in records(batch):
                return record
    return None


def written(key: bytes | None, value: bytes | None, partition: int | None, headers: list[tuple[str, bytes | None]]) -> pa.Table:
    """A table of one record, as `ottla.client.write` takes it."""
    columns: dict[str, Any] = {
        "key": pa.array([key], pa.binary()),
        "value": pa.array([value], pa.binary()),
        "headers": pa.array([[{"key": name, "value": data} for name, data in headers]], SCHEMA.field("headers").type),
    }
    if partition is not None:
        columns["partition"] = pa.array([partition], pa.int32())
    return pa.table(columns)
