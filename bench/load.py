"""The loads that librdkafka makes, each in a process of its own (`run_load`).

Guards: what is measured is the broker's CPU time between the first and the last request of the load, and nothing of the set-up
(topics, connections, metadata). A load that could not do all it was asked to ends with an error: half a load has no figure.
The client is the same, with the same settings, for every broker.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.machine import cpu_seconds

Figures = dict[str, float]

_BATCH_BYTES = 131_072
_RECORD_OVERHEAD = 12
_TRIPS_BEFORE = 1
_API_VERSIONS_V0 = struct.pack(">ihhih", 10, 18, 0, 1, 0)


class LoadError(Exception):
    """The load could not be carried out whole."""


# ---- topics --------------------------------------------------------------------------------------------------------------


def create_topic(
    bootstrap: str, topic: str, partitions: int, settings: dict[str, str] | None = None, factor: int = 1
) -> Figures:
    """Create a topic, and wait until each of its partitions has a leader; how long that took."""
    return create_topics(bootstrap, [topic], partitions, factor, settings)


def create_topics(
    bootstrap: str, topics: list[str], partitions: int, factor: int = 1, settings: dict[str, str] | None = None
) -> Figures:
    """Create topics, and wait until each of their partitions has a leader; how long that took."""
    admin = _admin(bootstrap)
    began = time.perf_counter()
    wanted = [NewTopic(topic, partitions, factor, config=settings or {}) for topic in topics]
    for answer in admin.create_topics(wanted, operation_timeout=60, request_timeout=90).values():
        answer.result()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        known = admin.list_topics(timeout=20).topics
        found = [one for topic in topics if topic in known for one in known[topic].partitions.values()]
        if len(found) == partitions * len(topics) and all(one.leader >= 0 for one in found):
            return {"seconds": time.perf_counter() - began}
        time.sleep(0.05)
    raise LoadError(f"topics {', '.join(topics[:3])} have no leaders after 60 s")


def delete_topics(bootstrap: str, topics: list[str]) -> Figures:
    """Delete some topics."""
    admin = _admin(bootstrap)  # named, so that it lives until the answers are here
    for answer in admin.delete_topics(topics, operation_timeout=60).values():
        answer.result()
    return {}


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})


# ---- throughput ----------------------------------------------------------------------------------------------------------


def produce(
    bootstrap: str, pid: int | list[int], topic: str, partitions: int, records: int, size: int, run: int = 0
) -> Figures:
    """Produce at full speed: acks=all, batches of up to 128 KB, linger 10 ms.

    `run` records go to one partition and then as many to the next; without it a whole batch, as large with 1,000 as with 1.
    """
    failed: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 10,
            "batch.size": _BATCH_BYTES,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
        }
    )
    delivered = _watch(failed)
    payload = os.urandom(size)
    for partition in range(min(partitions, 4)):  # connections and metadata are there before the clock runs
        producer.produce(topic, payload, partition=partition)
    _flush(producer, failed)
    run = run or _BATCH_BYTES // (size + _RECORD_OVERHEAD)
    cpu, began = _cpu(pid), time.perf_counter()
    for number in range(records):
        partition = number // run % partitions
        callback = delivered if number % 1000 == 0 else None
        while True:
            try:
                producer.produce(topic, payload, partition=partition, on_delivery=callback)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 20_000 == 0:
            producer.poll(0)
    _flush(producer, failed)
    seconds = time.perf_counter() - began
    return _throughput(records, size, seconds, _cpu(pid) - cpu)


def consume(bootstrap: str, pid: int, topic: str, partitions: int, records: int, size: int) -> Figures:
    """Consume a topic from its start at full speed."""
    with _consumer(bootstrap, {"queued.max.messages.kbytes": 262_144, "queued.min.messages": 1_000_000}) as consumer:
        consumer.list_topics(topic, timeout=20)
        cpu, began = cpu_seconds(pid), time.perf_counter()
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        _read(consumer, records)
        seconds = time.perf_counter() - began
        return _throughput(records, size, seconds, cpu_seconds(pid) - cpu)


def one_record_requests(bootstrap: str, pid: int, topic: str, partitions: int, requests: int) -> Figures:
    """Requests of one record each, from 4 producers with up to 5 in flight."""
    failed: list[str] = []
    settings = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "linger.ms": 0,
        "batch.num.messages": 1,
        "max.in.flight": 5,
        "queue.buffering.max.messages": 1_000_000,
    }
    producers = [Producer(settings) for _ in range(4)]
    for producer in producers:
        for partition in range(partitions):
            producer.produce(topic, b"before", partition=partition)
        _flush(producer, failed)
    delivered, payload = _watch(failed), bytes(100)
    cpu, began = cpu_seconds(pid), time.perf_counter()
    for number in range(requests):
        callback = delivered if number % 1000 == 0 else None
        producers[number % 4].produce(topic, payload, partition=number // 4 % partitions, on_delivery=callback)
    for producer in producers:
        _flush(producer, failed)
    seconds = time.perf_counter() - began
    return {"requests_per_s": requests / seconds, "cpu_us": (cpu_seconds(pid) - cpu) / requests * 1e6}


def _cpu(pid: int | list[int]) -> float:
    """Of a broker, or of all brokers of a cluster."""
    return sum(map(cpu_seconds, pid)) if isinstance(pid, list) else cpu_seconds(pid)


def _throughput(records: int, size: int, seconds: float, cpu: float) -> Figures:
    return {"records_per_s": records / seconds, "cpu_s_per_gb": cpu / (records * size / 1e9), "cpu_s": cpu, "seconds": seconds}


def _watch(failed: list[str]) -> Callable[[Any, Message], None]:
    def delivered(problem: Any, _message: Message) -> None:
        if problem is not None:
            failed.append(str(problem))

    return delivered


def _flush(producer: Producer, failed: list[str]) -> None:
    left = producer.flush(120)
    if left or failed:
        raise LoadError(f"{left} records were not delivered in time, {len(failed)} refused: {failed[:1]}")


@contextmanager
def _consumer(bootstrap: str, settings: dict[str, Any]) -> Iterator[Consumer]:
    base = {"bootstrap.servers": bootstrap, "group.id": f"bench-{os.getpid()}", "enable.auto.commit": False}
    consumer = Consumer(base | settings)
    try:
        yield consumer
    finally:
        consumer.close()


def _read(consumer: Consumer, records: int, first: Callable[[], None] | None = None) -> None:
    left = records
    while left > 0:
        messages = consumer.consume(min(left, 10_000), 30)
        if not messages:
            raise LoadError(f"{left} of {records} records did not come within 30 s")
        for message in messages:
            if message.error():
                raise LoadError(str(message.error()))
        if first is not None:
            first()
            first = None
        left -= len(messages)


# ---- there and back ------------------------------------------------------------------------------------------------------


def round_trips(
    bootstrap: str, topic: str, partitions: int, trips: int, beside: dict[str, Any] | None = None, at_most_s: float = 60
) -> Figures:
    """One record there and back, again and again, by a consumer that is assigned to all partitions.

    With `beside` (what `read_from_start` takes) a reader runs in another process; then only the trips made while it reads
    count, and they go on until it has read all.
    """
    with _consumer(bootstrap, {"fetch.wait.max.ms": 500, "fetch.min.bytes": 1}) as consumer:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        ends = [consumer.get_watermark_offsets(place, timeout=20)[1] for place in places]
        consumer.assign([TopicPartition(topic, partition, end) for partition, end in enumerate(ends)])
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
        trip = _Trip(producer, consumer, topic, partitions)
        for _ in range(_TRIPS_BEFORE):
            trip()
        if beside is None:
            times = [trip() for _ in range(trips)]
            producer.flush(10)
            return latencies(times)
        reader = _Beside(beside)
        times, stop = [], time.monotonic() + at_most_s
        while not reader.ended.is_set() and time.monotonic() < stop:
            took = trip()
            if reader.began.is_set():
                times.append(took)
        producer.flush(10)
        return latencies(times) | reader.figures()


class _Trip:
    def __init__(self, producer: Producer, consumer: Consumer, topic: str, partitions: int) -> None:
        self._producer, self._consumer, self._topic, self._partitions = producer, consumer, topic, partitions
        self._payload = bytes(100)
        self._number = 0

    def __call__(self) -> float:
        """One trip; how many seconds it took."""
        partition = self._number % self._partitions
        self._number += 1
        began = time.perf_counter()
        self._producer.produce(self._topic, self._payload, partition=partition)
        self._producer.poll(0)
        message = self._consumer.poll(20)
        took = time.perf_counter() - began
        if message is None or message.error():
            raise LoadError("a record did not come back within 20 s" if message is None else str(message.error()))
        return took


class _Beside:
    """`read_from_start` in a process of its own, and a thread that listens to what it says."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.began, self.ended = threading.Event(), threading.Event()
        # It stands for a client on another machine: what it does with what it reads must not take the broker's CPU.
        command = ["chrt", "--idle", "0", sys.executable, "-m", "bench.run_load", "read_from_start", json.dumps(arguments)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._last = ""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last = line
            self.began.set()
        self.ended.set()

    def figures(self) -> Figures:
        if not self.ended.is_set():  # it reads slower than we have time for: what was measured beside it stands
            self._process.kill()
            self._process.wait()
            return {}
        if self._process.wait() != 0:
            raise LoadError("the reader beside failed")
        return {f"reader_{name}": value for name, value in json.loads(self._last).items()}


def read_from_start(bootstrap: str, topic: str, partitions: int, records: int, size: int) -> Figures:
    """Read a topic from its start at full speed; says so when the first records are here."""
    with _consumer(bootstrap, {"queued.min.messages": 1_000_000}) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        began = time.perf_counter()
        _read(consumer, records, first=lambda: print("reading", flush=True))
        seconds = time.perf_counter() - began
        return {"mb_per_s": records * size / 1e6 / seconds, "seconds": seconds}


def latencies(times: list[float]) -> Figures:
    """The percentiles of some times, in milliseconds."""
    if len(times) < 100:
        raise LoadError(f"only {len(times)} requests or trips were made: too few for a p99")
    times = sorted(times)
    at = {
        name: times[int(len(times) * share)] * 1000 for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999))
    }
    return at | {"trips": len(times), "max_ms": times[-1] * 1000}


# ---- many connections ----------------------------------------------------------------------------------------------------


def crowd(bootstrap: str, connections: int) -> Figures:
    """Open connections that each ask for ApiVersions once, and hold them, idle, until our input ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, _, port = bootstrap.partition(":")
    began = time.perf_counter()
    held = []
    for _ in range(
        connections
    ):  # one after the other: a burst would meet the listen backlog of 50 and wait for retransmissions
        sock = socket.create_connection((host, int(port)), 30)
        sock.sendall(_API_VERSIONS_V0)
        _exactly(sock, struct.unpack(">i", _exactly(sock, 4))[0])
        held.append(sock)
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
    sys.stdin.read()
    lost = sum(_lost(sock) for sock in held)
    for sock in held:
        sock.close()
    return {"lost": lost}


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise LoadError("the broker closed a connection that had just asked for ApiVersions")
        data += more
    return data


def _lost(sock: socket.socket) -> bool:
    """Whether the broker hung up."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
