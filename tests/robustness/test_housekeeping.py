"""What a broker does from time to time: a step that fails is tried again, and a stop waits for the one that is at work."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from ottla.housekeeping import Housekeeping


def test_a_step_that_fails_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        runs: Counter[str] = Counter()
        often_enough = asyncio.Event()

        def count(name: str) -> None:
            runs[name] += 1
            if len(runs) == 2 and min(runs.values()) >= 3:
                often_enough.set()

        async def failing() -> None:
            count("failing")
            raise OSError("disk full")

        async def other() -> None:
            count("other")

        housekeeping = Housekeeping()
        housekeeping.every(5, failing, first_ms=0)
        housekeeping.every(5, other)
        await often_enough.wait()
        await housekeeping.stop()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert caplog.text.count("A periodic step failed") >= 3


def test_a_stop_waits_for_the_step_at_work_and_starts_no_other() -> None:
    events: list[str] = []

    async def run() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            events.append("begun")
            begun.set()
            await go_on.wait()
            events.append("done")

        housekeeping = Housekeeping()
        housekeeping.every(1, slow, first_ms=0)
        await begun.wait()
        stopping = asyncio.ensure_future(housekeeping.stop())
        await asyncio.sleep(0.01)
        assert not stopping.done()
        go_on.set()
        await stopping
        events.append("stopped")
        await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 10))
    assert events == ["begun", "done", "stopped"]
