"""What the coordinators are measured with: transactions, commits, groups that form and shrink, and loading after a restart.

Guards: a JVM is warmed up on just these paths, until its figures settle, before anything counts; loading is timed over a
directory that was stopped cleanly, so that it is not the recovery of a log that one sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.brokers import KAFKA_LARGE_HEAP, Running
from bench.connection import NOT_YET, ask
from bench.figures import (
    COMMIT_PARTITIONS,
    COMMIT_RATE,
    MEMBERS,
    TRANSACTION_RATE,
    TRANSACTION_RECORDS,
    Samples,
    Subject,
)
from bench.machine import rss_mb
from bench.offset_load import group_name
from bench.scenarios import Bench, Maker, ScenarioError, Sizes, until_settled
from ottla.model import Error
from ottla.wire.apis.group_offsets import OffsetFetchRequest, OffsetFetchResponse
from ottla.wire.schema import Malformed

_PARTITIONS = 4
_LOAD_PARTITIONS = 200
_LOAD_WITHIN_S = 300.0
_POLL_S = 0.05  # no more often, or the asking would be part of what is measured
_PER_CPU = "per CPU second, all sizes added up"
_ONE_PARTITION = {"offsets.topic.num.partitions": "1"}


# ---- transactions --------------------------------------------------------------------------------------------------------


def warm_up_transactions(bench: Bench) -> None:
    """Transactions, until a second of CPU makes no more of them than before."""
    with bench.topic(_PARTITIONS) as topic:
        until_settled(
            bench,
            "transactions",
            _PER_CPU,
            lambda: sum(_transact(bench, topic, records) for records in TRANSACTION_RECORDS),
            bench.sizes.coordinator_warm_ups,
        )


def transactions(bench: Bench) -> None:
    """One round: transactions of each size by producers side by side, and by one librdkafka."""
    with bench.topic(_PARTITIONS) as topic:
        for records in TRANSACTION_RECORDS:
            _transact(bench, topic, records, keep=True)
        rate = TRANSACTION_RATE
        what = {"pid": bench.broker.pid, "topic": topic, "partitions": _PARTITIONS, "records": 10}
        figures = bench.load("transactions", **what, rate=rate, count=int(rate * bench.sizes.paced_s))
        bench.add("txn.paced", 1e6 / figures["per_cpu_s"])
        figures = bench.load(
            "librdkafka_transactions",
            topic=topic,
            partitions=_PARTITIONS,
            records=10,
            count=bench.sizes.librdkafka_transactions,
        )
        bench.add("txn.librdkafka", figures["p50_ms"])


def _transact(bench: Bench, topic: str, records: int, *, keep: bool = False) -> float:
    figures = bench.load(
        "transactions",
        pid=bench.broker.pid,
        topic=topic,
        partitions=_PARTITIONS,
        records=records,
        count=bench.sizes.transactions,
    )
    if keep:
        bench.add(f"txn.{records}.per_cpu", figures["per_cpu_s"])
        bench.add(f"txn.{records}.rate", figures["per_s"])
        bench.add(f"txn.{records}.refused", figures["refused"])
    return figures["per_cpu_s"]


# ---- groups --------------------------------------------------------------------------------------------------------------


def warm_up_groups(bench: Bench) -> None:
    """Commits and groups, until a second of CPU makes no more commits than before."""
    with bench.topic(max(COMMIT_PARTITIONS)) as topic:

        def once() -> float:
            _settle(bench, f"{topic}-{time.monotonic_ns()}", 10, bench.sizes.group_times)
            return sum(_commit(bench, topic, partitions) for partitions in COMMIT_PARTITIONS)

        until_settled(bench, "offset commits", _PER_CPU, once, bench.sizes.coordinator_warm_ups)


def groups(bench: Bench) -> None:
    """One round: commits of one and of several partitions, and groups of each size."""
    with bench.topic(max(COMMIT_PARTITIONS)) as topic:
        for partitions in COMMIT_PARTITIONS:
            _commit(bench, topic, partitions, keep=True)
            rate = COMMIT_RATE
            what = {"pid": bench.broker.pid, "topic": topic, "partitions": partitions}
            figures = bench.load("commits", **what, rate=rate, count=int(rate * bench.sizes.paced_s))
            bench.add(f"commit.{partitions}.paced", 1e6 / figures["per_cpu_s"])
        for members in MEMBERS:
            figures = _settle(bench, f"{topic}-{members}", members, bench.sizes.group_times)
            bench.add(f"group.{members}.stable", figures["stable_ms"])
            bench.add(f"group.{members}.settled", figures["settled_ms"])


def _commit(bench: Bench, topic: str, partitions: int, *, keep: bool = False) -> float:
    figures = bench.load("commits", pid=bench.broker.pid, topic=topic, partitions=partitions, count=bench.sizes.commits)
    if keep:
        bench.add(f"commit.{partitions}.per_cpu", figures["per_cpu_s"])
        bench.add(f"commit.{partitions}.rate", figures["per_s"])
    return figures["per_cpu_s"]


def _settle(bench: Bench, group: str, members: int, times: int) -> dict[str, float]:
    return bench.load("group_settles", group=group, members=members, times=times)


# ---- loading -------------------------------------------------------------------------------------------------------------


def loading(maker: Maker, subject: Subject, sizes: Sizes, samples: Samples, say: Callable[[str], None]) -> None:
    """Fill the one partition of `__consumer_offsets` with offsets, stop the broker, start it, and wait for its coordinator."""
    count = sizes.offset_records // _LOAD_PARTITIONS
    place = maker.place(_ONE_PARTITION, KAFKA_LARGE_HEAP)
    with place.started(stop=True) as broker:
        bench = Bench(broker, subject, sizes, samples, say)
        bench.load("create_topic", topic="filled", partitions=_LOAD_PARTITIONS)
        filled = bench.load("fill", topic="filled", partitions=_LOAD_PARTITIONS, groups=count)
        say(f"  {subject.value}: {count * _LOAD_PARTITIONS:,} offsets committed in {filled['seconds']:.1f} s")
    for _ in range(sizes.offset_loads):
        with place.started(stop=True) as broker:
            done = _when_loaded(broker, group_name(count - 1), 1_000_000 + count - 1)
            bench = Bench(broker, subject, sizes, samples, say)
            bench.add("loading.load", done - broker.answered)
            bench.add("loading.restart", done - broker.began)
            bench.add("loading.rss", rss_mb(broker.pid))


def _when_loaded(broker: Running, group: str, expected: int) -> float:
    """The moment at which the group's offsets are there."""
    request = OffsetFetchRequest(group_id=group, topics=None)
    end = time.monotonic() + _LOAD_WITHIN_S
    while time.monotonic() < end:
        try:
            answer = ask(broker.port, request, OffsetFetchResponse, 5, timeout=_LOAD_WITHIN_S)
        except (OSError, Malformed) as problem:
            raise ScenarioError(f"OffsetFetch while the coordinator loads: {problem}") from None
        if answer.error_code == Error.NONE:
            now = time.perf_counter()
            found = [item.committed_offset for topic in answer.topics for item in topic.partitions]
            if found != [expected] * _LOAD_PARTITIONS:
                raise ScenarioError(f"{len(found)} of {_LOAD_PARTITIONS} offsets of {group} were loaded")
            return now
        if answer.error_code not in NOT_YET:
            raise ScenarioError(f"OffsetFetch while the coordinator loads: {Error(answer.error_code).name}")
        time.sleep(_POLL_S)
    raise ScenarioError(f"the coordinator had not loaded after {_LOAD_WITHIN_S:.0f} s")
