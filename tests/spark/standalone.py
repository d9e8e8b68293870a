"""A standalone Spark cluster for tests: a master and workers as processes of their own, and a driver in another one.

Guards: everything runs from the pyspark wheel's own jars. Each worker has one core, and its executor 512 MB for the JVM and as
much address space for each Python process: more is refused by the kernel. The driver is a process beside the tests', because
a process has one Spark session and the other tests have theirs. What it is to do is a function of a module that it can import
(`spark.standalone_jobs`); what the function returns or raises comes back.

Life: `StandaloneSpark` is a context. A worker may be killed and another one started while jobs run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import pyspark

from support.server import free_port
from support.waiting import wait_for

_HOME = Path(pyspark.__file__).parent
_SMALL = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LIVES = "org.apache.spark.deploy"
P = ParamSpec("P")
R = TypeVar("R")


def parent_of(pid: int) -> int:
    """The process that started this one; 0 where there is none any more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])


def ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = parent_of(pid)


class StandaloneSpark:
    """One master, two workers and a driver."""

    def __init__(self, directory: Path, conf: Mapping[str, str] | None = None, workers: int = 2) -> None:
        self._directory = directory
        self._port = free_port()
        self._ui = free_port()
        self._count = workers
        self._started = 0
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self.faults = directory / "faults"
        """Where faults are planted (see `ottla.spark.faults`)."""
        self._conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.ui.showConsoleProgress": "false",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.pyspark.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executorEnv.OTTLA_SPARK_FAULTS": str(self.faults),
            # The first job waits for both executors, so that it runs on both.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.cores.max": str(workers),
            **(conf or {}),
        }
        self._driver: ProcessPoolExecutor | None = None

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.faults.mkdir(parents=True)
        arguments = ("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._ui))
        self._master = self._start("master", f"{_LIVES}.master.Master", *arguments)
        try:
            for _ in range(self._count):
                self.start_worker()
            self.wait_for_workers(self._count)
            self._driver = ProcessPoolExecutor(1, get_context("spawn"), _open, (str(self._directory), self.url, self._conf))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._driver is not None:
            with contextlib.suppress(BrokenExecutor):  # a driver that could not start
                self._driver.submit(_close)
            self._driver.shutdown()
        for process in (*self.workers, self._master):
            if process is not None and process.poll() is None:
                process.terminate()
        for process in (*self.workers, self._master):
            if process is not None:
                process.wait(30)

    # ---- jobs ------------------------------------------------------------------------------------------------------------

    def submit(self, job: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Let the driver do this; one job at a time."""
        assert self._driver is not None
        return self._driver.submit(_run, job, args, kwargs)

    def run(self, job: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same, and wait for what it returns."""
        return self.submit(job, *args, **kwargs).result(240)

    # ---- workers ---------------------------------------------------------------------------------------------------------

    def start_worker(self) -> None:
        self._started += 1
        name = f"worker-{self._started}"
        size = ("--cores", "1", "--memory", "768m")
        place = ("--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self._directory / name))
        self.workers.append(self._start(name, f"{_LIVES}.worker.Worker", *place, *size, self.url))

    def kill_worker_of(self, pid: int) -> None:
        """kill -9 the worker that this process is a part of. Its executor ends by itself when it sees that."""
        line = set(ancestors(pid))
        (victim,) = (one for one in self.workers if one.pid in line)
        self.workers.remove(victim)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the worker's processes", 90)

    def wait_for_workers(self, count: int) -> None:
        """Until so many are alive, as the master says."""
        wait_for(lambda: self._alive() == count, f"a cluster of {count} workers", 90)

    def python_workers(self) -> list[int]:
        """The Python processes of the executors: those that run tasks, not the one that starts them."""
        ours = {one.pid for one in self.workers}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and b"pyspark.daemon" in _command(entry):
                line = list(ancestors(int(entry.name)))
                if ours & set(line) and b"pyspark.daemon" in _command(Path(f"/proc/{line[1]}")):
                    found.append(int(entry.name))
        return found

    def peak_mb(self) -> float:
        """The most memory that a Python process of the executors has had at once, in MB."""
        peaks = [_status(pid, "VmHWM") for pid in self.python_workers()]
        assert peaks, "no Python process is there any more"
        return max(peaks) / 1024

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ui}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):  # it does not listen yet, or has no page yet
            return 0

    def _start(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = ["java", *_SMALL, "-cp", f"{_HOME}/jars/*", main, *arguments]
        # What Spark's own scripts would set.
        places = {"SPARK_HOME": str(_HOME), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_DIRS": str(self._directory / "local")}
        with open(self._directory / f"{name}.log", "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **places}, start_new_session=True)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def _status(pid: int, name: str) -> int:
    """A number of kilobytes that the kernel keeps about a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


# ---- in the driver's process ---------------------------------------------------------------------------------------------


def _open(directory: str, url: str, conf: Mapping[str, str]) -> None:
    from spark.conftest import open_session  # noqa: PLC0415  (a session is opened in the driver alone)

    log = os.open(f"{directory}/driver.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    open_session(f"{directory}/warehouse", url, **conf)


def _close() -> None:
    session().stop()


def session() -> pyspark.sql.SparkSession:
    """The driver's own."""
    found = pyspark.sql.SparkSession.getActiveSession()
    assert found is not None
    return found


def _run(job: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    try:
        return job(session(), *args, **kwargs)
    except Exception as problem:  # Spark's own exceptions cannot be pickled
        raise RuntimeError(str(problem)) from None
