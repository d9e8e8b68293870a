"""Clicks of ten minutes, and three records that are none; the last click is late enough to close all minutes before it."""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ottla import client

START = datetime(2026, 11, 1, 12, tzinfo=UTC)
PAGES = ("/", "/shop", "/cart", "/help")


def clicks() -> list[dict[str, str]]:
    chance = random.Random(12)
    found = [
        {
            "user": f"u{chance.randrange(17)}",
            "page": chance.choices(PAGES, weights=(5, 4, 2, 1))[0],
            "at": (START + timedelta(seconds=second)).isoformat(),
        }
        for second in range(600)
        for _ in range(chance.randint(0, 2 + second // 60 % 5))
    ]
    return [*found, {"user": "u0", "page": "/", "at": (START + timedelta(hours=1)).isoformat()}]


def generate(cluster: str) -> None:
    values = [json.dumps(one).encode() for one in clicks()]
    values[100:100] = [b"not json", b'{"user": "u1"}', b'{"user": "u1", "page": "/", "at": "yesterday"}']
    with client.Cluster(cluster) as connected:
        client.create_topic(connected, "clicks", 2)
        client.create_topic(connected, "clicks-bad", 1)
        client.write("clicks", pa.table({"value": values}), cluster=connected)


if __name__ == "__main__":
    try:
        generate(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
    except client.ClientError as problem:
        sys.exit(f"generate.py: {problem.message}")
