"""Exactly once under fire: faults between every two steps of a batch, and the output equals a batch computation over the input.

Tasks fail after they wrote and their siblings are cancelled, processes end, the driver and the broker are killed with -9, and
transactions time out. The long form (OTTLA_SOAK=1) plants each fault at each step, over 100 in the pipeline with a transaction
for each task. And a sink that commits inside `write()`, as the obvious design would, is caught by the same comparison.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ottla import client
from ottla.client import Cluster
from spark.fire import bad_sink
from spark.fire.crew import Feed, Pipeline, differences
from spark.queries import fill, read_stream
from support.server import ServerProcess

SOAK = bool(os.environ.get("OTTLA_SOAK"))
BEFORE = [
    "plan.taken",
    "plan.settled",
    "plan.ready",
    "task.begun",
    "task.half",
    "task.written",
    "commit.begun",
    "commit.checked",
]
AFTER = {
    "shared": ["task.counted", "commit.marked", "commit.counted", "commit.ended"],
    "task": ["decision.marked", "decision.checked", "decision.written", "decision.half", "decision.carried"],
}
SHORT = {
    "shared": [("task.half", "raise"), ("commit.marked", "exit"), ("commit.ended", "raise")],
    # Whoever waits meets what is planted next: for "commit.begun" that has to come after the look at what has timed out.
    "task": [("task.half", "raise"), ("decision.marked", "exit"), ("commit.begun", "wait"), ("decision.half", "driver"),
             ("decision.written", "wait")],
}  # fmt: skip
AFTER["cluster"] = AFTER["task"]
CLUSTER = {
    "master": "local-cluster[2,1,768]",
    "conf.spark.executor.memory": "512m",
    "conf.spark.speculation": "true",
    "conf.spark.speculation.multiplier": "1.1",
    "conf.spark.speculation.quantile": "0.4",
    "conf.spark.speculation.interval": "20ms",
    "conf.spark.task.maxFailures": "4",
}
"""Two executors in processes of their own, tasks that are retried, and copies of those that are slow."""
TIMEOUT = 5
"""Seconds that a transaction may take: a driver that waits for longer finds its tasks' transactions aborted."""
ROUNDS = {"shared": 1, "task": 3, "cluster": 1}
"""How often each fault is planted at each step in the long form."""
SETTINGS = {
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(str(tmp_path / "data"), SETTINGS) as server:
        yield server


def faults_of(mode: str) -> list[tuple[str, str]]:
    if not SOAK:
        return SHORT[mode]
    hows = ("raise", "exit", "wait") if mode == "cluster" else ("raise", "exit", "driver", "wait")
    every = list(itertools.product(BEFORE + AFTER[mode], hows)) * ROUNDS[mode]
    random.Random(mode).shuffle(every)
    return every


@pytest.mark.soak
@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize("mode", ["shared", "task", *(["cluster"] if SOAK else [])])
def test_every_window_comes_out_once(broker: ServerProcess, tmp_path: Path, topic: str, mode: str) -> None:
    out = f"{topic}-out"
    arguments = {"bootstrap": broker.bootstrap_servers, "source": topic, "target": out, "mode": mode}
    arguments["timeout"] = str(TIMEOUT * 1000)
    if mode == "cluster":
        arguments |= CLUSTER
    with Cluster(broker.bootstrap_servers) as cluster:
        feed = Feed(cluster, topic)
        client.create_topic(cluster, out, 2, 1)
        for _ in range(5):
            feed.more()
        executors = 0
        with Pipeline(tmp_path, arguments) as pipeline:
            pipeline.settle()
            for number, (step, how) in enumerate(faults_of(mode)):
                pipeline.fail_at(step, f"wait {TIMEOUT + 2}" if how == "wait" else how)
                feed.more()
                if mode == "cluster" and number % 3 == 0:
                    executors += pipeline.kill_executor()
                pipeline.wait_until_failed(step, how)
                if number % 10 == 1:
                    broker.kill()
                    broker.start()
            feed.close_windows()
            pipeline.settle()
            pipeline.settle()
            feed.close_windows()
            pipeline.finish()
            assert pipeline.starts > sum(how == "driver" for _, how in faults_of(mode))
            assert pipeline.runs("failed") > 1
            assert mode != "cluster" or executors > 3
            if mode == "task":
                assert pipeline.saw("visible in part"), "transactions that timed out after the decision"
                assert pipeline.saw("has timed out or was taken over"), "and before it"
        assert differences(cluster, out, feed.expected) == {"lost": [], "too many": []}
        assert client.open_transactions(cluster, out) == []


@pytest.mark.parametrize(("sink", "safe"), [("good", True), ("bad", False)])
def test_a_sibling_that_is_cancelled(
    spark: SparkSession, broker: ServerProcess, tmp_path: Path, topic: str, sink: str, safe: bool
) -> None:
    """Task 1 sees the end of its input too early, and task 0 fails: what task 1 has written by then must never count."""
    cloudpickle.register_pickle_by_value(bad_sink)
    spark.dataSource.register(bad_sink.BadSink)
    spark.dataSource.register(bad_sink.GoodSink)
    out = f"{topic}-out"
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        with Cluster(broker.bootstrap_servers) as cluster:
            fill(cluster, topic, 200)
            client.create_topic(cluster, out, 2, 1)
            records = read_stream(spark, broker.bootstrap_servers, subscribe=topic, startingOffsets="earliest")
            writer = (
                records.select("value").writeStream.format(sink).option("kafka.bootstrap.servers", broker.bootstrap_servers)
            )
            options = {"topic": out, "exactlyOnce": "true", "transactions": "task", "transactionalId": out, "place": tmp_path}
            writer = writer.options(**options, checkpointLocation=tmp_path / "checkpoint").trigger(availableNow=True)
            with pytest.raises(PySparkException, match="a test wants a failure"):
                writer.start().awaitTermination()
            writer.start().awaitTermination()
            found = differences(cluster, out, Counter(str(number) for number in range(200)))
            assert found["too many"] == []
            assert (found["lost"] == []) is safe
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
