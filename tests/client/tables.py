"""Tables that have one of everything, and what is compared of them."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from ottla.client import SCHEMA

NOW = time.time_ns() // 1_000_000
"""Records from long ago would be deleted under a test by retention."""


def everything(rows: int, *, seed: int = 0) -> pa.Table:
    """Keys, nulls, tombstones, empty values, headers with and without values, times."""
    keys = [None if row % 5 == 0 else b"key-%d" % (row + seed) for row in range(rows)]
    values = [
        None if row % 7 == 3 else b"" if row % 11 == 4 else b"value %d " % (row + seed) * (row % 4 + 1) for row in range(rows)
    ]
    headers: list[Any] = [
        [{"key": "trace", "value": b"%d" % row}, {"key": "größe", "value": None}][: row % 3] or None for row in range(rows)
    ]
    times = [(NOW + row) * 1000 for row in range(rows)]
    return pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
            "headers": pa.array(headers, SCHEMA.field("headers").type),
        }
    )


def same(table: pa.Table) -> list[Any]:
    """The rows without their places, in an order of their own."""
    return sorted(table.select(["key", "value", "timestamp", "headers"]).to_pylist(), key=repr)
