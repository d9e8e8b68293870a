"""Filters that Spark hands down, as bounds on what is fetched: topics, partitions, offsets, and times from below.

Guards: a filter only ever leaves out records that it would drop. Spark evaluates all of them again, so what is not understood
here costs time and nothing else. An upper bound on the timestamp is not one on the offset, because producers choose
timestamps: only the lower bound is used (no record before the first that is late enough can be late enough).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from ottla.client import TopicPartition
from ottla.spark.offsets import OffsetRange

_NEVER = 1 << 63
_T = TypeVar("_T")


@dataclass(slots=True)
class Narrowed:
    """What is left to read after the filters."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    lowest_partition: int = 0
    highest_partition: int = _NEVER
    first_offset: int = 0
    end_offset: int = _NEVER
    from_time_ms: int | None = None

    def wants(self, tp: TopicPartition) -> bool:
        """Whether a partition can hold records that pass."""
        return (
            (self.topics is None or tp.topic in self.topics)
            and (self.partitions is None or tp.partition in self.partitions)
            and self.lowest_partition <= tp.partition <= self.highest_partition
        )

    def cut(self, whole: OffsetRange, from_offset: int) -> OffsetRange:
        """The part of a range that can; `from_offset` is where the time begins."""
        start = max(whole.start, self.first_offset, from_offset)
        return OffsetRange(whole.partition, start, max(min(whole.end, self.end_offset), start))


def narrow(filters: Iterable[Filter]) -> Narrowed:
    """What filters that hold all together leave."""
    left = Narrowed()
    for one in filters:
        match one:
            case EqualTo(attribute=("topic",), value=str(value)):
                left.topics = _both(left.topics, frozenset({value}))
            case In(attribute=("topic",), value=values):
                left.topics = _both(left.topics, frozenset(values))
            case EqualTo(attribute=("partition",), value=int(value)):
                left.partitions = _both(left.partitions, frozenset({value}))
            case In(attribute=("partition",), value=values):
                left.partitions = _both(left.partitions, frozenset(values))
            case (
                GreaterThan(attribute=(column,), value=value)
                | GreaterThanOrEqual(attribute=(column,), value=value)
                | LessThan(attribute=(column,), value=value)
                | LessThanOrEqual(attribute=(column,), value=value)
                | EqualTo(attribute=(column,), value=value)
            ):
                _compare(left, one, column, value)
            case _:
                pass
    return left


def _compare(left: Narrowed, one: Filter, column: str, value: object) -> None:
    at_least = isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo)
    at_most = isinstance(one, LessThan | LessThanOrEqual | EqualTo)
    if isinstance(value, datetime.datetime) and column == "timestamp" and at_least:
        aware = value if value.tzinfo is not None else value.astimezone()
        since = int(aware.timestamp() * 1000)
        left.from_time_ms = since if left.from_time_ms is None else max(left.from_time_ms, since)
    elif isinstance(value, int) and column in ("partition", "offset"):
        first = value + 1 if isinstance(one, GreaterThan) else value
        last = value - 1 if isinstance(one, LessThan) else value
        if column == "partition":
            left.lowest_partition = max(left.lowest_partition, first) if at_least else left.lowest_partition
            left.highest_partition = min(left.highest_partition, last) if at_most else left.highest_partition
        else:
            left.first_offset = max(left.first_offset, first) if at_least else left.first_offset
            left.end_offset = min(left.end_offset, last + 1) if at_most else left.end_offset


def _both(known: frozenset[_T] | None, more: frozenset[_T]) -> frozenset[_T]:
    return more if known is None else known & more
