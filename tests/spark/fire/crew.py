"""What surrounds the pipeline: the feed, the faults, and the comparison with a batch computation over the input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from ottla import client
from ottla.client import Cluster
from spark.fire.pipeline import WINDOW

_TESTS = Path(__file__).resolve().parents[2]
_CHUNK_SECONDS = 20
_KEYS = 7


class Feed:
    """Records whose times move on, chunk by chunk, and what a batch computation makes of them."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._begin = int(time.time()) // WINDOW * WINDOW - 12 * 3600
        self._chunk = 0
        self.expected: Counter[str] = Counter()
        client.create_topic(cluster, topic, 2, 1)

    def more(self, records: int = 200) -> None:
        """One chunk further."""
        start = self._begin + self._chunk * _CHUNK_SECONDS
        times = [start * 1000 + number * _CHUNK_SECONDS * 1000 // records for number in range(records)]
        keys = [f"k{number % _KEYS}" for number in range(records)]
        client.write(self._topic, pa.table({"key": keys, "value": ["x"] * records, "timestamp": times}), cluster=self._cluster)
        counted = Counter((moment // 1000 // WINDOW * WINDOW, key) for moment, key in zip(times, keys, strict=True))
        self.expected.update(f"{window},{key},{count}" for (window, key), count in counted.items())
        self._chunk += 1

    def close_windows(self) -> None:
        """A record far ahead: all windows before it are complete. Its own is never looked at."""
        ahead = (self._begin + (self._chunk + 100) * _CHUNK_SECONDS) * 1000
        client.write(self._topic, pa.table({"key": ["end"], "value": ["x"], "timestamp": [ahead]}), cluster=self._cluster)
        self._chunk += 200


def differences(cluster: Cluster, topic: str, expected: Counter[str]) -> dict[str, list[str]]:
    """What `read_committed` lacks, and what it has too often or should not have."""
    table = client.read(topic, cluster=cluster, isolation="read_committed", columns=["value"]).table()
    found = Counter(value.decode().strip() for value in table["value"].to_pylist())
    found = Counter({value: count for value, count in found.items() if ",end," not in value})
    return {"lost": sorted((expected - found).elements()), "too many": sorted((found - expected).elements())}


class Pipeline:
    """The program, started again when its driver was killed."""

    def __init__(self, work: Path, arguments: Mapping[str, str]) -> None:
        self.work = work
        self.faults = work / "faults"
        self.faults.mkdir()
        self._arguments = [f"{name}={value}" for name, value in {**arguments, "work": str(work)}.items()]
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        driver = self.work / "driver"
        if driver.exists():
            subprocess.run(["kill", "-9", driver.read_text()], check=False, capture_output=True)

    def _start(self) -> None:
        paths = os.pathsep.join(map(str, (_TESTS, _TESTS.parent / "src")))
        environment = {**os.environ, "PYTHONPATH": paths, "OTTLA_SPARK_FAULTS": str(self.faults)}
        (self.work / "driver").unlink(missing_ok=True)
        with open(self.work / "log", "ab") as log:
            command = [sys.executable, "-m", "spark.fire.pipeline", *self._arguments]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.starts += 1

    def runs(self, word: str) -> int:
        """How many runs ended like this."""
        path = self.work / "runs"
        return sum(line.startswith(word) for line in path.read_text().splitlines()) if path.exists() else 0

    def saw(self, words: str) -> bool:
        """Whether a run failed with these words."""
        return words in (self.work / "runs").read_text()

    def wait_for(self, condition: Callable[[], bool], what: str, timeout: float = 240) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert self._process is not None
            if self._process.poll() not in (None, 0):
                self._start()
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not happen:\n{(self.work / 'log').read_text()[-6000:]}\n{self._runs_text()}")
            time.sleep(0.05)

    def fail_at(self, step: str, how: str) -> None:
        """Plant a fault, and wait until it was met."""
        if how == "driver":
            self.wait_for((self.work / "driver").exists, "the start of the driver")
            how = f"driver {(self.work / 'driver').read_text()}"
        waiting = self.faults / f"{step}.new"
        waiting.write_text(how)
        waiting.rename(self.faults / step)

    def kill_executor(self) -> bool:
        """kill -9 one of the executors, if there is one: Spark starts another."""
        driver = self.work / "driver"
        children = Path(f"/proc/{driver.read_text()}/task").glob("*/children") if driver.exists() else ()
        for child in (number for path in children for number in path.read_text().split()):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
                return True
        return False

    def wait_until_failed(self, step: str, how: str) -> None:
        self.wait_for(lambda: not (self.faults / step).exists(), f"the fault at {step}")
        if how == "driver":  # the next fault must not be meant for one that is dead already
            (self.work / "driver").unlink(missing_ok=True)

    def settle(self) -> None:
        """Let a run go well."""
        before = self.runs("ok")
        self.wait_for(lambda: self.runs("ok") > before, "a run without a fault")

    def finish(self) -> None:
        """The last run, and the end of the program."""
        (self.work / "stop").touch()
        assert self._process is not None
        self.wait_for(lambda: self._process is not None and self._process.poll() == 0, "the end of the pipeline")

    def _runs_text(self) -> str:
        path = self.work / "runs"
        return path.read_text()[-4000:] if path.exists() else "no run ended"
