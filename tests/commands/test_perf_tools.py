"""`ottla producer-perf-test` and `ottla consumer-perf-test` beside Apache's: the same lines, but for the numbers."""

from __future__ import annotations

import json
import re

import pytest

from commands.both import Place, one_line, ours
from support import java_tools
from support.java_tools import Result

pytestmark = pytest.mark.java

ONE = ("--num-records", "1", "--throughput", "-1")


def _shape(text: str) -> str:
    """A text with all numbers made the same, and as many digits after the point as before."""
    return re.sub(r"-?\d+(\.\d+)?", lambda found: "#" + ("." + "#" * (len(found[1]) - 1) if found[1] else ""), text)


def _produce(place: Place, topic: str, *options: str) -> tuple[str, ...]:
    return ("--topic", topic, *options, "--producer-props", f"bootstrap.servers={place.servers}", "linger.ms=5")


def test_lines(place: Place, topic: str) -> None:
    place.create(topic)
    arguments = _produce(place, topic, "--num-records", "3000", "--record-size", "100", "--throughput", "-1")
    mine, theirs = ours("producer-perf-test", *arguments), java_tools.run("producer-perf-test", *arguments)
    assert (mine.code, mine.err) == (0, "")
    assert mine.out.startswith("3000 records sent, ")
    assert _shape(mine.out) == _shape(theirs.out)
    for options in ((), ("--show-detailed-stats", "--reporting-interval", "1"), ("--hide-header",)):
        arguments = ("--topic", topic, "--messages", "6000", *options)
        mine, theirs = place.ours("consumer-perf-test", *arguments), place.theirs("consumer-perf-test", *arguments)
        assert (mine.code, mine.err) == (0, "")
        lines = [_shape(text).splitlines() for text in (mine.out, theirs.out)]
        assert lines[0][:2] == lines[1][:2]
        if not options:
            assert mine.out.splitlines()[1].split(", ")[4] == "6000"


def test_payloads(ottla: Place, topic: str, tmp_path: object) -> None:
    """From a file, counted, in transactions; what is in the topic is what was asked for."""
    path = f"{tmp_path}/payloads"
    with open(path, "w", encoding="utf-8") as file:
        file.write("eins;zwei;drei;")
    options = ("--num-records", "20", "--payload-file", path, "--payload-delimiter", ";", "--throughput", "-1")
    mine, theirs = (run("producer-perf-test", *_produce(ottla, topic, *options)) for run in (ours, java_tools.run))
    assert _shape(mine.out).splitlines() == _shape(theirs.out).splitlines()
    assert mine.out.splitlines()[:2] == [f"Reading payloads from: {path}", "Number of messages read: 3"]
    counted = ("--num-records", "5", "--payload-monotonic", "--throughput", "1000", "--transaction-duration-ms", "2", "--json")
    result = ours("producer-perf-test", *_produce(ottla, topic, *counted))
    assert json.loads(result.out)["records"] == 5
    read = ("--topic", topic, "--from-beginning", "--max-messages", "45", "--timeout-ms", "15000")
    lines = ottla.ours("console-consumer", *read, "--isolation-level", "read_committed").out.splitlines()
    assert set(lines[:40]) == {"eins", "zwei", "drei"}
    assert lines[40:] == ["0", "1", "2", "3", "4"]


def test_too_few_records(ottla: Place, topic: str) -> None:
    ottla.create(topic)
    ottla.produce(topic, b"1", b"2")
    result = ottla.ours("consumer-perf-test", "--topic", topic, "--messages", "3", "--timeout", "1500", "--hide-header")
    assert result.code == 0
    assert result.out.splitlines()[0].startswith(
        "WARNING: Exiting before consuming the expected number of messages: timeout (1500 ms)"
    )
    figures = ottla.ours(
        "consumer-perf-test", "--topic", topic, "--messages", "2", "--json", "--print-metrics"
    ).out.splitlines()
    assert json.loads(figures[0])["data.consumed.in.nMsg"] == 2
    assert figures[2].split() == ["Metric", "Name", "Value"]


@pytest.mark.parametrize(("tool", "arguments", "words"), [
    ("producer-perf-test", ("--topic", "t"), "Missing option"),
    ("producer-perf-test", ("--topic", "t", *ONE, "--record-size", "1"), "--producer-props"),
    ("producer-perf-test", ("--bogus",), "No such option '--bogus'"),
    ("consumer-perf-test", ("--topic", "t", "--messages", "1"), "Missing option '--bootstrap-server'"),
    ("consumer-perf-test", ("--bogus",), "No such option '--bogus'"),
])  # fmt: skip
def test_wrong_flags(tool: str, arguments: tuple[str, ...], words: str) -> None:
    assert words in one_line(ours(tool, *arguments))
    assert java_tools.run(tool, *arguments).code == 1


def test_nobody_there(tmp_path: object) -> None:
    size = (*ONE, "--record-size", "1")
    result = ours("producer-perf-test", "--topic", "t", *size, "--producer-props", "bootstrap.servers=127.0.0.1:1")
    assert "No broker can be reached at 127.0.0.1:1" in one_line(result)
    result = ours("consumer-perf-test", "--bootstrap-server", "127.0.0.1:1", "--topic", "t", "--messages", "1", "--hide-header")
    assert "No broker can be reached at 127.0.0.1:1" in one_line(result)
    missing = ("--payload-file", f"{tmp_path}/none", "--producer-props", "bootstrap.servers=127.0.0.1:1")
    result = ours("producer-perf-test", "--topic", "t", *ONE, *missing)
    assert "cannot be read" in one_line(Result(result.code, "", result.err))
