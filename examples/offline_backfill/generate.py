"""A broker that is no more: it took the readings of three days into `out/broker`, and its data directory is all that is left.

Among the readings are two records that are none, and the beginning of a fourth day in a transaction that was aborted.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from math import sin, tau
from pathlib import Path

import pyarrow as pa

from ottla import client
from ottla.testing import Broker

START = datetime(2026, 11, 1, tzinfo=UTC)
OUT = Path(__file__).parent / "out"
UNREADABLE = [b"sensor s1 rebooted", b'{"sensor": "s2"}']


def readings(first_day: int = 0, days: int = 3) -> list[dict[str, object]]:
    """Four sensors in turn, one reading every two minutes: it is warm in the afternoon, and each day is warmer."""
    return [
        {
            "sensor": f"s{n % 4}",
            "at": (START + timedelta(minutes=2 * n)).isoformat(),
            "value": round(12 + n / 720 + n % 4 + 5 * sin(tau * (n - 300) / 720), 3),
            "ok": n % 9 != 0,
        }
        for n in range(720 * first_day, 720 * (first_day + days))
    ]


def values(some: list[dict[str, object]]) -> pa.Table:
    return pa.table({"value": [json.dumps(one).encode() for one in some]})


def generate(directory: str) -> None:
    with Broker(directory=directory) as broker, client.Cluster(broker.bootstrap_servers) as cluster:
        client.create_topic(cluster, "readings", 3)
        client.write("readings", values(readings()), cluster=cluster)
        client.write("readings", pa.table({"value": UNREADABLE}), cluster=cluster)
        with client.Producer(cluster, transactional_id="readings") as producer:
            producer.begin()
            producer.write("readings", values(readings(3)))
            producer.abort()


if __name__ == "__main__":
    generate(sys.argv[1] if len(sys.argv) > 1 else str(OUT / "broker"))
