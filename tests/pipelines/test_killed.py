"""A pipeline that is killed: `ottla pipeline run` as a process, ended with -9 between the steps of a batch, and started again.

Windows go to a topic, bad records to a dead-letter topic, all others to Parquet. Killed are the process, Spark's JVM under it,
or both with every worker; in the end it is asked to stop. What came out equals a batch computation over what is in the topic.
The long form (OTTLA_SOAK=1) has 20 kills, lets it get somewhere between them, and asks with SIGTERM once as well.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ottla import client
from ottla.client import Cluster
from ottla.pipelines import state as states
from ottla.spark.faults import STEPS
from pipelines.test_pipeline_command import ottla
from pipelines.test_pipelines import rows
from spark.test_under_fire import AFTER

SOAK = bool(os.environ.get("OTTLA_SOAK"))
WINDOW = 10
CHUNK = 20
"""Seconds that one piece of the feed is long. A record may be late by three of them."""
KINDS = ("process", "java", "all")
SHORT = [("decision.half", "process"), ("commit.begun", "java")]
OF_SPARK = ("Python worker failed to connect back.", "Task not serializable")
"""What Spark runs into by itself: ten seconds were not enough for a worker, or it plans while another query does."""
PIPELINE = """
name: killed
cluster: {address}
spark:
  spark.driver.memory: 1g
  spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
  spark.sql.shuffle.partitions: 2
sources:
  events:
    topic: {topic}
    decode:
      format: json
      schema: id BIGINT NOT NULL, key STRING NOT NULL, at TIMESTAMP NOT NULL
      bad: dead-letter
      dead_letter: {topic}-bad
    watermark: {{column: at, delay: 60 seconds}}
steps:
  counts:
    sql: |
      SELECT key, unix_timestamp(window.start) AS start, count(*) AS count, sum(id) AS ids
      FROM events GROUP BY key, window(at, '{window} seconds')
  kept:
    sql: SELECT id, key FROM events
sinks:
  counts: {{topic: {topic}-out, key: key, create: {{partitions: 2}}}}
  kept: {{format: parquet, path: files}}
"""


def kills() -> list[tuple[str, str]]:
    """At which step, and what is killed. No step: after a while, wherever it is then, be it on its way up."""
    if not SOAK:
        return SHORT
    of_tasks = [one for one in STEPS if one not in AFTER["shared"]]
    chance = random.Random(20)
    found = list(zip(of_tasks, itertools.cycle(KINDS), strict=False))
    found += list(zip([""] * (20 - len(found)), itertools.cycle(("process", "all")), strict=False))
    chance.shuffle(found)
    return found


class Feed:
    """Records whose times move on, a few bad ones among them."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self._begin = int(time.time()) // WINDOW * WINDOW - 12 * 3600
        self._made = 0
        client.create_topic(cluster, topic, 2, 1)
        client.create_topic(cluster, f"{topic}-bad", 1, 1)

    def more(self, records: int = 200) -> None:
        """One chunk further."""
        values = []
        for _ in range(records):
            at = self._begin + self._made * CHUNK // records
            good = json.dumps({"id": self._made, "key": f"k{self._made % 7}", "at": at}).encode()
            values.append(b"bad %d" % self._made if self._made % 20 == 3 else good)
            self._made += 1
        client.write(self._topic, pa.table({"value": values}), cluster=self._cluster)

    def close_windows(self) -> None:
        """A record far ahead: all windows before it are complete. Its own stays open."""
        last = {"id": -1, "key": "end", "at": self._begin + 11 * 3600}
        client.write(self._topic, pa.table({"value": [json.dumps(last).encode()]}), cluster=self._cluster)


def computed(cluster: Cluster, topic: str) -> tuple[Counter[Any], Counter[Any], Counter[Any]]:
    """What is to come out, from what is in the topic: windows, dead letters, rows of the table."""
    found = [row["value"] for row in rows(cluster, topic)]
    good = [json.loads(value) for value in found if not value.startswith(b"bad")]
    windows: dict[tuple[str, int], list[int]] = {}
    for one in good:
        if one["key"] != "end":
            windows.setdefault((one["key"], one["at"] // WINDOW * WINDOW), []).append(one["id"])
    told = [
        json.dumps({"key": key, "start": start, "count": len(ids), "ids": sum(ids)}, separators=(",", ":")).encode()
        for (key, start), ids in windows.items()
    ]
    return Counter(told), Counter(value for value in found if value.startswith(b"bad")), Counter(one["id"] for one in good)


class Runs:
    """`ottla pipeline run`, again and again; each in a session of its own, by which all that it starts can be found."""

    def __init__(self, home: Path, file: Path, faults: Path) -> None:
        command = [sys.executable, "-m", "ottla", "pipeline", "--directory", str(home)]
        self._line = [*command, "run", str(file), "--master", "local[2]"]
        self._home = home
        self._environment = {**os.environ, "OTTLA_SPARK_FAULTS": str(faults)}
        self._log = home.parent / "log"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with open(self._log, "ab") as log:
            process = subprocess.Popen(self._line, stdout=log, stderr=log, env=self._environment, start_new_session=True)
        self._started.append(process)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait while it runs. One that Spark itself failed, as it does now and then, is started again."""
        deadline = time.monotonic() + 200
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen:\n{self.log()}"
            if self._started[-1].poll() is not None:
                assert self.log().rstrip().endswith(OF_SPARK), f"{what} did not happen:\n{self.log()}"
                self.start()
            time.sleep(0.02)

    def kill(self, kind: str) -> int:
        """kill -9 the process, Spark's JVM, or all; the exit code of the process."""
        last = self._started[-1]
        for one in [last.pid] if kind == "process" else list(_members(last.pid)):
            try:
                if kind != "java" or Path(f"/proc/{one}/comm").read_text().strip() == "java":
                    os.kill(one, signal.SIGKILL)
            except OSError:
                continue  # it has gone with the others
        return self.code()

    def terminate(self) -> int:
        self._started[-1].send_signal(signal.SIGTERM)
        return self.code()

    def code(self) -> int:
        return self._started[-1].wait(60)

    def state(self) -> str:
        """What the last one says of itself."""
        found = states.read(self._home / "killed")
        return found.shown() if found is not None and found.pid == self._started[-1].pid else ""

    def log(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        """Nothing stays, whatever happened."""
        for one in self._started:
            for member in _members(one.pid):
                with contextlib.suppress(OSError):
                    os.kill(member, signal.SIGKILL)
            one.wait(60)


def _members(session: int) -> Iterator[int]:
    """The processes of a session."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(stat.parent.name)


@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 600)
def test_what_comes_out_is_there_once(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    host, port = cluster.settings.bootstrap[0]
    file, home, faults = tmp_path / "killed.yaml", tmp_path / "pipelines", tmp_path / "faults"
    file.write_text(PIPELINE.format(address=f"{host}:{port}", topic=topic, window=WINDOW))
    faults.mkdir()
    feed = Feed(cluster, topic)
    for _ in range(5):
        feed.more()
    runs = Runs(home, file, faults)

    def came_out() -> Iterator[Counter[Any]]:
        for one in ("out", "bad"):
            yield Counter(row["value"] for row in rows(cluster, f"{topic}-{one}"))
        yield Counter(row.id for row in spark.read.parquet(str(tmp_path / "files")).collect())

    def caught_up() -> bool:
        done = client.committed_offsets(cluster, "pipeline-killed-counts")
        with client.read(topic, cluster=cluster) as reader:
            return all(tp in done and done[tp].offset >= one.end for tp, one in reader.ranges.items())

    try:
        for number, (step, kind) in enumerate(kills()):
            runs.start()
            if SOAK and step and number % 2:  # let it get somewhere first
                runs.wait_for(caught_up, "the end of what is in the topic")
            if step:
                (faults / f"{step}.new").write_text("wait 3")
                (faults / f"{step}.new").rename(faults / step)
                feed.more()
                runs.wait_for(lambda step=step: not (faults / step).exists(), f"step {step}")
            else:
                time.sleep(random.Random(number).uniform(1, 12))
            assert runs.kill(kind) == (1 if kind == "java" else -signal.SIGKILL), runs.log()
            assert not step or runs.state() == ("failed" if kind == "java" else "died")

        if SOAK:
            runs.start()
            feed.more()
            runs.wait_for(lambda: runs.state() == "running", "the start of queries")
            assert runs.terminate() == 0, runs.log()
            assert "Pipeline killed stopped" in runs.log()

        runs.start()
        feed.more()
        feed.close_windows()
        expected = computed(cluster, topic)
        runs.wait_for(lambda: all(len(out) >= len(one) for out, one in zip(came_out(), expected, strict=True)), "all output")
        assert "stopped killed" in ottla(home, "stop", "killed")
        assert runs.code() == 0, runs.log()
        assert "Traceback" not in runs.log(), runs.log()
    finally:
        runs.close()
    for name, found, wanted in zip(("windows", "dead letters", "table"), came_out(), expected, strict=True):
        assert (name, wanted - found, found - wanted) == (name, Counter(), Counter())
    assert client.open_transactions(cluster, f"{topic}-out") == []
    assert caught_up()
