"""The same files by Spark's declarative pipelines: they go on where they were, and say what they cannot do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla import client
from ottla.client import Cluster
from pipelines.test_pipeline_command import ottla
from pipelines.test_pipelines import produce, rows, values
from support.server import ServerProcess

SOAK = bool(os.environ.get("OTTLA_SOAK"))
SMALL = ("--once", "--runner", "declarative", "--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=1")
PIPELINE = """
from ottla import pipelines

pipelines.pipeline("p", cluster="{cluster}")
pipelines.source(
    "s",
    topic="{topic}",
    decode={{"format": "json", "schema": "n INT", "bad": "dead-letter", "dead_letter": "{topic}-bad"}},
)
pipelines.step("named", sql="SELECT n, 'x' AS name FROM s")


@pipelines.sink(topic="{topic}-out", key="n", create={{"partitions": 1}})
def even(named):
    return named.where("n % 2 = 0")
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_it_runs_and_goes_on(
    cluster: Cluster, server: ServerProcess, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two JVMs for each run take their time: the second run is in the long form (OTTLA_SOAK=1)."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    produce(cluster, topic, [{"n": 1}, {"n": 2}, b"nonsense"])
    client.create_topic(cluster, f"{topic}-bad", 1, 1)
    file = tmp_path / "p.py"
    file.write_text(PIPELINE.format(cluster=server.bootstrap_servers, topic=topic))
    assert "Pipeline p done" in ottla(tmp_path, "run", str(file), *SMALL, seconds=400)
    assert values(cluster, f"{topic}-out") == [{"n": 2, "name": "x"}]
    assert [row["value"] for row in rows(cluster, f"{topic}-bad")] == [b"nonsense"]
    if not SOAK:
        return
    produce(cluster, topic, [{"n": 4}], create=False)
    assert "Pipeline p done" in ottla(tmp_path, "run", str(file), *SMALL, seconds=400)
    assert values(cluster, f"{topic}-out") == [{"n": 2, "name": "x"}, {"n": 4, "name": "x"}]
    assert [row["value"] for row in rows(cluster, f"{topic}-bad")] == [b"nonsense"]
