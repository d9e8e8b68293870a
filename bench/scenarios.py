"""What is measured on a broker: the same scenarios for each, one broker working at a time.

Guards: Apache Kafka is measured cold, then warmed up until its figures settle, and only then compared; Ottla gets one short
round to warm up. Every load runs in a process of its own, and none outlives the scenario that started it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.brokers import ROOT, Place, Running
from bench.figures import CONNECTIONS, PARTITIONS, Samples, Subject
from bench.machine import cpu_seconds, disk_read_mb, drop_page_cache, make_memory_real, rss_mb

_SETTLED = 0.10  # a JVM has settled when CPU per GB changes by less than this from one round to the next
_PARTITIONS = 4
_LOAD_MB = 1536  # what a client's queue and the log of one load take at most
_RUN = 256  # records to one partition before the next: the load that the bars were set with


class ScenarioError(Exception):
    """A scenario could not be measured: one line that says why."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    starts: int
    rounds: int
    records_100: int
    records_1024: int
    small: int
    trips: int
    trip_repeats: int
    warm_up_records: int
    warm_up_at_most: int
    partition_records: int
    partition_trips: int
    partitions: tuple[int, ...]
    connections: tuple[int, ...]
    cold_mb: int
    cold_repeats: int
    coordinator_rounds: int
    coordinator_warm_ups: int
    transactions: int
    librdkafka_transactions: int
    commits: int
    paced_s: float
    group_times: int
    offset_records: int
    offset_loads: int
    compaction_rounds: int
    compaction_records: int
    compaction_beside_records: int
    compaction_warm_ups: int
    compaction_warm_up_records: int
    compaction_alone_s: float
    client_rounds: int
    client_records: int
    spark_records_100: int
    spark_records_1024: int
    cluster_rounds: int
    cluster_records_100: int
    cluster_records_1024: int
    cluster_warm_up: int
    cluster_heap: str
    scrape_rounds: int
    scrape_s: float


FULL = Sizes(
    starts=3, rounds=5, records_100=2_000_000, records_1024=400_000, small=60_000, trips=2000, trip_repeats=2,
    warm_up_records=12_000_000, warm_up_at_most=20_000_000, partition_records=1_000_000, partition_trips=1000,
    partitions=PARTITIONS, connections=CONNECTIONS, cold_mb=3000, cold_repeats=3,
    coordinator_rounds=5, coordinator_warm_ups=20, transactions=3000, librdkafka_transactions=200, commits=20_000, paced_s=3,
    group_times=5, offset_records=1_000_000, offset_loads=3, compaction_rounds=7, compaction_records=10_000_000,
    compaction_beside_records=1_000_000, compaction_warm_ups=6, compaction_warm_up_records=250_000, compaction_alone_s=5,
    client_rounds=3, client_records=2_000_000, spark_records_100=2_000_000, spark_records_1024=200_000,
    cluster_rounds=3, cluster_records_100=1_500_000, cluster_records_1024=200_000, cluster_warm_up=9_000_000, cluster_heap="1g",
    scrape_rounds=3, scrape_s=15,
)  # fmt: skip
QUICK = Sizes(
    starts=1, rounds=1, records_100=500_000, records_1024=100_000, small=15_000, trips=2000, trip_repeats=1,
    warm_up_records=2_000_000, warm_up_at_most=2_000_000, partition_records=200_000, partition_trips=300,
    partitions=PARTITIONS, connections=CONNECTIONS, cold_mb=500, cold_repeats=1,
    coordinator_rounds=1, coordinator_warm_ups=3, transactions=1000, librdkafka_transactions=50, commits=10_000, paced_s=2,
    group_times=3, offset_records=100_000, offset_loads=1, compaction_rounds=1, compaction_records=400_000,
    compaction_beside_records=200_000, compaction_warm_ups=1, compaction_warm_up_records=200_000, compaction_alone_s=2,
    client_rounds=1, client_records=500_000, spark_records_100=200_000, spark_records_1024=50_000,
    cluster_rounds=1, cluster_records_100=300_000, cluster_records_1024=50_000, cluster_warm_up=600_000, cluster_heap="512m",
    scrape_rounds=1, scrape_s=6,
)  # fmt: skip


class Maker(Protocol):
    """Something that has places for brokers."""

    def place(self, settings: Mapping[str, str] | None = None, heap: str | None = None) -> Place: ...


@dataclass(slots=True)
class Bench:
    """One broker under measurement, and where its figures go."""

    broker: Running
    subject: Subject
    sizes: Sizes
    samples: Samples
    say: Callable[[str], None]
    topics: int = field(default=0, init=False)

    # ---- tools -----------------------------------------------------------------------------------------------------------

    def load(self, name: str, **arguments: Any) -> dict[str, float]:
        """Run one load against the broker; its figures. One that fails is tried once more, and that is said in the report."""
        try:
            return self._load(name, arguments)
        except ScenarioError as problem:
            self.samples.note(f"{problem}; tried again")
            self.say(f"  {problem}; trying again")
            return self._load(name, arguments)

    def _load(self, name: str, arguments: dict[str, Any]) -> dict[str, float]:
        with self.running(name, **arguments) as load:
            return load.end()

    @contextmanager
    def running(self, name: str, **arguments: Any) -> Iterator[RunningLoad]:
        """A load beside what we do; it is gone afterwards."""
        with _started(name, {"bootstrap": self.broker.bootstrap} | arguments) as process:
            yield RunningLoad(name, self.subject, process)

    @contextmanager
    def topic(self, partitions: int = _PARTITIONS, settings: dict[str, str] | None = None) -> Iterator[str]:
        """A topic of our own, gone afterwards."""
        name = self.create_topic(partitions, settings)
        yield name
        self.delete_topics(name)

    def create_topic(self, partitions: int, settings: dict[str, str] | None = None) -> str:
        """A new topic; its name."""
        self.topics += 1
        name = f"bench-{self.topics}"
        self.load("create_topic", topic=name, partitions=partitions, settings=settings)
        return name

    def delete_topics(self, *names: str) -> None:
        """Delete topics, and wait until the disk is rid of them: that is no part of what comes next."""
        self.load("delete_topics", topics=names)
        end = time.monotonic() + 20
        while any(any(self.broker.data.glob(f"{name}[-.]*")) for name in names) and time.monotonic() < end:
            time.sleep(0.1)

    def add(self, key: str, value: float, subject: Subject | None = None) -> None:
        """Keep a sample, and tell about it."""
        self.samples.add(key, subject or self.subject, value)
        self.say(f"  {(subject or self.subject).value}: {key} = {value:,.4g}")

    # ---- the same load ---------------------------------------------------------------------------------------------------

    def round(self, subject: Subject, records_100: int, records_1024: int) -> None:
        """One round of the whole load."""
        for size, records in ((100, records_100), (1024, records_1024)):
            with self.topic() as topic:
                make_memory_real(_LOAD_MB)
                what = {"pid": self.broker.pid, "topic": topic, "partitions": _PARTITIONS, "records": records, "size": size}
                for way, more in (("produce", {"run": _RUN}), ("consume", {})):
                    figures = self.load(way, **what, **more)
                    self.add(f"{way}.{size}.cpu", figures["cpu_s_per_gb"], subject)
                    self.add(f"{way}.{size}.rate", figures["records_per_s"], subject)
                figures = self.load("round_trips", topic=topic, partitions=1, trips=self.sizes.trips)
                self.add("trip.p50", figures["p50_ms"], subject)
                self.add("trip.p99", figures["p99_ms"], subject)
        with self.topic() as topic:
            figures = self.small(topic, self.sizes.small)
            self.add("small.cpu", figures["cpu_us"], subject)
            self.add("small.rate", figures["requests_per_s"], subject)

    def small(self, topic: str, requests: int) -> dict[str, float]:
        """Requests of one record each."""
        return self.load("one_record_requests", pid=self.broker.pid, topic=topic, partitions=_PARTITIONS, requests=requests)

    def warm_up(self) -> None:
        """Load until the figures settle. All paths are walked, so that none is compiled while it is measured."""
        records, done, before = self.sizes.records_100, 0, float("inf")
        while True:
            with self.topic() as topic:
                what = {"pid": self.broker.pid, "topic": topic, "partitions": _PARTITIONS, "records": records, "size": 100}
                now = self.load("produce", **what, run=_RUN)["cpu_s_per_gb"]
                self.load("consume", **what)
                self.small(topic, self.sizes.small // 2)
                self.load("round_trips", topic=topic, partitions=1, trips=500)
            done += records
            change = abs(now - before) / before if before != float("inf") else float("inf")
            self.say(f"  {self.subject.value}: warming up, {done / 1e6:.1f} million records, produce {now:.2f} CPU s/GB")
            self.samples.add("warm-up.produce.cpu", self.subject, now)
            before = now
            if self.subject is Subject.OTTLA or (done >= self.sizes.warm_up_records and change < _SETTLED):
                return
            if done >= self.sizes.warm_up_at_most:
                self.samples.note(
                    f"{self.subject.value} had not settled: its last round of warming up still differed by {change:.0%}"
                )
                self.say(f"  {self.samples.notes[-1]}")
                return

    def measured_round(self) -> None:
        """One of the rounds that are compared."""
        self.round(self.subject, self.sizes.records_100, self.sizes.records_1024)

    def memory(self) -> None:
        """What the rounds left behind."""
        self.add("rss", rss_mb(self.broker.pid))

    def cold_round(self) -> None:
        """One round against a broker that has only just started."""
        self.round(Subject.APACHE_COLD, self.sizes.records_100 // 2, self.sizes.records_1024 // 2)
        self.add("rss", rss_mb(self.broker.pid), Subject.APACHE_COLD)

    # ---- how cost grows --------------------------------------------------------------------------------------------------

    def partitions(self) -> None:
        """The same records, spread over more and more partitions."""
        for count in self.sizes.partitions:
            with self.topic(count) as topic:
                what = {
                    "pid": self.broker.pid, "topic": topic, "partitions": count,
                    "records": self.sizes.partition_records, "size": 100,
                }  # fmt: skip
                self.add(f"partitions.{count}.produce", self.load("produce", **what)["cpu_s_per_gb"])
                self.add(f"partitions.{count}.consume", self.load("consume", **what)["cpu_s_per_gb"])
                figures = self.load("round_trips", topic=topic, partitions=count, trips=self.sizes.partition_trips)
                self.add(f"partitions.{count}.trip", figures["p50_ms"])
                self.add(f"partitions.{count}.rss", rss_mb(self.broker.pid))

    def connections(self) -> None:
        """More and more connections that asked for ApiVersions once, and one client that works."""
        for count in self.sizes.connections:
            with self.topic(1) as topic, self.running("crowd", connections=count) as crowd:
                crowd.wait_until_ready()
                time.sleep(0.5)
                cpu = cpu_seconds(self.broker.pid)
                time.sleep(2)
                self.add(f"connections.{count}.idle", (cpu_seconds(self.broker.pid) - cpu) / 2 * 1000)
                self.add(f"connections.{count}.rss", rss_mb(self.broker.pid))
                for _ in range(self.sizes.trip_repeats):
                    figures = self.load("round_trips", topic=topic, partitions=1, trips=self.sizes.trips)
                    self.add(f"connections.{count}.p50", figures["p50_ms"])
                    self.add(f"connections.{count}.p99", figures["p99_ms"])
                lost = crowd.end()["lost"]
                if lost:
                    raise ScenarioError(f"{self.subject.value} lost {lost:.0f} of {count} idle connections")

    # ---- old data --------------------------------------------------------------------------------------------------------

    def cold_reader(self) -> None:
        """Round trips on a hot topic, without and beside a consumer that reads gigabytes that only the disk has."""
        size = 10_000
        records = self.sizes.cold_mb * 1_000_000 // size
        with self.topic(1) as hot, self.topic(_PARTITIONS, {"segment.bytes": str(128 << 20)}) as old:
            what = {"topic": old, "partitions": _PARTITIONS, "records": records, "size": size}
            self.load("produce", pid=self.broker.pid, **what)
            beside = {"bootstrap": self.broker.bootstrap} | what
            files = [path for place in self.broker.data.glob(f"{old}-*") for path in place.glob("*.log")]
            for _ in range(self.sizes.cold_repeats):
                without = self.load("round_trips", topic=hot, partitions=1, trips=self.sizes.trips * 2)
                self.add("cold.without.p50", without["p50_ms"])
                self.add("cold.without.p99", without["p99_ms"])
                resident = drop_page_cache(files)
                if resident > 0.01:
                    raise ScenarioError(
                        f"the page cache of {self.broker.data} cannot be dropped ({resident:.0%} stays): no cold data here"
                    )
                disk = disk_read_mb(self.broker.pid)
                cold = self.load("round_trips", topic=hot, partitions=1, trips=0, beside=beside)
                self.add("cold.disk", (disk_read_mb(self.broker.pid) - disk) / self.sizes.cold_mb * 100)
                self.add("cold.with.p50", cold["p50_ms"])
                self.add("cold.with.p99", cold["p99_ms"])
                self.add("cold.grows", cold["p99_ms"] / without["p99_ms"])
                if "reader_mb_per_s" in cold:
                    self.add("cold.rate", cold["reader_mb_per_s"])
                cached = self.load("round_trips", topic=hot, partitions=1, trips=0, beside=beside)
                self.add("cold.cached.p99", cached["p99_ms"])


@dataclass(frozen=True, slots=True)
class RunningLoad:
    """A load in its process. It is told things by lines, and to end by the end of its input."""

    name: str
    subject: Subject
    process: subprocess.Popen[str]

    def wait_until_ready(self) -> None:
        """Wait until it says that it has begun."""
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            self.end()

    def tell(self, word: str) -> None:
        """Give it a line."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
        except OSError:
            self.end()

    def end(self) -> dict[str, float]:
        """Let it come to its end; its figures."""
        output, problems = self.process.communicate()
        if self.process.returncode != 0:
            raise ScenarioError(f"{self.name} against {self.subject.value} failed: {' '.join(problems.splitlines()[-1:])}")
        figures: dict[str, float] = json.loads(output.splitlines()[-1])
        return figures


@contextmanager
def _started(name: str, arguments: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.run_load", name, json.dumps(arguments)]
    # In a group of its own, so that it and what it started can be ended together, and a Ctrl-C meets us alone.
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until_settled(bench: Bench, what: str, unit: str, once: Callable[[], float], at_most: int) -> None:
    """Run it until the figure changes little from one time to the next, twice; Ottla has nothing that warms up."""
    before, calm = once(), 0
    if bench.subject is Subject.OTTLA:
        return
    for _ in range(at_most - 1):
        now = once()
        bench.say(f"  {bench.subject.value}: warming up, {what}: {now:,.0f} {unit}")
        calm = calm + 1 if abs(now - before) < _SETTLED * before else 0
        before = now
        if calm == 2:
            return
    bench.samples.note(f"{bench.subject.value} had not settled in {what} after {at_most} rounds")


def start_times(maker: Maker, subject: Subject, sizes: Sizes, samples: Samples, say: Callable[[str], None]) -> None:
    """How long from the start of the process to its first answer."""
    for _ in range(sizes.starts):
        with maker.place().started() as broker:
            samples.add("start.s", subject, broker.answered_after_s)
            say(f"  {subject.value}: start.s = {broker.answered_after_s:.3f}")
