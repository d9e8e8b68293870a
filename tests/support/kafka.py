"""A real Apache Kafka 3.9.1 with a ZooKeeper of its own, as the anchor: what does it do, and can it read what we wrote?

    with ZooKeeper(directory) as zookeeper, ApacheKafka(directory, zookeeper) as kafka:
        kafka.bootstrap_servers

Both are processes on free ports of 127.0.0.1. Data stay in `directory` after the end, so that a test can look at them or start
again; after a kill the broker's next start must wait until ZooKeeper has given up its session (`zookeeper.session.timeout.ms`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from ottla.wire.apis.metadata import MetadataRequest, MetadataResponse
from ottla.wire.frame import decode_response, encode_request
from ottla.wire.schema import Malformed
from support import java
from support.server import answers, free_port

_LOG4J = """log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


class JavaServer:
    """A Java process that runs until it is stopped, with its log in a file."""

    def __init__(self, directory: str, name: str, main: str, heap: str, options: Sequence[str]) -> None:
        os.makedirs(directory, exist_ok=True)
        self.directory = directory
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.started_in = 0.0
        self.prefix: list[str] = []
        """A command that runs it somewhere else, such as in a network namespace."""
        self._main = main
        self._heap = heap
        self._options = options
        self._properties_path = os.path.join(directory, f"{name}.properties")
        self._log_path = os.path.join(directory, f"{name}.log")
        self._log4j_path = os.path.join(directory, "log4j.properties")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def properties(self) -> Mapping[str, object]:
        """What the server is started with."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether the server answers."""
        raise NotImplementedError

    def start(self, timeout: float = 60) -> Self:
        with open(self._log4j_path, "w", encoding="utf-8") as file:
            file.write(_LOG4J)
        with open(self._properties_path, "w", encoding="utf-8") as file:
            file.writelines(f"{key}={value}\n" for key, value in self.properties().items())
        options = (*self._options, f"-Dlog4j.configuration=file:{self._log4j_path}")
        command = [*self.prefix, *java.command(self._main, self._properties_path, heap=self._heap, options=options)]
        begun = time.monotonic()
        with open(self._log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() - begun > timeout:
                self.kill()
                raise RuntimeError(f"{self._main} did not start:\n{self.log()}")
            time.sleep(0.02)
        self.started_in = time.monotonic() - begun
        return self

    def log(self) -> str:
        with open(self._log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def stop(self) -> int:
        """SIGTERM, and the exit code: what a clean shutdown leaves is on disk."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process = None
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


class ZooKeeper(JavaServer):
    """A ZooKeeper server of one."""

    def __init__(self, directory: str, host: str = "127.0.0.1") -> None:
        self.host = host
        options = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.4lw.commands.whitelist=ruok")
        super().__init__(directory, "zookeeper", "org.apache.zookeeper.server.quorum.QuorumPeerMain", "96m", options)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def properties(self) -> Mapping[str, object]:
        return {
            "tickTime": 2000,
            "dataDir": os.path.join(self.directory, "zookeeper"),
            "clientPort": self.port,
            "clientPortAddress": self.host,
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
        }

    def ready(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), 1) as sock:
                sock.settimeout(2)
                sock.sendall(b"ruok")
                return sock.recv(4) == b"imok"
        except OSError:
            return False

    def create(self, nodes: Mapping[str, str]) -> None:
        """Write znodes (values without white space), parents first: a cluster id, a topic that a directory brings along."""
        lines = "".join(f"create {path} {value}\n" for path, value in nodes.items())
        result = java.run("org.apache.zookeeper.ZooKeeperMain", "-server", self.address, stdin=lines + "quit\n", check=False)
        created = result.stdout + result.stderr
        for path in nodes:
            assert f"Created {path}" in created or "Node already exists" in created, created


class ApacheKafka(JavaServer):
    """One Apache Kafka broker in ZooKeeper mode."""

    def __init__(
        self,
        directory: str,
        zookeeper: ZooKeeper,
        settings: Mapping[str, object] | None = None,
        *,
        broker_id: int = 0,
        heap: str = "512m",
        options: Sequence[str] = ("-XX:+UseG1GC",),
    ) -> None:
        super().__init__(directory, f"kafka-{broker_id}", "kafka.Kafka", heap, options)
        self._settings = {
            "broker.id": broker_id,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "zookeeper.connect": zookeeper.address,
            "log.dirs": os.path.join(directory, f"kafka-{broker_id}"),
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **(settings or {}),
        }

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_dir(self) -> str:
        return str(self._settings["log.dirs"])

    def properties(self) -> Mapping[str, object]:
        return self._settings

    def ready(self) -> bool:
        """It answers, and knows itself and its controller: an admin client that comes before that may wait for minutes."""
        if not answers(self.port):
            return False
        request = encode_request(MetadataRequest(topics=[]), 1, 1, None)
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as sock, sock.makefile("rb") as answer:
                sock.sendall(request)
                size = int.from_bytes(answer.read(4), "big")
                _, response = decode_response(MetadataResponse, answer.read(size), 1)
        except (OSError, Malformed):
            return False
        assert isinstance(response, MetadataResponse)
        return bool(response.brokers) and response.controller_id >= 0
