"""Figures over time: as many points as fit, for as many lines as fit, and never more.

Guards: memory is bounded by `points` times `lines`, four bytes each, whatever a cluster has. All lines share one axis; a line
that nobody fed for a whole round is forgotten. Not safe for threads: the sampler owns it and hands out copies.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping

Key = tuple[object, ...]
"""What a line is about, such as ("topic", name)."""


class History:
    """Rings of equal length."""

    def __init__(self, points: int = 360, lines: int = 20_000) -> None:
        self._points = points
        self._most = lines
        self._times = array("d", [0.0]) * points
        self._rings: dict[Key, array[float]] = {}
        self._fed: dict[Key, int] = {}
        self._count = 0

    def add(self, now_ms: float, values: Mapping[Key, float]) -> None:
        """One more point of time. Lines beyond the most that there may be are left out: put what matters first."""
        at = self._count % self._points
        self._times[at] = now_ms
        for ring in self._rings.values():
            ring[at] = math.nan
        for key, value in values.items():
            found = self._rings.get(key)
            if found is None:
                if len(self._rings) >= self._most:
                    continue
                found = self._rings[key] = array("f", [math.nan]) * self._points
            found[at] = value
            self._fed[key] = self._count
        self._count += 1
        for key in [key for key, last in self._fed.items() if self._count - last >= self._points]:
            del self._rings[key], self._fed[key]

    def times(self) -> list[int]:
        """When the points were taken, oldest first."""
        return [round(self._times[at]) for at in self._order(self._points)]

    def line(self, key: Key, last: int | None = None) -> list[float | None]:
        """A line, oldest first; None where nothing was known. With `last`, only so many points."""
        ring = self._rings.get(key)
        order = self._order(last or self._points)
        if ring is None:
            return [None for _ in order]
        return [None if math.isnan(ring[at]) else _short(ring[at]) for at in order]

    def newest(self, key: Key) -> float | None:
        """The last point of a line."""
        return self.line(key, 1)[0] if self._count else None

    def keys(self, *prefix: object) -> list[Key]:
        """The lines that are about this."""
        return [key for key in self._rings if key[: len(prefix)] == prefix]

    def __len__(self) -> int:
        return len(self._rings)

    def _order(self, last: int) -> Iterable[int]:
        first = max(0, self._count - min(last, self._points))
        return [at % self._points for at in range(first, self._count)]


def _short(value: float) -> float:
    """Three digits are enough for a picture; whole numbers stay whole."""
    return round(value) if abs(value) >= 100 or value == round(value) else round(value, 2)
