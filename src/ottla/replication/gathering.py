"""How long the answer to a follower's fetch waits for more: pure, one for each follower's session.

Guards: what is written in one turn of the loop, by however many producers, leaves in one answer. Under load what is written in
the next milliseconds does too, for a fetch costs leader, follower and producer more than the batch that it moves. Who waits
for each answer before it writes again is hardly held up by this: where waiting brought nothing, it is tried ever more rarely.
"""

from __future__ import annotations

from typing import Final

MUCH: Final = 64 << 10
"""Bytes: a follower that was given so much ..."""
JUST_NOW: Final = 0.02
"""... and asked again within so many seconds before the next is written is under load,"""
GATHERING: Final = 0.005
"""so its answer waits for so many seconds,"""
PLENTY: Final = 512 << 10
"""or until there are so many bytes."""
_SAME_TURN: Final = 0.0005
"""Seconds: what comes within them of the first came with it, and tells nothing of what waiting is good for."""
_LONGEST_REST: Final = 1024
"""Answers that do not wait after one that waited in vain: one at first, and twice as many each time."""


class Gathering:
    """What is known of one follower's answers."""

    __slots__ = ("_asked_at", "_began_at", "_given", "_leaves", "_more", "_rest", "_resting")

    def __init__(self) -> None:
        self._given = 0
        self._resting = 0
        self._rest = 0
        self._asked_at = 0.0
        self._began_at = -1.0
        self._leaves = False
        self._more = False

    def asked(self, now: float) -> None:
        """The follower asks."""
        self._asked_at = now
        self._began_at = -1.0
        self._leaves = self._more = False

    def came(self, now: float, have: int) -> float:
        """More was written while it waits, `have` bytes by now, which is enough for an answer. The seconds in which that is to
        leave; negative: when it was to leave anyway."""
        if self._leaves:
            return -1.0
        if self._began_at < 0:
            self._began_at = now
            if self._given >= MUCH and now - self._asked_at < JUST_NOW:
                if not self._resting:
                    return GATHERING
                self._resting -= 1
        else:
            if now - self._began_at > _SAME_TURN:
                self._more = True
            if have < PLENTY:
                return -1.0
        self._leaves = True
        return 0.0

    def answered(self, size: int) -> None:
        """The answer leaves, with so many bytes of records."""
        self._given = size
        if self._more:
            self._rest = 0
        elif self._began_at >= 0 and not self._leaves:
            self._rest = min(max(2 * self._rest, 1), _LONGEST_REST)
            self._resting = self._rest
