"""Which way a batch goes, what forbids to commit it, and what a replay leaves out, by table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.client import Identity, TopicPartition
from ottla.spark.exactly_once import (
    DECIDED,
    DONE,
    PARTIAL,
    PER_TASK,
    SHARED,
    Marker,
    TaskReport,
    TaskTransaction,
    attempts_made,
    choose,
    from_pieces,
    more_pieces,
    settled,
    to_pieces,
    why_not_repaired,
    why_not_shared,
)

LAST = Marker("q", 7, DONE, PER_TASK, tasks=2)


@pytest.mark.parametrize(
    ("asked", "columns", "marker", "partitions", "expected"),
    [
        ("auto", ["value", "partition"], Marker(), 2, SHARED),
        ("auto", ["value", "key", "partition"], Marker(), 2, SHARED),
        ("auto", ["value", "key"], LAST, 2, PER_TASK),  # tasks share partitions
        ("auto", ["value"], Marker(), 2, PER_TASK),  # nobody knows how many tasks there will be
        ("auto", ["value"], LAST, 2, SHARED),
        ("auto", ["value"], replace(LAST, tasks=3), 2, PER_TASK),
        ("auto", ["value", "topic"], LAST, None, PER_TASK),
        ("auto", ["value", "partition"], replace(LAST, fallback="it did not work"), 2, PER_TASK),
        ("shared", ["value", "key"], LAST, 2, SHARED),
        ("task", ["value", "partition"], LAST, 2, PER_TASK),
        ("shared", ["value", "partition"], replace(LAST, state=PARTIAL), 2, PER_TASK),  # by those who wrote the rest
    ],
)
def test_choose(asked: str, columns: list[str], marker: Marker, partitions: int | None, expected: str) -> None:
    assert choose(asked, columns, marker, partitions)[0] == expected


def report(task: int, *partitions: int, skipped: bool = False) -> TaskReport:
    return TaskReport(task, 0, "q", skipped, partitions=frozenset(TopicPartition("t", number) for number in partitions))


@pytest.mark.parametrize(
    ("reports", "attempts", "why"),
    [
        ([report(0, 0), report(1, 1, 2), report(2)], 3, None),
        ([report(0, 0), report(1, 1)], 3, "3 attempts were made at 2 tasks"),
        ([report(0, 0), report(1, 1)], -1, "-1 attempts"),  # the counter began anew
        ([report(0, 0, 1), report(1, 1)], 2, "tasks 0 and 1 both wrote to partition t-1"),
    ],
)
def test_why_not_shared(reports: list[TaskReport], attempts: int, why: str | None) -> None:
    found = why_not_shared(reports, attempts)
    assert (found is None) if why is None else (found is not None and why in found)


def test_a_second_attempt_is_never_shared() -> None:
    """The first one died before it counted itself, and the second wrote nothing because it is one."""
    again = TaskReport(1, 1, "q")
    assert why_not_shared([TaskReport(0, 0, "q", rows=5), again], 2) == "task 1 was attempted again"
    assert why_not_shared([TaskReport(0, 0, "q", rows=5), replace(again, skipped=True)], 2) is None


def test_attempts_are_counted_by_epochs() -> None:
    assert attempts_made(Identity(5, 3), Identity(5, 6)) == 2
    assert attempts_made(Identity(5, 3), Identity(6, 0)) == -1


@pytest.mark.parametrize(
    ("marker", "query", "batch", "task", "skipped"),
    [
        (LAST, "q", 7, 0, True),
        (LAST, "q", 8, 0, False),
        (LAST, "other", 7, 0, False),  # a checkpoint made anew begins again at 0
        (replace(LAST, state=PARTIAL, transactions=(TaskTransaction(1, 0, 9, 0),)), "q", 7, 1, True),
        (replace(LAST, state=PARTIAL, transactions=(TaskTransaction(1, 0, 9, 0),)), "q", 7, 0, False),
        (replace(LAST, state=PARTIAL), "q", 6, 0, True),
    ],
)
def test_skips(marker: Marker, query: str, batch: int, task: int, skipped: bool) -> None:
    assert marker.skips(query, batch, task) is skipped


def test_a_marker_of_many_tasks_in_pieces() -> None:
    marker = replace(LAST, state=DECIDED, transactions=tuple(TaskTransaction(n, 0, 10**9 + n, 3) for n in range(500)))
    pieces = to_pieces(marker)
    assert len(pieces) > 2
    assert all(len(piece) < 4096 for piece in pieces)
    assert more_pieces(pieces[0]) == len(pieces) - 1
    assert from_pieces(pieces) == marker


def test_what_becomes_of_a_decision() -> None:
    first, second = TaskTransaction(0, 0, 1, 1), TaskTransaction(1, 0, 2, 1)
    decision = replace(LAST, state=DECIDED, transactions=(first, second))
    assert settled(decision, []) == replace(LAST, state=DONE)
    partial = settled(decision, [second])
    assert (partial.state, partial.transactions) == (PARTIAL, (first,))
    assert why_not_repaired(partial, [report(0, skipped=True), report(1)], 7) is None
    why = why_not_repaired(partial, [report(0, skipped=True)], 7)
    assert why is not None
    assert "written by 2 tasks, and was written by 1 now" in why
