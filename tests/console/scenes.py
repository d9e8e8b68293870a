"""Clusters worth looking at: topics with something in them, groups that read and groups that stopped, transactions."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import confluent_kafka
import pyarrow as pa

from ottla import client
from ottla.client import Cluster, TopicPartition
from ottla.client.decoding import SCHEMA
from support.lawless import Producer

SETTINGS = {
    "transaction.partition.verification.enable": "false",  # so that a transaction can be made to hang
    "group.initial.rebalance.delay.ms": "0",
}
MARKUP = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
HOUR_MS = 3_600_000


@dataclass
class Scene:
    """A cluster, a console of it, and how wide the page is."""

    kind: str
    view: str
    url: str
    cluster: Cluster

    @property
    def phone(self) -> bool:
        return self.view == "phone"


def orders(count: int) -> pa.Table:
    """What a shop writes."""
    now = time.time_ns() // 1000
    values = [
        json.dumps({"id": 4000 + one, "customer": f"customer-{one % 40}", "total": round(one * 3.7, 2), "currency": "EUR"})
        for one in range(count)
    ]
    headers = [[{"key": "trace", "value": b"%08x" % one}, {"key": "source", "value": b"web"}] for one in range(count)]
    return pa.table(
        {
            "key": pa.array([b"customer-%d" % (one % 40) for one in range(count)], pa.binary()),
            "value": pa.array([value.encode() for value in values], pa.binary()),
            "timestamp": pa.array([now - (count - one) * 1_000_000 for one in range(count)], pa.timestamp("us", tz="UTC")),
            "headers": pa.array(headers, SCHEMA.field("headers").type),
        }
    )


def furnish(cluster: Cluster) -> None:
    """What every scene has."""
    client.create_topic(cluster, "orders", 6)
    client.create_topic(cluster, "payments", 3)
    client.create_topic(cluster, "customers", 2, config={"cleanup.policy": "compact", "segment.bytes": 16384})
    client.write("orders", orders(600), cluster=cluster)
    client.write("payments", pa.table({"key": [b"p-1"], "value": [MARKUP.encode()]}), cluster=cluster)
    for _ in range(8):
        client.write("customers", orders(100), cluster=cluster, batch_size=4096)
    client.commit_offsets(cluster, "reports", {TopicPartition("orders", number): 20 for number in range(6)})
    client.commit_offsets(cluster, "audit", {TopicPartition("payments", 0): 0, TopicPartition("orders", 2): 50})
    patient = {"bootstrap.servers": ",".join(map(str, cluster.settings.bootstrap)), "transaction.timeout.ms": 900_000}
    producer = client.Producer(patient, transactional_id="nightly-export")
    producer.begin()
    producer.write("payments", pa.table({"key": [b"p-2"], "value": [b"\x00\x01\xff not text"]}))


@contextlib.contextmanager
def at_work(bootstrap: str) -> Iterator[None]:
    """Somebody writes orders all the time, and a member of the group `billing` reads them."""
    over = threading.Event()

    def write() -> None:
        with client.Producer(bootstrap) as producer:
            while not over.wait(0.3):
                producer.write("orders", orders(60))

    def read() -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "billing", "client.id": "billing-1", "auto.offset.reset": "earliest",
             "auto.commit.interval.ms": 500}
        )  # fmt: skip
        consumer.subscribe(["orders"])
        while not over.is_set():
            consumer.consume(500, 0.3)
        consumer.close()

    threads = [threading.Thread(target=work, daemon=True) for work in (write, read)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def hang(cluster: Cluster, topic: str) -> None:
    """A transaction in the topic's first partition that no coordinator will end."""
    client.create_topic(cluster, topic, 1)
    producer = Producer(cluster, f"gone-{topic}")
    producer.id += 1000  # an id that no coordinator knows: its transactional id has expired
    producer.write(topic, ago_ms=HOUR_MS)
