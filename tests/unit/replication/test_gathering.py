"""How long a follower's answer waits for more, by table."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ottla.replication.gathering import GATHERING, JUST_NOW, MUCH, PLENTY, Gathering

NOW, SETTLED = 0.0, -1.0


def under_load() -> Gathering:
    gathering = Gathering()
    gathering.asked(0.0)
    gathering.answered(MUCH)
    gathering.asked(1.0)
    return gathering


def one_answer(gathering: Gathering, at: float, arrivals: Sequence[float] = (0.0,)) -> float:
    """One fetch and its answer, a `MUCH` at each of these seconds after its first; how long that waits."""
    gathering.asked(at)
    waits = [gathering.came(at + arrival, MUCH * (number + 1)) for number, arrival in enumerate(arrivals)]
    gathering.answered(MUCH * len(arrivals))
    return waits[0]


@pytest.mark.parametrize(
    ("given", "after", "wait"),
    [
        (0, 0.0, NOW),
        (MUCH - 1, 0.0, NOW),
        (MUCH, 0.0, GATHERING),
        (MUCH, JUST_NOW * 0.9, GATHERING),
        (MUCH, JUST_NOW, NOW),
        (PLENTY * 4, 3.0, NOW),
    ],
)
def test_an_answer_waits_only_under_load(given: int, after: float, wait: float) -> None:
    gathering = Gathering()
    gathering.asked(0.0)
    gathering.answered(given)
    gathering.asked(1.0)
    assert gathering.came(1.0 + after, 1) == wait


def test_an_answer_that_waits_leaves_when_there_is_plenty() -> None:
    gathering = under_load()
    assert gathering.came(1.0, 10) == GATHERING
    assert gathering.came(1.001, PLENTY - 1) == SETTLED
    assert gathering.came(1.002, PLENTY) == NOW
    assert gathering.came(1.003, PLENTY * 2) == SETTLED, "it is on its way"


def test_an_answer_that_leaves_at_once_leaves_once() -> None:
    gathering = Gathering()
    gathering.asked(1.0)
    assert gathering.came(1.0, 10) == NOW
    assert gathering.came(1.0, PLENTY) == SETTLED


def test_who_waits_for_each_answer_is_soon_left_alone() -> None:
    """One producer that sends again when it is answered: nothing ever comes while its answer is held."""
    gathering, waits = under_load(), []
    for number in range(3000):
        waits.append(one_answer(gathering, 1.0 + number * 0.003))
    assert [number for number, wait in enumerate(waits) if wait] == [2**n + n - 1 for n in range(11)] + [2058]


def test_what_comes_in_the_same_turn_is_no_reason_to_wait() -> None:
    gathering = under_load()
    assert one_answer(gathering, 1.0, (0.0, 0.0001, 0.0002)) == GATHERING
    assert one_answer(gathering, 1.01) == NOW


def test_as_long_as_waiting_brings_something_each_answer_waits() -> None:
    gathering = under_load()
    for number in range(100):
        assert one_answer(gathering, 1.0 + number * 0.01, (0.0, 0.003)) == GATHERING


def test_when_waiting_brings_something_again_the_next_rest_is_short() -> None:
    gathering = under_load()
    for number in range(200):
        one_answer(gathering, 1.0 + number * 0.003)
    at = 2.0
    while not one_answer(gathering, at, (0.0, 0.003)):
        at += 0.003
    assert one_answer(gathering, at + 0.01) == GATHERING, "in vain"
    rest = 0
    while not one_answer(gathering, at + 0.013 + rest * 0.003):
        rest += 1
    assert rest == 1
