"""The controller's queue: everything that happens to it, one after the other.

Guards: an event sees what all events before it have done, and none runs beside another. Whoever asked for one may go away; an
event that has begun is finished. The queue has a task only while there is something in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

log = logging.getLogger("ottla.controller")

T = TypeVar("T")
Work = Callable[[], Awaitable[Any]]


class EventQueue:
    """Events in order of arrival."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Work, asyncio.Future[Any] | None, str]] = deque()
        self._posted: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Have something done when its turn comes; its result, or what it raised."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(work, done, "")
        return await done

    def post(self, work: Work, name: str = "") -> None:
        """Have something done when its turn comes. What has a name waits at most once: it looks at everything there is."""
        if name not in self._posted:
            self._put(work, None, name)

    def _put(self, work: Work, done: asyncio.Future[Any] | None, name: str) -> None:
        if name:
            self._posted.add(name)
        self._waiting.append((work, done, name))
        if self._task is None:
            self._task = asyncio.ensure_future(self._run_all())

    async def _run_all(self) -> None:
        try:
            while self._waiting:
                work, done, name = self._waiting.popleft()
                self._posted.discard(name)
                if done is not None and done.cancelled():
                    continue
                await self._run(work, done)
        finally:
            self._task = None

    async def _run(self, work: Work, done: asyncio.Future[Any] | None) -> None:
        try:
            result = await work()
        except Exception as problem:
            if done is None:
                log.exception("The controller could not follow an event")
            elif not done.done():
                done.set_exception(problem)
        else:
            if done is not None and not done.done():
                done.set_result(result)
