"""The two brokers as processes of their own: Ottla, and Apache Kafka 3.9.1 with its ZooKeeper.

Guards: both get the same settings, a fresh directory on the same disk, and a port of their own on 127.0.0.1; whatever was
started is gone when its `with` ends, however it ends. Their data is thrown away, so they are killed, not stopped, unless
they are to start over it again.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.connection import ask
from ottla.wire.apis.metadata import MetadataRequest, MetadataResponse
from ottla.wire.schema import Malformed

ROOT = Path(__file__).resolve().parent.parent
KAFKA_VERSION = "3.9.1"
_KAFKA_JAR = f"kafka_2.13-{KAFKA_VERSION}.jar"

# The smallest heap that Apache Kafka ran well with, in one trial of each size, two rounds after 6 million records, on a machine
# that others used too, so a fifth more or less means little. CPU s/GB produced (100 bytes, 1 KB) and us per one-record request:
#   1g 4.0, 1.9, 60;  512m 3.6, 2.2, 71;  384m 3.9, 2.2, 81;  320m 3.8, 2.1, 70;  256m 4.9, 2.8, 83;
#   192m 6.4, 3.5, 95, and out of memory with 1,000 partitions;  128m does not start.
# `--heap` tries another. In a full run 320m was too little for 1,000 partitions after all: for those, and to load a million
# offsets, it gets the large heap.
KAFKA_HEAP = "320m"
KAFKA_LARGE_HEAP = "1g"
# What bin/kafka-run-class.sh of Apache Kafka gives its broker.
_KAFKA_JVM = [
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
    "-XX:+ExitOnOutOfMemoryError",  # ours: a broker that limps on without memory has no figures
]  # fmt: skip
_ZOOKEEPER_JVM = ["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]

_LOG4J = """log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
"""

# One node, and deleted topics leave the disk soon, so that they do not weigh on the next measurement.
_SETTINGS = {
    "broker.id": "1",
    "num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.delete.delay.ms": "1000",
}

_API_VERSIONS_V0 = struct.pack(">ihhih", 10, 18, 0, 1, 0)
_START_WITHIN_S = 90.0
_STOP_WITHIN_S = 60.0


class BrokerError(Exception):
    """A broker did not come up, or cannot: one line that says why."""


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that answers."""

    pid: int
    port: int
    data: Path
    began: float
    answered: float

    @property
    def answered_after_s(self) -> float:
        """From the start of the process to its first answer."""
        return self.answered - self.began

    @property
    def bootstrap(self) -> str:
        """What a client is given to find it."""
        return f"127.0.0.1:{self.port}"

    def answers(self) -> bool:
        """Whether it still does."""
        return _answers(self.port)


@dataclass(slots=True)
class Place:
    """A broker's directory and settings: what outlives its process, so that it can be started there again."""

    command: list[str]
    environment: Mapping[str, str]
    directory: Path
    port: int

    @contextmanager
    def started(self, *, stop: bool = False) -> Iterator[Running]:
        """The broker, from its first answer on; with `stop` it is stopped at the end, and not killed, so as to start again."""
        began = time.perf_counter()
        with _running(self.command, self.directory / "log", self.environment, stop) as process:
            _wait_until(process, lambda: _answers(self.port), self.directory / "log")
            answered = time.perf_counter()
            # An admin client that comes before the controller is known may wait for minutes.
            _wait_until(process, lambda: _knows_its_controller(self.port), self.directory / "log")
            yield Running(process.pid, self.port, self.directory / "data", began, answered)


class Ottla:
    """Starts Ottla brokers, with the Python that runs this program."""

    name = "ottla"

    def __init__(self, work: Path) -> None:
        self._work = work
        self._places = 0

    def place(self, settings: Mapping[str, str] | None = None, heap: str | None = None) -> Place:
        """An empty directory for a new broker. Of a heap it knows nothing."""
        self._places += 1
        directory = self._work / f"ottla-{self._places}"
        port = free_port()
        path = _write_settings(directory, port, settings or {})
        command = [sys.executable, "-m", "ottla", "server", str(path), "--log-level", "WARNING"]
        found = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        return Place(command, os.environ | {"PYTHONPATH": found}, directory, port)


class ApacheKafka:
    """Starts Apache Kafka brokers, each under a root of its own in one ZooKeeper that is up already."""

    name = "apache"

    def __init__(self, work: Path, jars: Path, zookeeper_port: int, heap: str = KAFKA_HEAP) -> None:
        self._work = work
        self._jars = jars
        self.zookeeper = f"127.0.0.1:{zookeeper_port}"
        self._heap = heap
        self._places = 0

    def place(self, settings: Mapping[str, str] | None = None, heap: str | None = None) -> Place:
        """An empty directory for a new broker."""
        self._places += 1
        directory = self._work / f"apache-{self._places}"
        port = free_port()
        root = f"{self.zookeeper}/place-{self._places}"
        path = _write_settings(directory, port, {"zookeeper.connect": root} | dict(settings or {}))
        options = [*_KAFKA_JVM, f"-Xmx{heap or self._heap}"]
        return Place(_java(options, self._jars, self._work, "kafka.Kafka", str(path)), os.environ, directory, port)


@contextmanager
def apache_kafka(work: Path, heap: str = KAFKA_HEAP) -> Iterator[ApacheKafka]:
    """Apache Kafka, ready to be started: its jars are found and its ZooKeeper runs."""
    jars = find_jars()
    place = work / "zookeeper"
    (place / "data").mkdir(parents=True)
    (work / "log4j.properties").write_text(_LOG4J)
    port = free_port()
    settings = {"tickTime": "2000", "dataDir": str(place / "data"), "clientPort": str(port), "clientPortAddress": "127.0.0.1",
                "admin.enableServer": "false", "maxClientCnxns": "0"}  # fmt: skip
    (place / "zoo.cfg").write_text(_properties(settings))
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    command = _java(_ZOOKEEPER_JVM, jars, work, main, str(place / "zoo.cfg"))
    with _running(command, place / "log", os.environ) as process:
        _wait_until(process, lambda: _accepts(port), place / "log")
        yield ApacheKafka(work, jars, port, heap)


def find_jars() -> Path:
    """Where Apache Kafka's jars lie; raises BrokerError where they do not."""
    told = os.environ.get("OTTLA_KAFKA_JARS")
    places = [Path(told)] if told else [ROOT / ".cache/kafka", Path("/tmp/ak/jars")]
    for place in places:
        if (place / _KAFKA_JAR).exists():
            return place
    raise BrokerError(
        f"no {_KAFKA_JAR} in {' or '.join(map(str, places))}: run `scripts/prepare java`, or set OTTLA_KAFKA_JARS"
    )


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


# ---- processes -----------------------------------------------------------------------------------------------------------


def _java(options: list[str], jars: Path, work: Path, main: str, argument: str) -> list[str]:
    return ["java", *options, f"-Dlog4j.configuration=file:{work}/log4j.properties", "-cp", f"{jars}/*", main, argument]


def _write_settings(place: Path, port: int, own: Mapping[str, str]) -> Path:
    place.mkdir(parents=True)
    path = place / "server.properties"
    path.write_text(
        _properties(_SETTINGS | {"listeners": f"PLAINTEXT://127.0.0.1:{port}", "log.dirs": str(place / "data")} | dict(own))
    )
    return path


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


@contextmanager
def _running(
    command: list[str], log: Path, environment: Mapping[str, str], stop: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "ab") as output:
        try:
            # In a session of its own: a Ctrl-C is for us, and we end it in our own order.
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        except OSError as problem:
            raise BrokerError(f"could not start {command[0]}: {problem.strerror}") from None
    try:
        yield process
        if stop:
            process.terminate()
            process.wait(_STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        raise BrokerError(f"it did not stop within {_STOP_WITHIN_S:.0f} s; its log: {log}") from None
    finally:
        process.kill()
        process.wait()


def _wait_until(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < end:
        if ready():
            return
        if process.poll() is not None:
            tail = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise BrokerError(f"its process ended with {process.returncode}; last words: {' / '.join(tail)}")
        time.sleep(0.002)
    raise BrokerError(f"no answer within {_START_WITHIN_S:.0f} s; its log: {log}")


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _answers(port: int) -> bool:
    """Whether an ApiVersions request is answered."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.settimeout(5)
            sock.sendall(_API_VERSIONS_V0)
            return len(sock.recv(4)) == 4
    except OSError:
        return False


def _knows_its_controller(port: int) -> bool:
    try:
        answer = ask(port, MetadataRequest(topics=[]), MetadataResponse, 1)
    except (OSError, Malformed):
        return False
    return bool(answer.brokers) and answer.controller_id >= 0
