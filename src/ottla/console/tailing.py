"""What is written to a topic, as it is written: all of it where the page can follow, and else the newest and a count.

Guards: reading never waits for the page to draw. Several times a second the page gets at most `SHOWN` records; what came beyond
that is counted as skipped, whether or not it was looked into.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ottla.client.cluster import Cluster
from ottla.client.reading import tail
from ottla.console.payloads import row
from ottla.console.searching import COLUMNS, MAX_BYTES, Filter, Tell, records

SHOWN = 40
_EVERY = 0.25


class Window:
    """The newest matching records since the page was last told."""

    def __init__(self, shown: int = SHOWN) -> None:
        self._shown = shown
        self._kept: deque[pa.RecordBatch] = deque()
        self._rows = self._read = self._matched = 0

    def add(self, came: int, hits: pa.RecordBatch) -> None:
        """Of `came` records these match."""
        self._read += came
        self._matched += hits.num_rows
        if hits.num_rows:
            newest = hits.slice(max(hits.num_rows - self._shown, 0))
            self._kept.append(newest)
            self._rows += newest.num_rows
            while self._rows - self._kept[0].num_rows >= self._shown:
                self._rows -= self._kept.popleft().num_rows

    def take(self) -> Mapping[str, Any]:
        """What the page is told; the window is empty then."""
        found = sorted((one for batch in self._kept for one in records(batch)), key=lambda one: one["time"])[-self._shown :]
        news = {"rows": [row(one) for one in found], "read": self._read, "skipped": self._matched - len(found)}
        self._kept.clear()
        self._rows = self._read = self._matched = 0
        return news


def follow(cluster: Cluster, topic: str, partitions: Sequence[int] | None, wanted: Filter, tell: Tell, isolation: str) -> None:
    """Follow a topic until nobody listens any more."""
    with tail(
        topic, cluster=cluster, partitions=partitions, columns=COLUMNS, isolation=isolation, max_bytes=MAX_BYTES
    ) as reader:
        tell("begun", {"partitions": len(reader.positions)})
        window = Window()
        due = time.monotonic() + _EVERY
        while True:
            batch = reader.poll(max(due - time.monotonic(), 0))
            if batch is not None:
                window.add(batch.num_rows, wanted.of(batch))
            if time.monotonic() >= due:
                tell("news", window.take())
                due = time.monotonic() + _EVERY
