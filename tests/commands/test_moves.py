"""`ottla leader-election` and `reassign-partitions` beside Apache Kafka's tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cluster.processes import until
from commands.side import Side, described
from ottla.testing import Cluster
from ottla.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from robustness.raw import RawClient

pytestmark = pytest.mark.java


def plan(*moves: tuple[str, int, list[int]], **more: object) -> dict[str, Any]:
    return {
        "version": 1,
        "partitions": [
            {"topic": topic, "partition": number, "replicas": replicas, **more} for topic, number, replicas in moves
        ],
    }


def create(side: Side, topic: str, replicas: str) -> None:
    assert side.ours("topics", f"--create --topic {topic} --replica-assignment {replicas}").code == 0


def settled(side: Side, topic: str) -> None:
    """Nothing is being moved any more, and every broker has heard so: each may be the one that is asked."""
    until(lambda: not side.objects("reassign-partitions", "--list")["reassignments"], "nothing is being moved")
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)

    def have_heard() -> bool:
        answers = []
        for server in side.servers.split(","):
            with RawClient(int(server.rpartition(":")[2])) as client:
                answers.append(client.ask(asked, 9))
        known = [partition for answer in answers for found in answer.topics for partition in found.partitions]
        return all(len(partition.replica_nodes) == 2 for partition in known)

    until(have_heard, "all brokers know that it is done")


# ---- leaders -------------------------------------------------------------------------------------------------------------


def test_leaders_that_are_right_already(side: Side, topic: str) -> None:
    create(side, topic, f"{side.brokers[0]},{side.brokers[-1]}")
    for arguments in (
        f"--election-type preferred --topic {topic} --partition 1",
        "--election-type PREFERRED --all-topic-partitions",
        f"--election-type unclean --topic {topic} --partition 0",
    ):
        side.same("leader-election", arguments)
    file = side.file(plan((topic, 0, []), (topic, 1, [])))
    side.same(
        "leader-election",
        f"--election-type preferred --path-to-json-file {file}",
        lambda text: sorted(re.split("[ ,\n]", text)),
    )


def test_leaders_are_handed_back(tmp_path: Path) -> None:
    with Cluster(3, {"auto.leader.rebalance.enable": "false"}) as cluster:
        side = Side(cluster.bootstrap_servers, [1, 2, 3], tmp_path)
        for twin in ("ours", "theirs"):
            create(side, twin, "3:1,3:2")
        cluster.stop_broker(3)
        cluster.start_broker(3)
        cluster.wait_until_in_sync()
        side = side._replace(servers=cluster.bootstrap_servers)
        ours = side.ours("leader-election", "--election-type preferred --topic ours --partition 0")
        theirs = side.theirs("leader-election", "--election-type preferred --topic theirs --partition 0")
        assert (ours.code, ours.out.replace("ours", "")) == (theirs.code, theirs.out.replace("theirs", ""))
        assert "Successfully completed leader election (PREFERRED) for partitions ours-0" in ours.out
        found = side.objects("leader-election", "--election-type preferred --all-topic-partitions")
        assert sorted(tuple(row.values()) for row in found) == [("ours", 1, "ELECTED"), ("theirs", 1, "ELECTED")]
        assert [cluster.leader_of(twin, 1) for twin in ("ours", "theirs")] == [3, 3]


# ---- moves ---------------------------------------------------------------------------------------------------------------


def test_replicas_move_and_throttles_go(ottla_side: Side, topic: str) -> None:
    side = ottla_side
    for twin in ("ours", "theirs"):
        create(side, f"{topic}-{twin}", "1:2,2:3")
    names = {"ours": f"{topic}-ours", "theirs": f"{topic}-theirs"}
    files = {twin: side.file(plan((name, 0, [2, 3]), (name, 1, [2, 1]))) for twin, name in names.items()}
    said = {}
    for twin, run in (("ours", side.ours), ("theirs", side.theirs)):
        file, parts = f"--reassignment-json-file {files[twin]}", []
        parts.append(run("reassign-partitions", f"--execute {file} --throttle 10000000"))
        parts.append(side.ours("configs", f"--describe --topic {names[twin]}"))
        parts.append(side.ours("configs", "--describe --broker 1"))
        settled(side, names[twin])
        parts.append(run("reassign-partitions", f"--verify {file} --preserve-throttles"))
        parts.append(run("reassign-partitions", f"--verify {file}"))
        parts.append(side.ours("configs", f"--describe --topic {names[twin]}"))
        parts.append(side.ours("configs", "--describe --broker 1"))
        parts.append(run("reassign-partitions", f"--cancel {file}"))
        said[twin] = "\n".join(f"{part.code} {part.out}" for part in parts).replace(names[twin], "TOPIC")
    assert said["ours"] == said["theirs"]
    assert "leader.replication.throttled.replicas=0:1,0:2,1:2,1:3" in said["ours"]
    assert "follower.replication.throttled.replicas=0:3,1:1" in said["ours"]
    side.same("reassign-partitions", f"--verify --reassignment-json-file {files['theirs']}")
    other = side.file(plan((names["ours"], 0, [3, 1])))
    side.same("reassign-partitions", f"--verify --reassignment-json-file {other}")  # it is not there, and nothing moves it
    side.same("reassign-partitions", "--list")


def test_a_move_that_takes_its_time(ottla_side: Side, topic: str) -> None:
    """Held back by a throttle of a byte a second: it can be listed, verified and cancelled."""
    side = ottla_side
    create(side, topic, "1:2")
    side.write(topic, 0, 2000)
    file = f"--reassignment-json-file {side.file(plan((topic, 0, [1, 3])))}"
    assert side.ours("reassign-partitions", f"--execute {file} --throttle 1").code == 0
    try:
        assert f"{topic}-0: replicas: " in side.same("reassign-partitions", "--list")
        assert "still in progress" in side.same("reassign-partitions", f"--verify {file}")
        assert "Adding Replicas: 3\tRemoving Replicas: 2" in side.same("topics", f"--describe --topic {topic}", described)
        side.both_refuse("reassign-partitions", f"--execute {file}", "use --additional")
        more = side.ours("reassign-partitions", f"--execute {file} --additional --throttle 2")
        assert "Successfully started partition reassignment for" in more.out
    finally:
        cancelled = side.ours("reassign-partitions", f"--cancel {file}")
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in cancelled.out
    side.same("reassign-partitions", f"--verify {file}")
    (found,) = side.objects("topics", f"--describe --topic {topic}")
    assert found["partitions"][0]["replicas"] == [1, 2]
    done = side.ours("reassign-partitions", f"--execute {file} --wait")
    assert done.code == 0
    assert side.objects("reassign-partitions", f"--verify {file}")["partitions"][0]["done"]


def test_a_proposal(side: Side, topic: str) -> None:
    create(side, topic, f"{side.brokers[0]},{side.brokers[-1]}")
    file = side.file({"topics": [{"topic": topic}], "version": 1})
    arguments = f"--generate --topics-to-move-json-file {file} --broker-list {','.join(map(str, side.brokers))}"
    proposals = []
    for run in (side.ours, side.theirs):
        printed = run("reassign-partitions", arguments).out.splitlines()
        proposed = json.loads(printed[4])["partitions"]
        proposals.append([*printed[:4], [(one["topic"], one["partition"], len(one["replicas"])) for one in proposed]])
    assert proposals[0] == proposals[1]
    proposed = side.objects("reassign-partitions", arguments)["proposed"]["partitions"]
    assert {broker for one in proposed for broker in one["replicas"]} <= set(side.brokers)


@pytest.mark.slow
def test_moves_between_directories(apache_side: Side, topic: str) -> None:
    side = apache_side
    (described,) = side.objects("log-dirs", "--describe")["brokers"]
    directories = sorted(one["logDir"] for one in described["logDirs"])
    said = {}
    for twin, run in (("ours", side.ours), ("theirs", side.theirs)):
        name, parts = f"{topic}-{twin}", []
        create(side, name, "0")
        for directory in directories:
            file = f"--reassignment-json-file {side.file(plan((name, 0, [0]), log_dirs=[directory]))}"
            parts.append(run("reassign-partitions", f"--execute {file} --replica-alter-log-dirs-throttle 100000000"))
            assert side.ours("reassign-partitions", f"--verify {file} --wait").code == 0
            parts.append(run("reassign-partitions", f"--verify {file}"))
        parts.append(run("reassign-partitions", f"--cancel {file}"))
        said[twin] = "\n".join(f"{part.code} {part.out}" for part in parts).replace(name, "TOPIC")
    assert said["ours"] == said["theirs"]
    assert "Reassignment of replica TOPIC-0-0 completed successfully." in said["ours"]


# ---- refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("leader-election", "--election-type preferred", "One and only one of"),
        ("leader-election", "--election-type preferred --topic t", "--topic and --partition go together"),
        ("leader-election", "--election-type fast --all-topic-partitions", "'fast' is not one of 'preferred', 'unclean'"),
        ("leader-election", "--all-topic-partitions", "Missing option '--election-type'"),
        ("leader-election", "--election-type preferred --path-to-json-file /no/such/file", "cannot be read"),
        ("reassign-partitions", "", "exactly one action"),
        ("reassign-partitions", "--execute", "Missing option '--reassignment-json-file'"),
        ("reassign-partitions", "--execute --verify", "exactly one action"),
        ("reassign-partitions", "--execute --reassignment-json-file /no/such/file", "cannot be read"),
        ("reassign-partitions", "--verify --reassignment-json-file FILE --throttle 1", "Option '--throttle' can't be used"),
        ("reassign-partitions", "--generate --topics-to-move-json-file FILE", "Missing option '--broker-list'"),
        ("reassign-partitions", "--generate --topics-to-move-json-file FILE --broker-list 1,1", "names a broker twice"),
    ],
)
def test_refusals(ottla_side: Side, tool: str, arguments: str, words: str) -> None:
    file = ottla_side.file({"topics": [{"topic": "t"}], **plan(("t", 0, [1]))})
    ottla_side.both_refuse(tool, arguments.replace("FILE", file), words)


def test_a_leader_that_cannot_be_elected(ottla_side: Side) -> None:
    arguments = "--election-type preferred --topic nope --partition 0"
    ottla_side.both_refuse("leader-election", arguments, "1 replica(s) could not be elected", quiet=False)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (plan(("nope", 0, [1])), "Topic nope does not exist"),
        (plan(("moved", 0, [1, 9])), "Broker 9 is not in the cluster"),
        (plan(("moved", 7, [1])), "Partition moved-7 does not exist"),
        (plan(("moved", 0, [1, 1])), "names a broker twice for partition moved-0"),
        (plan(("moved", 0, [])), "needs a list of the ids of brokers"),
        (plan(("moved", 0, [1]), log_dirs=[]), "as many log_dirs as it has replicas"),
        (plan(), "names no partitions"),
        ("{", "is not JSON"),
    ],
)
def test_plans_that_cannot_be_meant(ottla_side: Side, content: object, words: str) -> None:
    ottla_side.ours("topics", "--create --topic moved --if-not-exists --replica-assignment 1")
    ottla_side.both_refuse("reassign-partitions", f"--execute --reassignment-json-file {ottla_side.file(content)}", words)
