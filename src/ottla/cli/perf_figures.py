"""What the performance tests count and how they tell it: the lines of Apache Kafka's producer and consumer performance tools.

Pure: numbers in, lines out. Counts come in batches, so that nothing here runs once per record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime

MB = 1024 * 1024
WINDOW_MS = 5000
"""How often a producer's figures are shown while it runs."""

_SAMPLES = 500_000
_PERCENTILES = (0.5, 0.95, 0.99, 0.999)


def _per_second(amount: float, milliseconds: float) -> float:
    return 1000.0 * amount / milliseconds if milliseconds > 0 else math.inf if amount else 0.0


class Sent:
    """Records that were acknowledged: how many, how large, how late. Since the start, and since the window began."""

    def __init__(self, expected: int, now_ms: int) -> None:
        self.count = 0
        self._start = self._window_start = now_ms
        self._step = max(1, expected // max(1, min(expected, _SAMPLES)))
        self._samples: list[float] = []
        self._bytes = 0
        self._total = self._max = 0.0
        self._window_count = self._window_bytes = 0
        self._window_total = self._window_max = 0.0

    def add(self, latencies_ms: Sequence[float], size: int) -> None:
        """More of them, `size` bytes together."""
        if not latencies_ms:
            return
        total, largest = sum(latencies_ms), max(latencies_ms)
        self._samples += latencies_ms[-self.count % self._step :: self._step]
        self.count += len(latencies_ms)
        self._bytes += size
        self._total += total
        self._max = max(self._max, largest)
        self._window_count += len(latencies_ms)
        self._window_bytes += size
        self._window_total += total
        self._window_max = max(self._window_max, largest)

    def window(self, now_ms: int) -> str | None:
        """The line of a window that is over, and the next begins."""
        elapsed = now_ms - self._window_start
        if elapsed < WINDOW_MS or not self._window_count:
            return None
        line = (
            f"{self._window_count} records sent, {_per_second(self._window_count, elapsed):.1f} records/sec"
            f" ({_per_second(self._window_bytes, elapsed) / MB:.2f} MB/sec),"
            f" {self._window_total / self._window_count:.1f} ms avg latency, {self._window_max:.1f} ms max latency."
        )
        self._window_start = now_ms
        self._window_count = self._window_bytes = 0
        self._window_total = self._window_max = 0.0
        return line

    def figures(self, now_ms: int) -> dict[str, object]:
        """All of it, for a program."""
        elapsed = max(now_ms - self._start, 1)  # less than a millisecond is not measured
        p50, p95, p99, p999 = self._percentiles()
        return {
            "records": self.count,
            "recordsPerSec": _per_second(self.count, elapsed),
            "mbPerSec": _per_second(self._bytes, elapsed) / MB,
            "avgLatencyMs": self._total / self.count if self.count else None,
            "maxLatencyMs": self._max,
            "p50Ms": p50,
            "p95Ms": p95,
            "p99Ms": p99,
            "p999Ms": p999,
        }

    def total(self, now_ms: int) -> str:
        """The last line."""
        elapsed = max(now_ms - self._start, 1)  # less than a millisecond is not measured
        p50, p95, p99, p999 = self._percentiles()
        average = f"{self._total / self.count:.2f}" if self.count else "NaN"
        return (
            f"{self.count} records sent, {_per_second(self.count, elapsed):f} records/sec"
            f" ({_per_second(self._bytes, elapsed) / MB:.2f} MB/sec), {average} ms avg latency, {self._max:.2f} ms max latency,"
            f" {p50} ms 50th, {p95} ms 95th, {p99} ms 99th, {p999} ms 99.9th."
        )

    def _percentiles(self) -> list[int]:
        if not self._samples:
            return [0] * len(_PERCENTILES)
        ordered = sorted(self._samples)
        return [int(ordered[min(len(ordered) - 1, int(part * len(ordered)))]) for part in _PERCENTILES]


class Pace:
    """How far ahead of the wanted throughput a run is."""

    __slots__ = ("_per_second", "_start")

    def __init__(self, per_second: float, start: float) -> None:
        self._per_second = per_second
        self._start = start

    def ahead(self, done: int, now: float) -> float:
        """Seconds to wait after so many; forever where the throughput is zero, never where it is negative."""
        if self._per_second < 0:
            return 0.0
        if self._per_second == 0:
            return math.inf
        return max(0.0, self._start + done / self._per_second - now)

    @property
    def step(self) -> int:
        """How many may go at once without anybody noticing that they did."""
        return 1000 if self._per_second < 0 else max(1, min(1000, int(self._per_second / 100)))


_FIELDS = ("rebalance.time.ms", "fetch.time.ms", "fetch.MB.sec", "fetch.nMsg.sec")
_COUNTS = ("data.consumed.in.MB", "MB.sec", "data.consumed.in.nMsg", "nMsg.sec")
TOTAL_FIELDS = ("start.time", "end.time", *_COUNTS, *_FIELDS)
DETAIL_FIELDS = ("time", "threadId", *_COUNTS, *_FIELDS)


class Span:
    """A stretch of consuming: between two times, so many records and bytes, a part of it spent on rebalances."""

    __slots__ = ("bytes", "end", "joining", "records", "start")

    def __init__(self, start: int, end: int, records: int, size: int, joining: int) -> None:
        self.start = start
        self.end = end
        self.records = records
        self.bytes = size
        self.joining = joining

    def rates(self) -> tuple[float, float, int, float, float]:
        """MB and records per second; the time spent on fetching, and both per second of it."""
        elapsed, fetching = self.end - self.start, self.end - self.start - self.joining
        return (
            _per_second(self.bytes, elapsed) / MB,
            _per_second(self.records, elapsed),
            fetching,
            _per_second(self.bytes, fetching) / MB if fetching > 0 else 0.0,
            _per_second(self.records, fetching) if fetching > 0 else 0.0,
        )


def total_cells(whole: Span, date_format: str) -> tuple[str, ...]:
    """The last line of a consumer."""
    times = java_date(whole.start, date_format), java_date(whole.end, date_format)
    return *times, *_cells(whole, whole.records, whole.bytes)


def detail_cells(part: Span, records: int, size: int, date_format: str) -> tuple[str, ...]:
    """One of the lines in between: sums since the start, rates of this part."""
    return java_date(part.end, date_format), "0", *_cells(part, records, size)


def _cells(span: Span, records: int, size: int) -> tuple[str, ...]:
    mb_rate, rate, fetching, fetch_mb_rate, fetch_rate = span.rates()
    counts = f"{size / MB:.4f}", f"{mb_rate:.4f}", str(records), f"{rate:.4f}"
    return *counts, str(span.joining), str(fetching), f"{fetch_mb_rate:.4f}", f"{fetch_rate:.4f}"


_DATE_PARTS: dict[str, Callable[[datetime, int], str]] = {
    "y": lambda at, width: f"{at.year % 100:02d}" if width == 2 else f"{at.year:0{width}d}",
    "M": lambda at, width: at.strftime("%B") if width > 3 else at.strftime("%b") if width == 3 else f"{at.month:0{width}d}",
    "d": lambda at, width: f"{at.day:0{width}d}",
    "H": lambda at, width: f"{at.hour:0{width}d}",
    "h": lambda at, width: f"{at.hour % 12 or 12:0{width}d}",
    "m": lambda at, width: f"{at.minute:0{width}d}",
    "s": lambda at, width: f"{at.second:0{width}d}",
    "S": lambda at, width: f"{at.microsecond // 1000:0{width}d}",
    "a": lambda at, width: at.strftime("%p"),
    "E": lambda at, width: at.strftime("%A" if width > 3 else "%a"),
    "D": lambda at, width: f"{at.timetuple().tm_yday:0{width}d}",
    "z": lambda at, width: at.strftime("%Z"),
    "Z": lambda at, width: at.strftime("%z"),
}


def java_date(milliseconds: int, pattern: str) -> str:
    """A time as a pattern of Java's SimpleDateFormat says, in local time; a ValueError where a letter is not known."""
    at = datetime.fromtimestamp(milliseconds / 1000).astimezone()
    out: list[str] = []
    place = 0
    while place < len(pattern):
        sign = pattern[place]
        if sign == "'":
            end = pattern.find("'", place + 1)
            if end < 0:
                raise ValueError("Unterminated quote")
            out.append(pattern[place + 1 : end] or "'")
            place = end + 1
            continue
        width = len(pattern[place:]) - len(pattern[place:].lstrip(sign))
        if sign in _DATE_PARTS:
            out.append(_DATE_PARTS[sign](at, width))
        elif sign.isascii() and sign.isalpha():
            raise ValueError(f"Illegal pattern character '{sign}'")
        else:
            out.append(sign * width)
        place += width
    return "".join(out)
