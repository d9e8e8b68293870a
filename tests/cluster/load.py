"""A load on a cluster, as a process of its own: what was acknowledged is there once, in order, and how long writes had to wait.

    python load.py BOOTSTRAP TOPIC PARTITIONS

Reads words from its standard input, a line each, and answers each with a line of JSON:
`count`      how many records of the partition that lags most were acknowledged so far, and how many transactions committed
`pause`      how long the longest wait for an acknowledgement was since the last `pause`
`finish`     ends the load, reads the topic back, and tells what is wrong with it (nothing: an empty list)
An idempotent producer sends numbered records round robin, a few hundred a second. It is aiokafka's, which has one request of a
partition under way at a time: librdkafka, whose requests may be under way to an old and to a new leader at once, begins another
epoch when the new one misses those of the old, and sends again what the old one had written.
Beside it a transactional producer writes one transaction after the other into TOPIC-transactions.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

_EVERY = 0.004
_DELIVERY_S = 120


class Load:
    """The producer's side, in a thread with a loop of its own."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        self.acked: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
        self.failed: list[str] = []
        self.sent = 0
        self._last = [time.monotonic()] * partitions
        self._longest = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def _run(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True, acks="all")
        await producer.start()
        under_way: set[asyncio.Task[None]] = set()
        while not self._stop.is_set():
            number, self.sent = self.sent, self.sent + 1
            partition = number % self.partitions
            sending = await producer.send(self.topic, str(number).encode(), partition=partition)
            task = asyncio.ensure_future(self._delivered(sending, partition, number))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            await asyncio.sleep(_EVERY)
        await asyncio.wait_for(producer.stop(), _DELIVERY_S)
        await asyncio.gather(*under_way)

    async def _delivered(self, sending: asyncio.Future[Any], partition: int, number: int) -> None:
        try:
            await sending
        except KafkaError as problem:
            self.failed.append(f"{number}: {problem!r}")
            return
        now = time.monotonic()
        self.acked[partition].append(number)
        self._longest = max(self._longest, now - self._last[partition])
        self._last[partition] = now

    def pause(self) -> dict[str, float]:
        """The longest wait since the last time; one that still goes on counts too."""
        now = time.monotonic()
        longest = max(self._longest, *(now - last for last in self._last))
        self._longest, self._last = 0.0, [now] * self.partitions
        return {"longest_s": round(longest, 3)}

    def finish(self) -> dict[str, Any]:
        self._stop.set()
        self._thread.join(_DELIVERY_S)
        problems = list(self.failed)
        left = self.sent - len(problems) - sum(map(len, self.acked.values()))
        if left:
            problems.append(f"{left} records were neither acknowledged nor refused")
        problems += self._read_back()
        return {"sent": self.sent, "acknowledged": sum(map(len, self.acked.values())), "problems": problems[:20]}

    def _read_back(self) -> list[str]:
        found: dict[int, list[int]] = {partition: [] for partition in range(self.partitions)}
        for value in _all_values(self.bootstrap, self.topic, self.partitions):
            found[int(value) % self.partitions].append(int(value))
        return [problem for partition in found for problem in wrong_with(partition, self.acked[partition], found[partition])]


class Transactions:
    """Transactions of five records each, spread over the partitions; what became of each is noted."""

    RECORDS = 5

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        self.committed: set[int] = set()
        self.unsure: set[int] = set()
        """Their commit was asked for, and nobody knows what came of it."""
        self.begun = 0
        self.problems: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            producer = Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "transactional.id": f"{self.topic}-writer",
                    "transaction.timeout.ms": 60000,
                }
            )
            try:
                _again(lambda producer=producer: producer.init_transactions(10))  # type: ignore[misc]
                while not self._stop.is_set():
                    self._one(producer)
            except KafkaException as problem:
                if not problem.args[0].fatal():
                    self.problems.append(f"transactions: {problem}")

    def _one(self, producer: Producer) -> None:
        number, self.begun = self.begun, self.begun + 1
        producer.begin_transaction()
        try:
            for at in range(self.RECORDS):
                producer.produce(self.topic, f"{number}:{at}".encode(), partition=(number + at) % self.partitions)
            self.unsure.add(number)
            _again(lambda: producer.commit_transaction(10))
            self.unsure.discard(number)
            self.committed.add(number)
        except KafkaException as problem:
            if not problem.args[0].txn_requires_abort():
                raise
            _again(lambda: producer.abort_transaction(10))
            self.unsure.discard(number)

    def finish(self) -> tuple[int, list[str]]:
        self._stop.set()
        self._thread.join(_DELIVERY_S)
        found: dict[int, int] = {}
        for value in _all_values(self.bootstrap, self.topic, self.partitions):
            number = int(value.partition(b":")[0])
            found[number] = found.get(number, 0) + 1
        problems = list(self.problems)
        for number in sorted(self.committed | set(found)):
            wanted = {self.RECORDS} if number in self.committed else {0, self.RECORDS} if number in self.unsure else {0}
            if found.get(number, 0) not in wanted:
                problems.append(f"transaction {number}: {found.get(number, 0)} records of {sorted(wanted)}")
        return len(self.committed), problems


def _again(call: Callable[[], object]) -> None:
    """As long as the client says that it is worth another try."""
    deadline = time.monotonic() + _DELIVERY_S
    while True:
        try:
            call()
            return
        except KafkaException as problem:
            if not problem.args[0].retriable() or time.monotonic() > deadline:
                raise


def _all_values(bootstrap: str, topic: str, partitions: int) -> Iterator[bytes]:
    """What a reader of committed data sees, partition by partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "read-back", "enable.auto.commit": False,
         "isolation.level": "read_committed"}
    )  # fmt: skip
    for partition in range(partitions):
        place = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=60)
        consumer.assign([place])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and consumer.position([place])[0].offset < end:
            for message in consumer.consume(1000, 0.2):
                value = message.value()
                if message.error() is None and isinstance(value, bytes):
                    yield value
    consumer.close()


def wrong_with(partition: int, acked: list[int], found: list[int]) -> list[str]:
    """Every acknowledged record once and in order; what was not acknowledged may be there, once."""
    problems = []
    missing = sorted(set(acked) - set(found))
    if missing:
        problems.append(f"partition {partition}: {len(missing)} acknowledged records are lost, from {missing[0]} on")
    if len(set(found)) != len(found):
        problems.append(f"partition {partition}: {len(found) - len(set(found))} records are there twice")
    if found != sorted(found):
        problems.append(f"partition {partition}: records are out of order")
    return problems


def main() -> None:
    bootstrap, topic, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
    load, transactions = Load(bootstrap, topic, partitions), Transactions(bootstrap, f"{topic}-transactions", partitions)
    load.start()
    transactions.start()
    for line in sys.stdin:
        if line.strip() == "pause":
            print(json.dumps(load.pause()), flush=True)
        elif line.strip() == "count":
            acknowledged = min(map(len, load.acked.values()))
            print(json.dumps({"acknowledged": acknowledged, "committed": len(transactions.committed)}), flush=True)
        else:
            committed, problems = transactions.finish()
            answer = load.finish()
            print(json.dumps({**answer, "committed": committed, "problems": [*answer["problems"], *problems]}), flush=True)
            return


if __name__ == "__main__":
    main()
