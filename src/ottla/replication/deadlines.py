"""Deadlines of requests that wait: tens of thousands come and are called off each second, and hardly any is ever reached.

All that wait equally long wait in one row, in the order in which their time is up, and the loop has one timer for each row.
asyncio's own timers, a heap of handles that outlive their cancellation, cost three times as much.
Guards: whoever was called off is not called, and keeps nothing alive; one that fails harms no other; what was called off in the
middle of a row is cleared away before it is more than what waits, and so are rows in which nobody waits, but for a few. Pure,
but for the timer that it is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

_CLEAR_AWAY: Final = 100
_EMPTY_ROWS: Final = 50
"""So many rows that are empty for the moment keep their timer."""


class Handle(Protocol):
    """Of a timer of the loop."""

    def cancel(self) -> None: ...


class Deadline:
    """What is to be done when the time is up."""

    __slots__ = ("at", "callback", "row")

    def __init__(self, row: Row, at: float, callback: Callable[[], None]) -> None:
        self.row: Row | None = row
        """Where it waits, until its time is up."""
        self.at = at
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """It is not to be done any more."""
        if self.callback is not None:
            self.callback = None
            if self.row is not None:
                self.row.called_off()

    def reached(self) -> None:
        """The time is up."""
        callback = self.callback
        if callback is not None:
            self.callback = None
            callback()


class Row:
    """Those who wait equally long."""

    __slots__ = ("_deadlines", "_delay", "_empty", "_of", "_off", "_timer")

    def __init__(self, of: Deadlines, delay: float) -> None:
        self._of = of
        self._delay = delay
        self._deadlines: deque[Deadline] = deque()
        self._off = 0
        self._empty = False
        self._timer = of.call_later(delay, self.look)

    def add(self, at: float, callback: Callable[[], None]) -> Deadline:
        if self._empty:
            self._empty = False
            self._of.empty_rows -= 1
        deadline = Deadline(self, at, callback)
        self._deadlines.append(deadline)
        return deadline

    def called_off(self) -> None:
        """One of them was."""
        deadlines = self._deadlines
        self._off += 1
        while deadlines and deadlines[0].callback is None:
            deadlines.popleft()
            self._off -= 1
        if not deadlines:
            if self._of.empty_rows < _EMPTY_ROWS:
                self._empty = True
                self._of.empty_rows += 1
            else:
                self._timer.cancel()
                self._of.left(self._delay)
        elif self._off > _CLEAR_AWAY and self._off * 2 > len(deadlines):
            self._deadlines = deque([one for one in deadlines if one.callback is not None])
            self._off = 0

    def look(self) -> None:
        """The time of the first may be up. Those who were called off at the front are gone already."""
        of, deadlines = self._of, self._deadlines
        now = of.now()
        due: list[Deadline] = []
        while deadlines and deadlines[0].at <= now:
            first = deadlines.popleft()
            if first.callback is None:
                self._off -= 1
            else:
                first.row = None
                due.append(first)
        if deadlines:
            self._timer = of.call_later(deadlines[0].at - now, self.look)
        else:
            of.left(self._delay)
            if self._empty:
                of.empty_rows -= 1
        for one in due[1:]:
            of.call_later(0.0, one.reached)  # on its own, in case the one before fails
        if due:
            due[0].reached()


class Deadlines:
    """All of one loop. Called like the loop's `call_later`, by those whose waits have few different lengths."""

    __slots__ = ("_rows", "call_later", "empty_rows", "now")

    def __init__(self, call_later: Callable[[float, Callable[[], None]], Handle], now: Callable[[], float]) -> None:
        self.call_later = call_later
        self.now = now
        self.empty_rows = 0
        self._rows: dict[float, Row] = {}

    def __call__(self, delay: float, callback: Callable[[], None]) -> Deadline:
        row = self._rows.get(delay)
        if row is None:
            row = self._rows[delay] = Row(self, delay)
        return row.add(self.now() + delay, callback)

    @property
    def rows(self) -> int:
        return len(self._rows)

    def left(self, delay: float) -> None:
        """Nobody waits so long any more."""
        del self._rows[delay]
