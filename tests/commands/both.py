"""A command of ours beside Apache Kafka's tool of the same name, on the same broker."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import confluent_kafka
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli import main
from support import java_tools
from support.java_tools import Result


def ours(tool: str, *arguments: str, stdin: str = "") -> Result:
    """Run `ottla TOOL` to its end."""
    done = CliRunner().invoke(main, [tool, *arguments], input=stdin.encode(), catch_exceptions=False)
    return Result(done.exit_code, done.stdout_bytes.decode(errors="replace"), done.stderr)


@contextlib.contextmanager
def running(tool: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`ottla TOOL` as long as it is needed."""
    command = [sys.executable, "-m", "ottla", tool, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def one_line(result: Result, code: int = 1) -> str:
    """The one line with which a command ended."""
    assert result.code == code, result
    assert "Traceback" not in result.err
    lines = result.err.splitlines()
    assert len(lines) == 1, result.err
    return lines[0]


class Place(NamedTuple):
    """A broker, and what tests do with it."""

    servers: str

    def ours(self, tool: str, *arguments: str, stdin: str = "") -> Result:
        """What our command says here."""
        return ours(tool, "--bootstrap-server", self.servers, *arguments, stdin=stdin)

    def theirs(self, tool: str, *arguments: str, stdin: str = "") -> Result:
        """What Apache's tool says here."""
        return java_tools.run(tool, "--bootstrap-server", self.servers, *arguments, stdin=stdin)

    def create(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))])[topic].result(30)
        return topic

    def produce(self, topic: str, *values: bytes, key: bytes | None = None, partition: int = 0, timestamp: int = 0) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, "log_level": 0})
        for value in values:
            producer.produce(topic, value, key, partition=partition, timestamp=timestamp)
        assert producer.flush(30) == 0
