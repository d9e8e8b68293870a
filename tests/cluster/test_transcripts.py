"""A cluster as a book tells it, with Apache Kafka's own tools: what they print, and what then stands in the files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import java

from .processes import ProcessCluster, until

pytestmark = [pytest.mark.java, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    settings = {"replica.high.watermark.checkpoint.interval.ms": 300, "min.insync.replicas": 1}
    with ProcessCluster(str(tmp_path_factory.mktemp("cluster")), 3, settings) as running:
        yield running


def topics(cluster: ProcessCluster, *arguments: str) -> str:
    main = "org.apache.kafka.tools.TopicCommand"
    return java.run(main, "--bootstrap-server", cluster.bootstrap_servers, *arguments).stdout


def send(cluster: ProcessCluster, topic: str, *lines: str) -> None:
    java.run(
        "kafka.tools.ConsoleProducer", "--bootstrap-server", cluster.bootstrap_servers, "--topic", topic,
        "--producer-property", "acks=all",
        stdin="".join(f"{line}\n" for line in lines),
    )  # fmt: skip


def content(cluster: ProcessCluster, broker: int, *path: str) -> str:
    with open(os.path.join(cluster.brokers[broker].data, *path), encoding="utf-8") as file:
        return file.read()


def high_watermark(cluster: ProcessCluster, broker: int, topic: str) -> int:
    found = re.search(rf"^{topic} 0 (\d+)$", content(cluster, broker, "replication-offset-checkpoint"), re.M)
    return int(found[1]) if found else -1


def test_a_message_lies_on_all_three_brokers(cluster: ProcessCluster) -> None:
    assert "Created topic peter-test01." in topics(
        cluster, "--create", "--topic", "peter-test01", "--partitions", "1", "--replication-factor", "3"
    )
    described = topics(cluster, "--describe", "--topic", "peter-test01")
    assert re.search(r"Topic: peter-test01\s+TopicId: \S{22}\s+PartitionCount: 1\s+ReplicationFactor: 3", described)
    line = re.search(r"Partition: 0\s+Leader: (\d)\s+Replicas: ([\d,]+)\s+Isr: ([\d,]+)", described)
    assert line is not None
    leader, replicas, isr = line.groups()
    assert replicas.split(",")[0] == leader
    assert set(replicas.split(",")) == set(isr.split(",")) == {"1", "2", "3"}
    send(cluster, "peter-test01", "test message1")
    for broker in cluster.brokers:
        until(lambda broker=broker: high_watermark(cluster, broker, "peter-test01") == 1, f"{broker} knows what is committed")  # type: ignore[misc]
        file = Path(cluster.brokers[broker].data, "peter-test01-0", "00000000000000000000.log")
        dumped = java.run("kafka.tools.DumpLogSegments", "--print-data-log", "--files", str(file)).stdout
        assert "Log starting offset: 0" in dumped
        assert re.search(
            r"baseOffset: 0 lastOffset: 0 count: 1 .*partitionLeaderEpoch: 0 .*position: 0 .*isvalid: true", dumped
        )
        assert re.search(r"\| offset: 0 .*keySize: -1 valueSize: 13 .*payload: test message1", dumped)
    send(cluster, "peter-test01", "test message2")
    for broker in cluster.brokers:
        until(lambda broker=broker: high_watermark(cluster, broker, "peter-test01") == 2, "the second one is committed too")  # type: ignore[misc]


def test_a_new_leader_begins_a_new_epoch_and_the_old_one_follows(cluster: ProcessCluster) -> None:
    topics(cluster, "--create", "--topic", "peter-test02", "--replica-assignment", "1:3")
    until(lambda: set(cluster.partition("peter-test02").isr_nodes) == {1, 3}, "both are in sync")
    assert content(cluster, 1, "peter-test02-0", "leader-epoch-checkpoint") == "0\n1\n0 0\n"
    send(cluster, "peter-test02", "message1")
    assert content(cluster, 1, "peter-test02-0", "leader-epoch-checkpoint") == "0\n1\n0 0\n"
    assert cluster.brokers[1].stop() == 0
    until(lambda: cluster.partition("peter-test02").leader_id == 3, "broker 3 leads")
    until(
        lambda: content(cluster, 3, "peter-test02-0", "leader-epoch-checkpoint") == "0\n2\n0 0\n1 1\n",
        "its first epoch begins behind the first message",
    )
    cluster.brokers[1].start()
    until(lambda: set(cluster.partition("peter-test02").isr_nodes) == {1, 3}, "broker 1 has caught up")
    described = topics(cluster, "--describe", "--topic", "peter-test02")
    assert re.search(r"Leader: 3\s+Replicas: 1,3\s+Isr: 3,1", described), described
    send(cluster, "peter-test02", "message2")
    until(lambda: high_watermark(cluster, 1, "peter-test02") == 2, "broker 1 follows")
    assert content(cluster, 1, "peter-test02-0", "leader-epoch-checkpoint") == "0\n2\n0 0\n1 1\n"
