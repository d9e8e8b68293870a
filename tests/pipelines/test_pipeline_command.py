"""`ottla pipeline` as a process: run, look, stop, go on; and what it says where it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ottla import client
from ottla.client import Cluster
from ottla.pipelines.state import Held, held
from pipelines.test_pipelines import produce, values
from support.waiting import wait_for


def ottla(directory: Path, *args: str, code: int = 0, seconds: float = 120) -> str:
    """What a command prints."""
    line = [sys.executable, "-m", "ottla", "pipeline", "--directory", str(directory), *args]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=seconds)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def test_run_look_stop_and_go_on(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    address = cluster.settings.bootstrap[0]
    file, home = tmp_path / "copying.yaml", tmp_path / "pipelines"
    file.write_text(f"""
cluster: {address[0]}:{address[1]}
sources: {{s: {{topic: {topic}, decode: {{format: json, schema: "n INT"}}}}}}
sinks: {{out: {{from: s, topic: {topic}-out, create: {{partitions: 2}}}}}}
""")
    client.create_topic(cluster, topic, 2, 1)
    assert "Pipeline copying is valid: 1 sources, 0 steps, 1 sinks" in ottla(home, "validate", str(file))
    produce(cluster, topic, [{"n": n} for n in range(5)], create=False)
    small = ("--master", "local[2]", "--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=2")
    line = [
        sys.executable,
        "-m",
        "ottla",
        "pipeline",
        "--directory",
        str(home),
        "run",
        str(file),
        *small,
        "--metrics-port",
        "0",
    ]
    with open(tmp_path / "log", "wb") as log, subprocess.Popen(line, stdout=log, stderr=log) as process:
        try:
            wait_for(lambda: f"{topic}-out" in cluster.topics() and len(values(cluster, f"{topic}-out")) == 5, "output", 150)

            def seen() -> dict[str, object]:
                found: dict[str, object] = json.loads(ottla(home, "status", "copying", "--json"))[0]
                return found

            wait_for(lambda: seen()["rows"] == 5, "progress", 150)
            assert (seen()["name"], seen()["state"], seen()["lag"]) == ("out", "running", 0)
            assert "runs already" in ottla(home, "run", str(file), code=1)
            assert json.loads(ottla(home, "list", "--json"))[0]["state"] == "running"
            metrics = json.loads((home / "copying" / "state.json").read_text())["metrics"]
            with urllib.request.urlopen(metrics, timeout=10) as answer:
                assert b'ottla_pipeline_rows_total{pipeline="copying",query="out"} 5' in answer.read()
            assert "stopped copying" in ottla(home, "stop", "copying")
            assert process.wait(60) == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
    assert "Pipeline copying stopped: 5 rows" in (tmp_path / "log").read_text()
    assert "does not run: it is stopped" in ottla(home, "stop", "copying", code=1)
    produce(cluster, topic, [{"n": 5}], create=False)
    assert "Pipeline copying done: 1 rows" in ottla(home, "run", str(file), "--once", *small)
    assert values(cluster, f"{topic}-out") == [{"n": n} for n in range(6)]


def test_what_it_says(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    address = cluster.settings.bootstrap[0]
    server = f"{address[0]}:{address[1]}"
    file = tmp_path / "p.yaml"
    file.write_text(f"sources: {{s: {{topic: {topic}}}}}\nsinks: {{s: {{format: noop}}}}\n")
    told = ottla(tmp_path, "validate", str(file), "--bootstrap-server", server, code=1)
    assert told == f"{file}:1: source s: topic {topic} does not exist on {server}: check its name, or create it\n"
    assert "p.yaml:1: topics are read or written, but no cluster is named" in ottla(tmp_path, "validate", str(file), code=1)
    assert "is valid" in ottla(tmp_path, "validate", str(file), "--bootstrap-server", server, "--offline")
    assert "there is no pipeline x in" in ottla(tmp_path, "status", "x", code=1)


def test_a_pipeline_that_is_about_to_run_keeps_others_out(tmp_path: Path) -> None:
    """Before its first word in the state file, and before the cluster (here there is none) is asked."""
    file = tmp_path / "p.yaml"
    file.write_text("cluster: 127.0.0.1:1\nsources: {s: {topic: t}}\nsinks: {s: {format: noop}}\n")
    with held(tmp_path / "p"):
        told = ottla(tmp_path, "run", str(file), code=1)
    assert f"pipeline p runs already, as process {os.getpid()}: `ottla pipeline stop p`" in told
    assert told.count("\n") == 1
    with held(tmp_path / "p"), pytest.raises(Held), held(tmp_path / "p"):
        pass
