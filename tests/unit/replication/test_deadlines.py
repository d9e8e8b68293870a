"""Deadlines in rows: each is reached once and in time, or called off."""

from __future__ import annotations

import gc
import heapq
import itertools
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.replication.deadlines import Deadline, Deadlines


class Handle:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clockwork:
    """Timers of a loop whose time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, int, Callable[[], None], Handle]] = []
        self.failed: list[Exception] = []
        self.asked = 0
        self._number = itertools.count()
        self.deadlines = Deadlines(self.call_later, lambda: self.now)

    @property
    def timers(self) -> int:
        return sum(not handle.cancelled for *_, handle in self._timers)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Handle:
        self.asked += 1
        handle = Handle()
        heapq.heappush(self._timers, (self.now + delay, next(self._number), callback, handle))
        return handle

    def go_to(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            at, _, callback, handle = heapq.heappop(self._timers)
            self.now = max(self.now, at)
            try:
                if not handle.cancelled:
                    callback()
            except Exception as problem:
                self.failed.append(problem)
        self.now = now


def test_each_is_reached_in_its_time() -> None:
    loop = Clockwork()
    reached: list[tuple[str, float]] = []
    for name, delay in (("a", 0.5), ("b", 0.1), ("c", 0.5)):
        loop.deadlines(delay, lambda name=name: reached.append((name, loop.now)))  # type: ignore[misc]
    loop.go_to(100.2)
    loop.deadlines(0.5, lambda: reached.append(("d", loop.now)))
    loop.go_to(200)
    assert reached == [("b", 100.1), ("a", 100.5), ("c", 100.5), ("d", 100.7)]
    assert not loop.timers, "nobody waits, and nothing ticks"


def test_one_timer_for_thousands_that_are_called_off() -> None:
    loop = Clockwork()
    for _ in range(10_000):
        loop.deadlines(0.5, pytest.fail).cancel()
    assert loop.timers == 1
    loop.go_to(200)
    assert not loop.timers


def test_others_who_wait_take_no_row_from_those_that_come_and_go() -> None:
    loop = Clockwork()
    for number in range(200):
        loop.deadlines(30 + number, lambda: None)
    for _ in range(1000):
        loop.deadlines(0.5, pytest.fail).cancel()
    assert loop.asked == 201
    loop.go_to(1000)
    assert loop.deadlines.rows == loop.deadlines.empty_rows == 0


def test_deadlines_of_any_length_leave_few_rows_behind() -> None:
    loop = Clockwork()
    waiting = [loop.deadlines(30 + number / 1000, pytest.fail) for number in range(5000)]
    for deadline in waiting:
        deadline.cancel()
    assert loop.timers == loop.deadlines.rows <= 50
    loop.go_to(200)
    assert loop.deadlines.rows == loop.deadlines.empty_rows == 0


def test_what_was_called_off_keeps_nothing_alive() -> None:
    class Request:
        def over(self) -> None:
            raise AssertionError

    loop = Clockwork()
    first = loop.deadlines(30, lambda: None)
    request = Request()
    seen = weakref.ref(request)
    deadline = loop.deadlines(30, request.over)
    deadline.cancel()
    deadline.cancel()
    del request
    gc.collect()
    assert seen() is None
    first.cancel()


def test_a_row_does_not_grow_behind_one_that_waits() -> None:
    loop = Clockwork()
    reached: list[str] = []
    loop.deadlines(30, lambda: reached.append("first"))
    for _ in range(10_000):
        loop.deadlines(30, pytest.fail).cancel()
    loop.deadlines(30, lambda: reached.append("last"))
    assert len(loop.deadlines._rows[30]._deadlines) < 300
    loop.go_to(200)
    assert reached == ["first", "last"]


def test_one_that_fails_harms_no_other() -> None:
    loop = Clockwork()
    reached: list[str] = []

    def fail() -> None:
        raise RuntimeError("planned")

    for callback in (fail, lambda: reached.append("b"), fail, lambda: reached.append("d")):
        loop.deadlines(1, callback)
    loop.go_to(200)
    assert reached == ["b", "d"]
    assert len(loop.failed) == 2


def test_one_that_is_reached_calls_off_another_of_the_same_moment() -> None:
    loop = Clockwork()
    reached: list[str] = []
    others: list[Deadline] = []
    many = [loop.deadlines(50 + number, pytest.fail) for number in range(60)]  # so many that empty rows are cleared away

    def first() -> None:
        loop.deadlines(1, lambda: reached.append("again"))
        others[0].cancel()

    loop.deadlines(1, first)
    others.append(loop.deadlines(1, pytest.fail))
    loop.go_to(110)
    assert reached == ["again"]
    for one in many:
        one.cancel()
    loop.go_to(200)
    assert not loop.failed
    assert loop.deadlines.rows == loop.deadlines.empty_rows == 0


def test_one_that_is_reached_waits_again() -> None:
    loop = Clockwork()
    reached: list[float] = []

    def again() -> None:
        reached.append(loop.now)
        if len(reached) < 3:
            loop.deadlines(1, again)

    loop.deadlines(1, again)
    loop.go_to(200)
    assert reached == [101, 102, 103]


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.1, 0.5, 2.0])),
        st.tuples(st.just("off"), st.integers(0, 40)),
        st.tuples(st.just("pass"), st.sampled_from([0.0, 0.05, 0.3, 1.0])),
    ),
    max_size=80,
)


@given(_steps)
def test_as_one_timer_each_would_do(steps: list[tuple[str, float]]) -> None:
    loop = Clockwork()
    made: list[Deadline] = []
    at: list[float] = []
    off: set[int] = set()
    reached: dict[int, float] = {}
    for what, value in steps:
        if what == "wait":
            number = len(made)
            at.append(loop.now + value)
            made.append(loop.deadlines(value, lambda number=number: reached.update({number: loop.now})))  # type: ignore[misc]
        elif what == "off" and made:
            number = int(value) % len(made)
            made[number].cancel()
            if number not in reached:
                off.add(number)
        elif what == "pass":
            loop.go_to(loop.now + value)
            assert all(when > loop.now or number in reached or number in off for number, when in enumerate(at))
    loop.go_to(1000)
    assert set(reached) == set(range(len(made))) - off
    assert all(when == at[number] for number, when in reached.items())
    assert loop.timers == loop.deadlines.rows == loop.deadlines.empty_rows == 0
