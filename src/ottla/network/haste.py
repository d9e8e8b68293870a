"""Whom the broker interrupts when a request wakes it up: nobody, while large requests stream in.

A process that wakes up may interrupt one that runs. For a small request that is just what its client wants. But where producers
send as fast as they can, it is they who are interrupted, by a broker that finds one request, or the first half of one, and goes
to sleep again: a fifth of the CPU time that producing costs. So while many large requests come in, the loop's thread asks the
system to be woken up without haste (SCHED_BATCH). Its share of the CPUs stays what it was, and where one is idle nothing
changes at all.
Guards: a thread that was started under another policy than the usual one keeps it; soon after the stream has ended requests
are in haste again. What the loop's thread starts meanwhile inherits the policy, and has to take it back for itself.
"""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from contextlib import suppress
from typing import Final

WINDOW: Final = 0.02
"""Seconds between two looks at what has come; there are none while no large requests come."""
MANY: Final = 4
"""So many large requests in a window make a stream: at least 13 MB a second, and most often twice as much."""


class Haste:
    """The large requests of one loop."""

    __slots__ = ("_came", "_loop", "_set_patient", "_timer", "patient")

    def __init__(self, loop: AbstractEventLoop, set_patient: Callable[[bool], bool] | None = None) -> None:
        """`set_patient` tells the system, and says whether anything changed."""
        self._loop = loop
        self._set_patient = set_patient if set_patient is not None else wake_up_in_batches
        self._came = 0
        self._timer: TimerHandle | None = None
        self.patient = False
        """Whether the system was asked to take its time."""

    def large_request(self) -> None:
        """One has come."""
        self._came += 1
        if self._timer is None:
            self._timer = self._loop.call_later(WINDOW, self._look)

    def _look(self) -> None:
        self._be(self._came >= MANY)
        self._timer = self._loop.call_later(WINDOW, self._look) if self._came else None
        self._came = 0

    def _be(self, patient: bool) -> None:
        if patient is not self.patient and self._set_patient(patient):
            self.patient = patient

    def end(self) -> None:
        """Nothing comes any more."""
        self._be(False)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def wake_up_in_batches(patient: bool) -> bool:
    """Ask it of the system for this thread, or take it back; False where that cannot be had."""
    if not hasattr(os, "SCHED_BATCH"):
        return False
    now, then = (os.SCHED_OTHER, os.SCHED_BATCH) if patient else (os.SCHED_BATCH, os.SCHED_OTHER)
    with suppress(OSError):
        if os.sched_getscheduler(0) == now:
            os.sched_setscheduler(0, then, os.sched_param(0))
            return True
    return False
