"""Deposits and withdrawals of five accounts."""

from __future__ import annotations

import json
import sys

import pyarrow as pa

from ottla import client


def events() -> list[dict[str, str | int]]:
    return [
        {"account": f"a{n % 5}", "kind": "withdrawn" if n % 3 == 2 else "deposited", "amount": n * 13 % 50 + 1}
        for n in range(150)
    ]


def generate(cluster: str) -> None:
    rows = pa.table({"key": [str(one["account"]) for one in events()], "value": [json.dumps(one).encode() for one in events()]})
    with client.Cluster(cluster) as connected:
        client.create_topic(connected, "account-events", 2)
        client.write("account-events", rows, cluster=connected)


if __name__ == "__main__":
    try:
        generate(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
    except client.ClientError as problem:
        sys.exit(f"generate.py: {problem.message}")
