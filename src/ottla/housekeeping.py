"""What a broker does from time to time: retention, flushes, checkpoints, expiry. Each step stands for itself.

Guards: a step that fails is told to the operator and tried again next time; it never ends the others. Blocking steps run in a
thread, and the next run of a step starts only after the last one ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("ottla.broker")

Step = Callable[[], Awaitable[None]]


class Housekeeping:
    """Runs steps, each at its own interval."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._at_work: set[asyncio.Future[None]] = set()

    def every(self, interval_ms: int, step: Step, *, first_ms: int | None = None) -> None:
        """Run `step` every `interval_ms`, for the first time after `first_ms`."""
        first = interval_ms if first_ms is None else first_ms
        self._tasks.append(asyncio.ensure_future(self._run(interval_ms / 1000, step, first / 1000)))

    async def stop(self) -> None:
        """End all steps; one that is at work is waited for."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._at_work, return_exceptions=True)

    async def _run(self, interval: float, step: Step, first: float) -> None:
        await asyncio.sleep(first)
        while True:
            try:
                work = asyncio.ensure_future(step())
                self._at_work.add(work)
                work.add_done_callback(self._at_work.discard)
                await asyncio.shield(work)
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("A periodic step failed; it will be tried again in %.0f s", interval)
            await asyncio.sleep(interval)
