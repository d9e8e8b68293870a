"""The topics that coordinators keep their state in are compacted like others, and load as before."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.server import ServerProcess

SETTINGS = {
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.delete.retention.ms": 0,
    "log.segment.delete.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 4000,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.segment.bytes": 4000,
}
COMMITS, TRANSACTIONS = 200, 40


def wait(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def log_bytes(directory: str, partition: str) -> int:
    path = os.path.join(directory, partition)
    return sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path) if name.endswith(".log"))


def test_committed_offsets_and_transactions_survive_compaction(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    with ServerProcess(directory, SETTINGS) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
        for group in ("a", "b"):
            consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": group, "log_level": 0})
            for number in range(COMMITS):
                consumer.commit(offsets=[TopicPartition("orders", 0, number)], asynchronous=False)
            consumer.close()
        senders = {}
        for name in ("x", "y"):
            sender = senders[name] = Producer(
                {"bootstrap.servers": server.bootstrap_servers, "transactional.id": name, "log_level": 0}
            )
            sender.init_transactions(30)
            for number in range(TRANSACTIONS):
                sender.begin_transaction()
                sender.produce("orders", b"%d" % number)
                sender.send_offsets_to_transaction(
                    [TopicPartition("orders", 0, 1000 + number)], _metadata(server.bootstrap_servers, f"in {name}"), 30
                )
                if number % 2:
                    sender.commit_transaction(30)
                else:
                    sender.abort_transaction(30)
        for partition in ("__consumer_offsets-0", "__transaction_state-0"):
            wait(lambda partition=partition: log_bytes(directory, partition) < 12_000, server.log)
        server.kill()
        server.start()
        for group, expected in (
            ("a", COMMITS - 1),
            ("b", COMMITS - 1),
            ("in x", 999 + TRANSACTIONS),
            ("in y", 999 + TRANSACTIONS),
        ):
            reader = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": group, "log_level": 0})
            assert reader.committed([TopicPartition("orders", 0)], timeout=30)[0].offset == expected, group
            reader.close()
        successor = Producer({"bootstrap.servers": server.bootstrap_servers, "transactional.id": "x", "log_level": 0})
        successor.init_transactions(30)
        successor.begin_transaction()
        successor.produce("orders", b"after all")
        successor.commit_transaction(30)
        assert "Traceback" not in server.log()
        assert "corrupt" not in server.log()


def _metadata(bootstrap: str, group: str):  # type: ignore[no-untyped-def]
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0}).consumer_group_metadata()
