"""When the broker asks to be woken up without haste, and when it takes that back."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ottla.broker import _give_way
from ottla.network.haste import MANY, WINDOW, Haste, wake_up_in_batches


class Timer:
    def __init__(self, loop: Clockwork, callback: Callable[[], None]) -> None:
        self._loop = loop
        self.callback = callback

    def cancel(self) -> None:
        self._loop.timers.remove(self)


class Clockwork:
    """A loop of which only the timers are wanted; time passes when the test says so."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        assert delay == WINDOW
        timer = Timer(self, callback)
        self.timers.append(timer)
        return timer

    def pass_a_window(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            timer.callback()


def a_haste(answer: bool = True) -> tuple[Haste, Clockwork, list[bool]]:
    loop: Any = Clockwork()
    told: list[bool] = []
    return Haste(loop, lambda patient: bool(told.append(patient) or answer)), loop, told


def window(haste: Haste, loop: Clockwork, requests: int) -> None:
    for _ in range(requests):
        haste.large_request()
    loop.pass_a_window()


def test_a_stream_of_large_requests_makes_it_patient_until_it_ends() -> None:
    haste, loop, told = a_haste()
    window(haste, loop, MANY)
    assert haste.patient
    window(haste, loop, MANY + 5)
    assert told == [True], "the system is told once"
    window(haste, loop, MANY - 1)
    assert not haste.patient
    assert told == [True, False]


def test_a_large_request_now_and_then_is_no_stream() -> None:
    haste, loop, told = a_haste()
    for _ in range(50):
        window(haste, loop, MANY - 1)
    assert told == []


def test_it_looks_only_while_something_comes() -> None:
    haste, loop, told = a_haste()
    assert loop.timers == []
    window(haste, loop, MANY)
    assert len(loop.timers) == 1
    window(haste, loop, 0)
    assert loop.timers == []
    assert told == [True, False]
    window(haste, loop, MANY)
    assert told == [True, False, True]


def test_what_the_system_refused_is_not_taken_back() -> None:
    haste, loop, told = a_haste(answer=False)
    window(haste, loop, MANY)
    window(haste, loop, 0)
    assert told == [True]
    assert not haste.patient


def test_at_the_end_all_is_as_it_was() -> None:
    haste, loop, told = a_haste()
    window(haste, loop, MANY)
    haste.end()
    assert told == [True, False]
    assert loop.timers == []
    haste.end()
    assert told == [True, False]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has this policy")
def test_the_policy_of_the_loops_thread_and_of_no_other() -> None:
    found: list[int] = []

    def on_a_thread_of_its_own() -> None:
        assert wake_up_in_batches(True)
        found.append(os.sched_getscheduler(0))
        assert not wake_up_in_batches(True)
        with ThreadPoolExecutor(1, initializer=_give_way) as pool:
            found.append(pool.submit(os.sched_getscheduler, 0).result())
        assert wake_up_in_batches(False)
        found.append(os.sched_getscheduler(0))
        assert not wake_up_in_batches(False)

    thread = threading.Thread(target=on_a_thread_of_its_own)
    thread.start()
    thread.join()
    assert found == [os.SCHED_BATCH, os.SCHED_OTHER, os.SCHED_OTHER], "the broker's threads take it back"
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has this policy")
def test_a_policy_that_somebody_chose_is_left_alone() -> None:
    found: list[int] = []

    def on_a_thread_of_its_own() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        assert not wake_up_in_batches(True)
        found.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=on_a_thread_of_its_own)
    thread.start()
    thread.join()
    assert found == [os.SCHED_IDLE]


def test_on_a_real_loop() -> None:
    told: list[bool] = []

    async def steps() -> None:
        over = asyncio.Event()

        def tell(patient: bool) -> bool:
            told.append(patient)
            if not patient:
                over.set()
            return True

        haste = Haste(asyncio.get_running_loop(), tell)
        for _ in range(MANY):
            haste.large_request()
        await asyncio.wait_for(over.wait(), 10)

    asyncio.run(steps())
    assert told == [True, False]
