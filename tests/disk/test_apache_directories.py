"""One directory, two brokers in turn: Apache Kafka starts over what we wrote, and we open what it wrote, stopped or killed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.clock import SystemClock
from ottla.model import TopicPartition
from ottla.records.batch import Record, build, read_records, split
from ottla.records.codecs import Codec
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.manager import LogManager
from support.kafka import ApacheKafka, ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PLAIN, TXN = TopicPartition("plain", 0), TopicPartition("txn", 0)
SMALL = LogConfig(segment_bytes=5_000)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(str(tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server


def produce(kafka: ApacheKafka, count: int, start: int = 0) -> list[bytes]:
    """Values in order, through a default (idempotent) producer of each codec."""
    values: list[bytes] = []
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 0})
        for number in range(count):
            value = b"apache-%s-%d-%s" % (codec.encode(), start + number, b"x" * 100)
            producer.produce("plain", value, b"k%d" % number, partition=0)
            values.append(value)
            if number % 7 == 0:
                producer.flush()
        assert producer.flush(20) == 0
    return values


def transactions(kafka: ApacheKafka) -> list[bytes]:
    """Committed, aborted, committed, and one that stays open; what read_committed shows."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t1"})
    producer.init_transactions(30)
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for n in range(4):
            producer.produce("txn", b"%d-%d" % (number, n), partition=0)
        producer.flush()
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    producer.begin_transaction()
    producer.produce("txn", b"open", partition=0)
    producer.flush()
    return [b"%d-%d" % (number, n) for number in (0, 2) for n in range(4)]


def consume(kafka: ApacheKafka, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "isolation.level": "read_uncommitted"})
    consumer.assign([ClientPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.5):
            assert message.error() is None, message.error()
            values.append(message.value())
    consumer.close()
    return values


def values_in(log: Log) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = log.log_start_offset
    while (piece := log.read(offset, 1 << 20, log.log_end_offset, True)) is not None:
        data = piece.read()
        for position, header in split(data):
            if not header.is_control:
                found += [record.value for record in read_records(data, position, header)]
            offset = header.next_offset
    return found


def opened(path: Path | str) -> LogManager:
    manager = LogManager([str(path)], SystemClock(), broker_id=0, cluster_id=None)
    cluster_id = manager.stored_cluster_id()
    assert cluster_id is not None
    manager.claim(cluster_id)
    manager.load(lambda topic: SMALL if topic == "plain" else LogConfig())
    return manager


def started_after_a_kill(kafka: ApacheKafka) -> ApacheKafka:
    """ZooKeeper remembers a killed broker until its session is over, and does not let it back in before."""
    deadline = time.monotonic() + 40
    while True:
        try:
            return kafka.start()
        except RuntimeError as error:
            if "NodeExists" not in str(error) or time.monotonic() > deadline:
                raise


def test_apache_kafka_and_we_take_turns(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    kafka = ApacheKafka(str(tmp_path), zookeeper, {"zookeeper.session.timeout.ms": 4000})
    with kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        topics = [NewTopic("plain", 1, 1, config={"segment.bytes": "5000"}), NewTopic("txn", 1, 1)]
        for future in admin.create_topics(topics).values():
            future.result(30)
        expected = produce(kafka, 60)
        committed = transactions(kafka)
        # Killed: a copy of the live directory is what kill -9 leaves.
        shutil.copytree(kafka.log_dir, tmp_path / "killed", ignore=shutil.ignore_patterns(".lock"))
        assert kafka.stop() in (0, 143)

    for path, clean in ((tmp_path / "killed", False), (Path(kafka.log_dir), True)):
        manager = opened(path)
        plain, txn = manager.logs[PLAIN], manager.logs[TXN]
        assert len(plain.segments) > 1
        assert values_in(plain) == expected, clean
        txn.high_watermark = txn.log_end_offset
        aborted = txn.aborted_transactions(0, txn.log_end_offset)
        assert [(entry.first_offset, entry.last_offset) for entry in aborted] == [(5, 9)]
        assert txn.last_stable_offset == 15  # one transaction is open
        hidden = {offset for entry in aborted for offset in range(entry.first_offset, entry.last_offset)}
        shown = [value for offset, value in _with_offsets(txn) if offset not in hidden and offset < 15]
        assert shown == committed
        if not clean:
            manager.shutdown()
            continue
        # Our turn: append, rolling a few segments, in every codec and with a producer of our own.
        now = SystemClock().now_ms()
        for number in range(300):
            value = b"ottla-%d-%s" % (number, b"y" * 200)
            data = build(
                [Record(0, now, b"k", value)], codec=Codec(number % 5), producer_id=4711, producer_epoch=0, base_sequence=number
            )
            plain.append_as_leader(memoryview(bytearray(data)), max(plain.leader_epochs.latest, 0))
            expected.append(value)
        high_watermarks = {log.topic_partition: log.log_end_offset for log in manager.logs.values()}
        manager.shutdown(high_watermarks)

    # Apache Kafka again, over what we left: it finds a clean stop, every record, and goes on.
    with kafka:
        assert consume(kafka, "plain", len(expected)) == expected
        expected += produce(kafka, 20, start=1000)
        assert consume(kafka, "plain", len(expected)) == expected
        for word in ("ERROR", "orrupt", "Recovering"):
            assert word not in kafka.log(), kafka.log()
        kafka.kill()

    # And us after its kill -9.
    manager = opened(kafka.log_dir)
    assert values_in(manager.logs[PLAIN]) == expected
    last = manager.logs[PLAIN].producers.by_id[4711]
    assert last.last_sequence == 299
    manager.abandon()  # our own kill -9

    # And it after ours.
    try:
        started_after_a_kill(kafka)
        assert consume(kafka, "plain", len(expected)) == expected
    finally:
        kafka.kill()


def _with_offsets(log: Log) -> list[tuple[int, bytes | None]]:
    piece = log.read(0, 1 << 20, log.log_end_offset, True)
    assert piece is not None
    data = piece.read()
    return [
        (record.offset, record.value)
        for position, header in split(data)
        if not header.is_control
        for record in read_records(data, position, header)
    ]
