"""Ranges, splits, limits and losses, by table."""

from __future__ import annotations

import pytest

from ottla.client import TopicPartition
from ottla.spark.offsets import (
    OffsetRange,
    Position,
    from_json,
    gather,
    is_position,
    limited,
    limited_by_bytes,
    lost_since,
    plan,
    split,
    to_json,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def at(a: int | None = None, b: int | None = None, topic_id: str = "") -> Position:
    offsets = {tp: offset for tp, offset in ((A, a), (B, b)) if offset is not None}
    return Position(offsets, {"t": topic_id} if topic_id else {})


@pytest.mark.parametrize(
    ("sizes", "at_least", "at_most", "expected"),
    [
        ([10, 10], None, None, [10, 10]),
        ([10, 0], None, None, [10]),  # nothing to read, no task
        ([10], None, 3, [2, 3, 2, 3]),
        ([100, 10], 11, None, [10] * 11),  # the hot one is cut, the other is not
        ([10, 10], 3, None, [5, 5, 10]),
        ([2], 5, None, [1, 1]),  # never less than a record
        ([100], 2, 10, [10] * 10),
        ([], 4, 4, []),
    ],
)
def test_split(sizes: list[int], at_least: int | None, at_most: int | None, expected: list[int]) -> None:
    ranges = [OffsetRange(TopicPartition("t", number), 5, 5 + size) for number, size in enumerate(sizes)]
    pieces = split(ranges, at_least, at_most)
    assert [piece.size for piece in pieces] == expected
    for whole in ranges:
        covered = [offset for piece in pieces if piece.partition == whole.partition for offset in range(piece.start, piece.end)]
        assert covered == list(range(whole.start, whole.end))


@pytest.mark.parametrize(
    ("sizes", "least", "expected"),
    [
        ([250, 250, 250, 250], 500, [[250, 250], [250, 250]]),
        ([250, 250, 250], 500, [[250, 250], [250]]),
        ([10, 900, 10], 500, [[10, 900], [10]]),
        ([5, 5], 0, [[5], [5]]),
        ([1000, 1000], 500, [[1000], [1000]]),
        ([], 500, []),
    ],
)
def test_small_ranges_share_a_task(sizes: list[int], least: int, expected: list[list[int]]) -> None:
    ranges = [OffsetRange(TopicPartition("t", number), 0, size) for number, size in enumerate(sizes)]
    tasks = gather(ranges, least)
    assert [[one.size for one in task] for task in tasks] == expected
    assert [one for task in tasks for one in task] == ranges


@pytest.mark.parametrize(
    ("starts", "ends", "limit", "expected"),
    [
        ((0, 0), (10, 10), 20, (10, 10)),
        ((0, 0), (10, 30), 20, (5, 15)),
        ((0, 0), (1, 1000), 10, (1, 9)),  # a small partition is not starved
        ((5, 7), (5, 107), 10, (5, 17)),  # nothing new stays where it is
        ((9, 0), (5, 100), 10, (5, 10)),  # a log that got shorter
    ],
)
def test_limited(starts: tuple[int, int], ends: tuple[int, int], limit: int, expected: tuple[int, int]) -> None:
    assert limited(at(*starts).offsets, at(*ends).offsets, limit) == at(*expected).offsets


def test_limited_by_bytes() -> None:
    starts, ends = at(0, 0).offsets, at(1000, 1000).offsets
    assert limited_by_bytes(starts, ends, {A: 100.0, B: 300.0}, 40_000) == {A: 100, B: 100}
    assert limited_by_bytes(starts, ends, {A: 100.0, B: 300.0}, 400_000) == ends
    assert limited_by_bytes(starts, ends, {A: 1e6, B: 1e6}, 10) == {A: 1, B: 1}


@pytest.mark.parametrize(
    ("start", "end", "earliest", "ranges", "lost"),
    [
        (at(3, 4), at(5, 4), {A: 0, B: 0}, [(A, 3, 5)], []),
        (at(3), at(3, 9), {A: 0, B: 0}, [(B, 0, 9)], []),  # a new partition, from its beginning
        (at(3), at(3, 9), {A: 0, B: 2}, [(B, 2, 9)], ["t-1: offsets 0 to 1 are gone"]),
        (at(3), at(9), {A: 7}, [(A, 7, 9)], ["t-0: offsets 3 to 6 are gone, its log begins at 7"]),
        (at(3), at(9), {A: 12}, [], ["t-0: offsets 3 to 8 are gone, its log begins at 12"]),
        (at(9), at(3), {A: 0}, [], []),  # said when the batch was planned
        (at(3), at(9), {}, [], ["t-0: it does not exist any more; offsets up to 9"]),
        (at(5, topic_id="x"), at(9, topic_id="y"), {A: 0}, [(A, 0, 9)], []),  # made anew: all of it
    ],
)
def test_plan(
    start: Position, end: Position, earliest: dict[TopicPartition, int], ranges: list[object], lost: list[str]
) -> None:
    found, losses = plan(start, end, earliest)
    assert found == ranges
    assert len(losses) == len(lost)
    assert all(text in str(loss) for text, loss in zip(lost, losses, strict=True))


@pytest.mark.parametrize(
    ("start", "latest", "lost"),
    [
        (at(3, 4), at(3, 9), []),
        (at(3, 4), at(3), ["t-1: it does not exist any more; it was read up to offset 4"]),
        (at(7), at(3), ["t-0: it was read up to offset 7, but its log ends at 3 now"]),
        (at(2, topic_id="x"), at(3, topic_id="y"), ["t-0: its topic was deleted and made anew"]),
        (at(2), at(3, topic_id="y"), []),  # a checkpoint of a cluster without ids
    ],
)
def test_lost_since(start: Position, latest: Position, lost: list[str]) -> None:
    losses = lost_since(start, latest)
    assert len(losses) == len(lost)
    assert all(text in str(loss) for text, loss in zip(lost, losses, strict=True))


def test_a_checkpoint_of_another_query() -> None:
    (loss,) = lost_since(at(3, 4), at(3, 9), lambda tp: tp.partition == 0)
    assert str(loss).startswith("Partition t-1: it is in the checkpoint, up to offset 4, but this query does not read it")


def test_positions_as_json() -> None:
    position = Position({A: 1, B: 2}, {"t": "x"})
    written = to_json(position)
    assert written == {"t": {"0": 1, "1": 2}, "@ids": {"t": "x"}}
    assert from_json(written) == position
    assert is_position(written)
    assert not is_position({"logOffset": 3})
    assert not is_position(7)
