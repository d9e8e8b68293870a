"""How long the answer to a follower's fetch waits for more: pure, one `Gathering` for all followers of a broker.

Guards: what is written in one turn of the loop, by however many producers, leaves in one answer. Under load what is written in
the next milliseconds does too, for a fetch costs leader, follower and producer more than the batch that it moves. Producers
that must have one answer before they write more would be held up by this: waiting is tried for a moment, the flow compared with
that of the moment before, and what slows it down is given up for ever longer.
"""

from __future__ import annotations

from typing import Final

MUCH: Final = 16 << 10
"""Bytes: a follower that was given so much ..."""
JUST_NOW: Final = 0.02
"""... and asked again within so many seconds before the next is written is under load,"""
GATHERING: Final = 0.005
"""so its answer waits for so many seconds,"""
PLENTY: Final = 512 << 10
"""or until there are so many bytes."""
MOMENT: Final = 0.15
"""Seconds for which the flow is measured with waiting, or without."""
_SLOWER: Final = 0.75
"""Less than so much of the flow without waiting: that is no chance."""
_GOOD_FOR: Final = 40
"""Moments after which the flow without waiting is measured again."""
_LONGEST_REST: Final = 400
"""Moments without waiting after waiting slowed the flow down: two at first, twice as many each time, and no more than these."""


class Gathering:
    """Whether answers wait at present, and how the flow to the followers is with and without that."""

    __slots__ = ("_answers", "_began", "_bytes", "_left", "_loaded", "_rest", "_without", "waits")

    def __init__(self) -> None:
        self.waits = False
        self._left = 1
        self._rest = 1
        self._without = 0.0
        self._restart(0.0)

    def _restart(self, now: float) -> None:
        self._began = now
        self._bytes = self._answers = self._loaded = 0

    def answered(self, now: float, size: int, *, loaded: bool) -> None:
        """A follower under load, or not, gets so many bytes."""
        self._bytes += size
        self._answers += 1
        if loaded:
            self._loaded += 1
        seconds = now - self._began
        if seconds < MOMENT:
            return
        if seconds < 2 * MOMENT:  # else the load paused, and its flow tells nothing
            if self._loaded * 2 >= self._answers:
                self._judge(self._bytes / seconds)
            elif self.waits:  # what most answers do not tell cannot be judged: then it holds nobody up
                self.waits, self._left = False, 1
        self._restart(now)

    def _judge(self, flow: float) -> None:
        self._left -= 1
        if not self.waits:
            self._without = flow
            if not self._left:
                self.waits, self._left = True, _GOOD_FOR
        elif flow < self._without * _SLOWER:
            self._rest = min(2 * self._rest, _LONGEST_REST)
            self.waits, self._left = False, self._rest
        else:
            self._rest = 1
            if not self._left:
                self.waits, self._left = False, 1


class Answering:
    """One follower's session: when it asked, and what it got last."""

    __slots__ = ("_asked_at", "_begun", "_given", "_leaves", "_loaded")

    def __init__(self) -> None:
        self._given = 0
        self.asked(0.0)

    def asked(self, now: float) -> None:
        """The follower asks."""
        self._asked_at = now
        self._begun = self._leaves = False
        self._loaded = self._given >= MUCH

    def came(self, now: float, have: int, gathering: Gathering) -> float:
        """More was written while it waits, `have` bytes by now, which is enough for an answer. The seconds in which that is to
        leave; negative: when it was to leave anyway."""
        if self._leaves:
            return -1.0
        if not self._begun:
            self._begun = True
            if now - self._asked_at >= JUST_NOW:
                self._loaded = False
            if self._loaded and gathering.waits and have < PLENTY:
                return GATHERING
        elif have < PLENTY:
            return -1.0
        self._leaves = True
        return 0.0

    def answered(self, now: float, size: int, gathering: Gathering) -> None:
        """The answer leaves, with so many bytes of records."""
        self._given = size
        gathering.answered(now, size, loaded=self._loaded)
