"""kill -9 in the middle of a load with acks=all: after each restart every acknowledged record is there once, in order.

Idempotent producers run through all of it and never notice more than a pause. Before some restarts an index is removed, or the
active segment gets a torn tail. The long form has 30 kills (OTTLA_SOAK=1).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.server import ServerProcess

SOAK = bool(os.environ.get("OTTLA_SOAK"))
KILLS = 30 if SOAK else 5
PARTITIONS = 4
TOPIC = "ledger"
SETTINGS = {
    "log.segment.bytes": 1 << 20,
    "log.index.interval.bytes": 512,
    "log.flush.offset.checkpoint.interval.ms": 500,
    "log.initial.task.delay.ms": 100,
}

Acknowledged = dict[int, dict[int, bytes]]


class Load:
    """A producer in a thread that writes numbered records to all partitions, and knows which were acknowledged, and where."""

    def __init__(self, name: str, bootstrap: str, per_second: int) -> None:
        self.name = name
        self.acknowledged: Acknowledged = defaultdict(dict)
        self.problems: list[str] = []
        self._interval = 1 / per_second
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "delivery.timeout.ms": 300_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "error_cb": self._failed,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name=name)

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self.problems.append(str(error))

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.problems.append(str(error))
            return
        with self._lock:
            self.acknowledged[message.partition()][message.offset()] = message.value()[:40].rstrip(b".")

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = b"%s %d" % (self.name.encode(), number)
            size = 1200 if number % 7 else 60  # segments roll often, batches differ in size
            try:
                self._producer.produce(
                    TOPIC, value.ljust(size, b"."), partition=number % PARTITIONS, on_delivery=self._delivered
                )
                number += 1
            except BufferError:
                pass
            self._producer.poll(0)
            time.sleep(self._interval)
        left = self._producer.flush(60)
        if left:
            self.problems.append(f"{left} records were never acknowledged")

    def snapshot(self) -> Acknowledged:
        with self._lock:
            return {partition: dict(rows) for partition, rows in self.acknowledged.items()}

    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.acknowledged.values()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(str(tmp_path / "data"), SETTINGS) as running:
        yield running


def read_log(server: ServerProcess, up_to: dict[int, int]) -> dict[int, dict[int, bytes]]:
    """Every record of every partition, by offset, at least up to the given offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": "auditor",
            "enable.auto.commit": False,
            "log_level": 0,
            "fetch.wait.max.ms": 10,
            "check.crcs": True,
        }
    )
    found: dict[int, dict[int, bytes]] = {partition: {} for partition in range(PARTITIONS)}
    missing = {partition for partition, offset in up_to.items() if offset >= 0}
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    end = time.monotonic() + 60
    while missing:
        assert time.monotonic() < end, f"acknowledged records of partitions {missing} cannot be read"
        for message in consumer.consume(10_000, 0.05):
            assert message.error() is None, message.error()
            rows = found[message.partition()]
            assert message.offset() not in rows, "an offset came twice"
            rows[message.offset()] = message.value()[:40].rstrip(b".")
            if message.offset() >= up_to.get(message.partition(), -1):
                missing.discard(message.partition())
    consumer.close()
    return found


def check(server: ServerProcess, loads: list[Load]) -> int:
    """Every acknowledged record is at its offset; no record of a producer is there twice, missing, or out of order."""
    acknowledged = [load.snapshot() for load in loads]
    up_to = {
        partition: max((max(rows.get(partition, {-1: b""})) for rows in acknowledged), default=-1)
        for partition in range(PARTITIONS)
    }
    found = read_log(server, up_to)
    checked = 0
    for rows in acknowledged:
        for partition, expected in rows.items():
            for offset, value in expected.items():
                assert found[partition].get(offset) == value, f"partition {partition}, offset {offset}: acknowledged {value!r}"
                checked += 1
    for partition, records in found.items():
        assert sorted(records) == list(range(len(records))), f"partition {partition} has a gap in its offsets"
        numbers: dict[bytes, list[int]] = defaultdict(list)
        for _, value in sorted(records.items()):
            producer, _, number = value.rpartition(b" ")
            numbers[producer].append(int(number))
        for producer, sent in numbers.items():
            assert sent == list(range(partition, sent[-1] + 1, PARTITIONS)), (
                f"{producer!r} in partition {partition}: lost, doubled or mixed up"
            )
    return checked


def spoil(directory: Path, rng: random.Random) -> str:
    """What a crash can leave behind, beyond what was acknowledged."""
    partition = directory / f"{TOPIC}-{rng.randrange(PARTITIONS)}"
    segments = sorted(partition.glob("*.log"))
    how = rng.choice(["nothing", "no index", "no time index", "short index", "torn tail", "torn tail", "zeros at the tail"])
    if how in ("no index", "no time index"):
        victim = rng.choice(segments).with_suffix(".index" if how == "no index" else ".timeindex")
        victim.unlink(missing_ok=True)
    elif how == "short index":
        victim = segments[-1].with_suffix(".index")
        if victim.exists():
            os.truncate(victim, victim.stat().st_size // 2)
    elif how == "torn tail":
        with segments[-1].open("ab") as file:
            file.write(rng.randbytes(rng.randrange(1, 5000)))
    elif how == "zeros at the tail":
        with segments[-1].open("ab") as file:
            file.write(bytes(rng.randrange(1, 5000)))
    return f"{how} ({partition.name})"


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_no_acknowledged_record_is_lost_by_kill_9(server: ServerProcess) -> None:
    rng = random.Random(9)
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
    loads = [Load("first", server.bootstrap_servers, 1500), Load("second", server.bootstrap_servers, 700)]
    print()
    with loads[0], loads[1]:
        for kill in range(1, KILLS + 1):
            begun = sum(load.count() for load in loads)
            end = time.monotonic() + 30
            while sum(load.count() for load in loads) < begun + 500:
                assert time.monotonic() < end, f"the producers do not go on: {[load.problems for load in loads]}"
                time.sleep(0.01)
            time.sleep(rng.random())  # any moment will do
            server.kill()
            spoilt = spoil(Path(server.directory), rng)
            server.start()
            checked = check(server, loads)
            print(
                f"kill {kill}: {spoilt}, answered again after {server.started_in * 1000:.0f} ms, "
                f"{checked} acknowledged records there"
            )
    for load in loads:
        assert not load.problems
    checked = check(server, loads)
    assert checked == sum(load.count() for load in loads)
    assert len(list(Path(server.directory).glob(f"{TOPIC}-0/*.log"))) > 1, "segments were rolled"
    assert server.stop() == 0
    assert "Traceback" not in server.log()


def test_topics_and_their_settings_survive_kill_9(server: ServerProcess) -> None:
    """What an administrator was told is done is done."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
    for number in range(3):
        admin.create_topics([NewTopic(f"kept-{number}", 2, 1, config={"retention.ms": f"{1000 + number}"})])[
            f"kept-{number}"
        ].result()
        admin.create_topics([NewTopic(f"gone-{number}", 1, 1)])[f"gone-{number}"].result()
        admin.delete_topics([f"gone-{number}"])[f"gone-{number}"].result()
        server.kill()
        server.start()
        names = set(admin.list_topics(timeout=10).topics)
        assert names == {f"kept-{kept}" for kept in range(number + 1)}
    assert "Traceback" not in server.log()


@pytest.mark.slow
def test_a_clean_stop_under_load(server: ServerProcess) -> None:
    """SIGTERM while producers and a waiting consumer are connected: a quick end, nothing to recover, nothing lost."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
    waiting = Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": "g",
            "fetch.wait.max.ms": 60_000,
            "log_level": 0,
            "fetch.min.bytes": 100_000_000,
        }
    )
    waiting.subscribe([TOPIC])
    with Load("only", server.bootstrap_servers, 1500) as load:
        for _ in range(2):
            begun = load.count()
            end = time.monotonic() + 30
            while load.count() < begun + 500:
                assert time.monotonic() < end, f"the producer does not go on: {load.problems}"
                waiting.poll(0.01)
            stopping = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - stopping < 5
            server.start()
            check(server, [load])
    assert not load.problems
    waiting.close()
    assert "the last stop was not clean" not in server.log()
    assert "Traceback" not in server.log()
