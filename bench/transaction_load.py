"""Transactions, as fast as the broker takes them: some producers side by side, each with one transaction under way.

Every transaction is what a producer of Kafka's own makes of it: AddPartitionsToTxn, one Produce with acks=all, EndTxn. A record
alone goes to one partition, several are spread over two. A producer takes turns with several transactional ids, because a
broker may answer EndTxn before it has written the markers, and refuses that id's next transaction until then (the error is
CONCURRENT_TRANSACTIONS): the broker's work is measured, and not how long a client waits. Refusals are waited out as by Java's
producer, and counted.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from itertools import cycle

from confluent_kafka import Producer
from fastcrc.crc32 import iscsi as crc32c

from bench.connection import NOT_YET, TRANSACTION, Connection, Pace, frame
from bench.load import Figures, LoadError
from bench.machine import cpu_seconds
from ottla.model import Error
from ottla.records.batch import ATTRIBUTES_AT, BASE_SEQUENCE_AT, CRC_AT, Record, build
from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.apis.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.apis.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)
from ottla.wire.frame import decode_response

_RECORD_SIZE = 100
_TIMEOUT_MS = 60_000
_BACKOFF_S = 0.02  # Java's producer waits as long before it asks again
_INIT, _ADD, _PRODUCE, _END = 4, 3, 9, 3  # versions: the newest that every Kafka client since 2.8 speaks
_NOT_YET = NOT_YET | {Error.CONCURRENT_TRANSACTIONS}


class _Identity:
    """One transactional id with its frames, all encoded beforehand but for the sequence numbers."""

    __slots__ = ("_batches", "_records", "_sequence", "_size", "add", "end", "produce")

    def __init__(self, name: str, producer_id: int, epoch: int, topic: str, partitions: list[int], records: int) -> None:
        self.add = frame(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=partitions)],
            ),
            _ADD,
        )
        self.end = frame(
            EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True), _END
        )
        self._records = records // len(partitions)
        self._sequence = 0
        now = time.time_ns() // 1_000_000
        rows = [Record(number, now, None, os.urandom(_RECORD_SIZE), ()) for number in range(self._records)]
        batch = build(rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True)
        data = [PartitionProduceData(index=partition, records=batch) for partition in partitions]
        topics = [TopicProduceData(name=topic, partition_data=data)]
        request = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=30_000, topic_data=topics)
        self.produce = bytearray(frame(request, _PRODUCE))
        self._size = len(batch)
        self._batches: list[int] = []
        for _ in partitions:
            self._batches.append(self.produce.index(batch, self._batches[-1] + 1 if self._batches else 0))

    def next(self) -> None:
        """Number the batches for the next transaction."""
        for at in self._batches:
            struct.pack_into(">i", self.produce, at + BASE_SEQUENCE_AT, self._sequence)
            checksum = crc32c(memoryview(self.produce)[at + ATTRIBUTES_AT : at + self._size])
            struct.pack_into(">I", self.produce, at + CRC_AT, checksum)
        self._sequence += self._records


class _Producer:
    """One connection that makes transactions, one after the other."""

    __slots__ = ("_added", "_connection", "_ended", "_identities", "refusals")

    def __init__(self, connection: Connection, identities: list[_Identity]) -> None:
        self._connection = connection
        self._identities = cycle(identities)
        self._added = self._ended = b""
        self.refusals = 0

    async def run(self, transactions: int, pace: Pace) -> None:
        for _ in range(transactions):
            await pace()
            identity = next(self._identities)
            identity.next()
            await self._add(identity)
            _produced(await self._connection.exchange(identity.produce))
            answer = await self._connection.exchange(identity.end)
            if answer != self._ended:  # the first one is looked at, and the others are the same, byte for byte
                ended = decode_response(EndTxnResponse, answer, _END)[1]
                assert isinstance(ended, EndTxnResponse)
                _none(ended.error_code, "EndTxn")
                self._ended = answer

    async def _add(self, identity: _Identity) -> None:
        while (answer := await self._connection.exchange(identity.add)) != self._added:
            added = decode_response(AddPartitionsToTxnResponse, answer, _ADD)[1]
            assert isinstance(added, AddPartitionsToTxnResponse)
            errors = {
                result.partition_error_code
                for topic in added.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            }
            if errors == {Error.NONE}:
                self._added = answer
                return
            if errors != {Error.CONCURRENT_TRANSACTIONS}:
                raise LoadError(f"AddPartitionsToTxn: {', '.join(Error(error).name for error in errors)}")
            self.refusals += 1
            await asyncio.sleep(_BACKOFF_S)


def _produced(answer: bytes) -> None:
    produced = decode_response(ProduceResponse, answer, _PRODUCE)[1]
    assert isinstance(produced, ProduceResponse)
    for topic in produced.responses:
        for partition in topic.partition_responses:
            _none(partition.error_code, "Produce")


def _none(error: int, what: str) -> None:
    if error != Error.NONE:
        raise LoadError(f"{what}: {Error(error).name}")


def transactions(
    bootstrap: str,
    pid: int,
    topic: str,
    partitions: int,
    records: int,
    count: int,
    rate: float | None = None,
    producers: int = 20,
    identities: int = 4,
) -> Figures:
    """`count` transactions of so many records each; at full speed, or so many a second."""
    return asyncio.run(_transactions(bootstrap, pid, topic, partitions, records, count, rate, producers, identities))


async def _transactions(
    bootstrap: str,
    pid: int,
    topic: str,
    partitions: int,
    records: int,
    count: int,
    rate: float | None,
    producers: int,
    identities: int,
) -> Figures:
    spread = min(partitions, 2 if records > 1 else 1)
    pool = []
    for number in range(producers):
        connection = await Connection.open(bootstrap)
        where = [(number + step) % partitions for step in range(spread)]
        made = [
            await _identity(connection, f"{topic}-{records}-{number}-{which}", topic, where, records)
            for which in range(identities)
        ]
        pool.append(_Producer(connection, made))
    await asyncio.gather(
        *(producer.run(identities, Pace(None, 1, 0)) for producer in pool)
    )  # every id has been through one transaction
    for producer in pool:
        producer.refusals = 0
    each = count // producers
    cpu, own, began = cpu_seconds(pid), time.process_time(), time.perf_counter()
    paces = [Pace(rate, producers, number) for number in range(producers)]
    await asyncio.gather(*(producer.run(each, pace) for producer, pace in zip(pool, paces, strict=True)))
    seconds, cpu, own = time.perf_counter() - began, cpu_seconds(pid) - cpu, time.process_time() - own
    done = each * producers
    return {
        "per_s": done / seconds,
        "per_cpu_s": done / cpu,
        "cores": cpu / seconds,
        "client_cores": own / seconds,
        "refused": sum(producer.refusals for producer in pool) / done,
    }


async def _identity(connection: Connection, name: str, topic: str, partitions: list[int], records: int) -> _Identity:
    await connection.find_coordinator(name, TRANSACTION)
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=_TIMEOUT_MS)
    answer = await connection.until(request, InitProducerIdResponse, _INIT, lambda found: found.error_code, _NOT_YET)
    return _Identity(name, answer.producer_id, answer.producer_epoch, topic, partitions, records)


def librdkafka_transactions(bootstrap: str, topic: str, partitions: int, records: int, count: int) -> Figures:
    """One producer of librdkafka, one transaction after the other: how long each takes, from its begin to its end."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-librdkafka", "linger.ms": 0})
    producer.init_transactions(60)
    payload = bytes(_RECORD_SIZE)
    times = []
    for number in range(count + 5):
        began = time.perf_counter()
        producer.begin_transaction()
        for record in range(records):
            producer.produce(topic, payload, partition=(number + record) % partitions)
        producer.commit_transaction(60)
        times.append(time.perf_counter() - began)
    times = sorted(times[5:])
    return {"p50_ms": times[len(times) // 2] * 1000, "max_ms": times[-1] * 1000}
