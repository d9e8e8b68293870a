"""What commands and the console ask of a cluster, at Ottla and at Apache Kafka."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

import confluent_kafka
import pytest

from ottla.client import ClientError, Cluster, TopicPartition, UnknownTopic
from ottla.client.admin.configs import APPEND, BROKER, DELETE, TOPIC, Change, alter_configs, describe_configs
from ottla.client.admin.disks import describe_log_dirs
from ottla.client.admin.groups import (
    Committed,
    commit_offsets,
    committed_offsets,
    committed_offsets_of,
    delete_groups,
    delete_offsets,
    describe_groups,
    list_groups,
)
from ottla.client.admin.nodes import api_versions, check_broker, describe_cluster
from ottla.client.admin.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, Found, find_offsets, list_offsets, try_offsets
from ottla.client.admin.topics import (
    TO_HIGH_WATERMARK,
    NewTopic,
    alter_reassignments,
    create_partitions,
    create_topic,
    create_topics,
    delete_records,
    delete_topics,
    elect_leaders,
    list_reassignments,
)
from ottla.client.admin.transactions import describe_producers, list_transactions
from ottla.client.admin.users import (
    MECHANISMS,
    Anyone,
    NewCredential,
    alter_quotas,
    alter_users,
    describe_quotas,
    describe_users,
)
from ottla.model import Error


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:10]}"


def write(cluster: Cluster, topic: str, partition: int, *stamps: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": str(cluster.settings.bootstrap[0]), "log_level": 0})
    for stamp in stamps:
        producer.produce(topic, b"v", partition=partition, timestamp=stamp)
    assert producer.flush(30) == 0


def of(name: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(name, number) for number in numbers]


def error_of(outcome: object) -> Error | None:
    return outcome.error if isinstance(outcome, ClientError) else None


def test_topics_from_making_to_deleting(cluster: Cluster, name: str) -> None:
    broker = next(iter(cluster.brokers()))
    wanted = [
        NewTopic(name, 2, 1, {"retention.ms": 1000}),
        NewTopic(name + "-placed", assignment=[[broker], [broker], [broker]]),
    ]
    assert create_topics(cluster, wanted) == {name: None, name + "-placed": None}
    assert error_of(create_topics(cluster, wanted)[name]) == Error.TOPIC_ALREADY_EXISTS
    with pytest.raises(ClientError, match=f"Topic {name} was not created: TOPIC_ALREADY_EXISTS"):
        create_topic(cluster, name)
    assert len(cluster.topics([name + "-placed"])[name + "-placed"].partitions) == 3
    assert create_partitions(cluster, {name: 3}, {name: [[broker]]}) == {name: None}
    assert error_of(create_partitions(cluster, {name: 2})[name]) == Error.INVALID_PARTITIONS
    assert cluster.topic(name, fresh=True).partitions[2].replicas == (broker,)
    gone = delete_topics(cluster, [name, name + "-placed", name + "-nope"])
    assert (gone[name], gone[name + "-placed"]) == (None, None)
    assert isinstance(gone[name + "-nope"], UnknownTopic)


def test_offsets_and_the_deletion_of_records(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name, 2, 1)
    first, second = of(name, 0, 1)
    write(cluster, name, 0, 1000, 3000, 2000)
    assert list_offsets(cluster, {first: LATEST, second: LATEST}) == {first: 3, second: 0}
    assert find_offsets(cluster, {first: MAX_TIMESTAMP}) == {first: Found(1, 3000)}
    assert find_offsets(cluster, {first: 1500, second: 1500}) == {first: Found(1, 3000), second: Found(-1, -1)}
    deleted = delete_records(cluster, {first: 2, second: 5})
    assert deleted[first] == 2
    assert error_of(deleted[second]) == Error.OFFSET_OUT_OF_RANGE
    assert delete_records(cluster, {first: TO_HIGH_WATERMARK}) == {first: 3}
    assert try_offsets(cluster, {first: EARLIEST}) == {first: Found(3, -1)}


def test_settings(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name, 1, 1, {"retention.ms": 1000})
    resource = TOPIC, name
    found = {one.name: one for one in describe_configs(cluster, [resource])[resource]}
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("1000", "DYNAMIC_TOPIC_CONFIG")
    assert found["segment.bytes"].is_default
    changes = [Change("retention.ms", None, DELETE), Change("cleanup.policy", "compact", APPEND)]
    assert alter_configs(cluster, {resource: changes}) == {resource: None}
    found = {one.name: one for one in describe_configs(cluster, [resource], names=["cleanup.policy", "retention.ms"])[resource]}
    assert {key: one.value for key, one in found.items()} == {"cleanup.policy": "delete,compact", "retention.ms": "604800000"}
    broker = BROKER, str(next(iter(cluster.brokers())))
    both = describe_configs(cluster, [resource, broker])
    assert "log.dirs" in {one.name for one in both[broker]}
    refused = alter_configs(cluster, {resource: [Change("retention.ms", "soon")], broker: [Change("broker.id", "9")]})
    assert {error_of(one) for one in refused.values()} <= {Error.INVALID_CONFIG, Error.INVALID_REQUEST}
    with pytest.raises(UnknownTopic, match="Topic nope does not exist"):
        describe_configs(cluster, [(TOPIC, "nope")])
    with pytest.raises(ClientError, match="'x' is not the id of a broker"):
        describe_configs(cluster, [(BROKER, "x")])


@contextlib.contextmanager
def member(cluster: Cluster, topic: str, group: str) -> Iterator[None]:
    settings = {"bootstrap.servers": str(cluster.settings.bootstrap[0]), "group.id": group, "client.id": "me", "log_level": 0}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    try:
        yield
    finally:
        consumer.close()


def test_groups_with_and_without_members(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name, 2, 1)
    live, idle, gone = (f"{name}-{kind}" for kind in ("live", "idle", "gone"))
    first, second = of(name, 0, 1)
    commit_offsets(cluster, idle, {first: Committed(0, "here"), second: 0})
    with member(cluster, name, live):
        listed = {one.id: one for one in list_groups(cluster)}
        assert (listed[live].state, listed[idle].state) == ("Stable", "Empty")
        assert live in {one.id for one in list_groups(cluster, states=["Stable"])}
        assert idle not in {one.id for one in list_groups(cluster, states=["Stable"])}
        described = describe_groups(cluster, [gone, live, idle])
        assert [(one.id, one.state, one.type) for one in described.values()] == [
            (gone, "Dead", "Classic"),
            (live, "Stable", "Classic"),
            (idle, "Empty", "Classic"),
        ]
        (only,) = described[live].members
        assert (only.client_id, sorted(only.assignment), described[live].assignor) == ("me", [first, second], "range")
        assert error_of(delete_groups(cluster, [live])[live]) == Error.NON_EMPTY_GROUP
        assert error_of(delete_offsets(cluster, live, [first])[first]) == Error.GROUP_SUBSCRIBED_TO_TOPIC
    assert committed_offsets(cluster, idle)[first][:2] == (0, "here")
    assert set(committed_offsets_of(cluster, [idle, gone])[idle]) == {first, second}
    assert committed_offsets_of(cluster, [idle, gone])[gone] == {}
    assert delete_offsets(cluster, idle, [first]) == {first: None}
    assert set(committed_offsets(cluster, idle)) == {second}
    outcome = delete_groups(cluster, [idle, gone])
    assert (outcome[idle], error_of(outcome[gone])) == (None, Error.GROUP_ID_NOT_FOUND)


def test_brokers_disks_leaders_and_producers(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name, 1, 1)
    (place,) = of(name, 0)
    write(cluster, name, 0, 1000)
    found = describe_cluster(cluster)
    (node,) = found.brokers
    assert (found.controller, len(found.id or "")) == (node.id, 22)
    assert (node.host, node.port) == ("127.0.0.1", cluster.settings.bootstrap[0].port)
    assert api_versions(cluster, node.id)[18].last >= 3
    with pytest.raises(ClientError, match=f"Broker 77 is not in the cluster: brokers that are alive are {node.id}"):
        check_broker(cluster, 77)
    (directory,) = describe_log_dirs(cluster)[node.id]
    assert (directory.error, directory.total_bytes > directory.usable_bytes > 0) == (Error.NONE, True)
    (replica,) = (one for one in directory.replicas if one.partition == place)
    assert (replica.size > 0, replica.lag, replica.future) == (True, 0, False)
    assert describe_log_dirs(cluster, [node.id], [place])[node.id][0].replicas == (replica,)
    assert error_of(elect_leaders(cluster, partitions=[place])[place]) == Error.ELECTION_NOT_NEEDED
    assert alter_reassignments(cluster, {place: [node.id]}) == {place: None}
    assert error_of(alter_reassignments(cluster, {place: [node.id, 77]})[place]) == Error.INVALID_REPLICA_ASSIGNMENT
    assert list_reassignments(cluster, [place]) == {}
    assert list(describe_producers(cluster, [place])) == [place]
    assert list_transactions(cluster, producers=[123456]) == []


@pytest.mark.java
def test_quotas_and_users_of_apache_kafka(apache: object, name: str) -> None:
    with Cluster(apache.plaintext) as cluster:  # type: ignore[attr-defined]
        entity = (("client-id", name),)
        assert alter_quotas(cluster, {entity: {"producer_byte_rate": 1024.0}}) == {entity: None}
        assert describe_quotas(cluster, {"client-id": name}) == {entity: {"producer_byte_rate": 1024.0}}
        assert entity in describe_quotas(cluster, {"client-id": Anyone()}, strict=True)
        assert alter_quotas(cluster, {entity: {"producer_byte_rate": None}}) == {entity: None}
        assert entity not in describe_quotas(cluster, {"client-id": Anyone()})
        for mechanism in MECHANISMS:
            assert alter_users(cluster, [NewCredential(name, mechanism, 4096, "secret")]) == {name: None}
        assert {one.mechanism for one in describe_users(cluster, [name])[name]} == set(MECHANISMS)
        assert alter_users(cluster, deletions=[(name, one) for one in MECHANISMS]) == {name: None}
        assert describe_users(cluster, [name]) == {name: ()}
