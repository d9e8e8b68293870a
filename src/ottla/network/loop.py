"""The broker's event loop: asyncio's own over a selector that calls readers and writers by itself (`readiness`)."""

from __future__ import annotations

import asyncio
import select
from functools import partial
from typing import Any

from ottla.clock import stopwatch
from ottla.network.readiness import Readiness, Turn


class BrokerLoop(asyncio.SelectorEventLoop):
    """Readers and writers are called without a handle. asyncio adds its own in its own way, but removes them here."""

    def __init__(self, readiness: Readiness) -> None:
        super().__init__(readiness)  # type: ignore[arg-type]  # all that asyncio asks of a selector
        self.time = stopwatch  # type: ignore[method-assign]  # the same clock, and no frame of Python to ask it
        self._readiness = readiness
        readiness.serve(self)
        self.turn = readiness.turn
        self.turn.failed = self._callback_failed

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        self._readiness.set_reader(fd, partial(callback, *args) if args else callback)

    def remove_reader(self, fd: Any) -> bool:
        return self._readiness.drop_reader(fd) or super().remove_reader(fd)

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        self._readiness.set_writer(fd, partial(callback, *args) if args else callback)

    def remove_writer(self, fd: Any) -> bool:
        return self._readiness.drop_writer(fd) or super().remove_writer(fd)

    def _callback_failed(self, problem: Exception) -> None:
        self.call_exception_handler({"message": "A reader or writer of a socket failed", "exception": problem})


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """What can be put off on this loop; on others than the broker's own nothing can."""
    return loop.turn if isinstance(loop, BrokerLoop) else Turn()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop for a broker; where the system has no epoll, as asyncio makes it."""
    return BrokerLoop(Readiness()) if hasattr(select, "epoll") else asyncio.new_event_loop()
