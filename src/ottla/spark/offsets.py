"""What a query reads next, decided from numbers alone: ranges of offsets, how they are split and limited, and what is lost.

Guards: ranges cover each offset between two positions once; a limit never stalls a partition that has records; records that
should be there and are not are found and named, never passed over. Nothing here asks a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from ottla.client import TopicPartition

_IDS = "@ids"  # no topic may have this name


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream is: the next offset of each partition, and which topics those are (by id, where the cluster has ids)."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)


class OffsetRange(NamedTuple):
    """What one task reads: from `start` up to and without `end`."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Loss(NamedTuple):
    """Records that were to be read and are not there."""

    partition: TopicPartition
    what: str

    def __str__(self) -> str:
        return f"Partition {self.partition}: {self.what}"


# ---- positions as Spark keeps them ---------------------------------------------------------------------------------------


def to_json(position: Position) -> dict[str, Any]:
    """As Spark's Kafka source writes its offsets, and the topics' ids beside them."""
    written: dict[str, Any] = {}
    for tp in sorted(position.offsets):
        written.setdefault(tp.topic, {})[str(tp.partition)] = position.offsets[tp]
    if position.ids:
        written[_IDS] = dict(sorted(position.ids.items()))
    return written


def from_json(written: Mapping[str, Any]) -> Position:
    """The other way round."""
    offsets = {
        TopicPartition(topic, int(number)): int(offset)
        for topic, some in written.items()
        if topic != _IDS
        for number, offset in some.items()
    }
    return Position(offsets, dict(written.get(_IDS, {})))


def is_position(written: Any) -> bool:
    """Whether this is a position of ours, and not the offset of another kind of source."""
    if not isinstance(written, dict) or not written:
        return False
    for topic, some in written.items():
        if not isinstance(some, dict):
            return False
        if topic != _IDS and not all(key.isdigit() and isinstance(value, int) for key, value in some.items()):
            return False
    return True


# ---- what is lost --------------------------------------------------------------------------------------------------------


def lost_since(start: Position, latest: Position, is_meant: Callable[[TopicPartition], bool] = lambda _: True) -> list[Loss]:
    """What a look at the cluster shows to be gone, of what a stream has read up to `start`; `is_meant` knows what it reads."""
    losses = []
    for tp, offset in sorted(start.offsets.items()):
        if not is_meant(tp):
            what = (
                f"it is in the checkpoint, up to offset {offset}, but this query does not read it: give the query a"
                " checkpointLocation of its own if this is another query's."
            )
            losses.append(Loss(tp, what))
        elif tp not in latest.offsets:
            losses.append(Loss(tp, f"it does not exist any more; it was read up to offset {offset}."))
        elif is_new_topic(start, latest, tp.topic):
            losses.append(Loss(tp, f"its topic was deleted and made anew; the old one was read up to offset {offset}."))
        elif latest.offsets[tp] < offset:
            ends = latest.offsets[tp]
            what = f"it was read up to offset {offset}, but its log ends at {ends} now: it was truncated or made anew."
            losses.append(Loss(tp, what))
    return losses


def is_new_topic(start: Position, end: Position, topic: str) -> bool:
    """Whether a topic has the same name as before, and is another one."""
    before, now = start.ids.get(topic), end.ids.get(topic)
    return before is not None and now is not None and before != now


def plan(
    start: Position, end: Position, earliest: Mapping[TopicPartition, int], ids: Mapping[str, str] | None = None
) -> tuple[list[OffsetRange], list[Loss]]:
    """The range of each partition between two positions, and what cannot be read of it.

    A partition that is new, or of a topic made anew, is read from its beginning. `ids` are those of the topics as they are: one
    made anew since `end` was noted has other records at these offsets, and nothing of it is read.
    """
    ranges, losses = [], []
    now = Position(ids=ids or {})
    for tp, last in sorted(end.offsets.items()):
        known = tp in start.offsets and not is_new_topic(start, end, tp.topic)
        if is_new_topic(end, now, tp.topic):
            if not known or start.offsets[tp] < last:
                what = f"its topic was deleted and made anew; offsets up to {last} of the old one were to be read."
                losses.append(Loss(tp, what))
            continue
        if tp not in earliest:
            if not known or start.offsets[tp] < last:
                losses.append(Loss(tp, f"it does not exist any more; offsets up to {last} were to be read."))
            continue
        first = start.offsets[tp] if known else 0
        begins = earliest[tp]
        if first < begins and first < last:
            gone = min(begins, last) - 1
            what = (
                f"offsets {first} to {gone} are gone, its log begins at {begins} now: they were deleted before they were read."
            )
            losses.append(Loss(tp, what))
        if max(first, begins) < last:
            ranges.append(OffsetRange(tp, max(first, begins), last))
    return ranges, losses


# ---- how much ------------------------------------------------------------------------------------------------------------


def limited(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Where to stop so that about `limit` records are read: every partition gets its share, and at least one record."""
    sizes = {tp: max(end - starts.get(tp, 0), 0) for tp, end in ends.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    stops = {}
    for tp, end in ends.items():
        share = limit * sizes[tp] / total
        stops[tp] = min(end, starts.get(tp, 0) + (math.ceil(share) if share < 1 else math.floor(share))) if sizes[tp] else end
    return stops


def limited_by_bytes(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    bytes_per_record: Mapping[TopicPartition, float],
    limit: int,
) -> dict[TopicPartition, int]:
    """Where to stop so that about `limit` bytes are read, by the size that records have where each partition begins."""
    sizes = {tp: max(end - starts.get(tp, 0), 0) * bytes_per_record.get(tp, 1.0) for tp, end in ends.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    stops = {}
    for tp, end in ends.items():
        share = limit * sizes[tp] / total / max(bytes_per_record.get(tp, 1.0), 1.0)
        stops[tp] = min(end, starts.get(tp, 0) + max(math.floor(share), 1)) if sizes[tp] else end
    return stops


def split(ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """Cut large ranges: into pieces of at most `max_records`, and at least `min_partitions` if there are enough records."""
    whole = [one for one in ranges if one.size > 0]
    pieces = whole
    if max_records is not None:
        pieces = [piece for one in whole for piece in _cut(one, math.ceil(one.size / max_records))]
    if min_partitions is None or len(pieces) >= min_partitions or not pieces:
        return pieces
    total = sum(one.size for one in pieces)
    counts = [max(1, math.floor(min_partitions * one.size / total)) for one in pieces]
    missing = min_partitions - sum(counts)
    by_size = sorted(range(len(pieces)), key=lambda at: pieces[at].size / counts[at], reverse=True)
    for at in by_size * (missing // len(pieces) + 1):
        if missing <= 0:
            break
        counts[at] += 1
        missing -= 1
    return [piece for one, count in zip(pieces, counts, strict=True) for piece in _cut(one, count)]


def gather(pieces: Sequence[OffsetRange], least: int) -> list[tuple[OffsetRange, ...]]:
    """What each task reads: small ranges share one until it has `least` records. The same ranges are always shared alike."""
    tasks: list[tuple[OffsetRange, ...]] = []
    waiting: list[OffsetRange] = []
    records = 0
    for piece in pieces:
        waiting.append(piece)
        records += piece.size
        if records >= least:
            tasks.append(tuple(waiting))
            waiting, records = [], 0
    return [*tasks, tuple(waiting)] if waiting else tasks


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(max(count, 1), whole.size)
    edges = [whole.start + whole.size * at // count for at in range(count + 1)]
    return [OffsetRange(whole.partition, first, last) for first, last in pairwise(edges)]
