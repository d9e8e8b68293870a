"""Hosts for processes: this machine, or network namespaces of their own that can be cut off from each other.

A bridge on this machine, where the load lives; brokers and ZooKeeper have a namespace each, and a cable
to the bridge. All of it is made by the test and goes with it; nothing leaves the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self


def missing() -> str | None:
    """Why there can be no namespaces here; None where there can."""
    if shutil.which("ip") is None:
        return "`ip` is not installed (Debian's package iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"ottla-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "this system allows no network namespaces"
    _ip("netns", "del", name)
    return None


class Hosts:
    """A bridge and `count` hosts around it."""

    def __init__(self, count: int) -> None:
        self._mark = f"ot{os.getpid() % 100_000}"
        self._network = f"10.231.{os.getpid() % 250}"
        self._count = count
        self.own_address = f"{self._network}.1"
        """Of this machine, as the hosts see it."""

    def address(self, number: int) -> str:
        """Of host `number`, from 1."""
        return f"{self._network}.{number + 10}"

    def on_host(self, number: int, command: list[str]) -> list[str]:
        """The command that runs another one there."""
        return ["ip", "netns", "exec", self._name(number), *command]

    def cut(self, number: int) -> None:
        """Pull the host's cable: connections hang, nobody is told."""
        _ip("link", "set", self._name(number), "down")

    def join(self, number: int) -> None:
        """Plug it in again."""
        _ip("link", "set", self._name(number), "up")

    def __enter__(self) -> Self:
        try:
            _ip("link", "add", self._mark, "type", "bridge")
            _ip("address", "add", f"{self.own_address}/24", "dev", self._mark)
            _ip("link", "set", self._mark, "up")
            for number in range(1, self._count + 1):
                host = self._name(number)
                _ip("netns", "add", host)
                _ip("link", "add", host, "type", "veth", "peer", "name", "cable", "netns", host)
                _ip("link", "set", host, "master", self._mark, "up")
                _ip("-n", host, "address", "add", f"{self.address(number)}/24", "dev", "cable")
                _ip("-n", host, "link", "set", "cable", "up")
                _ip("-n", host, "link", "set", "lo", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        for words in (
            *(("netns", "del", self._name(number)) for number in range(1, self._count + 1)),
            *(("link", "del", self._name(number)) for number in range(1, self._count + 1)),
            ("link", "del", self._mark),
        ):
            subprocess.run(["ip", *words], capture_output=True, check=False)

    def _name(self, number: int) -> str:
        return f"{self._mark}-{number}"


def _ip(*words: str) -> None:
    result = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {result.stderr.strip()}")
