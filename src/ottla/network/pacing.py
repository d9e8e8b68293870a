"""Who is busy on a loop; how much of file regions leaves at once meanwhile, and how old data makes room for what is new.

Guards: a reader of much holds up no small request for longer than a piece takes to send; all readers of old data together get a
share of the loop's time, however many they are and however small their regions.
"""

from __future__ import annotations

from typing import Final

from ottla.network.haste import Haste
from ottla.storage.slices import FileSlice

MOST_IN_A_TURN: Final = 256 << 10
"""Bytes of file regions that one client is sent in one turn of the loop while others are busy."""
_MOST_OLD_AT_ONCE: Final = 64 << 10
_REST: Final = 6
"""Old data rests so many times as long as it was being sent: it gets a seventh of the loop's time. Measured beside one hot
topic: without rest 600 MB/s and four times the hot p99; with 4 250 MB/s and 1.7 to 2.4 times; with 6 230 MB/s and less than
twice."""
_QUIET: Final = 0.005
"""Seconds without a request of anybody else: then there is nobody to hold up."""
_SHORTEST_REST: Final = 0.0005
"""Seconds; shorter ones gather, as the loop's timers count in milliseconds when nothing else wakes it up."""
_LONGEST_REST: Final = 0.02
"""For one piece: it may have waited for a disk after all, or for a machine that stood still."""


def at_once(region: FileSlice, left: int) -> int:
    """How many bytes of a region are sent while others are busy; 0: none in this turn."""
    return min(region.length, left, _MOST_OLD_AT_ONCE if region.old else left)


class OldData:
    """How all old data of one loop rests."""

    __slots__ = ("_due", "rests_until")

    def __init__(self) -> None:
        self.rests_until = 0.0
        self._due = 0.0

    def sent(self, began: float, ended: float) -> None:
        """A piece was sent while others were busy."""
        self._due += min((ended - began) * _REST, _LONGEST_REST)
        if self._due >= _SHORTEST_REST:
            self.rests_until = ended + self._due
            self._due = 0.0


class Traffic:
    """What goes on on all connections of one loop, as far as each of them has to know of the others."""

    __slots__ = ("_last", "_last_heard", "haste", "old_data")

    def __init__(self, haste: Haste) -> None:
        self.haste = haste
        self.old_data = OldData()
        self._last: object = None
        self._last_heard = 0.0

    def heard(self, who: object, now: float) -> None:
        """Something has come from a client."""
        self._last = who
        self._last_heard = now

    def is_quiet_for(self, who: object, now: float) -> bool:
        """Whether nobody else has been heard of for a while."""
        return self._last is who or now - self._last_heard > _QUIET
