"""The commands that produce and consume, where confluent-kafka is not installed: help as ever, and one line otherwise."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from ottla.cli import main

NOWHERE = ("--bootstrap-server", "127.0.0.1:1", "--topic", "t")
ONE_RECORD = ("--num-records", "1", "--record-size", "1", "--throughput", "1")
COMMANDS = {
    "console-producer": NOWHERE,
    "console-consumer": NOWHERE,
    "consumer-perf-test": (*NOWHERE, "--messages", "1", "--hide-header"),
    "producer-perf-test": ("--topic", "t", *ONE_RECORD, "--producer-props", "bootstrap.servers=127.0.0.1:1"),
    "verifiable-producer": NOWHERE,
    "verifiable-consumer": (*NOWHERE, "--group-id", "g"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_without_the_client(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0
    result = CliRunner().invoke(main, [name, *COMMANDS[name]])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f'ottla {name}: confluent-kafka is not installed: pip install "ottla[cli]"\n'


def test_groups_need_no_such_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    result = CliRunner().invoke(main, ["consumer-groups", "--bootstrap-server", "127.0.0.1:1", "--list", "--json"])
    assert result.exit_code == 1
    assert "Cannot connect to the broker at 127.0.0.1:1" in result.stderr
