"""Logs to compact, and a steady producer beside their compaction.

Guards: the records are the same in every run, down to their timestamps, and are sent in the same batches, so that every broker
has the same files. Keys are drawn at random, so that what stays lies everywhere in the log, most of it near the end; values are
text, which a codec makes less than half as long.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

from bench.connection import Connection, Pace, frame
from bench.load import Figures, LoadError, latencies
from ottla.model import Error
from ottla.records.batch import Record, build
from ottla.records.codecs import Codec
from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.frame import decode_response

RECORDS_PER_BATCH = 16  # of 1 KB each: what a producer of Kafka's own makes by default (batch.size=16384)
RECORDS_PER_KEY = 10  # on average: 90 % of the records are followed by another of their key
VALUE_SIZE = 1024

_TEXT_WORDS = 600_000
_FIRST_TIMESTAMP = 1_700_000_000_000
_IN_FLIGHT = 8
_FORGET_EVERY = 16_000  # records that were sent: their batches leave the page cache
_PRODUCE = 9
_STEADY_CONNECTIONS = 10
_REQUESTS_BEFORE = 50  # on each connection


# ---- logs to compact -----------------------------------------------------------------------------------------------------


def make_keyed(bootstrap: str, path: str, records: int, codec: str) -> Figures:
    """Write batches to a file, each after its length: made once, they are sent often. The broker has no part in this."""
    began = time.perf_counter()
    with open(path, "wb") as file:
        for batch in _batches(records, Codec[codec.upper()]):
            file.write(len(batch).to_bytes(4, "big"))
            file.write(batch)
        file.flush()
        os.fsync(file.fileno())
    return {"seconds": time.perf_counter() - began}


def write_keyed(bootstrap: str, path: str, topic: str, records: int) -> Figures:
    """Send the records of a file that `make_keyed` made to the only partition of a topic. The page cache is for the log."""
    host, _, port = bootstrap.partition(":")
    began = time.perf_counter()
    with open(path, "rb") as file, socket.create_connection((host, int(port)), 60) as sock, sock.makefile("rb") as answers:
        under_way = 0
        for number in range(0, records, RECORDS_PER_BATCH):
            batch = file.read(int.from_bytes(file.read(4), "big"))
            sock.sendall(_produce(topic, batch, acks=1))
            under_way += 1
            if number % _FORGET_EVERY == 0:
                os.posix_fadvise(file.fileno(), 0, file.tell(), os.POSIX_FADV_DONTNEED)
            if under_way == _IN_FLIGHT:
                _check(answers.read(int.from_bytes(answers.read(4), "big")))
                under_way -= 1
        for _ in range(under_way):
            _check(answers.read(int.from_bytes(answers.read(4), "big")))
    return {"seconds": time.perf_counter() - began}


def _batches(records: int, codec: Codec) -> Iterator[bytes]:
    drawn = random.Random(20_111)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(drawn.choices(letters, k=drawn.randint(3, 9))) for _ in range(2000)]
    text = " ".join(drawn.choices(words, k=_TEXT_WORDS)).encode()
    keys, starts = records // RECORDS_PER_KEY, len(text) - VALUE_SIZE
    for first in range(0, records, RECORDS_PER_BATCH):
        rows = []
        for number in range(first, min(first + RECORDS_PER_BATCH, records)):
            key, at = b"key-%012d" % int(drawn.random() * keys), int(drawn.random() * starts)
            rows.append(Record(number - first, _FIRST_TIMESTAMP + number, key, text[at : at + VALUE_SIZE], ()))
        yield build(rows, codec=codec)


def _produce(topic: str, batch: bytes, acks: int) -> bytes:
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])]
    return frame(ProduceRequest(transactional_id=None, acks=acks, timeout_ms=30_000, topic_data=data), _PRODUCE)


def _check(answer: bytes) -> None:
    if not answer:
        raise LoadError("the broker closed the connection")
    produced = decode_response(ProduceResponse, answer, _PRODUCE)[1]
    assert isinstance(produced, ProduceResponse)
    for topic in produced.responses:
        for partition in topic.partition_responses:
            if partition.error_code != Error.NONE:
                raise LoadError(f"Produce: {Error(partition.error_code).name}")


# ---- a steady producer ---------------------------------------------------------------------------------------------------


def steady_producer(bootstrap: str, topic: str, rate: float) -> Figures:
    """So many requests of one record a second, acks=all, for as long as our input is open; how long each took.

    Says so when it has begun. A line of input names the time that follows; what comes before the first does not count. It
    shares its rate among some connections: one answer that takes long holds up few others, and all that it holds up count.
    """
    return asyncio.run(_Steady(topic).run(bootstrap, rate))


class _Steady:
    """The producer and what it noted, by the name of the time."""

    def __init__(self, topic: str) -> None:
        row = Record(0, _FIRST_TIMESTAMP, None, bytes(VALUE_SIZE), ())
        self._request = _produce(topic, build([row]), acks=-1)
        self._taken: defaultdict[str, list[float]] = defaultdict(list)
        self._now = ""
        self._over = False

    async def run(self, bootstrap: str, rate: float) -> Figures:
        connections = [await Connection.open(bootstrap) for _ in range(_STEADY_CONNECTIONS)]
        for connection in connections:
            for _ in range(_REQUESTS_BEFORE):
                _check(await connection.exchange(self._request))
        asyncio.get_running_loop().add_reader(sys.stdin, self._told)
        paces = [Pace(rate, len(connections), number) for number in range(len(connections))]
        print("producing", flush=True)
        await asyncio.gather(*(self._produce(*pair) for pair in zip(connections, paces, strict=True)))
        named = {name: latencies(taken) for name, taken in self._taken.items() if name}
        return {f"{name}_{figure}": value for name, figures in named.items() for figure, value in figures.items()}

    def _told(self) -> None:
        line = sys.stdin.readline()
        if line:
            self._now = line.strip()
        else:
            self._over = True
            asyncio.get_running_loop().remove_reader(sys.stdin)

    async def _produce(self, connection: Connection, pace: Pace) -> None:
        while not self._over:
            await pace()
            name, began = self._now, time.perf_counter()
            answer = await connection.exchange(self._request)
            self._taken[name].append(time.perf_counter() - began)
            _check(answer)
