"""A start that cannot be ends with one line (what, where, what to do), exit code 1 and no traceback. And how a broker stops."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.wire.apis.metadata import MetadataRequest, MetadataResponse
from robustness.raw import wait_until
from support.server import ServerProcess, answers, free_port

CLEAN_MARK = ".kafka_cleanshutdown"


def start(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run `ottla server` until it gives up."""
    overrides = [part for key, value in settings.items() for part in ("--override", f"{key.replace('_', '.')}={value}")]
    command = [sys.executable, "-m", "ottla", "server", *arguments, *overrides]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed start says."""
    assert result.returncode == 1, result.stderr
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("[")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("ottla server: ")
    assert "Traceback" not in result.stderr
    return lines[0]


def listener(port: int = 0) -> str:
    return f"PLAINTEXT://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("num.partitions=many", "num.partitions=many is not valid: allowed is a whole number from 1"),
        ("num.partitions=0", "num.partitions=0 is not valid: allowed is a whole number from 1"),
        ("num.partitions=1_000", "num.partitions=1_000 is not valid"),
        ("auto.create.topics.enable=yes", "allowed is true or false"),
        ("compression.type=brotli", "allowed is one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("log.cleanup.policy=burn", "allowed is a list of: compact, delete"),
        ("log.cleaner.min.cleanable.ratio=2", "allowed is a number from 0 up to 1"),
        ("log.segment.bytes=99999999999", "out of the type's range"),
        ("listeners=9092", "listeners=9092 is not valid: allowed is a list of NAME://host:port"),
        ("listeners=PLAINTEXT://127.0.0.1:²", "allowed is a list of NAME://host:port"),
        ("listeners=SSL://127.0.0.1:9092", "SSL is not served yet"),
        ("listeners=", "listeners= is not valid"),
        ("log.dirs=", "log.dirs= is not valid"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:9092", "name a host"),
        ("zookeeper.connect=localhost", "zookeeper.connect=localhost is not valid: allowed is host:port"),
        ("nonsense", "--override nonsense is not valid: allowed is KEY=VALUE"),
    ],
)
def test_a_bad_value_names_the_key_the_value_and_what_is_allowed(tmp_path: Path, setting: str, says: str) -> None:
    elsewhere = ("--override", f"listeners={listener()}", "--override", f"log.dirs={tmp_path}")
    assert says in one_line(start(*elsewhere, "--override", setting))


def test_a_bad_value_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# mine\nnum.io.threads = none\n")
    assert "num.io.threads=none is not valid" in one_line(start(str(file)))


@pytest.mark.parametrize(
    "content", [b"broker.rack=\\uzzzz\n", b"broker.rack=caf\xe9\nnum.io.threads=x\n"], ids=["escape", "latin-1"]
)
def test_a_file_that_cannot_be_read_as_properties(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(content)
    one_line(start(str(file)))


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = one_line(start(listeners=listener(port), log_dirs=tmp_path / "data"))
    assert f"127.0.0.1:{port}" in line
    assert "stop what uses" in line
    assert not (tmp_path / "data").exists(), "no disk was touched"


def test_a_host_that_is_not_ours(tmp_path: Path) -> None:
    line = one_line(start(listeners="PLAINTEXT://no-such-host.invalid:9092", log_dirs=tmp_path / "data"))
    assert "the host name cannot be resolved" in line


def test_a_directory_locked_by_another_broker(tmp_path: Path) -> None:
    with ServerProcess(str(tmp_path / "data")) as server:
        line = one_line(start(listeners=listener(), log_dirs=server.directory))
        assert answers(server.port)
    assert server.directory in line
    assert "is locked by another broker" in line


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    line = one_line(start(listeners=listener(), log_dirs=tmp_path / "file" / "data"))
    assert str(tmp_path / "file" / "data") in line
    assert "log.dirs" in line


def test_directories_of_two_clusters(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with ServerProcess(str(tmp_path / name)) as server:
            assert server.stop() == 0
    line = one_line(start(listeners=listener(), log_dirs=f"{tmp_path / 'one'},{tmp_path / 'two'}"))
    assert "meta.properties is of cluster" in line
    assert str(tmp_path / "two") in line


def test_a_directory_of_another_broker(tmp_path: Path) -> None:
    with ServerProcess(str(tmp_path / "data"), {"broker.id": 1}) as server:
        server.stop()
    line = one_line(start(listeners=listener(), log_dirs=tmp_path / "data", broker_id=2))
    assert "set broker.id=1" in line


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("meta.properties", lambda path: path.write_text("hello")),
        ("meta.properties", lambda path: path.write_text("version=1\nnode.id=1\ncluster.id=x\n")),
        ("ottla-metadata.db", lambda path: path.write_bytes(b"this is no database " * 500)),
        ("recovery-point-offset-checkpoint", lambda path: path.write_text("0\n1\nrubbish\n")),
    ],
    ids=["meta.properties", "of KRaft", "metadata", "checkpoint"],
)
def test_a_spoilt_file_is_named(tmp_path: Path, name: str, spoil: Callable[[Path], None]) -> None:
    with ServerProcess(str(tmp_path / "data")) as server:
        server.stop()
    for left in (tmp_path / "data").glob("ottla-metadata.db-*"):
        left.unlink()
    spoil(tmp_path / "data" / name)
    assert name in one_line(start(listeners=listener(), log_dirs=tmp_path / "data"))


def test_an_unknown_setting_is_named_in_a_warning(tmp_path: Path) -> None:
    with ServerProcess(str(tmp_path / "data"), {"num.partitons": 3, "my.own": "x"}) as server:
        server.stop()
        warnings = [line for line in server.log().splitlines() if "WARNING" in line and "Unknown setting" in line]
        assert len(warnings) == 2
        assert "num.partitons" in warnings[0]
        assert "my.own" in warnings[1]


def test_bound_to_all_addresses_says_what_clients_are_told(tmp_path: Path) -> None:
    from robustness.raw import RawClient  # noqa: PLC0415

    port = free_port()
    with ServerProcess(str(tmp_path / "data"), {"listeners": f"PLAINTEXT://0.0.0.0:{port}"}, port) as server:
        found = re.search(r"clients will be told (\S+):(\d+)", server.log())
        assert found is not None
        with RawClient(port) as client:
            response = client.ask(MetadataRequest(topics=[]), 9)
            assert isinstance(response, MetadataResponse)
            broker = response.brokers[0]
        assert (broker.host, broker.port) == (found[1], int(found[2]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with ServerProcess(str(tmp_path / "data")) as server:
        assert server.process is not None
        server.process.send_signal(number)
        assert server.process.wait(20) == 0
        assert (tmp_path / "data" / CLEAN_MARK).exists()
        assert "Traceback" not in server.log()
        server.start()
        assert not (tmp_path / "data" / CLEAN_MARK).exists(), "the mark is taken away: a kill from here on is not clean"
        assert "the last stop was not clean" not in server.log()


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    """A stop that hangs (here: the store's file is locked by somebody else) is cut short by the second signal."""
    import sqlite3  # noqa: PLC0415

    with ServerProcess(str(tmp_path / "data")) as server:
        assert server.process is not None
        database = sqlite3.connect(tmp_path / "data" / "ottla-metadata.db", isolation_level=None)
        database.execute("BEGIN IMMEDIATE")  # the stop waits for this writer
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "once more stops at once" in server.log())
        for _ in range(100):  # what comes together with the first is not a second one
            server.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(0.05)
                break
        assert server.process.returncode == 130
        database.close()
        server.start()
        assert "Traceback" not in server.log()


def test_signals_that_come_together_are_one(tmp_path: Path) -> None:
    with ServerProcess(str(tmp_path / "data")) as server:
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0
        assert (tmp_path / "data" / CLEAN_MARK).exists()


def test_a_port_is_free_again_at_once(tmp_path: Path) -> None:
    """A restart on the same port does not wait for old connections to be forgotten."""
    with ServerProcess(str(tmp_path / "data")) as server:
        with socket.create_connection(("127.0.0.1", server.port)):
            assert server.stop() == 0
        server.start()
        assert os.path.exists(f"/proc/{server.pid}")
