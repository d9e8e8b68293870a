"""A pipeline into a Delta table: a batch that Spark runs again is there once.

Runs in a session of its own, which has Delta's jars; for that reason in a process of its own, and, as that takes a minute, only
in the long form (OTTLA_SOAK=1).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.client import Cluster
from pipelines.test_pipelines import produce
from support.server import ServerProcess

_ROOT = Path(__file__).resolve().parents[2]
_JARS = sorted((_ROOT / ".cache" / "delta").glob("*.jar"))


@pytest.mark.soak
@pytest.mark.skipif(not _JARS, reason="Delta Lake is not here (`scripts/prepare java` fetches it)")
def test_a_delta_table_gets_each_batch_once(server: ServerProcess, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"""
sources: {{s: {{topic: {topic}, decode: {{format: json, schema: "n INT"}}}}}}
sinks: {{table: {{from: s, format: delta, path: out}}}}
""")
    produce(cluster, topic, [{"n": n} for n in range(6)])
    work = tmp_path / "pipelines"
    arguments = [server.bootstrap_servers, str(file), str(tmp_path / "out"), str(work), ",".join(map(str, _JARS))]
    command = [sys.executable, "-m", "pipelines.delta_program", *arguments]
    paths = os.pathsep.join(map(str, (_ROOT / "tests", _ROOT / "src")))
    environment = {**os.environ, "PYTHONPATH": paths}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-6000:]
    assert json.loads(result.stdout.splitlines()[-1]) == {"rows": [0, 1, 2, 3, 4, 5], "commits": 1}
