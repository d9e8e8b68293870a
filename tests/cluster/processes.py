"""A cluster of real processes: a ZooKeeper, several brokers, and what can be done to each of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.client.cluster import TRANSACTION
from ottla.client.cluster import Cluster as Remote
from ottla.model import KafkaError
from ottla.wire.apis.metadata import MetadataResponse, MetadataResponsePartition
from ottla.wire.apis.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from support.server import answers_at, free_port
from support.zookeeper import SESSION_MS, QuickZooKeeper

from .hosts import Hosts

_R = TypeVar("_R")
_TOLD_OF_A_LOG = 8000
"""Characters of each broker's log that a failed test shows."""
DEFAULTS = {
    "zookeeper.session.timeout.ms": SESSION_MS,
    "zookeeper.connection.timeout.ms": 10000,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.num.partitions": 4,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "min.insync.replicas": 2,
    "default.replication.factor": 3,
    "replica.lag.time.max.ms": 4000,
    "auto.leader.rebalance.enable": "false",
}


def until(condition: Callable[[], _R], what: str, timeout: float = 60) -> _R:
    """Wait for something that other processes bring about."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = condition()
        except (LookupError, KafkaError, OSError):
            found = None  # type: ignore[assignment]
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.02)


def remote_to(address: str, seconds: float) -> Remote:
    """The client's view of what listens there; it gives up after so long."""
    return Remote({"bootstrap.servers": address, "default.api.timeout.ms": int(seconds * 1000)})


class BrokerProcess:
    """One broker, on this machine or on a host of its own."""

    def __init__(
        self, number: int, directory: str, zookeeper: str, settings: Mapping[str, object], hosts: Hosts | None
    ) -> None:
        self.number = number
        self.host = hosts.address(number) if hosts is not None else "127.0.0.1"
        self.port = 9092 if hosts is not None else free_port()
        self.data = os.path.join(directory, f"broker-{number}")
        self.log_path = os.path.join(directory, f"broker-{number}.log")
        self.process: subprocess.Popen[bytes] | None = None
        self._hosts = hosts
        self._settings = {
            "broker.id": number,
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "zookeeper.connect": zookeeper,
            "log.dirs": self.data,
            **DEFAULTS,
            **settings,
        }

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def launch(self) -> None:
        """Start the process without waiting for it."""
        overrides = [part for key, value in self._settings.items() for part in ("--override", f"{key}={value}")]
        command = [sys.executable, "-m", "ottla", "server", *overrides]
        if self._hosts is not None:
            command = self._hosts.on_host(self.number, command)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self, timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while not answers_at(self.host, self.port):
            assert self.process is not None
            assert self.process.poll() is None, f"broker {self.number} did not start:\n{self.log()}"
            assert time.monotonic() < deadline, f"broker {self.number} does not answer:\n{self.log()}"
            time.sleep(0.02)

    def start(self) -> None:
        self.launch()
        self.wait()

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process = None
        return code

    def log(self) -> str:
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()


class ProcessCluster:
    """ZooKeeper and `count` brokers with ids from 1."""

    def __init__(
        self, directory: str, count: int = 3, settings: Mapping[str, object] | None = None, hosts: Hosts | None = None
    ) -> None:
        self.directory = directory
        self.zookeeper = QuickZooKeeper(directory, hosts.address(count + 1) if hosts is not None else "127.0.0.1")
        if hosts is not None:
            self.zookeeper.prefix = hosts.on_host(count + 1, [])
        self.hosts = hosts
        self._stack = ExitStack()
        self.brokers = {
            number: BrokerProcess(number, directory, self.zookeeper.address, settings or {}, hosts)
            for number in range(1, count + 1)
        }

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def __enter__(self) -> Self:
        self._stack.enter_context(self.zookeeper)
        try:
            for broker in self.brokers.values():
                broker.launch()
            for broker in self.brokers.values():
                broker.wait()
            until(lambda: len(self.metadata().brokers) == len(self.brokers), "all brokers know each other")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._end()
        for broker in self.brokers.values():
            if kind is None:
                assert "Traceback" not in broker.log(), broker.log()
            else:  # what went wrong is in here, and CI keeps nothing else
                print(f"---- the end of broker {broker.number}'s log\n{broker.log()[-_TOLD_OF_A_LOG:]}")

    def _end(self) -> None:
        for broker in self.brokers.values():
            if broker.process is not None:
                broker.process.send_signal(signal.SIGCONT)
                broker.kill()
        self._stack.close()

    # ---- what the cluster says of itself ---------------------------------------------------------------------------------

    def metadata(self, broker: int | None = None) -> MetadataResponse:
        """As one broker, or any that answers, knows it."""
        addresses = [self.brokers[broker].address] if broker is not None else [one.address for one in self.brokers.values()]
        problem: Exception = LookupError("no broker is left")
        for address in addresses:
            try:
                with remote_to(address, 2) as remote:
                    return remote.metadata()
            except KafkaError as failure:
                problem = failure
        raise problem

    def partition(self, topic: str, number: int = 0, broker: int | None = None) -> MetadataResponsePartition:
        for one in self.metadata(broker).topics:
            if one.name == topic:
                return next(partition for partition in one.partitions if partition.partition_index == number)
        raise LookupError(f"{topic} is not known")

    def controller(self) -> int:
        return until(lambda: max(self.metadata().controller_id, 0), "a controller is known")

    def coordinator(self, transactional_id: str) -> int:
        """The broker that coordinates a transactional id."""

        def find() -> int:
            with remote_to(self.bootstrap_servers, 5) as remote:
                return remote.coordinator_of(transactional_id, TRANSACTION)

        return until(find, f"{transactional_id} has a coordinator")

    def create_topic(self, name: str, partitions: int = 1, factor: int = 3) -> None:
        """Create a topic, and wait until its replicas are all in sync and every broker knows it."""
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)], timeout_ms=20000
        )

        def create() -> bool:
            with remote_to(self.brokers[self.controller()].address, 20) as remote:
                answer: CreateTopicsResponse = remote.ask(request)
            assert answer.topics[0].error_code in (0, 41), answer.topics[0].error_message
            return answer.topics[0].error_code == 0

        until(create, f"{name} is created")
        for broker in self.brokers:
            until(lambda broker=broker: self.partition(name, partitions - 1, broker).leader_id > 0, f"{name} is known")  # type: ignore[misc]

    def healthy(self, topics: int | None = None) -> bool:
        """Whether every partition has a leader and all of its replicas in sync."""
        found = [partition for topic in self.metadata().topics for partition in topic.partitions]
        return bool(found) and all(one.leader_id > 0 and len(one.isr_nodes) == len(one.replica_nodes) for one in found)


class LoadProcess:
    """`load.py` as a process."""

    def __init__(self, cluster: ProcessCluster, topic: str, partitions: int) -> None:
        script = os.path.join(os.path.dirname(__file__), "load.py")
        self._process = subprocess.Popen(
            [sys.executable, script, cluster.bootstrap_servers, topic, str(partitions)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def flowing(self, records: int = 20, transactions: int = 2) -> None:
        """Wait until more records are acknowledged in every partition, and more transactions are committed."""
        before = self.ask("count")

        def more() -> bool:
            now = self.ask("count")
            return (
                now["acknowledged"] >= before["acknowledged"] + records
                and now["committed"] >= before["committed"] + transactions
            )

        until(more, "records are acknowledged and transactions committed again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
