"""How a query does, from what Spark reports of its last batch. Pure.

The lag is what the source could have read and has not: Spark reports both positions, and those of topics are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ottla.spark.offsets import from_json, is_position


@dataclass(slots=True)
class Progress:
    """A query as it stands."""

    name: str
    what: str
    state: str = "starting"
    batch: int = -1
    rows: int = 0
    """Read since the start."""
    rate: float = 0.0
    """Rows a second while the last batch ran."""
    batch_ms: int = 0
    lag: int | None = None
    error: str = ""

    def note(self, report: Mapping[str, Any]) -> None:
        """Take the report of a batch; one that was noted already counts once, one without rows changes the lag alone."""
        rows, batch = int(report.get("numInputRows", 0)), int(report.get("batchId", -1))
        sources = report.get("sources", ())
        lags = [lag_of(one) for one in sources]
        self.lag = None if None in lags or not lags else sum(filter(None, lags))
        if batch <= self.batch:
            return
        self.rows += rows
        if rows:
            self.batch = batch
            self.rate = float(report.get("processedRowsPerSecond") or 0.0)
            self.batch_ms = int(report.get("durationMs", {}).get("triggerExecution", 0))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def lag_of(source: Mapping[str, Any]) -> int | None:
    """How many records of its topics a source has not read; None for other kinds."""
    end: Any = source.get("endOffset")
    latest: Any = source.get("latestOffset")
    if not is_position(end) or not is_position(latest):
        return None
    done, known = from_json(end).offsets, from_json(latest).offsets
    return sum(max(offset - done.get(tp, 0), 0) for tp, offset in known.items())
