"""`ottla cluster`: a cluster on this machine, as somebody who develops against one runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.client import Cluster, create_topic
from support import java

from .processes import until

pytestmark = [pytest.mark.slow]


def run(directory: Path, *words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ottla", "cluster", "--directory", str(directory), *words]
    jars = {"OTTLA_ZOOKEEPER_JARS": str(java.jars() or "")}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=90, check=False, env={**os.environ, **jars, **(environment or {})}
    )


def status(directory: Path) -> dict[str, Any]:
    result = run(directory, "status", "--json")
    assert result.returncode == 0, result.stderr
    told: dict[str, Any] = json.loads(result.stdout)
    return told


@pytest.mark.java
def test_up_kill_start_down(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    result = run(directory, "up", "--brokers", "3", "--port", "0", "--override", "num.partitions=2")
    try:
        assert result.returncode == 0, result.stdout + result.stderr
        assert "bootstrap servers: 127.0.0.1:" in result.stdout
        told = status(directory)
        assert [broker["state"] for broker in told["brokers"]] == ["running"] * 3
        assert sum(broker["controller"] for broker in told["brokers"]) == 1
        assert told["without_leader"] == []
        with Cluster(result.stdout.rpartition("bootstrap servers: ")[2].strip()) as cluster:
            create_topic(cluster, "said-nothing-of-replicas")
            (partition, _) = cluster.topic("said-nothing-of-replicas", fresh=True).partitions.values()
            assert len(partition.replicas) == 3, "a killed broker is to be survived"
        controller = next(broker["id"] for broker in told["brokers"] if broker["controller"])
        assert run(directory, "kill", str(controller)).returncode == 0

        def another() -> bool:
            return any(broker["controller"] and broker["id"] != controller for broker in status(directory)["brokers"])

        until(another, "another broker is the controller")
        again = run(directory, "kill", str(controller))
        assert (again.returncode, again.stderr) == (1, f"ottla cluster: broker {controller} does not run\n")
        assert run(directory, "start", str(controller)).returncode == 0
        assert "running" in run(directory, "status").stdout
        twice = run(directory, "start", str(controller))
        assert twice.returncode == 1
        assert f"broker {controller} runs already" in twice.stderr
    finally:
        down = run(directory, "down", "--remove")
    assert down.returncode == 0
    assert "stopped ZooKeeper" in down.stdout
    assert not directory.exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["status"], "there is no cluster in"),
        (["kill", "1"], "there is no cluster in"),
        (["up", "--override", "nonsense"], "--override nonsense is not valid: allowed is KEY=VALUE"),
        (["up", "--brokers", "0"], "Invalid value for '--brokers'"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, words: list[str], line: str) -> None:
    result = run(tmp_path / "c", *words)
    assert result.returncode == 1
    assert result.stderr.startswith("ottla cluster: ")
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_java(tmp_path: Path) -> None:
    result = run(tmp_path / "c", "up", "--port", "0", environment={"PATH": str(tmp_path)})
    assert result.returncode == 1
    assert result.stderr == (
        "ottla cluster: ZooKeeper needs Java 17, which is not installed: install it, or give --zookeeper HOST:PORT\n"
    )


def test_without_the_jars(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; sys.argv = ['ottla', 'cluster', *sys.argv[1:]]; "
        "from ottla.cli import main; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "--directory", str(tmp_path / "c"), "up", "--port", "0"],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "OTTLA_ZOOKEEPER_JARS": ""},
    )  # fmt: skip
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1
