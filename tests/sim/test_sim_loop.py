"""The loop of the simulation: virtual time, and processes that are paused and killed."""

import asyncio

import pytest

from ottla.testing.sim.loop import Overrun, Process, SimClock, Stuck, new_loop


def test_time_jumps_to_the_next_timer():
    loop = new_loop()

    async def sleep():
        await asyncio.sleep(1000)
        return loop.time()

    assert loop.run_until_complete(sleep()) == pytest.approx(1000, abs=0.001)


def test_equal_times_keep_the_order_of_their_making():
    loop, seen = new_loop(), []

    async def go():
        for number in range(50):
            loop.call_at(5.0, seen.append, number)
        await asyncio.sleep(10)

    loop.run_until_complete(go())
    assert seen == list(range(50))


def test_what_would_never_end_is_ended():
    async def spin():
        while True:  # noqa: ASYNC110 - that is the point
            await asyncio.sleep(0)

    async def wait_for_ever():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Overrun, match="steps"):
        new_loop(max_steps=1000).run_until_complete(spin())
    with pytest.raises(Overrun, match="virtual"):
        new_loop(max_seconds=5).run_until_complete(asyncio.sleep(6))
    with pytest.raises(Stuck):
        new_loop().run_until_complete(wait_for_ever())


def test_a_killed_process_runs_no_further_and_cleans_nothing_up():
    loop, seen = new_loop(), []
    process = Process("one", "host")

    async def live():
        try:
            while True:
                seen.append(int(loop.time()))
                await asyncio.sleep(1)
        finally:
            seen.append("cleaned up")

    async def go():
        loop.create_task(live(), context=process.context)
        await asyncio.sleep(2.5)
        loop.kill(process)
        await asyncio.sleep(10)

    loop.run_until_complete(go())
    assert seen == [0, 1, 2]


def test_a_paused_process_goes_on_where_it_was():
    loop, seen = new_loop(), []
    process = Process("one", "host")

    async def live():
        while True:
            seen.append(round(loop.time()))
            await asyncio.sleep(1)

    async def go():
        loop.create_task(live(), context=process.context)
        await asyncio.sleep(1.5)
        loop.pause(process)
        await asyncio.sleep(10)
        loop.resume(process)
        await asyncio.sleep(1.2)

    loop.run_until_complete(go())
    assert seen == [0, 1, 12, 13]  # at 1.5 + 10 its timer, long due, fires at last


def test_the_clocks_of_machines_differ_but_go_at_the_same_pace():
    loop = new_loop()
    fast, slow = SimClock(loop, 200), SimClock(loop, -200)
    before = fast.now_ms()
    loop.run_until_complete(asyncio.sleep(3))
    assert fast.now_ms() - slow.now_ms() == 400
    assert fast.now_ms() - before == 3000


def test_sets_of_tasks_are_gone_through_in_order():
    loop = new_loop()

    async def go():
        tasks = {asyncio.ensure_future(asyncio.sleep(1, result=number)) for number in range(20)}
        done, _ = await asyncio.wait(tasks)
        return [task.result() for task in done]

    assert loop.run_until_complete(go()) == new_loop().run_until_complete(go())


def test_what_nobody_catches_is_known():
    loop = new_loop()

    async def go():
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.1)

    loop.run_until_complete(go())
    assert "ZeroDivisionError" in loop.problems[0]
