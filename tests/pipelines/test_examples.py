"""Every example, with its own data: what comes out is what plain Python computes from what went in."""

from __future__ import annotations

import json
import os
import runpy
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from ottla import client
from ottla.cli import main
from ottla.client import Cluster
from ottla.testing import Broker
from pipelines.conftest import Run
from pipelines.test_pipeline_command import ottla
from pipelines.test_pipelines import rows
from support.kafka import ApacheKafka, ZooKeeper
from support.server import ServerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ON_A_CLUSTER = (
    "spark.executor.memory=512m",
    "spark.sql.shuffle.partitions=2",
    f"spark.driver.extraJavaOptions={QUICK}",
    f"spark.executor.extraJavaOptions={QUICK}",
)


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ServerProcess) -> Path:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv("BOOTSTRAP", server.bootstrap_servers)
    return tmp_path / "out"


def generator(name: str, bootstrap: str) -> dict[str, Any]:
    """The names of an example's generator; its data are written."""
    found = runpy.run_path(str(EXAMPLES / name / "generate.py"))
    found["generate"](bootstrap)
    return found


def latest(cluster: Cluster, topic: str) -> dict[str, Any]:
    """The last word on each key."""
    return {row["key"].decode(): json.loads(row["value"]) for row in rows(cluster, topic)}


def test_every_example_is_tested() -> None:
    folders = {one.name for one in EXAMPLES.iterdir() if one.is_dir()}
    assert {f"test_{name}" for name in folders} <= set(globals())


def test_activity_tracking(cluster: Cluster, server: ServerProcess, run_once: Run, out: Path) -> None:
    clicks = generator("activity_tracking", server.bootstrap_servers)["clicks"]()
    run_once(EXAMPLES / "activity_tracking")
    check_activity(cluster, clicks)


def check_activity(cluster: Cluster, clicks: list[dict[str, str]]) -> None:
    found = [json.loads(row["value"]) for row in rows(cluster, "page-views")]
    expected = Counter((one["page"], one["at"][:16]) for one in clicks[:-1])  # the last one keeps its minute open
    assert len(found) == len(expected)
    assert {(one["page"], one["minute"][:16]): one["views"] for one in found} == expected
    assert len(rows(cluster, "clicks-bad")) == 3


def test_activity_tracking_with_apache_kafka(tmp_path: Path, run_once: Run, out: Path) -> None:
    place = str(tmp_path / "apache")
    settings = {"transaction.state.log.num.partitions": 4}
    with ZooKeeper(place) as zookeeper, ApacheKafka(place, zookeeper, settings) as kafka:
        clicks = generator("activity_tracking", kafka.bootstrap_servers)["clicks"]()
        run_once(EXAMPLES / "activity_tracking", bootstrap=kafka.bootstrap_servers)
        with Cluster(kafka.bootstrap_servers) as cluster:
            check_activity(cluster, clicks)


def test_metrics_rollup(cluster: Cluster, server: ServerProcess, run_once: Run, out: Path) -> None:
    samples = generator("metrics_rollup", server.bootstrap_servers)["samples"]()
    run_once(EXAMPLES / "metrics_rollup")
    expected = defaultdict(list)
    for host, cpu, at in samples:
        expected[f"{host}@{at:%H:%M}"].append(cpu)
    found = latest(cluster, "load-by-minute")
    assert {key: (one["peak"], one["samples"]) for key, one in found.items()} == {
        key: (max(some), len(some)) for key, some in expected.items()
    }
    for key, one in found.items():
        assert one["mean"] == pytest.approx(sum(expected[key]) / len(expected[key]), abs=0.001)


def test_log_aggregation(spark: SparkSession, server: ServerProcess, run_once: Run, out: Path) -> None:
    made = generator("log_aggregation", server.bootstrap_servers)
    run_once(EXAMPLES / "log_aggregation")
    table = spark.read.parquet(str(out / "logs")).collect()
    assert sorted(row.line for row in table) == sorted(line for one in made["SERVICES"] for line in made["lines"](one))
    assert all(row.level == row.line.split()[1] and row.service == row.line.split()[2] for row in table)


def test_stream_processing(cluster: Cluster, server: ServerProcess, run_once: Run, out: Path) -> None:
    made = generator("stream_processing", server.bootstrap_servers)
    for _ in range(2):  # the second query takes what the first one wrote in the run before
        run_once(EXAMPLES / "stream_processing")
    expected: dict[str, list[float]] = defaultdict(list)
    for one in made["orders"]():
        expected[made["customers"]().get(one["customer"], "unknown")].append(one["amount"])
    assert len(rows(cluster, "orders-enriched")) == 200
    found = latest(cluster, "totals-by-country")
    assert {key: (one["orders"], one["amount"]) for key, one in found.items()} == {
        key: (len(some), pytest.approx(sum(some))) for key, some in expected.items()
    }


@pytest.mark.soak
def test_event_sourcing(cluster: Cluster, server: ServerProcess, run_once: Run, tmp_path: Path, out: Path) -> None:
    """In the long form on a cluster of Spark's: two executors in processes of their own, started by the command."""
    expected: Counter[str] = Counter()
    for one in generator("event_sourcing", server.bootstrap_servers)["events"]():
        expected[one["account"]] += one["amount"] if one["kind"] == "deposited" else -one["amount"]
    if os.environ.get("OTTLA_SOAK"):
        conf = [part for one in ON_A_CLUSTER for part in ("--conf", one)]
        line = ("run", str(EXAMPLES / "event_sourcing"), "--once", "--master", "local-cluster[2,1,768]", *conf)
        assert "Pipeline event-sourcing done: 150 rows" in ottla(tmp_path, *line, seconds=280)
    else:
        run_once(EXAMPLES / "event_sourcing")
    assert {key: one["balance"] for key, one in latest(cluster, "balances").items()} == expected


def test_commit_log(spark: SparkSession, server: ServerProcess, run_once: Run, out: Path) -> None:
    expected = dict(generator("commit_log", server.bootstrap_servers)["changes"]())
    run_once(EXAMPLES / "commit_log")
    text = (EXAMPLES / "commit_log" / "README.md").read_text()
    sql = text.split("```sql\n")[1].split("```")[0].replace("out/customers", str(out / "customers"))
    found = {row.id: {"name": row.last.name, "city": row.last.city} for row in spark.sql(sql).collect()}
    assert found == {key: one for key, one in expected.items() if one is not None}


def test_offline_backfill(spark: SparkSession, run_once: Run, out: Path) -> None:
    """A directory, and no broker. It grows: the second run takes what has come."""
    made = runpy.run_path(str(EXAMPLES / "offline_backfill" / "generate.py"))
    directory = str(out / "broker")
    made["generate"](directory)
    expected = made["readings"]()
    for _ in range(2):
        line = ["export", "readings", "--to", "parquet", str(out / "stored"), "--log-dirs", directory]
        exported = CliRunner().invoke(main, line)
        assert exported.exit_code == 0, exported.output
        run_once(EXAMPLES / "offline_backfill")
        table = [row.asDict() for row in spark.read.parquet(str(out / "readings")).collect()]
        assert Counter((one["sensor"], one["at"], one["value"], one["ok"], str(one["day"])) for one in table) == Counter(
            (one["sensor"], datetime.fromisoformat(one["at"]).replace(tzinfo=None), one["value"], one["ok"], one["at"][:10])
            for one in expected
        )
        kept = spark.read.parquet(str(out / "unreadable")).collect()
        assert sorted(row.text.encode() for row in kept) == sorted(made["UNREADABLE"])
        stored = spark.read.format("ottla.segments").option("kafka.isolation.level", "read_committed")
        assert stored.option("subscribe", "readings").load(directory).count() == len(table) + len(kept)
        with Broker(directory=directory) as broker, Cluster(broker.bootstrap_servers) as cluster:
            client.write("readings", made["values"](made["readings"](3, 1)), cluster=cluster)
        expected = made["readings"](0, 4)
