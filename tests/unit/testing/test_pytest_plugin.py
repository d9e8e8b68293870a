"""The fixtures are there in somebody else's tests with nothing imported: a fresh pytest run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

SOMEBODY_ELSES_TEST = """
from confluent_kafka import Consumer, Producer

seen = []

def test_first(ottla_broker, ottla_topic):
    producer = Producer({"bootstrap.servers": ottla_broker.bootstrap_servers})
    producer.produce(ottla_topic, b"hello")
    assert producer.flush(10) == 0
    seen.append((ottla_broker, ottla_topic))

def test_second(ottla_broker, ottla_topic):
    consumer = Consumer({"bootstrap.servers": ottla_broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"})
    topics = consumer.list_topics(timeout=10).topics
    consumer.close()
    assert ottla_topic in topics
    assert ottla_broker is seen[0][0], "one broker for the session"
    assert ottla_topic != seen[0][1], "a topic for each test"
    assert seen[0][1] not in topics, "and it is gone afterwards"
"""

WITHOUT_IT = """
import sys

def test_nothing_is_paid_for():
    assert "ottla.testing.pytest_plugin" in sys.modules
    assert "ottla.broker" not in sys.modules
"""


def run_pytest(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_theirs.py").write_text(text)
    installed = any(point.value == "ottla.testing.pytest_plugin" for point in entry_points(group="pytest11"))
    # Where Ottla is installed its entry point does this; in a bare checkout there is none.
    plugin = [] if installed else ["-p", "ottla.testing.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "test_theirs.py"]
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False, env=env)


def test_the_fixtures_work_with_no_import(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, SOMEBODY_ELSES_TEST)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout


def test_a_session_that_does_not_use_them_does_not_pay(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, WITHOUT_IT)
    assert result.returncode == 0, result.stdout + result.stderr
