"""`ottla broker-api-versions` and `ottla cluster cluster-id` beside Apache Kafka's tools; brokers that cannot be reached."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from commands.side import Side
from ottla.cli import main
from support import java_tools
from support.peers import closed_port

pytestmark = pytest.mark.java

ADMIN = "default.api.timeout.ms=900\nrequest.timeout.ms=400\n"


def test_versions_of_all_brokers(side: Side) -> None:
    side.same("broker-api-versions", "", _by_broker)
    found = side.objects("broker-api-versions", "")
    assert {row["broker"] for row in found} == set(side.brokers)
    assert next(row for row in found if row["api"] == "ApiVersions")["usable"] >= 3


def _by_broker(printed: str) -> object:
    """In the order of brokers; without what only the asking client's own versions decide."""
    steady = re.sub(r"(ConsumerGroupHeartbeat\(68\): .*\[usable: )\d+", r"\1", printed)
    return sorted(steady.split("\n)\n"))


def test_the_id_and_the_brokers_of_a_cluster(side: Side) -> None:
    shown = side.same("cluster", "cluster-id")
    assert side.objects("cluster", "cluster-id")["clusterId"] == shown.split()[-1]
    assert [row["id"] for row in side.objects("cluster", "list-endpoints")] == side.brokers
    header, *rows = side.ours("cluster", "list-endpoints").out.splitlines()
    assert header.split() == ["ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"]
    assert [row.split()[0] for row in rows] == [str(broker) for broker in side.brokers]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("topics", "--list"),
        ("configs", "--describe --topic t"),
        ("get-offsets", ""),
        ("delete-records", "--offset-json-file {plan}"),
        ("log-dirs", "--describe"),
        ("leader-election", "--election-type preferred --all-topic-partitions"),
        ("reassign-partitions", "--list"),
        ("cluster", "cluster-id"),
    ],
)
def test_a_broker_that_cannot_be_reached(ottla_side: Side, tool: str, arguments: str) -> None:
    admin = ottla_side.file(ADMIN)
    plan = ottla_side.file({"partitions": [{"topic": "t", "partition": 0, "offset": 1}]})
    option = {"leader-election": "--admin.config", "cluster": "--config"}.get(tool, "--command-config")
    gone = ottla_side._replace(servers=f"127.0.0.1:{closed_port()}")
    words = f"Cannot connect to the broker at {gone.servers} (Connection refused): does it run, and is the address right?"
    given = f"{arguments.format(plan=plan)} {option} {admin}"
    if tool == "delete-records":  # Apache's tells it as the outcome of each partition, and ends with 0
        ours = gone.ours(tool, given)
        assert (ours.code, ours.out) == (1, "")
        assert words in ours.err
    else:
        gone.both_refuse(tool, given, words)


@pytest.mark.parametrize("tool", ["topics", "configs", "get-offsets", "log-dirs", "reassign-partitions", "broker-api-versions"])
def test_a_command_that_is_told_nothing(tool: str) -> None:
    ours = CliRunner().invoke(main, [tool], catch_exceptions=False)
    assert ours.exit_code == java_tools.run(tool).code == 1
    assert ours.stderr.count("\n") == 1
    assert "--bootstrap-server" in ours.stderr
