"""The same topic read and written by three clients, each in a process of its own (`run_load`): what does a record cost them?

Guards: what is measured is the client's own CPU time, of all its threads, and the time on the wall, between the first request
for records and the last record; a first pass over the topic is not counted (imports, connections, page cache, allocators). The
per-record clients hand out every value, as a program that uses them would have it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.load import Figures, LoadError
from ottla import client

_AT_ONCE = 10_000
_FETCH = 8 << 20


def arrow_read(bootstrap: str, topic: str, records: int, columns: list[str] | None = None) -> Figures:
    """`ottla.client.read`, with all columns or the named ones."""

    def once() -> None:
        got = 0
        for batch in client.read(topic, cluster=bootstrap, columns=columns or client.COLUMNS):
            got += batch.num_rows
        _check(got, records)

    return _measured(once, records)


def arrow_write(bootstrap: str, topic: str, records: int, size: int) -> Figures:
    """`ottla.client.write`: acks=all and idempotent, keys hashed to partitions."""
    payload = os.urandom(size)
    rows = {"value": pa.repeat(payload, records), "key": pa.array([b"%08d" % row for row in range(records)])}
    table = pa.table(rows)

    def once() -> None:
        written = client.write(topic, table, cluster=bootstrap)
        _check(sum(one.records for one in written.values()), records)

    return _measured(once, records)


def confluent_read(bootstrap: str, topic: str, partitions: int, records: int) -> Figures:
    """confluent-kafka (librdkafka), tuned for throughput, through its batch interface."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "bench",
        "enable.auto.commit": False,
        "fetch.message.max.bytes": _FETCH,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 262_144,
        "fetch.queue.backoff.ms": 5,
        "check.crcs": True,
    }

    def once() -> None:
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        got = 0
        while got < records:
            messages = consumer.consume(min(_AT_ONCE, records - got), 10)  # it waits for as many as are asked for
            if not messages:
                raise LoadError(f"no records for 10 s after {got} of {records}")
            got += len([message.value() for message in messages])
        consumer.close()

    return _measured(once, records)


def confluent_write(bootstrap: str, topic: str, records: int, size: int) -> Figures:
    """confluent-kafka: acks=all and idempotent, keys hashed to partitions, linger 10 ms."""
    payload = os.urandom(size)
    keys = [b"%08d" % row for row in range(records)]
    settings = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "linger.ms": 10,
        "batch.size": 512 * 1024,
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 1_048_576,
    }

    def once() -> None:
        producer = Producer(settings)
        for key in keys:
            while True:
                try:
                    producer.produce(topic, payload, key)
                    break
                except BufferError:
                    producer.poll(0.05)
        if producer.flush(60):
            raise LoadError("not everything was acknowledged within 60 s")

    return _measured(once, records)


def aiokafka_read(bootstrap: str, topic: str, partitions: int, records: int) -> Figures:
    """aiokafka, through its batch interface."""

    async def once() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            fetch_max_bytes=_FETCH,
            max_partition_fetch_bytes=_FETCH,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        consumer.assign([AioPartition(topic, partition) for partition in range(partitions)])
        got = 0
        while got < records:
            answer: dict[Any, list[Any]] = await consumer.getmany(timeout_ms=10_000, max_records=_AT_ONCE)
            if not answer:
                raise LoadError(f"no records for 10 s after {got} of {records}")
            got += sum(len([message.value for message in messages]) for messages in answer.values())
        await consumer.stop()

    return _measured(lambda: asyncio.run(once()), records)


def _measured(once: Callable[[], None], records: int) -> Figures:
    once()
    cpu, began = time.process_time(), time.perf_counter()
    once()
    return {"per_s": records / (time.perf_counter() - began), "per_cpu_s": records / (time.process_time() - cpu)}


def _check(got: int, records: int) -> None:
    if got != records:
        raise LoadError(f"{got} records instead of {records}")
