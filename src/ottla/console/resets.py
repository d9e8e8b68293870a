"""What a reset of offsets would do, before it is done. Pure.

Guards: a plan names each partition with what is committed now and what would be; new offsets stay within the log, as with
Apache Kafka's tool. Who carries it out makes sure that what is committed is still what the plan was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ottla.model import TopicPartition

STRATEGIES = ("earliest", "latest", "offset", "shift", "time", "ago")
"""To an end of the log, to an offset, by so many, to the first record of a time, or to that of so many milliseconds ago."""


class Ends(NamedTuple):
    """What a log has: the first offset, and the next one."""

    earliest: int
    latest: int


class Step(NamedTuple):
    """One partition of a plan. Without `now` nothing was committed; without `new` what was committed is deleted."""

    partition: TopicPartition
    now: int | None
    new: int | None


def plan(
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, Ends],
    target: Callable[[TopicPartition, int | None, Ends], int | None],
) -> list[Step]:
    """The steps for these partitions. `target` says where one should go, from where it is; None leaves it out."""
    steps = []
    for tp in partitions:
        wanted = target(tp, committed.get(tp), ends[tp])
        if wanted is not None:
            low, high = ends[tp]
            steps.append(Step(tp, committed.get(tp), min(max(wanted, low), high)))
    return steps


def target_of(
    strategy: str, value: int, by_time: Mapping[TopicPartition, int]
) -> Callable[[TopicPartition, int | None, Ends], int | None]:
    """Where a strategy leads. `by_time` holds the offsets of a time, -1 where no record is that late."""

    def target(tp: TopicPartition, now: int | None, ends: Ends) -> int | None:
        match strategy:
            case "earliest":
                return ends.earliest
            case "latest":
                return ends.latest
            case "offset":
                return value
            case "shift":
                return None if now is None else now + value
            case _:
                found = by_time[tp]
                return ends.latest if found < 0 else found

    return target
