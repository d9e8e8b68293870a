"""Source and sink on a standalone cluster of one master and two workers: on both, when one is killed, and in little memory.

The long form (OTTLA_SOAK=1) reads 5 GB through workers of 512 MB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from ottla import client
from ottla.client import Cluster
from ottla.spark.coordination import last_batch
from spark import standalone_jobs as jobs
from spark.fire.crew import Feed, differences
from spark.queries import committed, fill
from spark.standalone import StandaloneSpark
from support.waiting import wait_for

SOAK = bool(os.environ.get("OTTLA_SOAK"))


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    with StandaloneSpark(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("columns", "transactions"), [(["key", "value"], "task"), (["value", "partition"], "shared")], ids=["keys", "partitions"]
)
def test_a_batch_is_read_and_written_by_both_workers(
    standalone: StandaloneSpark,
    either: str,
    open_cluster: Callable[[str], Cluster],
    topic: str,
    columns: list[str],
    transactions: str,
) -> None:
    cluster, out = open_cluster(either), f"{topic}-out"
    fill(cluster, topic, 1000)
    client.create_topic(cluster, out, 2, 1)
    assert standalone.run(jobs.copy_a_batch, either, topic, out, columns) == 2
    assert committed(cluster, out) == list(range(1000))
    assert last_batch(cluster, out).mode == transactions
    assert client.open_transactions(cluster, out) == []


def test_a_stream_with_an_aggregation(
    standalone: StandaloneSpark, apache: str, open_cluster: Callable[[str], Cluster], topic: str, tmp_path: Path
) -> None:
    """Topic to topic, exactly once, in two runs: it equals a batch computation, and the group has read all of the input."""
    cluster, out = open_cluster(apache), f"{topic}-out"
    feed = Feed(cluster, topic)
    client.create_topic(cluster, out, 2, 1)
    feed.more(500)
    feed.close_windows()
    standalone.run(jobs.count_windows, apache, topic, out, str(tmp_path))
    feed.more(500)
    feed.close_windows()
    standalone.run(jobs.count_windows, apache, topic, out, str(tmp_path))
    assert differences(cluster, out, feed.expected) == {"lost": [], "too many": []}
    assert sum(one.offset for one in client.committed_offsets(cluster, f"g-{out}").values()) == 1002


def test_a_worker_is_killed_while_a_stream_runs(
    standalone: StandaloneSpark, bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """With -9, when a task on it has written a part of its rows: the batch goes on elsewhere, nothing is lost or twice."""
    out, stop = f"{topic}-out", tmp_path / "stop"
    feed = Feed(cluster, topic)
    client.create_topic(cluster, out, 2, 1)
    running = standalone.submit(jobs.count_windows, bootstrap, topic, out, str(tmp_path), until=str(stop))

    def read_up_to(count: int) -> bool:
        assert not running.done(), running.result()
        return sum(one.offset for one in client.committed_offsets(cluster, f"g-{out}").values()) >= count

    feed.more()
    wait_for(partial(read_up_to, 200), "the first batch", 90)
    (standalone.faults / "task.half").write_text("wait 300")
    feed.more()
    feed.close_windows()
    wait_for(lambda: bool(list(standalone.faults.glob(".task.half-*"))), "a task that has written a part of its rows", 90)
    (order,) = standalone.faults.glob(".task.half-*")
    standalone.kill_worker_of(int(order.name.rpartition("-")[2]))
    wait_for(partial(read_up_to, 401), "the batch on the worker that is left", 90)
    standalone.start_worker()
    feed.more()
    feed.close_windows()
    stop.touch()
    assert running.result(120) > 2
    assert differences(cluster, out, feed.expected) == {"lost": [], "too many": []}
    assert client.open_transactions(cluster, out) == []


@pytest.mark.soak
@pytest.mark.timeout(1800 if SOAK else 300)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_memory_of_a_reader_is_bounded(
    standalone: StandaloneSpark, bootstrap: str, cluster: Cluster, topic: str, codec: str
) -> None:
    """A partition that is larger than a worker goes through it, also one that is small only as long as it is compressed."""
    times, partitions = (500, 2) if SOAK else (40, 1)
    client.create_topic(cluster, topic, partitions, 1)
    rows = pa.table({"value": [os.urandom(1000)] * 10_000, "partition": [row % partitions for row in range(10_000)]})
    with client.Producer(cluster, codec=codec) as producer:
        for _ in range(times):
            producer.write(topic, rows)
    assert standalone.run(jobs.weigh, bootstrap, topic) == (times * 10_000, times * 10_000_000)
    assert standalone.peak_mb() < 256, "about 110 MB are Python's and Arrow's own"
    client.delete_topic(cluster, topic)
