"""`ottla get-offsets`, `delete-records` and `log-dirs` beside Apache Kafka's tools, at Ottla and at Apache Kafka."""

from __future__ import annotations

import json

import pytest

from commands.side import Side

pytestmark = pytest.mark.java


def test_get_offsets(side: Side, topic: str) -> None:
    assert side.ours("topics", f"--create --topic {topic} --partitions 3").code == 0
    side.write(topic, 1, 5)
    for arguments in (
        "",
        f"--topic {topic}",
        f"--topic {topic} --time earliest",
        f"--topic {topic} --time -2",
        f"--topic {topic} --time max-timestamp",
        f"--topic {topic} --time 1003",
        f"--topic {topic} --partitions 0,1",
        f"--topic-partitions {topic}:1",
        f"--topic-partitions {topic}:1-,{topic}:0",
        f"--topic-partitions {topic}:-2",
        "--exclude-internal-topics",
    ):
        side.same("get-offsets", arguments)
    assert side.objects("get-offsets", f"--topic {topic} --time 1003") == [{"topic": topic, "partition": 1, "offset": 3}]


def test_delete_records(side: Side, topic: str) -> None:
    for twin in ("ours", "theirs"):
        assert side.ours("topics", f"--create --topic {topic}-{twin} --partitions 2").code == 0
        side.write(f"{topic}-{twin}", 0, 5)
    files = {
        twin: side.file({"partitions": [{"topic": f"{topic}-{twin}", "partition": 0, "offset": 3}], "version": 1})
        for twin in ("ours", "theirs")
    }
    ours = side.ours("delete-records", f"--offset-json-file {files['ours']}")
    theirs = side.theirs("delete-records", f"--offset-json-file {files['theirs']}")
    assert (ours.code, ours.out.replace("-ours", "")) == (theirs.code, theirs.out.replace("-theirs", ""))
    side.same("get-offsets", f"--topic {topic}.* --time earliest")
    # One that cannot be done does not stop the others, and the code stays 0, as in Apache's tool.
    place = {"topic": f"{topic}-ours", "partition": 0, "offset": -1}
    mixed = side.file({"partitions": [{**place, "partition": 1, "offset": 9}, place]})
    ours, theirs = (run("delete-records", f"--offset-json-file {mixed}") for run in (side.ours, side.theirs))
    assert (ours.code, theirs.code) == (0, 0)
    assert f"partition: {topic}-ours-0\tlow_watermark: 5" in ours.out
    assert f"partition: {topic}-ours-1\terror: " in ours.out
    assert f"partition: {topic}-ours-1\terror: " in theirs.out
    missing = side.file({"partitions": [{"topic": f"{topic}-nope", "partition": 0, "offset": 1}]})
    (found,) = side.objects("delete-records", f"--offset-json-file {missing}")
    assert "does not exist" in found["error"]


def test_log_dirs(side: Side, topic: str) -> None:
    assert side.ours("topics", f"--create --topic {topic} --partitions 3").code == 0
    side.write(topic, 0, 10)
    for arguments in ("", f"--topic-list {topic}", f"--broker-list {side.brokers[0]} --topic-list {topic},x", "--topic-list x"):
        side.same("log-dirs", f"--describe {arguments}", _in_order)
    found = side.objects("log-dirs", f"--describe --topic-list {topic}")
    sizes = [one["size"] for broker in found["brokers"] for place in broker["logDirs"] for one in place["partitions"]]
    assert max(sizes) > 100


def _in_order(printed: str) -> object:
    *lines, last = printed.splitlines()
    found = json.loads(last)
    for broker in found["brokers"]:
        broker["logDirs"].sort(key=lambda place: place["logDir"])
        for place in broker["logDirs"]:
            place["partitions"].sort(key=lambda one: one["partition"])
    return lines, found


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("get-offsets", "--topic nope", "No partition is meant"),
        ("get-offsets", "--time soon", "--time soon is not valid"),
        ("get-offsets", "--partitions 0-2", "--partitions 0-2 is not valid"),
        ("get-offsets", "--topic-partitions t:x", "allowed is TOPIC:N"),
        ("get-offsets", "--topic-partitions t:0 --topic t", "cannot be used with"),
        ("delete-records", "", "Missing option '--offset-json-file'"),
        ("delete-records", "--offset-json-file /no/such/file", "/no/such/file cannot be read"),
        ("delete-records", "--offset-json-file /etc/hostname", "is not JSON"),
        ("log-dirs", "", "Missing option '--describe'"),
        ("log-dirs", "--describe --broker-list 9", "not alive: 9; there are 1,2,3"),
        ("log-dirs", "--describe --broker-list x", "--broker-list x is not valid"),
    ],
)
def test_refusals(ottla_side: Side, tool: str, arguments: str, words: str) -> None:
    ottla_side.both_refuse(tool, arguments, words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"partitions": [{"topic": "t", "partition": 0}]}, 'needs "offset" (int)'),
        ({"partitions": [{"topic": "t", "partition": 0, "offset": 1}] * 2}, "names partition t-0 twice"),
        ({"version": 2, "partitions": []}, "only 1 is known"),
    ],
)
def test_files_that_cannot_be_meant(ottla_side: Side, content: object, words: str) -> None:
    ottla_side.both_refuse("delete-records", f"--offset-json-file {ottla_side.file(content)}", words)
