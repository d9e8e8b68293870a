"""kill -9 at every named step of a clean: of the worker, of the broker, of both. Nothing is lost, nothing comes twice.

A topic is written, and what was acknowledged is remembered by offset. A step is armed, somebody dies there, and the next life
of the broker, or the next worker, finishes the clean.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.storage.cleaning import faults
from support.server import ServerProcess

KEYS, ROUNDS = 20, 12
SETTINGS = {
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.segment.delete.delay.ms": 0,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.initial.task.delay.ms": 0,
}


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that arms steps; brokers started from here know it."""
    path = tmp_path / "armed"
    path.mkdir()
    monkeypatch.setenv(faults.ENVIRONMENT, str(path))
    return path


def wait(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def write(bootstrap: str, topic: str) -> dict[int, tuple[bytes, bytes]]:
    """Fill a new topic, in many small segments; what was written, by offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    config = {"cleanup.policy": "compact", "segment.bytes": "900", "min.cleanable.dirty.ratio": "0.01"}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)
    written: dict[int, tuple[bytes, bytes]] = {}
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, "log_level": 0})

    def told(error, message) -> None:  # type: ignore[no-untyped-def]
        assert error is None
        written[message.offset()] = (message.key(), message.value())

    for round_ in range(ROUNDS):
        for number in range(KEYS):
            producer.produce(topic, key=b"%d" % number, value=b"%d of %d" % (round_, number), partition=0, on_delivery=told)
        assert producer.flush(30) == 0
    return written


def read(bootstrap: str, topic: str) -> list[tuple[int, bytes, bytes]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True, "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes, bytes]] = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            break
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def check(found: list[tuple[int, bytes, bytes]], written: dict[int, tuple[bytes, bytes]]) -> None:
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets)), "in order, each once"
    assert all(written[offset] == (key, value) for offset, key, value in found)
    final = {key: value for _, key, value in found}
    assert final == {b"%d" % number: b"%d of %d" % (ROUNDS - 1, number) for number in range(KEYS)}
    assert offsets[-1] == max(written)


def cleaned(directory: str, topic: str) -> bool:
    """Whether the cleaner has come to the active segment, and left nothing lying about."""
    names = os.listdir(os.path.join(directory, f"{topic}-0"))
    try:
        with open(os.path.join(directory, "cleaner-offset-checkpoint"), encoding="ascii") as file:
            points = [line.split() for line in file.read().splitlines()[2:]]
    except FileNotFoundError:
        return False
    active = max(int(name.removesuffix(".log")) for name in names if name.endswith(".log"))
    return [topic, "0", str(active)] in points and not any(name.endswith((".cleaned", ".swap")) for name in names)


def finish(server: ServerProcess, topic: str, written: dict[int, tuple[bytes, bytes]]) -> None:
    check(read(server.bootstrap_servers, topic), written)
    wait(lambda: cleaned(server.directory, topic), server.log)
    found = read(server.bootstrap_servers, topic)
    check(found, written)
    assert len(found) < KEYS * 5, "it was cleaned after all"


def test_the_worker_is_killed_at_every_step(tmp_path: Path, armed: Path) -> None:
    """The broker goes on, says so once, and starts another worker."""
    with ServerProcess(str(tmp_path / "data"), SETTINGS) as server:
        for step in faults.WORKER_STEPS:
            (armed / step).write_text("self")
            written = write(server.bootstrap_servers, step)
            wait(lambda step=step: not (armed / step).exists(), server.log)
            finish(server, step, written)
        assert server.log().count("ended with -9") == len(faults.WORKER_STEPS)
        assert "Traceback" not in server.log()


@pytest.mark.parametrize("step", faults.STEPS)
def test_the_broker_is_killed_at_a_step(tmp_path: Path, armed: Path, step: str) -> None:
    """Its next life finishes the clean or forgets it; the files of the last one are gone."""
    server = ServerProcess(str(tmp_path / "data"), {**SETTINGS, "log.cleaner.enable": "false"})
    with server:  # written before anybody cleans: the broker is not to die under the producer
        written = write(server.bootstrap_servers, "ledger")
        server.stop()
        server.settings["log.cleaner.enable"] = "true"
        (armed / step).write_text("both" if step in faults.WORKER_STEPS else "self")
        try:
            server.start()
        except RuntimeError:
            assert not (armed / step).exists()  # it died before it could answer
        assert server.process is not None
        assert server.process.wait(30) == -9, server.log()
        server.start()
        finish(server, "ledger", written)
        assert server.stop() == 0
        assert "Traceback" not in server.log()
