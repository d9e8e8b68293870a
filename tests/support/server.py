"""`ottla server` as a process of its own: what a user runs, and what can be killed with -9."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether a broker answers ApiVersions v0 on this port."""
    return answers_at("127.0.0.1", port)


def answers_at(host: str, port: int) -> bool:
    """Whether a broker answers ApiVersions v0 there."""
    request = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection((host, port), 1) as sock:
            sock.settimeout(2)
            sock.sendall(struct.pack(">i", len(request)) + request)
            return len(sock.recv(4)) == 4
    except OSError:
        return False


class ServerProcess:
    """A broker process over `directory`; started, stopped, killed and started again."""

    def __init__(self, directory: str, settings: Mapping[str, object] | None = None, port: int | None = None) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": directory,
            "group.initial.rebalance.delay.ms": 0,
            "offsets.topic.num.partitions": 4,
            **(settings or {}),
        }
        self.log_path = os.path.join(os.path.dirname(directory), f"server-{self.port}.log")
        self.options: list[str] = []
        """Further options of the command."""
        self.process: subprocess.Popen[bytes] | None = None
        self.started_in = 0.0

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, timeout: float = 30) -> Self:
        overrides = [part for key, value in self.settings.items() for part in ("--override", f"{key}={value}")]
        begun = time.monotonic()
        with open(self.log_path, "ab") as log:
            command = [sys.executable, "-m", "ottla", "server", *overrides, *self.options]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while not answers(self.port):
            if self.process.poll() is not None or time.monotonic() - begun > timeout:
                raise RuntimeError(f"the broker did not start:\n{self.log()}")
            time.sleep(0.01)
        self.started_in = time.monotonic() - begun
        return self

    def log(self) -> str:
        with open(self.log_path, encoding="utf-8") as log:
            return log.read()

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

    def rss_mb(self) -> float:
        """Resident memory of the process."""
        with open(f"/proc/{self.pid}/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.process is not None:
            self._end(signal.SIGKILL)
