"""Time, as the broker sees it: the only module that asks the machine what time it is.

Everything else is handed a `Clock`, so that a test or the simulator can own time. Wall time (milliseconds since 1970)
goes into records and retention; monotonic time (seconds) goes into deadlines, which must not jump.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

stopwatch: Final = time.monotonic
"""Seconds, for durations that are only shown and that nothing depends on: of all clocks the cheapest to ask. The broker's own
event loop goes by it too."""


class Clock(Protocol):
    """What the engine may know about time."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the epoch: what Kafka writes as a timestamp."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back: for deadlines and durations."""
        ...


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when a test says so."""

    __slots__ = ("_monotonic", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 1000.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance_ms(self, milliseconds: int) -> None:
        """Move both clocks forward."""
        self._now_ms += milliseconds
        self._monotonic += milliseconds / 1000
