"""`ottla topics` beside kafka-topics.sh, at Ottla and at Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.processes import until
from commands.side import Side, described, topic_id
from ottla.testing import Cluster

pytestmark = pytest.mark.java


def test_the_life_of_a_topic(side: Side, topic: str) -> None:
    first, last = side.brokers[0], side.brokers[-1]
    settings = "--config retention.ms=1000 --config cleanup.policy=compact,delete"
    side.twins("topics", f"--create --topic TOPIC --replica-assignment {first},{last},{first} {settings}", topic)
    side.twins("topics", "--create --topic TOPIC --if-not-exists", topic)
    side.twins("topics", "--create --topic TOPIC_with.both", topic)  # a warning
    side.twins("topics", f"--alter --topic TOPIC --partitions 4 --replica-assignment {first},{last},{first},{last}", topic)
    ours = side.ours("topics", f"--describe --topic {topic}-ours")
    theirs = side.theirs("topics", f"--describe --topic {topic}-theirs")
    assert described(ours.out.replace("-ours", "")) == described(theirs.out.replace("-theirs", ""))
    assert ours.out.count("\tPartition: ") == 4
    side.twins("topics", "--delete --topic TOPIC", topic)
    side.twins("topics", "--delete --topic TOPIC --if-exists", topic)
    assert f"{topic}-ours\n" not in side.same("topics", "--list")


def test_both_show_the_same(side: Side, topic: str) -> None:
    assert side.ours("topics", f"--create --topic {topic} --partitions 2 --config segment.bytes=5000000").code == 0
    assert side.ours("topics", f"--create --topic {topic}-plain").code == 0
    for arguments in (
        "--list",
        "--list --exclude-internal",
        f"--list --topic {topic}.*",
        f"--list --topic '{topic}, {topic}-plain'",
        "--list --topic no-such-topic",
        f"--describe --topic {topic}",
        f"--describe --topic {topic}.* --topics-with-overrides",
        f"--describe --topic {topic}.* --under-replicated-partitions",
        f"--describe --topic {topic}.* --unavailable-partitions",
        f"--describe --topic {topic}.* --under-min-isr-partitions",
        f"--describe --topic {topic}.* --at-min-isr-partitions",
        "--describe --topic no-such-topic --if-exists",
        "--describe --exclude-internal",
    ):
        side.same("topics", arguments, described)
    shown = side.same("topics", f"--describe --topic {topic}-plain", described)
    side.same("topics", f"--describe --topic-id {topic_id(shown)}", described)
    (found,) = side.objects("topics", f"--describe --topic {topic}")
    assert (found["topic"], found["partitionCount"], len(found["partitions"])) == (topic, 2, 2)
    assert found["configs"]["segment.bytes"] == "5000000"
    assert topic in side.objects("topics", "--list")


def test_partitions_that_lack_something(tmp_path: Path) -> None:
    """In a cluster of its own: one of three brokers is gone."""
    with Cluster(3, {"min.insync.replicas": 2}) as cluster:
        side = Side(cluster.bootstrap_servers, [1, 2, 3], tmp_path)
        for name, replicas in (("all", "1:2:3"), ("two", "1:3,3:1"), ("one", "3"), ("safe", "1:2")):
            assert side.ours("topics", f"--create --topic {name} --replica-assignment {replicas}").code == 0
        cluster.kill(3)
        until(lambda: "\tLeader: none" in side.ours("topics", "--describe --topic one").out, "one has no leader")
        until(lambda: side.ours("topics", "--describe --topic two --at-min-isr-partitions").out == "", "two lacks a replica")
        # By name, Java's client leaves out replicas on brokers that are gone (it takes them for none); by id it does not.
        for name in ("all", "two", "one", "safe"):
            by_id = f"--describe --topic-id {topic_id(side.ours('topics', f'--describe --topic {name}').out)}"
            side.same("topics", by_id, described)
            for filtered in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
                side.same("topics", f"{by_id} --{filtered}-partitions", described)
        assert "Topic: all" in side.ours("topics", "--describe --under-replicated-partitions").out
        assert [one["topic"] for one in side.objects("topics", "--describe --unavailable-partitions")] == ["one"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "exactly one action"),
        ("--list --describe", "exactly one action"),
        ("--create", "Missing option '--topic'"),
        ("--create --topic taken", "Topic taken was not created: TOPIC_ALREADY_EXISTS"),
        ("--create --topic bad/name", "INVALID_TOPIC_EXCEPTION"),
        ("--create --topic x --config nope=1", "INVALID_CONFIG"),
        ("--create --topic x --config nope", "allowed is NAME=VALUE"),
        ("--create --topic x --replication-factor 99", "INVALID_REPLICATION_FACTOR"),
        ("--create --topic x --partitions none", "'none' is not a valid whole number"),
        ("--create --topic x --replica-assignment 1:1", "names a broker twice"),
        ("--create --topic x --replica-assignment a", "allowed is 1:2,2:3"),
        ("--describe --topic nope", "No topic is called nope"),
        ("--delete --topic nope", "No topic is called nope"),
        ("--alter --topic nope --partitions 5", "No topic is called nope"),
        ("--alter --topic taken", "Missing option '--partitions'"),
        ("--alter --topic taken --partitions 1", "INVALID_PARTITIONS"),
        ("--list --partitions 3", "Option '--partitions' can't be used with '--list'"),
        ("--list --nope", "No such option '--nope'"),
        ("--list --topic *", "is not a regular expression"),
    ],
)
def test_refusals(ottla_side: Side, arguments: str, words: str) -> None:
    ottla_side.ours("topics", "--create --topic taken --if-not-exists")
    ottla_side.both_refuse("topics", arguments, words)
