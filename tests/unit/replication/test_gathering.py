"""How long a follower's answer waits for more: by table, and in a model of producers, a leader and a follower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

from ottla.replication.gathering import GATHERING, JUST_NOW, MOMENT, MUCH, PLENTY, Answering, Gathering

NOW, SETTLED = 0.0, -1.0


def waiting() -> Gathering:
    gathering = Gathering()
    gathering.waits = True
    return gathering


def answering(given: int) -> Answering:
    """A follower that was given so much and asks again, at second 1."""
    session = Answering()
    session.answered(0.5, given, Gathering())
    session.asked(1.0)
    return session


@pytest.mark.parametrize(
    ("given", "after", "have", "wait"),
    [
        (0, 0.0, 1, NOW),
        (MUCH - 1, 0.0, 1, NOW),
        (MUCH, 0.0, 1, GATHERING),
        (MUCH, JUST_NOW * 0.9, 1, GATHERING),
        (MUCH, JUST_NOW * 1.1, 1, NOW),
        (MUCH, 0.0, PLENTY, NOW),
        (PLENTY * 4, 3.0, 1, NOW),
    ],
)
def test_an_answer_waits_only_under_load(given: int, after: float, have: int, wait: float) -> None:
    assert answering(given).came(1.0 + after, have, waiting()) == wait
    assert answering(given).came(1.0 + after, have, Gathering()) == NOW, "and only where waiting does no harm"


def test_an_answer_that_waits_leaves_when_there_is_plenty() -> None:
    session, gathering = answering(MUCH), waiting()
    assert session.came(1.0, 10, gathering) == GATHERING
    assert session.came(1.001, PLENTY - 1, gathering) == SETTLED
    assert session.came(1.002, PLENTY, gathering) == NOW
    assert session.came(1.003, PLENTY * 2, gathering) == SETTLED, "it is on its way"


def test_an_answer_that_leaves_at_once_leaves_once() -> None:
    session = answering(0)
    assert session.came(1.0, 10, waiting()) == NOW
    assert session.came(1.0, PLENTY, waiting()) == SETTLED


# ---- a model -------------------------------------------------------------------------------------------------------------

_HOP = 0.0004
"""Seconds from the leader's answer to the follower's next request, and as many until a producer has written again."""

_AHEAD = 50
"""Writes on time that are known ahead."""


@dataclass
class Flow:
    """Producers that write batches of `size`; each waits for an answer when `window` are on their way, or writes on time."""

    size: int
    window: int = 1
    every: float = 0.0


def flow(producers: Sequence[Flow], seconds: float, learning: Gathering | None) -> tuple[float, int]:
    """Bytes per second that arrive at the follower in the second half, in how many answers; unless it learns, none waits."""
    session = Answering()
    writes = [
        (number * 0.0001 + turn * one.every, one)
        for number, one in enumerate(producers)
        for turn in range(_AHEAD if one.every else one.window)
    ]
    now = sent = 0.0
    answers = 0
    while now < seconds:
        gathering = learning or Gathering()
        session.asked(now)
        writes.sort(key=lambda write: write[0])
        taken = [write for write in writes if write[0] <= now]
        leaves = now
        if not taken:
            leaves = float("inf")
            for number, (at, _) in enumerate(writes):
                if at > leaves:
                    break
                taken = writes[: number + 1]
                wait = session.came(at, sum(one.size for _, one in taken), gathering)
                leaves = at + wait if wait >= 0 else leaves
        size = sum(one.size for _, one in taken)
        session.answered(leaves, size, gathering)
        now = leaves + _HOP
        writes = writes[len(taken) :]
        writes += [(at + one.every * _AHEAD if one.every else now + _HOP, one) for at, one in taken]
        if now > seconds / 2:
            sent += size
            answers += 1
    return sent / (seconds / 2), answers


LONG = 400 * MOMENT


@pytest.mark.parametrize(
    "producers",
    [
        [Flow(70_000)],
        [Flow(70_000), Flow(200, every=0.01)],
        [Flow(70_000), Flow(200, every=0.003)],
        [Flow(70_000) for _ in range(4)],
        [Flow(70_000) for _ in range(6)],
        [Flow(16_000, window=5)],
        [Flow(16_000, window=5), Flow(16_000, window=5)],
        [Flow(400_000)],
        [Flow(130_000, every=0.004)],
        [Flow(130_000, window=5), Flow(500, every=0.001)],
    ],
)
def test_producers_are_not_held_up(producers: list[Flow]) -> None:
    assert flow(producers, LONG, Gathering())[0] > 0.95 * flow(producers, LONG, None)[0]


@pytest.mark.parametrize(
    "producers",
    [
        [Flow(130_000, every=0.004)],
        [Flow(130_000, every=0.004), Flow(130_000, every=0.0041)],
        [Flow(20_000, every=0.0005)],
    ],
)
def test_where_it_does_no_harm_most_answers_wait(producers: list[Flow]) -> None:
    assert flow(producers, LONG, Gathering())[1] < 0.6 * flow(producers, LONG, None)[1]


def test_the_load_may_come_back_after_a_pause() -> None:
    gathering = Gathering()
    flow([Flow(130_000, every=0.004)], 5.0, gathering)
    assert gathering.waits
    gathering.answered(100.0, 100, loaded=False)
    gathering.answered(200.0, 130_000, loaded=True)
    assert gathering.waits, "what a pause does to the flow is not held against waiting"


def test_waiting_ends_where_most_answers_tell_nothing_of_it() -> None:
    gathering = waiting()
    now = 1.0
    for number in range(200):
        now += 0.01
        gathering.answered(now, 130_000 if number % 3 == 0 else 1_000, loaded=number % 3 == 0)
    assert not gathering.waits


def test_the_wish_to_try_grows_rarer() -> None:
    gathering = Gathering()
    tried, moments = [], 0
    now = 0.0
    while moments < 1500:
        now += MOMENT * 1.01
        tried.append(gathering.waits)
        gathering.answered(now, 1_000 if gathering.waits else 1_000_000, loaded=True)
        moments += 1
    at = [number for number, waits in enumerate(tried) if waits]
    assert [second - first for first, second in pairwise(at)] == [3, 5, 9, 17, 33, 65, 129, 257, 401, 401]
