"""The load of three machines for a quarter of an hour, a sample every five seconds, as CSV."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta
from math import sin, tau

import pyarrow as pa

from ottla import client

START = datetime(2026, 11, 1, 12, tzinfo=UTC)


def samples() -> list[tuple[str, float, datetime]]:
    """Each machine has a rhythm of its own, and they are never quite still."""
    chance = random.Random(7)
    found = []
    for step in range(12 * 15):
        for host in range(3):
            cpu = 0.45 + 0.25 * sin(tau * step / (60 + 40 * host) + host) + chance.uniform(-0.15, 0.15)
            found.append((f"host{host}", round(cpu, 2), START + timedelta(seconds=5 * step)))
    return found


def generate(cluster: str) -> None:
    values = [f"{host},{cpu},{at.isoformat()}".encode() for host, cpu, at in samples()]
    with client.Cluster(cluster) as connected:
        client.create_topic(connected, "load", 2)
        client.write("load", pa.table({"value": values}), cluster=connected)


if __name__ == "__main__":
    try:
        generate(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
    except client.ClientError as problem:
        sys.exit(f"generate.py: {problem.message}")
