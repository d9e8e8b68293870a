"""What is known of a pipeline from outside: a file in its directory that a running one writes and that commands read.

Guards: a pipeline runs once at a time, from before it asks the cluster until its process ends (`held`); a file is replaced
whole, so that no reader sees half of one; a process counts as running only if it is the one that wrote the file (its start time
is in it), so that `stop` never ends a stranger that got the same number.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.pipelines.keeping import keep
from ottla.pipelines.progress import Progress

_FILE = "state.json"
_LOCK = "lock"


class Held(Exception):
    """Another process runs the pipeline; the text is its number, where it is known."""


@dataclass(slots=True)
class State:
    """A pipeline that runs or ran."""

    name: str
    file: str
    pid: int = 0
    born: str = ""
    state: str = "starting"
    error: str = ""
    metrics: str = ""
    """The address of its metrics."""
    queries: list[Progress] = field(default_factory=list)

    def alive(self) -> bool:
        return bool(self.born) and _born(self.pid) == self.born

    def shown(self) -> str:
        """Its state as it is: one that ended without a word has failed."""
        if self.state in ("starting", "running", "stopping") and not self.alive():
            return "died"
        return self.state


def new_state(name: str, file: str) -> State:
    """The state of this process."""
    return State(name, file, os.getpid(), _born(os.getpid()))


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Keep others from running the pipeline of this directory; raises `Held` if one does. The lock ends with the process."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / _LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Held(file.read().strip()) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def write(directory: Path, state: State) -> None:
    """Replace the file."""
    fields = {name: getattr(state, name) for name in ("name", "file", "pid", "born", "state", "error", "metrics")}
    text = json.dumps({**fields, "queries": [one.as_json() for one in state.queries]}, indent=1)
    keep(directory / _FILE, text)


def read(directory: Path) -> State | None:
    """What the file says; None where there is none, or none that can be read."""
    try:
        found: dict[str, Any] = json.loads((directory / _FILE).read_text(encoding="utf-8"))
        return State(**{**found, "queries": [Progress(**one) for one in found["queries"]]})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_all(root: Path) -> list[State]:
    """All pipelines that have a directory here."""
    return [state for one in sorted(root.glob(f"*/{_FILE}")) if (state := read(one.parent)) is not None]


def _born(pid: int) -> str:
    """When a process started, in the machine's own words; empty where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]
