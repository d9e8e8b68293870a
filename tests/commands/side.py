"""A cluster with both kinds of tools at it: ours, and Apache Kafka's, which show what ours must print."""

from __future__ import annotations

import base64
import json
import re
import shlex
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from click.testing import CliRunner

from ottla.cli import main
from support import java_tools
from support.java_tools import Result

_AT_REST_WITHIN = 10.0
_TOPIC_ID = re.compile(r"TopicId: [\w-]{22}")


class Side(NamedTuple):
    """A cluster by its address, its brokers, and a directory for the files that tools read."""

    servers: str
    brokers: list[int]
    files: Path

    # ---- running ---------------------------------------------------------------------------------------------------------

    def ours(self, tool: str, arguments: str) -> Result:
        done = CliRunner().invoke(main, self._command(tool, arguments), catch_exceptions=False)
        return Result(done.exit_code, done.stdout, done.stderr)

    def theirs(self, tool: str, arguments: str) -> Result:
        return java_tools.run(*self._command(tool, arguments))

    def _command(self, tool: str, arguments: str) -> list[str]:
        first, *rest = shlex.split(arguments) or [""]
        if tool == "cluster":  # its subcommand comes first
            return [tool, first, "--bootstrap-server", self.servers, *rest]
        return [tool, "--bootstrap-server", self.servers, *shlex.split(arguments)]

    def objects(self, tool: str, arguments: str) -> Any:
        """What ours says to programs."""
        done = self.ours(tool, f"{arguments} --json")
        assert (done.code, done.err) == (0, ""), done
        return json.loads(done.out)

    # ---- comparing -------------------------------------------------------------------------------------------------------

    def same(self, tool: str, arguments: str, steady: Callable[[str], object] = str) -> str:
        """Both say the same of the same cluster, at the latest when it has come to rest: one looks after the other."""
        deadline = time.monotonic() + _AT_REST_WITHIN
        while True:
            ours, theirs = self.ours(tool, arguments), self.theirs(tool, arguments)
            if steady(ours.out) == steady(theirs.out) or time.monotonic() > deadline:
                break
        assert (ours.code, ours.err) == (theirs.code, "") == (0, ""), (arguments, ours, theirs)
        assert steady(ours.out) == steady(theirs.out), arguments
        return ours.out

    def twins(self, tool: str, arguments: str, topic: str) -> None:
        """Each does the same to a topic of its own (`TOPIC`), and says the same about it."""
        ours = self.ours(tool, arguments.replace("TOPIC", f"{topic}-ours"))
        theirs = self.theirs(tool, arguments.replace("TOPIC", f"{topic}-theirs"))
        assert (ours.code, ours.err) == (theirs.code, "") == (0, ""), (arguments, ours, theirs)
        assert ours.out.replace("-ours", "") == theirs.out.replace("-theirs", ""), arguments

    def both_refuse(self, tool: str, arguments: str, words: str, *, quiet: bool = True) -> None:
        """Both end with the same code; ours says in one line why."""
        ours, theirs = self.ours(tool, arguments), self.theirs(tool, arguments)
        assert ours.code == theirs.code == 1, (arguments, ours, theirs)
        assert re.fullmatch(rf"ottla {tool}: [^\n]+\n", ours.err), ours
        assert words in ours.err
        if quiet:
            assert ours.out == ""

    # ---- what tests need -------------------------------------------------------------------------------------------------

    def file(self, content: object) -> str:
        path = self.files / f"{uuid.uuid4().hex}.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def write(self, topic: str, partition: int, count: int) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, "log_level": 0})
        for number in range(count):
            producer.produce(topic, b"%d" % number, partition=partition, timestamp=1000 + number)
        assert producer.flush(30) == 0


def described(printed: str) -> str:
    """A description without what differs between two tools or two twins: ids, and the order of topics and of settings."""
    lines = []
    for line in _TOPIC_ID.sub("TopicId: ID", printed).splitlines():
        head, found, settings = line.partition("Configs: ")
        lines.append(head + found + ",".join(sorted(settings.split(","))))
    return "\n".join(sorted(lines, key=lambda line: line.strip().split("\t")[0]))


def topic_id(printed: str) -> str:
    found = re.search(r"TopicId: ([\w-]{22})", printed)
    assert found is not None
    assert len(base64.urlsafe_b64decode(found[1] + "==")) == 16
    return found[1]
