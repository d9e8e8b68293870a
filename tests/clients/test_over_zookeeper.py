"""A broker over a real ZooKeeper, as its clients see it, and its tree beside the one that Apache Kafka 3.9.1 writes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from support import java
from support.anchor import Broker
from support.kafka import ApacheKafka
from support.server import ServerProcess
from support.waiting import wait_for
from support.zookeeper import SESSION_MS, QuickZooKeeper, dump, looking_at

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

_SMALL = {
    "broker.id": 1,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuickZooKeeper]:
    with QuickZooKeeper(str(tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server


@pytest.fixture(scope="module")
def over(zookeeper: QuickZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {
        **_SMALL,
        "zookeeper.connect": f"{zookeeper.address}/ours",
        "zookeeper.session.timeout.ms": SESSION_MS,
    }
    with ServerProcess(str(tmp_path_factory.mktemp("over") / "data"), settings) as server:
        yield server
        assert "Traceback" not in server.log(), server.log()
        assert server.stop() == 0


def admin_of(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def transact(broker: Broker, transactional_id: str, topic: str, values: list[bytes], commit: bool = True) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def consume(broker: Broker, group: str, topic: str, count: int) -> list[bytes]:
    """As a member of a group that reads what is committed, and commits what it read."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    end = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < end, found
        found += [message.value() for message in consumer.consume(count, 0.1)]
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def test_produce_consume_groups_and_transactions(over: ServerProcess, topic: str) -> None:
    admin = admin_of(over)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    transact(over, f"id-{topic}", topic, [b"1", b"2"])
    transact(over, f"id-{topic}", topic, [b"never"], commit=False)
    transact(over, f"id-{topic}", topic, [b"3"])
    assert consume(over, f"group-{topic}", topic, 3) == [b"1", b"2", b"3"]
    transact(over, f"id-{topic}", topic, [b"4"])
    assert consume(over, f"group-{topic}", topic, 1) == [b"4"], "the group goes on where it was"


def test_a_topic_on_first_use(over: ServerProcess, topic: str) -> None:
    producer = Producer({"bootstrap.servers": over.bootstrap_servers, "log_level": 0})
    producer.produce(topic, b"x")
    assert producer.flush(30) == 0


def test_topics_come_change_and_go(over: ServerProcess, zookeeper: QuickZooKeeper, topic: str) -> None:
    admin = admin_of(over)
    admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "5000"})])[topic].result(30)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == "5000", "in force at once"
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    assert len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 5
    with looking_at(zookeeper, "/ours") as client:
        assert len(client.get_children(f"/brokers/topics/{topic}/partitions")) == 5
        admin.delete_topics([topic])[topic].result(30)
        assert client.exists(f"/brokers/topics/{topic}") is None
        assert client.exists(f"/config/topics/{topic}") is None
        assert client.get_children("/admin/delete_topics") == []
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    assert admin.describe_configs([resource])[resource].result(30)["retention.ms"].value != "5000"


def test_a_topic_of_many_partitions(over: ServerProcess, zookeeper: QuickZooKeeper) -> None:
    """More than one ZooKeeper transaction takes: states are written in pieces, and removed in pieces."""
    name = "m" * 200
    admin = admin_of(over)
    admin.create_topics([NewTopic(name, 2500, 1)])[name].result(60)
    with looking_at(zookeeper, "/ours") as client:
        assert len(client.get_children(f"/brokers/topics/{name}/partitions")) == 2500
        assert client.exists(f"/brokers/topics/{name}/partitions/2499/state") is not None
        admin.delete_topics([name])[name].result(60)
        wait_for(lambda: client.exists(f"/brokers/topics/{name}") is None, "the topic is gone")


@pytest.mark.slow
def test_apache_kafkas_tools(over: ServerProcess, topic: str) -> None:
    at = ("--bootstrap-server", over.bootstrap_servers)
    tool = "org.apache.kafka.tools.TopicCommand"
    java.run(tool, *at, "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=9000")
    described = java.run(tool, *at, "--describe", "--topic", topic).stdout
    assert "PartitionCount: 2" in described
    assert "retention.ms=9000" in described
    assert f"Topic: {topic}\tPartition: 1\tLeader: 1\tReplicas: 1\tIsr: 1" in described
    entity = ("--entity-type", "topics", "--entity-name", topic)
    java.run("kafka.admin.ConfigCommand", *at, *entity, "--alter", "--add-config", "max.message.bytes=4242")
    assert "max.message.bytes=4242" in java.run("kafka.admin.ConfigCommand", *at, *entity, "--describe").stdout
    java.run(tool, *at, "--delete", "--topic", topic)
    assert topic not in java.run(tool, *at, "--list").stdout


# ---- the tree ------------------------------------------------------------------------------------------------------------

_VOLATILE = {"timestamp", "port", "endpoints", "topic_id", "id"}


def story(broker: Broker) -> None:
    """What both brokers live through before their trees are compared."""
    admin = admin_of(broker)
    admin.create_topics([NewTopic("a", 2, 1, config={"retention.ms": "5000"}), NewTopic("gone", 1, 1)])
    deadline = time.monotonic() + 30
    while not {"a", "gone"} <= set(admin.list_topics(timeout=10).topics):
        assert time.monotonic() < deadline
    alter(admin, ConfigResource(ResourceType.TOPIC, "a"), "retention.ms", "7000")
    alter(admin, ConfigResource(ResourceType.BROKER, "1"), "log.cleaner.threads", "2")
    admin.create_partitions([NewPartitions("a", 3)])["a"].result(30)
    transact(broker, "id", "a", [b"x"])
    admin.delete_topics(["gone"])["gone"].result(30)


def alter(admin: AdminClient, resource: ConfigResource, name: str, value: str) -> None:
    resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def stable(content: bytes | None) -> Any:
    """A node's JSON without what differs from run to run; the order of keys counts."""
    if not content or not content.startswith(b"{"):
        return content
    value = json.loads(content)
    return [(key, "" if key in _VOLATILE else one) for key, one in value.items()]


def wait_until_gone(zookeeper: QuickZooKeeper, root: str, topic: str) -> None:
    """Apache Kafka answers a deletion before all of it is done."""
    paths = (f"/brokers/topics/{topic}", f"/config/topics/{topic}", f"/admin/delete_topics/{topic}")
    deadline = time.monotonic() + 30
    with looking_at(zookeeper, root) as client:
        while any(client.exists(path) for path in paths):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def tree(zookeeper: QuickZooKeeper, root: str) -> dict[str, Any]:
    with looking_at(zookeeper, root) as client:
        return {path: (stable(content), ephemeral) for path, (content, ephemeral) in dump(client).items()}


@pytest.mark.slow
def test_the_tree_is_the_one_that_apache_kafka_writes(
    zookeeper: QuickZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = str(tmp_path_factory.mktemp("apache"))
    with ApacheKafka(directory, zookeeper, {**_SMALL, "zookeeper.connect": f"{zookeeper.address}/apache"}) as apache:
        story(apache)
        wait_until_gone(zookeeper, "/apache", "gone")
        theirs = tree(zookeeper, "/apache")
        apache.stop()
    settings = {**_SMALL, "zookeeper.connect": f"{zookeeper.address}/beside"}
    with ServerProcess(str(tmp_path_factory.mktemp("beside") / "data"), settings) as server:
        story(server)
        ours = tree(zookeeper, "/beside")
    assert sorted(ours) == sorted(theirs)
    # A broker that is alone does not set min.insync.replicas and unclean.leader.election.enable for its internal topics.
    internal = "/config/topics/__transaction_state"
    assert dict(ours[internal][0])["config"].items() <= dict(theirs.pop(internal)[0])["config"].items()
    for path, expected in theirs.items():
        assert ours[path] == expected, path
