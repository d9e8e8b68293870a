"""One worker of a consume-transform-produce program, as a user would write it: run as a process of its own, killed with -9.

    python worker.py BOOTSTRAP SLOT INPUT OUTPUT

Reads INPUT in a group, writes each record's key and a new value to OUTPUT, and commits output and offsets in one transaction.
The transactional id belongs to the slot: a restarted worker ends what its predecessor left open. Slots of even number are
static members of the group, the others dynamic. A worker that meets a fatal error ends with exit code 3 and is started again.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

GROUP = "workers"
OUTPUT_PARTITIONS = 3
PATIENCE = 30.0
FATAL = 3
# librdkafka 2.16 that loses its only broker begins anew (re-bootstrap), and forgets requests that wait for a coordinator.
QUICK = {
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "log_level": 0,
}


class Ended(Exception):
    """SIGTERM."""


def transformed(value: bytes, slot: int) -> bytes:
    return b"%s by %d" % (value, slot)


class Worker:
    def __init__(self, bootstrap: str, slot: int, source: str, target: str) -> None:
        self.slot = slot
        self.target = target
        settings: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 2000,
            "heartbeat.interval.ms": 300,
            "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 50,
            "topic.metadata.refresh.interval.ms": 2000,
            **QUICK,
        }
        if slot % 2 == 0:
            settings["group.instance.id"] = f"slot-{slot}"
        self.consumer = Consumer(settings)
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"slot-{slot}",
                "transaction.timeout.ms": 15_000,
                "linger.ms": 0,
                **QUICK,
            }
        )
        self.producer.init_transactions(PATIENCE)
        self.consumer.subscribe([source])

    def run(self) -> None:
        while True:
            taken = [message for message in self.consumer.consume(25, 0.1) if self._is_record(message)]
            if taken:
                self._transaction(taken)

    @staticmethod
    def _is_record(message: Message) -> bool:
        error = message.error()
        if error is not None and (error.fatal() or error.code() == error._FATAL):
            raise KafkaException(error)
        return error is None

    def _transaction(self, taken: list[Message]) -> None:
        self.producer.begin_transaction()
        try:
            for message in taken:
                number = int(message.key()) % OUTPUT_PARTITIONS
                self.producer.produce(self.target, transformed(message.value(), self.slot), message.key(), number)
            time.sleep(0.01)  # some work: there is a moment in which the transaction is open and its records are out
            self.producer.flush(PATIENCE)
            positions: dict[tuple[str, int], int] = {}
            for message in taken:
                positions[message.topic(), message.partition()] = message.offset() + 1
            offsets = [TopicPartition(topic, number, offset) for (topic, number), offset in positions.items()]
            group = self.consumer.consumer_group_metadata()
            self._retried(lambda: self.producer.send_offsets_to_transaction(offsets, group, PATIENCE))
            self._retried(lambda: self.producer.commit_transaction(PATIENCE))
        except KafkaException as problem:
            if not problem.args[0].txn_requires_abort():
                raise
            self._retried(lambda: self.producer.abort_transaction(PATIENCE))
            self._back()

    @staticmethod
    def _retried(call: Callable[[], None]) -> None:
        """Whatever may be tried again is, for a while."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                call()
                return
            except KafkaException as problem:
                if not problem.args[0].retriable() or time.monotonic() > end:
                    raise

    def _back(self) -> None:
        """To where the group is: what the aborted transaction took has not been consumed."""
        mine = self.consumer.assignment()
        for one in self.consumer.committed(mine, PATIENCE):
            self.consumer.seek(TopicPartition(one.topic, one.partition, max(one.offset, 0)))


def _end(*_: object) -> None:
    raise Ended


def main() -> int:
    signal.signal(signal.SIGTERM, _end)
    bootstrap, slot, source, target = sys.argv[1:]
    try:
        worker = Worker(bootstrap, int(slot), source, target)
        worker.run()
    except Ended:
        return 0
    except KafkaException as problem:
        print(f"slot {slot}: {problem}", file=sys.stderr, flush=True)
        return FATAL
    return 0


if __name__ == "__main__":
    sys.exit(main())
