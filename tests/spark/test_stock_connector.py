"""Spark's own Kafka connector, from Maven and unchanged, against Ottla: batch, streaming, sink and real-time mode.

Runs in a session of its own, which has the connector's jars; for that reason in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla import client
from ottla.client import Cluster
from spark.queries import fill

_ROOT = Path(__file__).resolve().parents[2]
_JARS = sorted((_ROOT / ".cache" / "spark-kafka").glob("*.jar"))


@pytest.mark.skipif(not _JARS, reason="Spark's Kafka connector is not here (`scripts/prepare java` fetches it)")
def test_batch_streaming_sink_and_real_time_mode(bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    fill(cluster, topic, 100)
    for name in ("batch", "stream", "live"):
        client.create_topic(cluster, f"{topic}-{name}", 2, 1)
    paths = os.pathsep.join(map(str, (_ROOT / "tests", _ROOT / "src")))
    command = [sys.executable, "-m", "spark.stock_program", bootstrap, topic, str(tmp_path), ",".join(map(str, _JARS))]
    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr[-6000:]
    seen = json.loads(result.stdout.splitlines()[-1])
    assert seen == {"read": 100, "from": {"0": 10, "1": 48}, "by time": 5, "rows": 100}
    for name in ("batch", "stream", "live"):
        values = client.read(f"{topic}-{name}", cluster=cluster, columns=["value"]).table()["value"].to_pylist()
        assert sorted(map(int, values)) == list(range(100)), name
