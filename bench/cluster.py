"""Clusters beside each other: the same load with three replicas, many partitions, and a broker that is killed.

Each cluster has a root of its own in the one ZooKeeper that runs already, and is alone on the machine while it is measured.
Figures are of all its brokers together. A new controller counts as ready when it has led every partition that the old one led.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import kill
from typing import Any

from bench.brokers import BrokerError, Running
from bench.connection import ask
from bench.figures import CLUSTER_BROKERS, CLUSTER_PARTITIONS, Samples, Subject
from bench.machine import cpu_seconds, rss_mb
from bench.scenarios import Bench, Maker, ScenarioError, Sizes
from ottla.wire.apis.metadata import MetadataRequest, MetadataResponse
from ottla.wire.schema import Malformed

FACTOR = 3
_SESSION_MS = 6000
_PARTITIONS = 4
_PER_TOPIC = 500
_LED_WITHIN_S = 120.0
_LARGEST_ROUND = 1_000_000


@dataclass(slots=True)
class Cluster:
    """Brokers of one cluster, by id."""

    brokers: dict[int, Running]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def pids(self) -> list[int]:
        return [broker.pid for broker in self.brokers.values()]

    def cpu(self) -> float:
        return sum(map(cpu_seconds, self.pids))

    def metadata(self) -> MetadataResponse:
        """As a living broker tells it."""
        for broker in self.brokers.values():
            try:
                return ask(broker.port, MetadataRequest(topics=None), MetadataResponse, 9, timeout=10)
            except (OSError, Malformed):
                continue
        raise ScenarioError("no broker of the cluster answers")


@contextmanager
def running(
    maker: Maker, zookeeper: str, name: str, count: int, settings: Mapping[str, str], heap: str | None = None
) -> Iterator[Cluster]:
    """A cluster whose brokers all know each other."""
    with ExitStack() as stack:
        brokers: dict[int, Running] = {}
        for number in range(1, count + 1):
            own = {
                "broker.id": str(number),
                "zookeeper.connect": f"{zookeeper}/{name}",
                "zookeeper.session.timeout.ms": str(_SESSION_MS),
                "auto.leader.rebalance.enable": "false",
                **settings,
            }
            brokers[number] = stack.enter_context(maker.place(own, heap).started())
        cluster = Cluster(brokers)
        _until(lambda: len(cluster.metadata().brokers) == count, "the brokers know each other")
        yield cluster


class Clusters:
    """The scenario, for one kind of broker."""

    def __init__(
        self, maker: Maker, zookeeper: str, subject: Subject, sizes: Sizes, samples: Samples, say: Callable[[str], None]
    ) -> None:
        self._maker = maker
        self._zookeeper = zookeeper
        self._subject = subject
        self._sizes = sizes
        self._samples = samples
        self._say = say
        self._count = 0

    def run(self) -> None:
        """All of it."""
        for brokers in CLUSTER_BROKERS:
            self._grown(brokers)
        for partitions in CLUSTER_PARTITIONS:
            self._many(partitions)

    def _cluster(self, count: int, **settings: str) -> Any:
        self._count += 1
        name = f"{self._subject.name.lower()}-{self._count}"
        return running(self._maker, self._zookeeper, name, count, settings, self._sizes.cluster_heap)

    def _grown(self, count: int) -> None:
        """The load on a cluster of `count`."""
        factor = min(FACTOR, count)
        settings = {"min.insync.replicas": str(min(2, count)), "log.segment.delete.delay.ms": "1000"}
        with self._cluster(count, **settings) as cluster:
            bench = self._bench(cluster)
            if count == FACTOR:
                self._warm_up(bench, cluster)
                for _ in range(self._sizes.cluster_rounds):
                    self._load(bench, cluster, factor, "cluster")
                bench.add("cluster.rss", sum(map(rss_mb, cluster.pids)))
            else:
                self._load(bench, cluster, factor, f"cluster.brokers.{count}")

    def _bench(self, cluster: Cluster) -> Bench:
        return Bench(next(iter(cluster.brokers.values())), self._subject, self._sizes, self._samples, self._say)

    def _warm_up(self, bench: Bench, cluster: Cluster) -> None:
        if self._subject is Subject.OTTLA:
            records = min(self._sizes.cluster_records_100, _LARGEST_ROUND)
        else:
            records = self._sizes.cluster_warm_up
        done = 0
        while done < records:
            figures = self._produce(bench, cluster, FACTOR, self._sizes.cluster_records_100, 100)
            done += self._sizes.cluster_records_100
            self._say(f"  {self._subject.value}: warming up, {done / 1e6:.1f} million, {figures['cpu_s_per_gb']:.1f} CPU s/GB")

    def _load(self, bench: Bench, cluster: Cluster, factor: int, key: str) -> None:
        for size, records in ((100, self._sizes.cluster_records_100), (1024, self._sizes.cluster_records_1024)):
            figures = self._produce(bench, cluster, factor, records, size, trips=size == 100, key=key)
            bench.add(f"{key}.produce.{size}.rate", figures["records_per_s"])
            bench.add(f"{key}.produce.{size}.cpu", figures["cpu_s_per_gb"])

    def _produce(
        self, bench: Bench, cluster: Cluster, factor: int, records: int, size: int, *, trips: bool = False, key: str = ""
    ) -> dict[str, float]:
        name = self._topic(bench, cluster, _PARTITIONS, factor)
        figures = bench.load(
            "produce", bootstrap=cluster.bootstrap, pid=cluster.pids, topic=name, partitions=_PARTITIONS, records=records,
            size=size,
        )  # fmt: skip
        if trips:
            told = bench.load(
                "round_trips", bootstrap=cluster.bootstrap, topic=name, partitions=1, trips=self._sizes.partition_trips
            )
            bench.add(f"{key}.trip.p50", told["p50_ms"])
            bench.add(f"{key}.trip.p99", told["p99_ms"])
        bench.load("delete_topics", bootstrap=cluster.bootstrap, topics=[name])
        _until(lambda: _removed(cluster, name), "the topic's files are removed")  # or the next load would pay for it
        return figures

    def _topic(self, bench: Bench, cluster: Cluster, partitions: int, factor: int) -> str:
        bench.topics += 1
        name = f"bench-{bench.topics}"
        bench.load("create_topic", bootstrap=cluster.bootstrap, topic=name, partitions=partitions, factor=factor)
        return name

    def _many(self, partitions: int) -> None:
        """Create many partitions, kill a broker that is not the controller, then the controller."""
        key = f"cluster.partitions.{partitions}"
        with self._cluster(FACTOR) as cluster:
            bench = self._bench(cluster)
            per_topic = min(partitions, _PER_TOPIC)
            names = [f"many-{number}" for number in range(partitions // per_topic)]
            figures = bench.load(
                "create_topics", bootstrap=cluster.bootstrap, topics=names, partitions=per_topic, factor=FACTOR
            )
            bench.add(f"{key}.create", figures["seconds"])
            _until(lambda: _in_sync(cluster, partitions), "all replicas are in sync")
            bench.add(f"{key}.rss", sum(map(rss_mb, cluster.pids)))
            controller = cluster.metadata().controller_id
            victim = next(number for number in cluster.brokers if number != controller)
            bench.add(f"{key}.failover", self._kill(cluster, victim, partitions))
            bench.add(f"{key}.controller", self._kill(cluster, controller, partitions, without=victim))

    def _kill(self, cluster: Cluster, victim: int, partitions: int, without: int = 0) -> float:
        """kill -9; the seconds until a living broker says that every partition has a living leader, if it can have one."""
        gone = {victim, without}
        began = time.perf_counter()
        kill(cluster.brokers[victim].pid, signal.SIGKILL)
        left = Cluster({number: broker for number, broker in cluster.brokers.items() if number not in gone})

        def led() -> bool:
            answer = left.metadata()
            found = [one for topic in answer.topics for one in topic.partitions]
            return (
                len(found) >= partitions
                and answer.controller_id not in gone
                and all(one.leader_id >= 0 and one.leader_id not in gone for one in found)
            )

        _until(led, "every partition is led again")
        return time.perf_counter() - began


def _in_sync(cluster: Cluster, partitions: int) -> bool:
    found = [one for topic in cluster.metadata().topics for one in topic.partitions]
    return len(found) >= partitions and all(len(one.isr_nodes) == len(one.replica_nodes) for one in found)


def _removed(cluster: Cluster, topic: str) -> bool:
    return not any(True for broker in cluster.brokers.values() for _ in broker.data.glob(f"{topic}-*"))


def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _LED_WITHIN_S
    while not condition():
        if time.monotonic() > end:
            raise ScenarioError(f"not within {_LED_WITHIN_S:.0f} s: {what}")
        time.sleep(0.01)


def clusters(zookeeper: str) -> Callable[[Maker, Subject, Sizes, Samples, Callable[[str], None]], None]:
    """The scenario over the ZooKeeper at this address."""

    def scenario(maker: Maker, subject: Subject, sizes: Sizes, samples: Samples, say: Callable[[str], None]) -> None:
        try:
            Clusters(maker, zookeeper, subject, sizes, samples, say).run()
        except BrokerError as problem:
            raise ScenarioError(str(problem)) from None

    return scenario
