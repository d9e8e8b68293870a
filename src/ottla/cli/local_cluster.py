"""A cluster on this machine for development: its processes, their ports and their data, kept in one directory.

Guards: what was started is written down before it is waited for, so that `down` finds it whatever happened; a process is taken
for ours only if its command line says so, for process ids are used again. Data stay until `down --remove`.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ottla.cli.tool import Failure

_STATE = "cluster.json"
_ZOOKEEPER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_ZOOKEEPER_JVM = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.4lw.commands.whitelist=ruok")
_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 60.0
_LOOK_EVERY = 0.02
SESSION_TIMEOUT_MS = 6000


@dataclass(slots=True)
class Process:
    """A process of the cluster, alive or not."""

    port: int
    pid: int = 0


@dataclass(slots=True)
class LocalCluster:
    """What runs where."""

    directory: str
    zookeeper: str
    own_zookeeper: Process | None = None
    brokers: dict[int, Process] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: str) -> LocalCluster:
        try:
            with open(os.path.join(directory, _STATE), encoding="utf-8") as file:
                value: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            raise Failure(f"there is no cluster in {directory}: start one with `ottla cluster up`") from None
        except (OSError, ValueError) as problem:
            raise Failure(f"{os.path.join(directory, _STATE)} cannot be read: {problem}") from None
        own = value["own_zookeeper"]
        return cls(
            directory,
            value["zookeeper"],
            Process(**own) if own else None,
            {int(number): Process(**process) for number, process in value["brokers"].items()},
            value["settings"],
        )

    def save(self) -> None:
        path = os.path.join(self.directory, _STATE)
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=2)
        os.replace(path + ".tmp", path)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(map(self.address_of, self.brokers))

    def address_of(self, number: int) -> str:
        return f"127.0.0.1:{self.broker(number).port}"

    def log_of(self, name: str) -> str:
        return os.path.join(self.directory, f"{name}.log")

    # ---- starting --------------------------------------------------------------------------------------------------------

    def start_zookeeper(self) -> None:
        """Run a ZooKeeper from the jars of the installed pyspark."""
        assert self.own_zookeeper is not None
        if is_ours(self.own_zookeeper.pid, _ZOOKEEPER_MAIN):
            return
        java = shutil.which("java")
        if java is None:
            raise Failure("ZooKeeper needs Java 17, which is not installed: install it, or give --zookeeper HOST:PORT")
        config = os.path.join(self.directory, "zookeeper.properties")
        with open(config, "w", encoding="utf-8") as file:
            file.writelines(
                f"{key}={value}\n"
                for key, value in {
                    "tickTime": 1000,
                    "dataDir": os.path.join(self.directory, "zookeeper"),
                    "clientPort": self.own_zookeeper.port,
                    "clientPortAddress": "127.0.0.1",
                    "admin.enableServer": "false",
                    "maxClientCnxns": 0,
                }.items()
            )
        command = [java, *_ZOOKEEPER_JVM, "-cp", os.path.join(zookeeper_jars(), "*"), _ZOOKEEPER_MAIN, config]
        self._run(self.own_zookeeper, command, "zookeeper")
        self._wait(self.own_zookeeper, "zookeeper", _zookeeper_answers)

    def start_broker(self, number: int) -> None:
        """Run a broker that has no process; returns when it answers."""
        process = self.broker(number)
        if is_ours(process.pid, self._mark_of(number)):
            raise Failure(f"broker {number} runs already, with process id {process.pid}")
        self._run(process, self._broker_command(number), f"broker-{number}")

    def wait_for_broker(self, number: int) -> None:
        self._wait(self.broker(number), f"broker-{number}", _broker_answers)

    def broker(self, number: int) -> Process:
        if number not in self.brokers:
            raise Failure(f"there is no broker {number} in this cluster; there are {', '.join(map(str, self.brokers))}")
        return self.brokers[number]

    def _mark_of(self, number: int) -> str:
        return f"log.dirs={self._data_of(number)}"

    def _data_of(self, number: int) -> str:
        return os.path.join(self.directory, f"broker-{number}")

    def _broker_command(self, number: int) -> list[str]:
        settings = {
            "broker.id": str(number),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.brokers[number].port}",
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "log.dirs": self._data_of(number),
            **self.settings,
        }
        overrides = [part for key, value in settings.items() for part in ("--override", f"{key}={value}")]
        return [sys.executable, "-P", "-m", "ottla", "server", *overrides]

    def _run(self, process: Process, command: list[str], name: str) -> None:
        with open(self.log_of(name), "ab") as log:
            process.pid = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            ).pid
        self.save()

    def _wait(self, process: Process, name: str, answers: Any) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while not answers(process.port):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
            if not _lives(process.pid) or time.monotonic() > deadline:
                raise Failure(f"{name} did not start: {last_line(self.log_of(name))} (all of it: {self.log_of(name)})")
            time.sleep(_LOOK_EVERY)

    # ---- stopping --------------------------------------------------------------------------------------------------------

    def alive(self, number: int) -> bool:
        return is_ours(self.broker(number).pid, self._mark_of(number))

    def zookeeper_alive(self) -> bool:
        return self.own_zookeeper is not None and is_ours(self.own_zookeeper.pid, _ZOOKEEPER_MAIN)

    def kill_broker(self, number: int) -> None:
        """kill -9, as a crash would."""
        if not self.alive(number):
            raise Failure(f"broker {number} does not run")
        _end(self.brokers[number].pid, signal.SIGKILL)

    def stop(self) -> Iterator[int | None]:
        """End everything, brokers first; says who has ended, by number, and with None that ZooKeeper has."""
        living = [number for number in self.brokers if self.alive(number)]
        for number in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.brokers[number].pid, signal.SIGTERM)
        for number in living:
            _end(self.brokers[number].pid, signal.SIGTERM)
            yield number
        if self.own_zookeeper is not None and self.zookeeper_alive():
            _end(self.own_zookeeper.pid, signal.SIGKILL)
            yield None


def new_cluster(
    directory: str, brokers: int, zookeeper: str | None, first_port: int, settings: Mapping[str, str]
) -> LocalCluster:
    """A cluster that is not started yet."""
    os.makedirs(directory, exist_ok=True)
    if os.path.exists(os.path.join(directory, _STATE)):
        raise Failure(f"there is a cluster in {directory} already: `ottla cluster status`, `ottla cluster down`")
    ports = _free_ports(first_port, brokers) if first_port else [0] * brokers
    own = None
    if zookeeper is None:
        own = Process(_free_ports(0, 1)[0])
        zookeeper = f"127.0.0.1:{own.port}"
    chosen = {number: Process(port or _free_ports(0, 1)[0]) for number, port in enumerate(ports, 1)}
    return LocalCluster(os.path.abspath(directory), zookeeper, own, chosen, dict(settings))


def zookeeper_jars() -> str:
    """Where a ZooKeeper server lies: in the jars that pyspark brings, or where OTTLA_ZOOKEEPER_JARS says."""
    places = [os.environ.get("OTTLA_ZOOKEEPER_JARS", "")]
    spark = importlib.util.find_spec("pyspark")
    if spark is not None and spark.submodule_search_locations:
        places.append(os.path.join(spark.submodule_search_locations[0], "jars"))
    for place in places:
        if place and glob.glob(os.path.join(place, "zookeeper-3.*.jar")):
            return place
    raise Failure("no ZooKeeper is here: `pip install pyspark` brings its jars along, or give --zookeeper HOST:PORT")


def is_ours(pid: int, mark: str) -> bool:
    """Whether the process lives and is the one that we started."""
    if pid <= 0 or not _lives(pid):
        return False
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return mark.encode() in file.read()
    except OSError:
        return os.name != "posix" or not os.path.isdir("/proc")  # where nobody can tell, our own note must do


def last_line(path: str) -> str:
    """What a process said last."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        return "it said nothing"
    return lines[-1] if lines else "it said nothing"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def _end(pid: int, number: signal.Signals) -> None:
    deadline = time.monotonic() + _STOP_TIMEOUT
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    while _lives(pid):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY)


def _free_ports(first: int, count: int) -> list[int]:
    """`count` ports from `first` on, or wherever the system has one free."""
    ports: list[int] = []
    for at in range(count):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", first + at if first else 0))
            except OSError:
                raise Failure(f"port {first + at} is in use: give another --port") from None
            ports.append(sock.getsockname()[1])
    return ports


def _broker_answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.settimeout(2)
            sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")  # ApiVersions, version 0
            return len(sock.recv(4)) == 4
    except OSError:
        return False


def _zookeeper_answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.settimeout(2)
            sock.sendall(b"ruok")
            return sock.recv(4) == b"imok"
    except OSError:
        return False
