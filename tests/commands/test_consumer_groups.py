"""`ottla consumer-groups` beside Apache's: the same tables, and each resets, deletes and describes what the other left."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import Consumer, TopicPartition

from commands.both import Place, one_line, ours
from support import java_tools
from support.java_tools import Result

pytestmark = pytest.mark.java

TOOL = "consumer-groups"
HOUR_MS = 3_600_000


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _lines(result: Result) -> list[str]:
    """What was said, line by line; Apache's rows come in any order, and without an end to the last line."""
    return sorted(line for line in result.out.splitlines() if line)


def _reset_rows(text: str) -> set[tuple[str, ...]]:
    """Group, topic, partition and offset of each row: Apache Kafka 3.9 puts all rows into one line."""
    words = text.replace("GROUP", "", 1).split()
    cells = [word for word in words if word not in {"TOPIC", "PARTITION", "NEW-OFFSET"}]
    return {tuple(cells[at : at + 4]) for at in range(0, len(cells), 4)}


@contextlib.contextmanager
def _member(place: Place, group: str, topic: str, **settings: str) -> Iterator[Consumer]:
    """A consumer with partitions of a topic."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    consumer = Consumer({"bootstrap.servers": place.servers, "group.id": group, "log_level": 0, **named})
    try:
        consumer.subscribe([topic])
        _until(lambda: consumer.poll(0.05) is None and bool(consumer.assignment()), f"{group} got nothing")
        yield consumer
    finally:
        consumer.close()


class Scene(NamedTuple):
    """A broker with a topic of three partitions and groups: without members, with a static one, of the new protocol."""

    place: Place
    topic: str
    idle: str
    live: str
    modern: str | None

    def ours(self, *arguments: str) -> Result:
        return self.place.ours(TOOL, *arguments)

    def theirs(self, *arguments: str) -> Result:
        return self.place.theirs(TOOL, *arguments)

    def commit(self, group: str, *offsets: int) -> str:
        config = {"bootstrap.servers": self.place.servers, "group.id": group, "log_level": 0}
        consumer = Consumer(config)
        consumer.commit(offsets=[TopicPartition(self.topic, n, at) for n, at in enumerate(offsets)], asynchronous=False)
        consumer.close()
        return group


@pytest.fixture(scope="module", params=["three", pytest.param("apache", marks=pytest.mark.slow)])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    place: Place = request.getfixturevalue(request.param)
    now = int(time.time() * 1000)
    topic = place.create("grouped", 3)
    place.produce(topic, *(b"%d" % n for n in range(5)), timestamp=now - 10 * HOUR_MS)
    place.produce(topic, *(b"%d" % n for n in range(5)), timestamp=now - HOUR_MS)
    place.produce(topic, b"x", b"y", partition=1, timestamp=now - HOUR_MS)
    modern = "g-modern" if request.param == "three" else None  # Apache Kafka serves the new protocol in KRaft mode only
    found = Scene(place, topic, "g-idle", "g-live", modern)
    found.commit(found.idle, 4, 1)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_member(place, found.live, topic, group_instance_id="static", client_id="someone"))
        if modern:
            stack.enter_context(_member(place, modern, topic, group_protocol="consumer"))
        yield found


def test_the_same_tables(scene: Scene) -> None:
    names = [scene.idle, scene.live, *([scene.modern] if scene.modern else [])]
    groups = [part for name in names for part in ("--group", name)]
    for arguments in (
        ("--list",),
        ("--list", "--state", "--type"),
        ("--list", "--state", "stable,EMPTY"),
        ("--describe", *groups),
        ("--describe", *groups, "--members"),
        ("--describe", *groups, "--members", "--verbose"),
        ("--describe", *groups, "--state"),
        ("--describe", "--group", "g-none"),
        ("--describe", "--group", "g-none", "--members"),
    ):
        mine, theirs = scene.ours(*arguments), scene.theirs(*arguments)
        assert mine.code == theirs.code == 0
        assert _lines(mine) == _lines(theirs), arguments
        assert sorted(mine.err.split("\n")) == sorted(theirs.err.split("\n")), arguments
    if scene.modern:
        assert _lines(scene.ours("--list", "--type", "consumer")) == _lines(scene.theirs("--list", "--type", "consumer"))
    described = json.loads(scene.ours("--describe", "--group", scene.idle, "--json").out)
    assert [(one["partition"], one["currentOffset"], one["lag"]) for one in described[0]["partitions"]] == [
        (0, 4, 6),
        (1, 1, 1),
    ]


STRATEGIES: tuple[tuple[tuple[str, ...], dict[str, int]], ...] = (
    (("--topic", "grouped", "--to-earliest"), {"0": 0, "1": 0, "2": 0}),
    (("--topic", "grouped", "--to-latest"), {"0": 10, "1": 2, "2": 0}),
    (("--topic", "grouped", "--to-current"), {"0": 4, "1": 1, "2": 0}),
    (("--all-topics", "--to-offset", "3"), {"0": 3, "1": 2}),
    (("--topic", "grouped:0,1", "--shift-by", "-2"), {"0": 2, "1": 0}),
    (("--topic", "grouped:0", "--by-duration", "PT5H30M"), {"0": 5}),
    (("--topic", "grouped:0,2", "--by-duration", "P2D"), {"0": 0, "2": 0}),
    (("--topic", "grouped:0,1", "--to-datetime", "2020-01-01T00:00:00.000"), {"0": 0, "1": 0}),
    (("--topic", "grouped:0,1", "--to-datetime", "2100-01-01T00:00:00.000+02:00"), {"0": 10, "1": 2}),
)


def test_every_strategy(scene: Scene) -> None:
    """Planned, not carried out."""
    for options, expected in STRATEGIES if scene.modern else STRATEGIES[2::3]:
        arguments = ("--reset-offsets", "--group", scene.idle, *options, "--dry-run")
        mine = scene.ours(*arguments)
        assert mine.code == 0
        tables = [re.sub(r"Warn: .*", "", result.out) for result in (mine, scene.theirs(*arguments))]
        assert _reset_rows(tables[0]) == {(scene.idle, scene.topic, number, str(at)) for number, at in expected.items()}
        assert _reset_rows(tables[0]) == _reset_rows(tables[1])
    assert "g-idle          grouped         0          4 " in scene.ours("--describe", "--group", scene.idle).out


def test_execute_export_and_from_file(scene: Scene, topic: str, tmp_path: object) -> None:
    """What one tool writes the other carries out."""
    groups = [scene.commit(f"g1-{topic}", 1, 1), scene.commit(f"g2-{topic}", 2, 2)]
    named = [part for name in groups for part in ("--group", name)]
    export = ("--reset-offsets", "--all-topics", "--to-latest", "--export", "--dry-run")
    for arguments in (("--group", groups[0]), named):
        mine, theirs = scene.ours(*export, *arguments), scene.theirs(*export, *arguments)
        assert _lines(mine) == _lines(theirs)
    for run, other in ((scene.ours, scene.theirs), (scene.theirs, scene.ours)):
        path = f"{tmp_path}/{run.__name__}.csv"
        with open(path, "w", encoding="utf-8") as file:
            file.write(run(*export, *named).out.rstrip("\n") + "\n")
        assert run("--reset-offsets", *named, "--all-topics", "--to-earliest", "--execute").code == 0
        assert " 10              -10" not in other("--describe", *named).out
        moved = other("--reset-offsets", *named, "--from-file", path, "--execute")
        ends = (("0", "10"), ("1", "2"))
        assert _reset_rows(moved.out) == {(name, scene.topic, number, at) for name in groups for number, at in ends}
        assert [line.split()[3:6] for line in run("--describe", "--group", groups[0]).out.splitlines()[2:]] == [
            ["10", "10", "0"],
            ["2", "2", "0"],
        ]


def test_deletions(scene: Scene, topic: str) -> None:
    mine, theirs = scene.commit(f"gm-{topic}", 1, 1), scene.commit(f"gt-{topic}", 1, 1)
    deleted = scene.ours("--delete-offsets", "--group", mine, "--topic", f"{scene.topic}:0")
    other = scene.theirs("--delete-offsets", "--group", theirs, "--topic", f"{scene.topic}:0")
    assert deleted.out.split() == other.out.replace(theirs, mine).split()
    missing = scene.ours("--delete-offsets", "--group", mine, "--topic", f"no-{topic}")
    assert re.search(rf"no-{topic} +Not Provided +Error: :", missing.out)
    assert scene.ours("--delete", "--group", mine).out == scene.theirs("--delete", "--group", theirs).out.replace(theirs, mine)
    refused = scene.ours("--delete", "--group", mine, "--group", scene.live)
    assert "Error: Deletion of some consumer groups failed:" in refused.out.splitlines()
    assert f"* Group '{scene.live}' could not be deleted due to: The group is not empty." in refused.out.splitlines()
    read = scene.ours("--delete-offsets", "--group", scene.live, "--topic", scene.topic)
    assert read.out.splitlines()[1] == "Error: Encounter some partition level error, see the follow-up details:"
    live = ("--reset-offsets", "--group", scene.live, "--topic", scene.topic, "--to-earliest", "--execute")
    assert _lines(scene.ours(*live)) == _lines(scene.theirs(*live))


@pytest.mark.parametrize(("arguments", "words"), [
    ((), "Command must include exactly one action"),
    (("--describe",), "Option --describe takes one of these options"),
    (("--list", "--state", "foo"), "Invalid state list 'foo'. Valid states are: PreparingRebalance, "),
    (("--list", "--type", "foo"), "Invalid types list 'foo'. Valid types are: "),
    (("--delete", "--group", "g", "--topic", "t"), "topic-specific"),
    (("--reset-offsets", "--group", "g", "--execute", "--to-latest", "--to-earliest"), "can't be used with"),
    (("--describe", "--group", "g", "--members", "--state"), "takes at most one of these options"),
    (("--list", "--group", "g"), "can't be used with option"),
])  # fmt: skip
def test_wrong_flags(arguments: tuple[str, ...], words: str) -> None:
    nowhere = ("--bootstrap-server", "127.0.0.1:1")
    assert words in one_line(ours(TOOL, *nowhere, *arguments))
    assert java_tools.run(TOOL, *nowhere, *arguments).code == 1


def test_what_is_not_there(ottla: Place, topic: str) -> None:
    """Told on the output, and with 0: so does Apache's. For a program it is a line beside the output, and 1."""
    unreachable = ("--bootstrap-server", "127.0.0.1:1", "--list", "--timeout", "1000")
    result = ours(TOOL, *unreachable)
    assert (result.code, result.err) == (java_tools.run(TOOL, *unreachable).code, "")
    assert result.out.startswith(
        "\nError: Executing consumer group command failed due to Cannot connect to the broker at 127.0.0.1:1"
    )
    assert "127.0.0.1:1" in one_line(ours(TOOL, *unreachable, "--json"))
    assert "Missing option '--bootstrap-server'" in one_line(ours(TOOL, "--list"))
    reset = ("--reset-offsets", "--group", "g", "--to-earliest", "--dry-run", "--topic")
    assert f"Topic {topic} does not exist" in ottla.ours(TOOL, *reset, topic).out
    ottla.create(topic)
    assert f"Partition {topic}-7 does not exist" in ottla.ours(TOOL, *reset, f"{topic}:7").out
    assert "Invalid partition 'x'" in one_line(ottla.ours(TOOL, *reset, f"{topic}:x"))


def test_many_groups_at_once(ottla: Place, topic: str) -> None:
    """A group costs no request of its own: 200 are described as fast as the cluster answers a handful of questions."""
    ottla.create(topic)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": ottla.servers, "log_level": 0})
    names = [f"many-{topic}-{n}" for n in range(200)]
    for name in names:
        offsets = [TopicPartition(topic, 0, 0)]
        admin.alter_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions(name, offsets)])[name].result(30)
    described = json.loads(ottla.ours(TOOL, "--describe", "--all-groups", "--json").out)
    assert {one["group"] for one in described}.issuperset(names)
