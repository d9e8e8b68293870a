"""The rules of replication, by table: committed, in sync, may join, and what an answer of the controller means."""

from __future__ import annotations

import pytest

from ottla.model import Error
from ottla.replication.isr import (
    NEVER,
    IsrOutcome,
    LastAsked,
    Progress,
    Verdict,
    high_watermark,
    judge,
    may_join,
    needed_in_sync,
    new_follower,
    out_of_sync,
)
from ottla.replication.leaders import EpochEnd
from ottla.replication.truncation import cut_at


@pytest.mark.parametrize(
    ("leader_end", "ends", "isr", "current", "expected"),
    [
        (10, {2: 10, 3: 7}, {1, 2, 3}, 5, 7),  # the slowest in-sync replica decides
        (10, {2: 10, 3: 7}, {1, 2}, 5, 10),  # a replica outside the ISR does not
        (10, {2: 4}, {1, 2}, 6, 6),  # a follower that truncated does not pull it back
        (10, {}, {1}, 0, 10),  # alone, what is written is committed
        (10, {2: 12}, {1, 2}, 0, 10),  # a follower that is ahead does not pull it forward
        (10, {2: -1}, {1, 2}, 3, 3),  # a follower that a new leader has not heard of holds it
        (10, {2: 10, 3: 10}, {1, 2, 3}, 10, 10),
        (0, {2: 0}, {1, 2}, 0, 0),
    ],
)
def test_high_watermark(leader_end: int, ends: dict[int, int], isr: set[int], current: int, expected: int) -> None:
    followers = [Progress(broker, end) for broker, end in ends.items()]
    assert high_watermark(leader_end, followers, isr, current) == expected


@pytest.mark.parametrize(
    ("caught_up_at", "expected"),
    [
        (95.0, 7),  # it was caught up a moment ago and will join: if the mark ran ahead, it never could
        (50.0, 10),  # it was caught up long ago: nobody waits for it
    ],
)
def test_a_follower_that_is_about_to_join_holds_the_high_watermark(caught_up_at: float, expected: int) -> None:
    follower = Progress(2, 7, caught_up_at)
    found = high_watermark(10, [follower], {1}, 5, lambda one: one.caught_up(10, 100.0, 30.0))
    assert found == expected


@pytest.mark.parametrize(
    ("fetches", "expected"),
    [
        ([(1.0, 0, 10)], NEVER),  # behind from the first
        ([(1.0, 10, 10)], 1.0),  # at the leader's end
        ([(1.0, 0, 10), (2.0, 10, 15)], 1.0),  # has now what there was at the last fetch: caught up back then
        ([(1.0, 0, 10), (2.0, 9, 15)], NEVER),  # not quite
        ([(1.0, 0, 10), (2.0, 10, 15), (3.0, 14, 20)], 1.0),
        ([(1.0, 0, 10), (2.0, 10, 15), (3.0, 15, 20)], 2.0),  # always behind, never far
        ([(1.0, 10, 10), (2.0, 5, 10)], 1.0),  # truncated: what was true stays true for a while
    ],
)
def test_caught_up_as_kafka_counts_it(fetches: list[tuple[float, int, int]], expected: float) -> None:
    follower = new_follower(2, in_sync=False, now=0.0)
    for now, offset, leader_end in fetches:
        follower.fetched(offset, 0, leader_end, LastAsked(now))
    assert follower.caught_up_at == expected
    assert follower.end == fetches[-1][1]


def test_a_session_asks_for_all_its_partitions() -> None:
    """A quiet partition is named once; each later fetch of its session says that the follower still has everything."""
    follower, asked = new_follower(2, in_sync=True, now=0.0), LastAsked(1.0)
    follower.fetched(10, 0, 10, asked)
    asked.at = 500.0
    follower.left_behind()  # the leader appends at 500.3
    assert not out_of_sync({1, 2}, 1, {2: follower}, 11, 500.4, 30.0)
    assert out_of_sync({1, 2}, 1, {2: follower}, 11, 530.1, 30.0) == {2}


@pytest.mark.parametrize(
    ("end", "caught_up_at", "late"),
    [
        (10, 0.0, False),  # it has all: however long ago it asked
        (9, 70.0, False),  # exactly at the bound
        (9, 69.9, True),
        (-1, 100.0, False),  # a new leader gives everybody in the ISR its time
        (-1, NEVER, True),
    ],
)
def test_who_is_out_of_sync(end: int, caught_up_at: float, late: bool) -> None:
    followers = {2: Progress(2, end, caught_up_at), 3: Progress(3, 10)}
    found = out_of_sync((1, 2, 3), 1, followers, 10, 100.0, 30.0)
    assert found == ({2} if late else set())


def test_who_is_no_replica_any_more_is_out_of_sync() -> None:
    assert out_of_sync((1, 2), 1, {}, 0, 0.0, 30.0) == {2}


@pytest.mark.parametrize(
    ("end", "committed", "epoch_start", "expected"),
    [
        (10, 10, 8, True),
        (9, 10, 8, False),  # it lacks something that is committed
        (10, 5, 11, False),  # it may still part from this leader
        (11, 5, 11, True),
        (-1, 0, 0, False),
    ],
)
def test_who_may_join(end: int, committed: int, epoch_start: int, expected: bool) -> None:
    assert may_join(Progress(2, end), committed, epoch_start) is expected


@pytest.mark.parametrize(("setting", "replicas", "needed"), [(1, 3, 1), (2, 3, 2), (3, 3, 3), (4, 3, 3), (2, 1, 1)])
def test_how_many_must_be_in_sync(setting: int, replicas: int, needed: int) -> None:
    assert needed_in_sync(setting, replicas) == needed


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (IsrOutcome(Error.NONE, 1, 5, (1, 2), 8), Verdict.TAKE),
        (IsrOutcome(Error.NONE, 1, 5, (1,), 7), Verdict.TAKE),  # it was so already
        (IsrOutcome(Error.NONE, 1, 5, (1, 2), 6), Verdict.WAIT),  # we know more than this answer
        (IsrOutcome(Error.NONE, 1, 6, (1, 2), 8), Verdict.WAIT),  # of another epoch
        (IsrOutcome(Error.INVALID_UPDATE_VERSION), Verdict.WAIT),
        (IsrOutcome(Error.INVALID_UPDATE_VERSION, 1, 5, (1,), 9), Verdict.TAKE),  # the controller said what there is
        (IsrOutcome(Error.INVALID_UPDATE_VERSION, 1, 5, (1,), 7), Verdict.WAIT),
        (IsrOutcome(Error.FENCED_LEADER_EPOCH), Verdict.WAIT),
        (IsrOutcome(Error.UNKNOWN_TOPIC_OR_PARTITION), Verdict.WAIT),
        (IsrOutcome(Error.INELIGIBLE_REPLICA), Verdict.DROP),
        (IsrOutcome(Error.OPERATION_NOT_ATTEMPTED), Verdict.DROP),
        (IsrOutcome(Error.NOT_CONTROLLER), Verdict.RETRY),
        (IsrOutcome(Error.UNKNOWN_SERVER_ERROR), Verdict.RETRY),
        (IsrOutcome(Error.STALE_BROKER_EPOCH), Verdict.RETRY),
    ],
)
def test_what_an_answer_means(outcome: IsrOutcome, verdict: Verdict) -> None:
    assert judge(outcome, 5, 7) is verdict


@pytest.mark.parametrize(
    ("leaders", "own", "log_end", "expected"),
    [
        (EpochEnd(4, 8), EpochEnd(4, 10), 10, 8),  # we have more of an epoch than the leader ever had
        (EpochEnd(4, 12), EpochEnd(4, 10), 15, 10),  # it has more of it, but ours goes on in an epoch of nobody
        (EpochEnd(4, 12), EpochEnd(3, 6), 15, 6),  # we do not know that epoch: back to one that we know, and ask again
        (EpochEnd(2, 9), EpochEnd(-1, -1), 15, 9),  # we know none as old: the leader's word
        (EpochEnd(-1, 9), EpochEnd(4, 10), 15, 9),
        (EpochEnd(-1, -1), EpochEnd(4, 10), 15, 3),  # nobody knows: the high watermark is all there is
        (EpochEnd(4, 20), EpochEnd(4, 20), 15, 15),
    ],
)
def test_where_to_cut(leaders: EpochEnd, own: EpochEnd, log_end: int, expected: int) -> None:
    assert cut_at(leaders, own, log_end, high_watermark=3) == expected
