"""Compaction beside Apache Kafka's: the same files cleaned by both keep the same records and batches, and it reads ours.

Apache Kafka writes a log with everything in it (values, tombstones, idempotent and transactional producers, all codecs) while
its cleaner is off. Then two copies of the directory are cleaned, one by Apache Kafka and one by us, several times: first
tombstones and markers get their horizon, then their time has come.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.records.batch import DELETE_HORIZON_BIT, Record, read_records, split
from support import java
from support.kafka import ApacheKafka, ZooKeeper
from support.server import ServerProcess

pytestmark = [pytest.mark.java, pytest.mark.slow]

TOPIC = "compacted"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SEGMENT = 20_000
QUIET = {"log_level": 0}  # the broker stops before they do
CLEANING = {
    "log.cleanup.policy": "compact",
    "log.segment.bytes": SEGMENT,
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.delete.retention.ms": 1,
    "log.initial.task.delay.ms": 100,
}


class Kept(NamedTuple):
    """What both must agree on of a batch. `horizon` is whether it has one: when that is depends on when it was cleaned."""

    base_offset: int
    last_offset: int
    count: int
    attributes: int
    horizon: bool
    max_timestamp: int
    producer: tuple[int, int, int]


class Content(NamedTuple):
    batches: list[Kept]
    records: list[Record]


def content(directory: Path) -> Content:
    """What a partition's directory holds up to its last segment, which is the active one."""
    found = Content([], [])
    for path in sorted((directory / f"{TOPIC}-0").glob("*.log"))[:-1]:
        data = path.read_bytes()
        for position, header in split(data):
            attributes = header.attributes & ~DELETE_HORIZON_BIT
            producer = (header.producer_id, header.producer_epoch, header.base_sequence)
            horizon = header.delete_horizon is not None
            found.batches.append(
                Kept(header.base_offset, header.last_offset, header.count, attributes, horizon, header.max_timestamp, producer)
            )
            if not header.is_control:
                found.records.extend(read_records(data, position, header))
    return found


def cleaned_up_to(directory: Path) -> int:
    """The cleaner point of the topic's partition."""
    try:
        lines = (directory / "cleaner-offset-checkpoint").read_text().splitlines()[2:]
    except FileNotFoundError:
        return -1
    return next((int(line.split()[2]) for line in lines if line.startswith(f"{TOPIC} 0 ")), -1)


def active_base(directory: Path) -> int:
    return max(int(path.stem) for path in (directory / f"{TOPIC}-0").glob("*.log"))


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def fill(bootstrap: str) -> None:
    """Everything that a compacted topic may meet."""
    for at, codec in enumerate(CODECS):
        plain = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20, "batch.size": 4000, **QUIET}
        )
        for number in range(300):
            value = None if number % 17 == at else f"{codec} {number} ".encode() * 5
            plain.produce(TOPIC, key=f"key {(number * 7 + at) % 60}".encode(), value=value, partition=0)
        assert plain.flush(60) == 0
        careful = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True, **QUIET})
        for number in range(40):
            careful.produce(TOPIC, key=f"key {number % 20}".encode(), value=f"once {codec} {number}".encode(), partition=0)
        assert careful.flush(60) == 0
        sender = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "transactional.id": f"sender {codec}", **QUIET}
        )
        sender.init_transactions(60)
        for outcome in ("commit", "abort", "commit", "abort", "abort"):
            sender.begin_transaction()
            for number in range(10):
                sender.produce(TOPIC, key=f"key {number + at}".encode(), value=f"{outcome} {number}".encode(), partition=0)
            sender.flush(60)
            if outcome == "commit":
                sender.commit_transaction(60)
            else:
                sender.abort_transaction(60)
    last = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **QUIET})
    for value in (b"here", None):
        for number in range(20):
            last.produce(TOPIC, key=b"gone %d" % number, value=value, partition=0)
        last.produce(TOPIC, key=b"beside the tombstones", value=b"1", partition=0)
        assert last.flush(60) == 0


def close_the_segment(bootstrap: str, number: int) -> None:
    """A record that fits into no segment that has something in it: all that was written before is in closed ones."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(TOPIC, key=b"filler %d" % number, value=b"x" * (SEGMENT - 500), partition=0)
    assert producer.flush(60) == 0


def final_values(bootstrap: str) -> dict[bytes, bytes]:
    """What a consumer of committed data knows in the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    known: dict[bytes, bytes] = {}
    while True:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            break
        if message.value() is None:
            known.pop(message.key(), None)
        else:
            known[message.key()] = message.value()
    consumer.close()
    return known


def test_both_cleaners_keep_the_same(tmp_path: Path) -> None:
    with ZooKeeper(str(tmp_path / "zookeeper")) as zookeeper:
        writer = ApacheKafka(str(tmp_path), zookeeper, {**CLEANING, "log.cleaner.enable": "false"})
        with writer:
            admin = AdminClient({"bootstrap.servers": writer.bootstrap_servers})
            admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(60)
            fill(writer.bootstrap_servers)
            close_the_segment(writer.bootstrap_servers, 0)
            expected = final_values(writer.bootstrap_servers)
            assert writer.stop() in (0, 143)

        ours_at = tmp_path / "ours"
        apache_at = Path(writer.log_dir)
        shutil.copytree(apache_at, ours_at)
        before = content(ours_at)
        apache = ApacheKafka(str(tmp_path), zookeeper, CLEANING)
        ours = ServerProcess(str(ours_at), CLEANING)
        for round_ in range(3):
            for server, directory in ((apache, apache_at), (ours, ours_at)):
                with server:
                    if round_:
                        close_the_segment(server.bootstrap_servers, round_)
                    wait(
                        lambda directory=directory: cleaned_up_to(directory) == active_base(directory),
                        f"the cleaner stands at {cleaned_up_to(directory)} of {directory}:\n{server.log()}",
                    )
                    assert server.stop() in (0, 143)
            theirs, mine = content(apache_at), content(ours_at)
            assert [one for one in mine.records if not (one.key or b"").startswith(b"filler")] == [
                one for one in theirs.records if not (one.key or b"").startswith(b"filler")
            ], f"round {round_}"
            assert len(mine.records) < len(before.records) // 3
            if not round_:  # later ones have the fillers' timestamps in them
                assert mine.batches == theirs.batches
                assert any(batch.horizon for batch in mine.batches)
            else:
                assert [one[:5] for one in mine.batches] == [one[:5] for one in theirs.batches], f"round {round_}"
        assert "Traceback" not in ours.log()
        assert any(batch.count == 0 for batch in mine.batches), "the last batches of producers stay"
        assert all(record.value is not None for record in mine.records), "the tombstones' time has come"

        files = ",".join(str(path) for path in sorted((ours_at / f"{TOPIC}-0").glob("*.log")))
        dump = java.run("kafka.tools.DumpLogSegments", "--files", files, "--deep-iteration", "--index-sanity-check")
        assert "isvalid: true" in dump.stdout
        assert "isvalid: false" not in dump.stdout
        indexes = [
            str(path) for kind in ("index", "timeindex") for path in sorted((ours_at / f"{TOPIC}-0").glob(f"*.{kind}"))[:-1]
        ]
        checked = java.run("kafka.tools.DumpLogSegments", "--files", ",".join(indexes), "--index-sanity-check")
        assert "Mismatch" not in checked.stdout + checked.stderr

        moved = ApacheKafka(str(tmp_path), zookeeper, {**CLEANING, "log.cleaner.enable": "false", "log.dirs": str(ours_at)})
        with moved:
            found = final_values(moved.bootstrap_servers)
            assert {key: value for key, value in found.items() if not key.startswith(b"filler")} == {
                key: value for key, value in expected.items() if not key.startswith(b"filler")
            }
            assert moved.stop() in (0, 143)
