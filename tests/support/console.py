"""`ottla console` as a process of its own, and requests to it as a browser would make them, or as an attacker would."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

_READY = re.compile(r"console is at http://[^/]*:(\d+)/")


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ConsoleProcess:
    """A console of the cluster at `bootstrap`, on a free port; started and ended as a context."""

    def __init__(self, bootstrap: str, *options: str, sample_seconds: float = 0.5) -> None:
        command = [sys.executable, "-m", "ottla", "console", "--bootstrap-server", bootstrap, "--port", "0"]
        self._command = [*command, "--sample-seconds", str(sample_seconds), *options]
        self.port = 0
        self.log: list[str] = []
        self._csrf: str | None = None
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def rss_mb(self) -> float:
        return _status_mb(self.pid, "VmRSS")

    def reader_peak_mb(self) -> float:
        """The most that the process that reads messages has had; 0 while there is none."""
        with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as children:
            return sum(_status_mb(int(pid), "VmHWM") for pid in children.read().split())

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            found = _READY.search(line)
            if found:
                self.port = int(found[1])
                break
        else:
            raise RuntimeError(f"the console did not start: {''.join(self.log)}")
        threading.Thread(target=self._read_on, args=(self._process.stderr,), daemon=True).start()
        return self

    def _read_on(self, lines: Iterator[str]) -> None:
        self.log.extend(lines)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)
        if kind is None:
            assert "Traceback" not in "".join(self.log), "".join(self.log)

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Exactly this request. Names of headers with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """What the API answers; it has to."""
        answer = self.request("GET", f"/api/{path}")
        assert answer.status == 200, answer
        return answer.json

    def order(self, path: str, body: object, method: str = "POST") -> Answer:
        """An action as our own page orders it."""
        if self._csrf is None:
            self._csrf = self.get("session")["csrf"]
        headers = {"content_type": "application/json", "x_ottla_csrf": self._csrf}
        return self.request(method, f"/api/{path}", json.dumps(body).encode(), **headers)

    def events(self, path: str) -> list[tuple[str, Any]]:
        """All events of a stream that ends."""
        answer = self.request("GET", f"/api/{path}")
        assert answer.status == 200, answer
        return list(parse_events(answer.body.decode()))


def _status_mb(pid: int, name: str) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(name))


def parse_events(text: str) -> Iterator[tuple[str, Any]]:
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "event" in lines:
            yield lines["event"], json.loads(lines["data"])
