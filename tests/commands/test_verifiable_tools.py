"""`ottla verifiable-producer` and `ottla verifiable-consumer` beside Apache's: the same events, with the same facts in the same
order. Apache's write their last lines while the JVM shuts down, so each runs in one of its own."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from commands.both import Place, one_line, ours, running
from support import java
from support.java_tools import MAINS

pytestmark = pytest.mark.java

NOWHERE = ("--bootstrap-server", "127.0.0.1:1")


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _same(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Equal but for times: also the order of the facts."""
    for events in (mine, theirs):
        for event in events:
            for name in {"timestamp", "avg_throughput", "message"} & event.keys():
                event[name] = type(event[name])
    assert [list(event.items()) for event in mine] == [list(event.items()) for event in theirs]


def _ours(tool: str, *arguments: str) -> list[dict[str, Any]]:
    return _events(ours(tool, *arguments).out)


def _theirs(tool: str, *arguments: str) -> list[dict[str, Any]]:
    return _events(java.run(MAINS[tool], *arguments).stdout)


def test_events(place: Place, topic: str) -> None:
    produced, consumed = {}, {}
    for who in ("ours", "theirs"):
        place.create(f"{topic}-{who}")
        arguments = ("--bootstrap-server", place.servers, "--topic", f"{topic}-{who}")
        numbers = (*arguments, "--max-messages", "3", "--repeating-keys", "2", "--value-prefix", "7")
        member = (*arguments, "--group-id", f"g-{topic}-{who}", "--max-messages", "3", "--verbose")
        run = _ours if who == "ours" else _theirs
        produced[who], consumed[who] = run("verifiable-producer", *numbers), run("verifiable-consumer", *member)
    renamed = json.loads(json.dumps([produced, consumed]).replace(f"{topic}-theirs", f"{topic}-ours"))
    for events in renamed:
        _same(events["ours"], events["theirs"])


def test_a_record_that_is_refused(ottla: Place, topic: str) -> None:
    ottla.create(topic, config={"max.message.bytes": "10"})
    arguments = ("--bootstrap-server", ottla.servers, "--topic", topic, "--max-messages", "1")
    _same(_ours("verifiable-producer", *arguments), _theirs("verifiable-producer", *arguments))


def test_the_consumer_protocol_and_a_signal(ottla: Place, topic: str) -> None:
    """A member of the new protocol tells what it gets; a signal makes it leave, and say so."""
    ottla.create(topic, 2)
    ottla.produce(topic, b"1")
    arguments = (
        "--bootstrap-server",
        ottla.servers,
        "--topic",
        topic,
        "--group-id",
        f"g-{topic}",
        "--group-protocol",
        "consumer",
    )
    with running("verifiable-consumer", *arguments) as process:
        assert process.stdout is not None
        names = []
        while not names or names[-1] != "offsets_committed":
            names.append(json.loads(process.stdout.readline())["name"])
        assert names == ["startup_complete", "partitions_assigned", "records_consumed", "offsets_committed"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        assert [event["name"] for event in _events(process.stdout.read())] == ["partitions_revoked", "shutdown_complete"]


def test_a_producer_without_an_end(ottla: Place, topic: str) -> None:
    ottla.create(topic)
    with running(
        "verifiable-producer", "--bootstrap-server", ottla.servers, "--topic", topic, "--throughput", "100"
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(20)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT
        events = _events("".join(lines) + process.stdout.read())
    assert [event["name"] for event in events[-2:]] == ["shutdown_complete", "tool_data"]
    assert events[-1]["sent"] == events[-1]["acked"] == len(events) - 3


@pytest.mark.parametrize(("tool", "arguments", "words"), [
    ("verifiable-producer", (), "Missing option '--bootstrap-server'"),
    ("verifiable-producer", NOWHERE, "No broker can be reached at 127.0.0.1:1"),
    ("verifiable-consumer", NOWHERE, "Missing option '--group-id'"),
    ("verifiable-consumer", ("--group-id", "g", *NOWHERE), "No broker can be reached at 127.0.0.1:1"),
])  # fmt: skip
def test_errors(tool: str, arguments: tuple[str, ...], words: str) -> None:
    assert words in one_line(ours(tool, "--topic", "t", *arguments))
