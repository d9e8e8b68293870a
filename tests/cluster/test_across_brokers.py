"""What one broker could never get wrong: transactions, groups and topics whose parts lie on different brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker import Broker
from ottla.model import TopicPartition as Ours
from ottla.testing import Cluster
from ottla.wire.apis import ApiKey
from robustness.raw import wait_until

PARTITIONS = 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"offsets.topic.num.partitions": 6, "transaction.state.log.num.partitions": 6, "log.cleaner.enable": False}
    with Cluster(3, {**settings, "default.replication.factor": 1}, directory=tmp_path_factory.mktemp("brokers")) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(name, PARTITIONS, 3)])[name].result(20)
    return name


def asked(cluster: Cluster, api: ApiKey) -> int:
    """How often brokers were asked something, all together."""
    return sum(
        cluster.brokers[one].run_on_loop(lambda broker: sum(broker._registry.counters[api].requests.values()))
        for one in cluster.brokers
    )


def committed_values(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"readers of {topic}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    values: list[bytes] = []
    ends = 0
    while ends < PARTITIONS and len(values) <= count:
        message = consumer.poll(20)
        assert message is not None, f"{len(values)} of {count} values came"
        if message.error():
            ends += 1
        else:
            values.append(message.value())
    consumer.close()
    return values


def test_transactions_whose_coordinator_is_another_broker(cluster: Cluster, topic: str) -> None:
    verified, ended = asked(cluster, ApiKey.ADD_PARTITIONS_TO_TXN), asked(cluster, ApiKey.WRITE_TXN_MARKERS)
    expected: list[bytes] = []
    for number in range(6):  # their coordinators are on all brokers
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"{topic} {number}"})
        producer.init_transactions(20)
        for round_ in range(4):
            producer.begin_transaction()
            values = [b"%d %d %d" % (number, round_, partition) for partition in range(PARTITIONS)]
            for partition, value in enumerate(values):
                producer.produce(topic, value, partition=partition)
            assert producer.flush(20) == 0
            if round_ % 2:
                producer.abort_transaction(20)
            else:
                producer.commit_transaction(20)
                expected += values
    assert Counter(committed_values(cluster, topic, len(expected))) == Counter(expected)
    assert asked(cluster, ApiKey.ADD_PARTITIONS_TO_TXN) - verified > 6 * 4, "coordinators were asked by leaders too"
    assert asked(cluster, ApiKey.WRITE_TXN_MARKERS) > ended
    assert all(cluster.brokers[one].run_on_loop(lambda broker: len(broker.services.guards)) == 0 for one in cluster.brokers)


def test_offsets_in_transactions(cluster: Cluster, topic: str) -> None:
    """Group coordinator, transaction coordinator and leaders are all over the cluster."""
    for number in range(4):
        settings = {"bootstrap.servers": cluster.bootstrap_servers}
        consumer = Consumer({**settings, "group.id": f"{topic} {number}"})
        producer = Producer({**settings, "transactional.id": f"{topic} {number}"})
        producer.init_transactions(20)
        for commits, offset in [(True, 5), (False, 9)]:
            producer.begin_transaction()
            producer.produce(topic, b"v", partition=number)
            assert producer.flush(20) == 0
            offsets = [TopicPartition(topic, partition, offset) for partition in range(3)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 20)
            if commits:
                producer.commit_transaction(20)
            else:
                producer.abort_transaction(20)
        found = consumer.committed([TopicPartition(topic, partition) for partition in range(3)], 20)
        assert [one.offset for one in found] == [5, 5, 5]
        consumer.close()


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_every_broker_creates_topics_that_are_asked_for(cluster: Cluster, broker: int) -> None:
    name = f"asked-for-at-{broker}"
    producer = Producer({"bootstrap.servers": cluster.brokers[broker].bootstrap_servers})
    producer.produce(name, b"v")
    assert producer.flush(20) == 0
    assert cluster.brokers[broker].run_on_loop(lambda real: name in real.services.metadata.image.topics)


def test_offsets_of_a_deleted_topic_go_wherever_their_group_lives(cluster: Cluster, topic: str) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap_servers}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("short-lived", 1, 1)])["short-lived"].result(20)
    groups = [f"{topic} {number}" for number in range(6)]
    for group in groups:
        consumer = Consumer({**settings, "group.id": group})
        consumer.commit(offsets=[TopicPartition("short-lived", 0, 7), TopicPartition(topic, 0, 8)], asynchronous=False)
        consumer.close()
    admin.delete_topics(["short-lived"])["short-lived"].result(20)

    def left(broker: Broker) -> set[Ours]:
        shards = broker.services.groups._runtime.states()
        return {tp for shard in shards for group in groups for tp in shard.offsets.of(group)}

    wait_until(lambda: set().union(*(cluster.brokers[one].run_on_loop(left) for one in cluster.brokers)) == {Ours(topic, 0)})
