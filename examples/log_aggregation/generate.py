"""The logs of three services, a topic each."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ottla import client

START = datetime(2026, 11, 1, 12, tzinfo=UTC)
SERVICES = ("shop", "billing", "mail")
LEVELS = ("INFO",) * 6 + ("WARN",) * 2 + ("ERROR",)


def lines(service: str) -> list[str]:
    chance = random.Random(service)
    return [
        f"{(START + timedelta(seconds=n)).isoformat()} {chance.choice(LEVELS)} {service} did thing {n}"
        for n in range(40 * len(service))
    ]


def generate(cluster: str) -> None:
    with client.Cluster(cluster) as connected:
        for service in SERVICES:
            client.create_topic(connected, f"logs-{service}", 1)
            client.write(f"logs-{service}", pa.table({"value": lines(service)}), cluster=connected)


if __name__ == "__main__":
    try:
        generate(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
    except client.ClientError as problem:
        sys.exit(f"generate.py: {problem.message}")
