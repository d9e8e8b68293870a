from __future__ import annotations

import math

import pytest

from ottla.cli.perf_figures import Pace, Sent, Span, detail_cells, java_date, total_cells


def test_what_was_sent() -> None:
    sent = Sent(expected=4, now_ms=1000)
    sent.add([1.0, 2.0, 3.0], 3 << 20)
    assert sent.window(5999) is None
    assert sent.window(6000) == "3 records sent, 0.6 records/sec (0.60 MB/sec), 2.0 ms avg latency, 3.0 ms max latency."
    sent.add([10.9], 1 << 20)
    assert sent.total(11_000) == (
        "4 records sent, 0.400000 records/sec (0.40 MB/sec), 4.22 ms avg latency, 10.90 ms max latency,"
        " 3 ms 50th, 10 ms 95th, 10 ms 99th, 10 ms 99.9th."
    )


def test_nothing_was_sent() -> None:
    assert Sent(10, 0).total(1000).startswith("0 records sent, 0.000000 records/sec (0.00 MB/sec), NaN ms avg latency, 0.00 ms")


def test_samples_are_spread_over_all() -> None:
    sent = Sent(expected=1_000_000, now_ms=0)
    for first in range(0, 1_000_000, 1001):
        sent.add([float(n) for n in range(first, min(first + 1001, 1_000_000))], 0)
    figures = sent.figures(1000)
    assert (figures["records"], figures["p50Ms"], figures["p99Ms"]) == (1_000_000, 500_000, 990_000)


@pytest.mark.parametrize(("per_second", "done", "now", "expected"), [
    (-1, 1000, 0.0, 0.0),
    (0, 1, 5.0, math.inf),
    (10, 20, 1.0, 1.0),
    (10, 20, 3.0, 0.0),
])  # fmt: skip
def test_pace(per_second: float, done: int, now: float, expected: float) -> None:
    assert Pace(per_second, 0.0).ahead(done, now) == expected


def test_what_was_consumed() -> None:
    span = Span(start=0, end=2000, records=100, size=4 << 20, joining=1000)
    assert total_cells(span, "SSS")[2:] == ("4.0000", "2.0000", "100", "50.0000", "1000", "1000", "4.0000", "100.0000")
    assert detail_cells(span, 300, 8 << 20, "''")[:6] == ("'", "0", "8.0000", "2.0000", "300", "50.0000")
    assert total_cells(Span(0, 5, 1, 1, 9), "S")[-3:] == ("-4", "0.0000", "0.0000")


def test_java_dates() -> None:
    text = java_date(1_600_000_000_123, "yyyy|yy|SSS|'at' d")
    assert text.startswith("2020|20|123|at 1")
    for wrong in ("yyyy-jj", "'open"):
        with pytest.raises(ValueError):
            java_date(0, wrong)
