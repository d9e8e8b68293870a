"""Pipelines with a real Spark (one for this folder) and a broker of ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.client import Cluster
from ottla.pipelines import state as states
from ottla.pipelines.files import load
from ottla.pipelines.running import Running
from ottla.pipelines.state import State
from spark.conftest import open_session
from support.server import ServerProcess

Run = Callable[..., State]

collect_ignore = [] if os.environ.get("OTTLA_SOAK") else ["test_delta.py"]
"""Takes a minute for one session of Spark with Delta's jars: only in the long form."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder needs Java and takes its time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.java)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    conf = {"spark.sql.session.timeZone": "UTC", "spark.default.parallelism": "2"}
    session = open_session(str(tmp_path_factory.mktemp("warehouse")), **conf)
    yield session
    session.stop()


@pytest.fixture
def cluster(server: ServerProcess) -> Iterator[Cluster]:
    with Cluster(server.bootstrap_servers) as cluster:
        yield cluster


def run_pipeline(
    spark: SparkSession, home: Path, path: Path | str, bootstrap: str, before_start: Callable[[], None] = lambda: None
) -> State:
    """Run a pipeline as `ottla pipeline run --once` does, in this process; checkpoints stay for the next run."""
    pipeline = load(str(path), {"bootstrap.servers": bootstrap})
    state = states.new_state(pipeline.name, str(path))
    running = Running(pipeline, home / pipeline.name, state, once=True)
    error = ""
    try:
        running.ask_cluster()
        running.build(spark)
        before_start()
        running.start()
        running.watch(lambda _: None)
    except Exception as problem:
        error = str(problem)
        raise
    finally:
        running.close(error)
    return state


@pytest.fixture
def run_once(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> Run:
    def run(path: Path | str, before_start: Callable[[], None] = lambda: None, bootstrap: str | None = None) -> State:
        return run_pipeline(spark, tmp_path / "pipelines", path, bootstrap or server.bootstrap_servers, before_start)

    return run
