"""`--json` of commands that change something: what they did, and not a word beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from commands.side import Side
from ottla import client
from ottla.cli import main
from support import java


def told(directory: Path, *words: str) -> Any:
    """What `ottla cluster` says to a program."""
    done = CliRunner().invoke(main, ["cluster", "--directory", str(directory), *words, "--json"], catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return json.loads(done.stdout)


@pytest.mark.java
@pytest.mark.slow
def test_a_cluster_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_ZOOKEEPER_JARS", str(java.jars() or ""))
    directory = tmp_path / "c"
    try:
        up = told(directory, "up", "--brokers", "1", "--port", "0")
        (broker,) = up["brokers"]
        assert broker["started"]
        assert up["bootstrapServers"] == broker["address"]
        os.kill(broker["pid"], 0)
        again = told(directory, "up")
        assert again == {**up, "brokers": [{**broker, "started": False}]}
        assert told(directory, "kill", "1") == {"id": 1, "killed": True}
        started = told(directory, "start", "1")
        assert (started["id"], started["address"]) == (1, broker["address"])
        assert started["pid"] != broker["pid"]
        assert told(directory, "status")["zookeeper"] == up["zookeeper"]
    finally:
        down = told(directory, "down", "--remove")
    assert down == {"brokers": [1], "zookeeper": True, "removed": True}
    assert not directory.exists()


def test_an_abort_says_whose_transaction_it_was(ottla_side: Side, topic: str) -> None:
    with client.Cluster(ottla_side.servers) as cluster, client.Producer(cluster, transactional_id=topic) as producer:
        client.create_topic(cluster, topic, 1, 1)
        producer.begin()
        producer.write(topic, pa.table({"value": ["x"]}))
        (hanging,) = ottla_side.objects("transactions", f"describe-producers --topic {topic} --partition 0")
        found = ottla_side.objects("transactions", f"abort --topic {topic} --partition 0 --start-offset 0")
        names = {"producerId": "producerId", "producerEpoch": "producerEpoch", "coordinatorEpoch": "latestCoordinatorEpoch"}
        expected = {name: hanging[theirs] for name, theirs in names.items()}
        assert found == {"topic": topic, "partition": 0, **expected, "aborted": True}
        (after,) = ottla_side.objects("transactions", f"describe-producers --topic {topic} --partition 0")
        assert after["currentTransactionStartOffset"] is None
        producer.abort()
