"""Exactly once, end to end: workers and the broker are killed with -9 at random moments, and every input comes out once.

A consume-transform-produce program (`exactly_once/worker.py`, four processes) runs over a feed that never stops. After all the
kills the output under read_committed holds each input exactly once, in order by key. The long form (OTTLA_SOAK=1) has 100 kills
of workers and 20 of the broker. And: no commit of offsets that was acknowledged is lost by kill -9.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from robustness.exactly_once.crew import Auditor, Crew, Feed
from robustness.exactly_once.worker import GROUP, OUTPUT_PARTITIONS, QUICK
from support.anchor import ON_APACHE, Broker, open_apache
from support.server import ServerProcess

SOAK = bool(os.environ.get("OTTLA_SOAK"))
WORKER_KILLS, BROKER_KILLS = (100, 20) if SOAK else (8, 2)
COMMIT_KILLS = 20 if SOAK else 3
WORKERS = 4
INPUT_PARTITIONS = 8
SETTINGS = {
    "group.min.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "log.segment.bytes": 1 << 20,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    if ON_APACHE:
        with open_apache(str(tmp_path / "kafka"), SETTINGS) as kafka:
            yield kafka
    else:
        with ServerProcess(str(tmp_path / "data"), SETTINGS) as server:
            yield server


def create(broker: Broker, partitions: dict[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUICK})
    for future in admin.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()]).values():
        future.result(30)


def committed(broker: Broker, group: str) -> dict[tuple[str, int], int]:
    """The group's offsets; a coordinator that is still loading after a restart is asked again."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUICK})
    end = time.monotonic() + 30
    while True:
        try:
            found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
        except KafkaException as problem:
            if problem.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS or time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return {(one.topic, one.partition): one.offset for one in found.topic_partitions}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_every_input_comes_out_exactly_once(broker: Broker, tmp_path: Path) -> None:
    seed = int(os.environ.get("OTTLA_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"\nseed {seed} (OTTLA_SEED={seed} kills in the same order)")
    rng = random.Random(seed)
    # Apache Kafka is killed by nobody: it would wait for its own session in ZooKeeper each time.
    kills = ["worker"] * WORKER_KILLS + ["broker"] * (BROKER_KILLS if isinstance(broker, ServerProcess) else 0)
    rng.shuffle(kills)
    create(broker, {"input": INPUT_PARTITIONS, "output": OUTPUT_PARTITIONS})
    servers = broker.bootstrap_servers
    begun = time.monotonic()
    with (
        Feed(servers, "input", INPUT_PARTITIONS, 150) as feed,
        Auditor(servers, "output") as auditor,
        Crew((servers, "input", "output"), WORKERS, tmp_path) as crew,
    ):
        ledger = auditor.ledger
        auditor.wait(lambda: ledger.total() > 0, 60, lambda: f"the first output; {crew.said()}", crew.man)
        for number, victim in enumerate(kills, 1):
            time.sleep(rng.uniform(0.05, 1.0))  # any moment will do
            if victim == "broker":
                assert isinstance(broker, ServerProcess)
                broker.kill()
                time.sleep(rng.uniform(0, 0.3))
                broker.start()
            else:
                crew.kill(rng.randrange(WORKERS))
                time.sleep(rng.choice((0, 0.2, 2.5)))  # at once, soon, or after its session has timed out
            crew.man()
            if number % 5 == 0:  # it goes on, and does not only survive
                goal, after = ledger.total() + 100, f"kill {number} ({victim})"

                def stuck(after: str = after) -> str:
                    return f"output to go on after {after}: {ledger.total()} of {feed.acknowledged}; {crew.said()}"

                auditor.wait(lambda goal=goal: ledger.total() >= goal, 60, stuck, crew.man)
        feed.stop()
        assert not feed.problems
        auditor.wait(
            lambda: not ledger.missing(feed.sent),
            90,
            lambda: f"keys and their numbers {ledger.missing(feed.sent)}; {crew.said()}",
            crew.man,
        )
        ends = {
            ("input", number): sum(count for key, count in feed.sent.items() if key % INPUT_PARTITIONS == number)
            for number in range(INPUT_PARTITIONS)
        }
        assert committed(broker, GROUP) == ends, "the group's offsets went with the output"
    seconds = time.monotonic() - begun
    with Auditor(servers, "output") as again:
        total = sum(feed.sent.values())
        again.wait(lambda: again.ledger.total() >= total, 60, lambda: f"{again.ledger.missing(feed.sent)}", lambda: None)
        assert again.ledger.next == feed.sent
        assert not again.ledger.wrong
    print(
        f"{kills.count('worker')} workers and {kills.count('broker')} brokers killed, {crew.gave_up} workers gave up "
        f"by themselves, {total} records exactly once in {seconds:.0f} s"
    )
    assert "Traceback" not in broker.log(), broker.log()[-4000:]


class Committer:
    """A thread that commits 1, 2, 3, … for one group, and knows what was acknowledged."""

    def __init__(self, servers: str, group: str, topic: str) -> None:
        self.group = group
        self.acknowledged = 0
        self.attempted = 0
        self._topic = topic
        self._stop = False
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, **QUICK})
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop:
            self.attempted += 1
            try:
                self._consumer.commit(offsets=[TopicPartition(self._topic, 0, self.attempted)], asynchronous=False)
            except KafkaException:
                time.sleep(0.01)
                continue  # not acknowledged: it may be there or not
            self.acknowledged = self.attempted

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop = True
        self._thread.join()
        self._consumer.close()


@pytest.mark.slow
@pytest.mark.soak
def test_no_acknowledged_commit_is_lost_by_kill_9(tmp_path: Path) -> None:
    rng = random.Random(4)
    with ServerProcess(str(tmp_path / "data"), SETTINGS) as server:
        create(server, {"topic": 1})
        committers = [Committer(server.bootstrap_servers, f"group-{number}", "topic") for number in range(4)]
        with committers[0], committers[1], committers[2], committers[3]:
            for kill in range(1, COMMIT_KILLS + 1):
                before = [one.acknowledged for one in committers]
                end = time.monotonic() + 60
                while any(one.acknowledged < was + 20 for one, was in zip(committers, before, strict=True)):
                    assert time.monotonic() < end, f"kill {kill}: commits are not acknowledged any more"
                    time.sleep(0.01)
                time.sleep(rng.random() / 2)
                server.kill()
                promised = {one.group: one.acknowledged for one in committers}
                server.start()
                for one in committers:
                    found = committed(server, one.group)["topic", 0]
                    assert promised[one.group] <= found <= one.attempted, f"kill {kill}, {one.group}"
        print(f"\n{COMMIT_KILLS} kills, {sum(one.acknowledged for one in committers)} commits acknowledged, none lost")
        assert "Traceback" not in server.log()
