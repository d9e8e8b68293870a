"""Clients: the same records through `ottla.client`, confluent-kafka and aiokafka, from and to each broker.

The broker is the smaller part of these figures; they are taken on both, because the client has to be good with both.
"""

from __future__ import annotations

from bench.figures import CLIENT_READS
from bench.scenarios import Bench

_PARTITIONS = 4
_SIZE = 100


def client(bench: Bench) -> None:
    """One round: a topic of 100-byte records read by each client, then written by those that write fast."""
    records = bench.sizes.client_records
    with bench.topic(_PARTITIONS) as topic:
        what = {"pid": bench.broker.pid, "topic": topic, "partitions": _PARTITIONS, "records": records, "size": _SIZE}
        before = 4  # what `produce` sends before its clock runs
        bench.load("produce", **what)
        for name, arguments in CLIENT_READS.items():
            load, _, _ = name.partition(".")
            more = {} if load == "arrow_read" else {"partitions": _PARTITIONS}
            count = records // 5 if load == "aiokafka_read" else records + before
            figures = bench.load(load, topic=topic, records=count, **more, **arguments)
            bench.add(f"client.{name}.per_cpu", figures["per_cpu_s"])
            bench.add(f"client.{name}.rate", figures["per_s"])
    for load in ("arrow_write", "confluent_write"):
        with bench.topic(_PARTITIONS) as topic:
            figures = bench.load(load, topic=topic, records=records // 2, size=_SIZE)
            bench.add(f"client.{load}.per_cpu", figures["per_cpu_s"])
            bench.add(f"client.{load}.rate", figures["per_s"])
