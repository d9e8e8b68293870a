"""The command line: help, settings from a file and from overrides, and a log that stays one line a message."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla import __version__
from ottla.cli import main, server
from ottla.config import BrokerConfig


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[BrokerConfig]:
    """The configurations that a broker would have been started with."""
    configs: list[BrokerConfig] = []

    async def run(config: BrokerConfig, _console_port: int | None) -> None:
        configs.append(config)

    monkeypatch.setattr(server, "_run", run)
    return configs


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(main, list(arguments))


def test_help_and_version() -> None:
    assert "server" in invoke("--help").output
    assert "--override" in invoke("server", "-h").output
    assert __version__ in invoke("--version").output
    assert invoke("no-such-command").exit_code == 1


def test_a_file_and_overrides(tmp_path: Path, started: list[BrokerConfig]) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nlog.dirs=/data/a,\\\n  /data/b\nbroker.rack = caf\\u00e9\n")
    result = invoke("server", str(file), "--override", "num.partitions=5", "--override", " log.segment.bytes = 100 ")
    assert result.exit_code == 0, result.output
    assert started[0].integer("num.partitions") == 5
    assert started[0].integer("log.segment.bytes") == 100
    assert started[0].log_dirs == ["/data/a", "/data/b"]
    assert started[0].text("broker.rack") == "café"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_files_in_either_encoding(tmp_path: Path, started: list[BrokerConfig], encoding: str) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes("broker.rack=é".encode(encoding))
    assert invoke("server", str(file)).exit_code == 0
    assert started[0].text("broker.rack") == "é"


def test_an_override_may_hold_an_equals_sign(started: list[BrokerConfig]) -> None:
    assert invoke("server", "--override", "sasl.jaas.config=a=b").exit_code == 0
    assert started[0].text("sasl.jaas.config") == "a=b"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--override", "novalue"], "--override novalue is not valid: allowed is KEY=VALUE"),
        (["--override", "=x"], "allowed is KEY=VALUE"),
        (["--override", "num.partitions=x"], "num.partitions=x is not valid"),
        (["--log-level", "LOUD"], "LOUD is not a log level"),
        (["--log-level", "Logger"], "Logger is not a log level"),
        (["/no/such/file"], "'/no/such/file' does not exist"),
        (["--nonsense"], "No such option '--nonsense'"),
        (["--port", "9093"], "--override listeners=PLAINTEXT://127.0.0.1:9093"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(arguments: list[str], says: str, started: list[BrokerConfig]) -> None:
    result = invoke("server", *arguments)
    assert result.exit_code == 1
    assert says in result.output
    assert result.output.startswith("ottla server: ")
    assert len(result.output.splitlines()) == 1
    assert started == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("plain é√", "plain é√"),
        ("a\nb", "a\\x0ab"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u2028b\x85c\x00", "a\\u2028b\\x85c\\x00"),
    ],
)
def test_a_message_is_one_line(message: str, expected: str) -> None:
    record = logging.LogRecord("ottla", logging.INFO, "", 0, message, None, None)
    assert server.OneLineEach("%(message)s").format(record) == expected


def test_a_traceback_keeps_its_lines() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        record = logging.LogRecord("ottla", logging.ERROR, "", 0, "failed", None, sys.exc_info())
    assert len(server.OneLineEach("%(message)s").format(record).splitlines()) > 3


def test_both_ways_to_run_it_as_a_module() -> None:
    for module in ("ottla", "ottla.cli"):
        result = subprocess.run(
            [sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=20, check=True
        )
        assert __version__ in result.stdout


def test_help_does_not_load_the_broker() -> None:
    code = "import sys, ottla.cli as c; c.main(['--help'], standalone_mode=False); assert 'ottla.broker' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20, capture_output=True)
