"""The workers as processes, what they are fed, and what came out: the parts of test_exactly_once that are not the story."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from robustness.exactly_once import worker
from robustness.exactly_once.worker import OUTPUT_PARTITIONS, QUICK

KEYS = 24


class Crew:
    """One process per slot; a slot whose worker ended is manned again."""

    def __init__(self, arguments: tuple[str, str, str], size: int, directory: Path) -> None:
        self._bootstrap, self._source, self._target = arguments
        self._log = directory / "workers.log"
        self._workers: list[subprocess.Popen[bytes] | None] = [None] * size
        self.gave_up = 0
        """Workers that ended by themselves: fenced, or at an error that only a restart cures."""

    def __len__(self) -> int:
        return len(self._workers)

    def man(self) -> None:
        """Start a worker in every slot that has none."""
        for slot, process in enumerate(self._workers):
            if process is not None and process.poll() is None:
                continue
            if process is not None:
                self.gave_up += 1
                assert process.returncode == worker.FATAL, f"slot {slot} ended with {process.returncode}:\n{self.said()}"
            command = [sys.executable, worker.__file__, self._bootstrap, str(slot), self._source, self._target]
            with self._log.open("ab") as log:
                self._workers[slot] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, slot: int) -> None:
        """kill -9; the slot stays empty until the next `man`."""
        process = self._workers[slot]
        if process is not None:
            process.kill()
            process.wait()
            self._workers[slot] = None

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def __enter__(self) -> Self:
        self.man()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for slot in range(len(self)):
            self.kill(slot)


class Feed:
    """The producer of the input, beside it all: per key the numbers 0, 1, 2, …; a key always goes to the same partition."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, per_second: int) -> None:
        self.acknowledged = 0
        self.sent: dict[int, int] = defaultdict(int)
        """How many numbers of each key."""
        self.problems: list[str] = []
        self._topic = topic
        self._partitions = partitions
        self._interval = 1 / per_second
        self._stop = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "delivery.timeout.ms": 300_000, "linger.ms": 1}
        self._producer = Producer({**settings, **QUICK})
        self._thread = threading.Thread(target=self._run)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.problems.append(str(error))
        else:
            self.acknowledged += 1

    def _run(self) -> None:
        total = 0
        while not self._stop.wait(self._interval):
            key = total % KEYS
            value = b"%d %d" % (key, self.sent[key])
            self._producer.produce(self._topic, value, b"%d" % key, key % self._partitions, on_delivery=self._delivered)
            self.sent[key] += 1
            total += 1
            self._producer.poll(0)
        left = self._producer.flush(60)
        if left:
            self.problems.append(f"{left} records of the input were never acknowledged")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


class Ledger:
    """What read_committed shows of the output: per key, the numbers in the order of the log. Anything else fails at once."""

    def __init__(self) -> None:
        self.next: dict[int, int] = defaultdict(int)
        self.wrong: list[str] = []

    def enter(self, message: Message) -> None:
        key, number = (int(part) for part in message.value().split(b" by ")[0].split())
        expected = self.next[key]
        if number != expected:
            kind = "twice or out of order" if number < expected else "lost or out of order"
            where = f"{message.topic()}-{message.partition()} at {message.offset()}"
            self.wrong.append(f"key {key}: {number} instead of {expected} ({kind}), {where}: {message.value()!r}")
            self.next[key] = max(expected, number + 1)
        else:
            self.next[key] += 1

    def total(self) -> int:
        return sum(list(self.next.values()))

    def missing(self, sent: dict[int, int]) -> dict[int, str]:
        """Per key what has not come."""
        return {key: f"{self.next[key]}..{count - 1}" for key, count in sorted(sent.items()) if self.next[key] < count}


class Auditor:
    """A reader of committed output that runs all the time, over the deaths of the broker too."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.ledger = Ledger()
        settings = {"bootstrap.servers": bootstrap, "group.id": "auditor", "isolation.level": "read_committed"}
        self._consumer = Consumer(
            {**settings, "enable.auto.commit": False, "fetch.wait.max.ms": 50, "check.crcs": True, **QUICK}
        )
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(OUTPUT_PARTITIONS)])
        self._stop = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop:
            for message in self._consumer.consume(1000, 0.05):
                if message.error() is None:
                    self.ledger.enter(message)

    def wait(
        self, enough: Callable[[], bool], seconds: float, missing: Callable[[], str], meanwhile: Callable[[], None]
    ) -> None:
        """Until `enough()`; a wrong record fails at once, and the deadline with what is `missing()`."""
        end = time.monotonic() + seconds
        while not enough():
            meanwhile()
            assert not self.ledger.wrong, self.ledger.wrong[:10]
            assert time.monotonic() < end, f"after {seconds} s still waiting for {missing()}"
            time.sleep(0.05)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop = True
        self._thread.join()
        self._consumer.close()
