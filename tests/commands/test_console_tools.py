"""`ottla console-producer` and `ottla console-consumer` beside Apache's: the same lines become the same records, and the same
records the same lines."""

from __future__ import annotations

import json
import signal
import struct
from itertools import product

import pytest

from commands.both import Place, one_line, ours, running
from ottla.coordinator.hashing import partition_for
from support import java_tools

pytestmark = pytest.mark.java

SERIALIZATION = "org.apache.kafka.common.serialization"
ALL = ("timestamp", "partition", "offset", "headers", "key")
PRINT_ALL = [part for name in ALL for part in ("--property", f"print.{name}={str(name != 'timestamp').lower()}")]
PARSE = ("--property", "parse.key=true", "--property", "parse.headers=true", "--property", "null.marker=NULL")
LINES = "h:1,g:2\tkey\tvalue\nNULL\tNULL\tNULL\nh:NULL\tk\t\nh:a:b\tžluť\tkůň\tx\n" + "".join(
    f"h:1\tk{n}\t{n}\n" for n in range(40)
)


def _read(topic: str, *options: str) -> tuple[str, ...]:
    return ("--topic", topic, "--from-beginning", "--timeout-ms", "15000", *options)


def test_lines_and_records(place: Place, topic: str) -> None:
    """Both producers, both consumers, with keys, headers and nulls; keys find the same partitions."""
    for who, run in (("ours", place.ours), ("theirs", place.theirs)):
        place.create(f"{topic}-{who}", 3)
        assert run("console-producer", "--topic", f"{topic}-{who}", *PARSE, stdin=LINES).code == 0
    seen = {}
    for wrote, (who, run) in product(("ours", "theirs"), (("ours", place.ours), ("theirs", place.theirs))):
        result = run("console-consumer", *_read(f"{topic}-{wrote}", "--max-messages", "44", *PRINT_ALL))
        assert (result.code, result.err.splitlines()[-1]) == (0, "Processed a total of 44 messages")
        seen[wrote, who] = sorted(result.out.splitlines())
    assert seen["ours", "ours"] == seen["ours", "theirs"]
    assert seen["theirs", "ours"] == seen["theirs", "theirs"]
    keyed = [{line for line in found if "\tnull\t" not in line} for found in (seen["ours", "ours"], seen["theirs", "ours"])]
    assert len(keyed[0]) == 43
    # A record without a key goes anywhere, and moves the offsets of those after it: compare without them.
    plain = [{(parts[0], *parts[2:]) for parts in (line.split("\t") for line in found)} for found in keyed]
    assert plain[0] == plain[1]


@pytest.fixture(scope="module")
def formatted(ottla: Place) -> str:
    """A topic with two records that are not easy to show."""
    ottla.create("formatted")
    lines = "h:1,g:\tk\tv\\\nNULL\tNULL\té\x01\n"
    assert ottla.ours("console-producer", "--topic", "formatted", *PARSE, "--compression-codec", stdin=lines).code == 0
    return "formatted"


@pytest.mark.parametrize("options", [
    (),
    ("--property", "print.value=false", "--property", "print.offset=true"),
    ("--property", "print.key=true", "--property", "key.separator=|", "--property", "null.literal=<nothing>"),
    ("--property", "print.headers=true", "--property", "line.separator=;;", "--property", "print.partition=true"),
    ("--formatter", "org.apache.kafka.tools.consumer.NoOpMessageFormatter"),
    ("--formatter", "org.apache.kafka.tools.consumer.LoggingMessageFormatter", "--property", "print.key=true"),
    ("--value-deserializer", "org.apache.kafka.common.serialization.BytesDeserializer"),
])  # fmt: skip
def test_formatting(ottla: Place, formatted: str, options: tuple[str, ...]) -> None:
    read = _read(formatted, "--max-messages", "2", *options)
    assert ottla.ours("console-consumer", *read).out == ottla.theirs("console-consumer", *read).out


def test_numbers(ottla: Place, topic: str) -> None:
    """Values of the stock types look as Java prints them; one of another size ends it, or is passed over."""
    shapes = (
        ("Integer", struct.pack(">i", -1), "Double", [struct.pack(">d", n) for n in (0.1, 1e10, -1.5e-7, 100.0, 12345678.9)]),
        ("Long", struct.pack(">q", -(2**63)), "Float", [struct.pack(">f", n) for n in (0.1, 3e9, 16777216.0)]),
        ("UUID", b"67e55044-10b1-426f-9247-bb680e5fe0c8", "Boolean", [b"\x01", b"\x00"]),
        ("String", "žluť".encode(), "Short", [struct.pack(">h", -7)]),
    )
    for key_kind, key, kind, values in shapes:
        name = ottla.create(f"{topic}-{kind}")
        ottla.produce(name, *values, key=key)
        options = ("--value-deserializer", f"{SERIALIZATION}.{kind}Deserializer", "--property", "print.key=true")
        options += ("--key-deserializer", f"{SERIALIZATION}.{key_kind}Deserializer", "--max-messages", str(len(values)))
        read = _read(name, *options)
        assert ottla.ours("console-consumer", *read).out == ottla.theirs("console-consumer", *read).out, kind
    ottla.produce(f"{topic}-Short", b"longer", struct.pack(">h", 8))
    options = ("--property", f"value.deserializer={SERIALIZATION}.ShortDeserializer", "--max-messages", "3")
    read = _read(f"{topic}-Short", *options)
    stopped = ottla.ours("console-consumer", *read)
    assert (stopped.code, stopped.out) == (1, "-7\n")
    assert stopped.code == ottla.theirs("console-consumer", *read).code
    assert "Size of data received by ShortDeserializer is not 2" in stopped.err.splitlines()[-1]
    assert ottla.ours("console-consumer", *read, "--skip-message-on-error").out == "-7\n8\n"


def test_a_group_goes_on_where_it_was(place: Place, topic: str) -> None:
    """Only what was printed is committed, whoever reads next."""
    place.create(topic)
    place.ours("console-producer", "--topic", topic, "--sync", stdin="1\n2\n3\n4\n5\n6\r\n7")
    read = _read(topic, "--group", f"g-{topic}", "--max-messages", "2")
    outputs = [run("console-consumer", *read).out for run in (place.ours, place.theirs, place.ours)]
    assert outputs == ["1\n2\n", "3\n4\n", "5\n6\n"]
    rest = place.ours(
        "console-consumer", "--topic", topic, "--partition", "0", "--offset", "5", "--max-messages", "2", "--json"
    )
    shown = [json.loads(line) for line in rest.out.splitlines()]
    assert [(one["offset"], one["key"], one["value"], one["headers"]) for one in shown] == [
        (5, None, "6", []),
        (6, None, "7", []),
    ]
    assert rest.err == "Processed a total of 2 messages\n"


def test_internal_topics(ottla: Place, topic: str) -> None:
    """The formatters of committed offsets and of groups; Apache's writes its objects without anything between them."""
    ottla.create(topic)
    ottla.produce(topic, b"1")
    ottla.ours("console-consumer", *_read(topic, "--group", f"g-{topic}", "--max-messages", "1"))
    partition = str(partition_for(f"g-{topic}", 4))  # as many as the broker of these tests is started with
    for kind in ("Offsets", "GroupMetadata"):
        formatter = ("--formatter", f"org.apache.kafka.tools.consumer.{kind}MessageFormatter")
        read = (
            "--topic",
            "__consumer_offsets",
            "--partition",
            partition,
            "--from-beginning",
            "--timeout-ms",
            "1500",
            *formatter,
        )
        lines = [line for line in ottla.ours("console-consumer", *read).out.splitlines() if f'"g-{topic}"' in line]
        assert lines
        theirs = ottla.theirs("console-consumer", *read).out
        assert all(line in theirs for line in lines)


def test_topics_that_match(ottla: Place, topic: str) -> None:
    for suffix in ("a1", "a22", "b1"):
        ottla.create(f"{topic}-{suffix}")
        ottla.produce(f"{topic}-{suffix}", suffix.encode())
    read = ("--include", rf"{topic}-a\d+", "--from-beginning", "--max-messages", "2", "--timeout-ms", "15000")
    assert sorted(ottla.ours("console-consumer", *read).out.split()) == ["a1", "a22"]


def test_a_signal_ends_it_in_order(ottla: Place, topic: str) -> None:
    ottla.create(topic)
    ottla.produce(topic, b"one")
    read = ("--bootstrap-server", ottla.servers, "--topic", topic, "--from-beginning")
    with running("console-consumer", *read) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "one\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        assert process.stderr.read() == "Processed a total of 1 messages\n"


@pytest.mark.parametrize(("tool", "arguments", "words"), [
    ("console-producer", ("--sync",), "Missing option '--topic'"),
    ("console-producer", ("--topic", "t", "--property", "headers.delimiter=,"), "may not be equal"),
    ("console-consumer", (), "Exactly one of --include/--topic is required"),
    ("console-consumer", ("--topic", "t", "--offset", "3"), "The partition is required"),
    ("console-consumer", ("--topic", "t", "--partition", "0", "--offset", "x"), "Valid values are"),
    ("console-consumer", ("--topic", "t", "--group", "g", "--partition", "0"), "cannot be specified"),
    ("console-consumer", ("--topic", "t", "--formatter", "no.such"), "--formatter no.such"),
    ("console-consumer", ("--bogus",), "No such option '--bogus'"),
])  # fmt: skip
def test_wrong_flags(tool: str, arguments: tuple[str, ...], words: str) -> None:
    """One line, and the exit code of Apache's tool."""
    nowhere = ("--bootstrap-server", "127.0.0.1:1")
    assert words in one_line(ours(tool, *nowhere, *arguments))
    assert java_tools.run(tool, *nowhere, *arguments).code == 1


def test_what_is_not_there(ottla: Place, topic: str) -> None:
    for tool in ("console-producer", "console-consumer"):
        assert "Missing option '--bootstrap-server'" in one_line(ours(tool, "--topic", "t"))
        words = one_line(ours(tool, "--bootstrap-server", "127.0.0.1:1", "--topic", topic, stdin="x\n"))
        assert words.startswith(f"ottla {tool}: No broker can be reached at 127.0.0.1:1"), words
    ottla.create(topic)
    words = one_line(ottla.ours("console-consumer", "--topic", topic, "--partition", "7"))
    assert words == f"ottla console-consumer: Topic {topic} has no partition 7: it has 0 to 0"
    words = one_line(ottla.ours("console-producer", "--topic", topic, "--property", "parse.key=true", stdin="no key\n"))
    assert words == "ottla console-producer: No key separator found on line number 1: 'no key'"
    too_large = ("--topic", topic, "--producer-property", "max.request.size=1000")
    result = ottla.ours("console-producer", *too_large, stdin="x" * 2000 + "\nfits\n")
    assert (result.code, "Error when sending message" in one_line(result, 0)) == (0, True)
    assert ottla.theirs("console-producer", *too_large, stdin="x" * 2000 + "\nfits\n").code == 0
    read = _read(topic, "--max-messages", "2")
    assert ottla.ours("console-consumer", *read).out == "fits\nfits\n"
    ottla.create(f"{topic}-small", config={"max.message.bytes": "10"})
    refused = ("--topic", f"{topic}-small", "--sync")
    words = one_line(ottla.ours("console-producer", *refused, stdin="one\ntwo\n"))
    assert words.startswith("ottla console-producer: The record was not acknowledged: ")
    assert ottla.theirs("console-producer", *refused, stdin="one\ntwo\n").code == 1
