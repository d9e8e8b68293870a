"""A log of changes to customers: new ones, new cities, and deletions, which are records without a value."""

from __future__ import annotations

import json
import sys

import pyarrow as pa

from ottla import client


def changes() -> list[tuple[str, dict[str, str] | None]]:
    found: list[tuple[str, dict[str, str] | None]] = [(f"c{n}", {"name": f"Name {n}", "city": "Praha"}) for n in range(20)]
    found += [(f"c{n}", {"name": f"Name {n}", "city": "Wien"}) for n in range(0, 20, 2)]
    return found + [(f"c{n}", None) for n in range(0, 20, 5)]


def generate(cluster: str) -> None:
    values = [None if one is None else json.dumps(one).encode() for _, one in changes()]
    rows = pa.table({"key": [key for key, _ in changes()], "value": pa.array(values, pa.binary())})
    with client.Cluster(cluster) as connected:
        client.create_topic(connected, "customers-log", 2, config={"cleanup.policy": "compact"})
        client.write("customers-log", rows, cluster=connected)


if __name__ == "__main__":
    try:
        generate(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
    except client.ClientError as problem:
        sys.exit(f"generate.py: {problem.message}")
