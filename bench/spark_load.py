"""The same topic and queries through `format("ottla")` and through Spark's own connector, in one Spark (local, two cores).

Guards: every query runs once before it counts (classes, workers, page cache), and of two runs that count the faster one does.
What is measured is the time on the wall and the CPU of the three that work: Spark's JVM, its Python workers, the broker.
Readers count records and add up the lengths of their values; streams read everything in one batch, whose time is Spark's own
figure for it, and what the query takes besides (it starts, it ends) is a figure of its own; writers copy a topic, in one batch
of a stream or in a batch query.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.brokers import ROOT
from bench.load import Figures, LoadError
from bench.machine import cpu_seconds
from ottla import client

JARS = ROOT / ".cache" / "spark-kafka"
_TICK = os.sysconf("SC_CLK_TCK")
_PARTITIONS = 4
_TUNED_READ = {"kafka.max.poll.records": 5000, "kafka.max.partition.fetch.bytes": 8 << 20, "kafka.fetch.max.bytes": 32 << 20}
_TUNED_WRITE = {"kafka.linger.ms": 20, "kafka.batch.size": 256 << 10}
READS: dict[str, tuple[str, dict[str, object]]] = {
    "ottla.all": ("ottla", {}),
    "ottla.value": ("ottla", {"columns": "value"}),
    "kafka": ("kafka", {}),
    "kafka.tuned": ("kafka", _TUNED_READ),
}
STREAMS: dict[str, tuple[str, dict[str, object]]] = {"ottla.all": ("ottla", {}), "kafka": ("kafka", {})}
WRITES: dict[str, tuple[str, dict[str, object]]] = {
    "ottla.once": ("ottla", {"exactlyOnce": "true"}),
    "kafka": ("kafka", {}),
    "kafka.tuned": ("kafka", _TUNED_WRITE),
}
BATCH_WRITES: dict[str, tuple[str, dict[str, object]]] = {
    "ottla.once": ("ottla", {"exactlyOnce": "true"}),
    "kafka": ("kafka", {}),
}
_RUNS = 2


def spark_queries(bootstrap: str, pid: int, topic: str, out: list[str], records: int, size: int, codec: str) -> Figures:
    """Fill a topic and send it through every query; rates, CPU seconds per million records, and ratios."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  (other loads should not pay for it)

    jars = ",".join(map(str, sorted(JARS.glob("*.jar"))))
    if not jars:
        raise LoadError("Spark's Kafka connector is not in .cache/spark-kafka: run scripts/prepare java")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    payload = os.urandom(size * 1000)
    values = [payload[at * size : (at + 1) * size] for at in range(1000)]
    numbers = pa.array([row % 1000 for row in range(records)])
    places = pa.array([row // 250 % _PARTITIONS for row in range(records)], pa.int32())
    table = pa.table({"value": pa.array(values, pa.binary()).take(numbers), "partition": places})
    client.write(topic, table, cluster=bootstrap, codec=codec)
    work = tempfile.mkdtemp(prefix="bench-spark-")
    settings = {"spark.ui.enabled": "false", "spark.jars": jars, "spark.driver.memory": "2g", "spark.log.level": "ERROR",
                "spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": work}  # fmt: skip
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        return _Queries(spark, bootstrap, pid, topic, records, Path(work)).run(out)
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


class _Queries:
    def __init__(self, spark: Any, bootstrap: str, pid: int, topic: str, records: int, work: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._pid = pid
        self._topic = topic
        self._records = records
        self._work = work
        self._java: int = spark.sparkContext._gateway.proc.pid
        self._runs = 0

    def run(self, out: list[str]) -> Figures:
        figures: Figures = {}
        for name, (kind, options) in READS.items():
            figures |= self._measure(f"read.{name}", lambda kind=kind, options=options: self._read(kind, options))
        for name, (kind, options) in STREAMS.items():
            figures |= self._measure_stream(f"stream.{name}", lambda kind=kind, options=options: self._stream(kind, options))
        for target, (name, (kind, options)) in zip(out, WRITES.items(), strict=True):
            figures |= self._measure(f"write.{name}", lambda k=kind, o=options, t=target: self._write(k, o, t))
        for target, (name, (kind, options)) in zip(out, BATCH_WRITES.items(), strict=False):
            figures |= self._measure(f"batch.{name}", lambda k=kind, o=options, t=target: self._write_batch(k, o, t))
        for kind in ("ottla", "kafka"):
            self._latency(kind)
        latencies = [(kind, self._latency(kind)) for _ in range(_RUNS) for kind in ("ottla", "kafka")]
        for kind in ("ottla", "kafka"):
            figures[f"latency.{kind}"] = min(found for of, found in latencies if of == kind)
        figures["ratio.read.all"] = figures["read.ottla.all.rate"] / figures["read.kafka.rate"]
        figures["ratio.read.value"] = figures["read.ottla.value.rate"] / figures["read.kafka.rate"]
        figures["ratio.stream"] = figures["stream.ottla.all.rate"] / figures["stream.kafka.rate"]
        figures["ratio.write"] = figures["write.ottla.once.rate"] / figures["write.kafka.rate"]
        figures["ratio.batch"] = figures["batch.ottla.once.rate"] / figures["batch.kafka.rate"]
        figures["ratio.latency"] = figures["latency.ottla"] / figures["latency.kafka"]
        return figures

    def _measure(self, name: str, once: Callable[[], object]) -> Figures:
        once()
        return self._figures(name, min((self._timed(once) for _ in range(_RUNS)), key=itemgetter(0)))

    def _measure_stream(self, name: str, once: Callable[[], float]) -> Figures:
        """`once` runs a query and says how many seconds its batches took."""
        batches: list[float] = []
        once()
        runs = [(*self._timed(lambda: batches.append(once())), batches[-1]) for _ in range(_RUNS)]
        whole, used, seconds = min(runs, key=itemgetter(0))
        figures = self._figures(name, (whole, used))
        return figures | {f"{name}.rate": self._records / seconds, f"{name}.besides": whole - seconds}

    def _figures(self, name: str, run: tuple[float, Figures]) -> Figures:
        seconds, used = run
        per_million = 1e6 / self._records
        costs = {f"{name}.cpu.{who}": spent * per_million for who, spent in used.items()}
        return {f"{name}.rate": self._records / seconds, **costs}

    def _timed(self, once: Callable[[], object]) -> tuple[float, Figures]:
        cpu, began = self._cpu(), time.perf_counter()
        once()
        seconds = time.perf_counter() - began
        return seconds, {who: after - cpu[who] for who, after in self._cpu().items()}

    def _cpu(self) -> dict[str, float]:
        workers = sum(map(_with_children, _descendants(self._java))) + _cpu_of_ended(self._java)
        return {"jvm": cpu_seconds(self._java), "python": workers, "broker": cpu_seconds(self._pid)}

    def _source(self, reader: Any, kind: str, options: dict[str, object]) -> Any:
        reader = reader.format(kind).option("kafka.bootstrap.servers", self._bootstrap).option("subscribe", self._topic)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader

    def _read(self, kind: str, options: dict[str, object]) -> None:
        frame = self._source(self._spark.read, kind, options).load()
        (row,) = frame.selectExpr("count(*) records", "sum(length(value)) bytes").collect()
        if row.records != self._records:
            raise LoadError(f"{row.records} records instead of {self._records}")

    def _stream(self, kind: str, options: dict[str, object]) -> float:
        source = self._source(self._spark.readStream, kind, {"startingOffsets": "earliest", **options}).load()
        query = self._run(source.writeStream.format("noop"), {})
        batches = [one for one in query.recentProgress if one["numInputRows"]]
        if sum(one["numInputRows"] for one in batches) != self._records:
            raise LoadError(f"A stream read something else than {self._records} records")
        return sum(one["durationMs"]["triggerExecution"] for one in batches) / 1000

    def _write(self, kind: str, options: dict[str, object], target: str) -> None:
        source = self._source(self._spark.readStream, kind, {"startingOffsets": "earliest"}).load()
        self._run(source.select("value", "partition").writeStream.format(kind), {**self._sink(target), **options})

    def _write_batch(self, kind: str, options: dict[str, object], target: str) -> None:
        writer = self._source(self._spark.read, kind, {}).load().select("value", "partition").write.format(kind).mode("append")
        for name, value in {**self._sink(target), **options}.items():
            writer = writer.option(name, value)
        writer.save()

    def _sink(self, target: str) -> dict[str, object]:
        return {"kafka.bootstrap.servers": self._bootstrap, "topic": target}

    def _run(self, writer: Any, options: dict[str, object]) -> Any:
        self._runs += 1
        for name, value in {**options, "checkpointLocation": self._work / f"run-{self._runs}"}.items():
            writer = writer.option(name, value)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def _latency(self, kind: str) -> float:
        """Milliseconds of a batch of 1,000 records, the median of twenty."""
        self._runs += 1
        options: dict[str, object] = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 1000}
        source = self._source(self._spark.readStream, kind, options).load()
        writer = source.writeStream.format("noop").option("checkpointLocation", self._work / f"run-{self._runs}")
        query = writer.start()
        while len(query.recentProgress) < 23:
            if query.exception() is not None:
                raise LoadError(str(query.exception()))
            time.sleep(0.05)
        query.stop()
        return statistics.median(one["durationMs"]["triggerExecution"] for one in query.recentProgress[3:23])


def _descendants(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from _descendants(child)


def _with_children(pid: int) -> float:
    """CPU of a process and of its children that have ended."""
    return sum(_ticks(pid)) / _TICK


def _cpu_of_ended(pid: int) -> float:
    """CPU of a process's children that have ended: a stream's planner is a child of the JVM, and ends with it."""
    return sum(_ticks(pid)[2:]) / _TICK


def _ticks(pid: int) -> list[int]:
    """In the process and in the kernel, and the same of children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [0, 0, 0, 0]
    return list(map(int, fields[11:15]))
