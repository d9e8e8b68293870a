"""Orders, and the customers that most of them come from."""

from __future__ import annotations

import json
import sys

import pyarrow as pa

from ottla import client

COUNTRIES = ("CZ", "AT", "DE")


def customers() -> dict[int, str]:
    return {number: COUNTRIES[number % len(COUNTRIES)] for number in range(10)}


def orders() -> list[dict[str, float]]:
    return [{"id": n, "customer": n % 11, "amount": round(n * 1.5, 2)} for n in range(200)]


def generate(cluster: str) -> None:
    known = [json.dumps({"customer": number, "country": country}).encode() for number, country in customers().items()]
    with client.Cluster(cluster) as connected:
        for name in ("orders", "customers"):
            client.create_topic(connected, name, 2)
        client.write("customers", pa.table({"value": known}), cluster=connected)
        client.write("orders", pa.table({"value": [json.dumps(one).encode() for one in orders()]}), cluster=connected)


if __name__ == "__main__":
    try:
        generate(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
    except client.ClientError as problem:
        sys.exit(f"generate.py: {problem.message}")
