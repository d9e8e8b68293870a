"""Nodes exactly as Apache Kafka 3.9.1 wrote them into its ZooKeeper, read from there with a ZooKeeper client."""

from __future__ import annotations

import json

import pytest

from ottla.metadata import znodes
from ottla.metadata.znodes import BrokerNode, ControllerNode, PartitionStateNode, ProducerIdBlock, TopicNode

BROKER = (
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://127.0.0.1:19492"],'
    b'"jmx_port":-1,"port":19492,"host":"127.0.0.1","version":5,"timestamp":"1794819666479"}'
)
BROKER_IN_RACK = (
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://localhost:19492"],'
    b'"rack":"r1","jmx_port":-1,"port":19492,"host":"localhost","version":5,"timestamp":"1794819781289"}'
)
GROWN_TOPIC = (
    b'{"partitions":{"0":[1],"1":[1],"2":[1]},"topic_id":"YKuIgAE5TJqD2XC7jpat6Q",'
    b'"adding_replicas":{},"removing_replicas":{},"version":3}'
)
WIDE_TOPIC = (
    b'{"partitions":{"11":[1],"0":[1],"1":[1],"2":[1],"3":[1],"4":[1],"5":[1],"6":[1],"7":[1],"8":[1],"9":[1],"10":[1]},'
    b'"topic_id":"CsPjCkY7QeaU_Sr5NzVT6Q","adding_replicas":{},"removing_replicas":{},"version":3}'
)
STATE = b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}'
CLUSTER = b'{"version":"1","id":"8dFIDRO3QSWXPhyMMo-08w"}'
CONFIG = b'{"version":1,"config":{"cleanup.policy":"compact","retention.ms":"60000"}}'
NO_CONFIG = b'{"version":1,"config":{}}'
CONTROLLER = b'{"version":2,"brokerid":1,"timestamp":"1794819666603","kraftControllerEpoch":-1}'
BLOCK = b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'


@pytest.mark.parametrize(
    ("node", "data"),
    [
        (BrokerNode(1, ("PLAINTEXT://127.0.0.1:19492",), {"PLAINTEXT": "PLAINTEXT"}, 1794819666479), BROKER),
        (BrokerNode(1, ("PLAINTEXT://localhost:19492",), {"PLAINTEXT": "PLAINTEXT"}, 1794819781289, "r1"), BROKER_IN_RACK),
        (TopicNode("plain", znodes.decode_id("YKuIgAE5TJqD2XC7jpat6Q"), {0: (1,), 1: (1,), 2: (1,)}), GROWN_TOPIC),
        (PartitionStateNode(1, 0, (1,), 1), STATE),
        (ControllerNode(1, 1794819666603), CONTROLLER),
        (ProducerIdBlock(1, 0, 999), BLOCK),
    ],
    ids=["broker", "broker in a rack", "topic", "partition state", "controller", "producer ids"],
)
def test_byte_for_byte(
    node: BrokerNode | TopicNode | PartitionStateNode | ControllerNode | ProducerIdBlock, data: bytes
) -> None:
    assert node.encode() == data


def test_the_small_ones_byte_for_byte() -> None:
    assert znodes.encode_cluster_id("8dFIDRO3QSWXPhyMMo-08w") == CLUSTER
    assert znodes.encode_config({"cleanup.policy": "compact", "retention.ms": "60000"}) == CONFIG
    assert znodes.encode_config({}) == NO_CONFIG
    assert znodes.partition_state_path("plain", 2) == "/brokers/topics/plain/partitions/2/state"


def test_what_apache_kafka_wrote_is_read() -> None:
    assert BrokerNode.decode(1, BROKER_IN_RACK).rack == "r1"
    assert BrokerNode.decode(1, BROKER).endpoints == ("PLAINTEXT://127.0.0.1:19492",)
    wide = TopicNode.decode("orders", WIDE_TOPIC)
    assert wide.partitions == dict.fromkeys(range(12), (1,))
    assert json.loads(wide.encode()) == json.loads(WIDE_TOPIC)
    assert PartitionStateNode.decode(STATE) == PartitionStateNode(1, 0, (1,), 1)
    assert ControllerNode.decode(CONTROLLER) == ControllerNode(1, 1794819666603)
    assert znodes.decode_cluster_id(CLUSTER) == "8dFIDRO3QSWXPhyMMo-08w"
    assert znodes.decode_config(CONFIG) == {"cleanup.policy": "compact", "retention.ms": "60000"}
    assert ProducerIdBlock.decode(BLOCK) == ProducerIdBlock(1, 0, 999)


def test_a_topic_that_is_being_moved() -> None:
    moving = TopicNode("t", bytes(range(16)), {0: (1, 2, 3)}, adding={0: (3,)}, removing={0: (1,)})
    assert TopicNode.decode("t", moving.encode()) == moving


def test_a_topic_from_before_there_were_ids() -> None:
    assert TopicNode.decode("t", b'{"version":1,"partitions":{"0":[1]}}').topic_id == bytes(16)


@pytest.mark.parametrize("value", [bytes(16), bytes(range(16)), b"\xff" * 16])
def test_ids_as_text(value: bytes) -> None:
    text = znodes.encode_id(value)
    assert len(text) == 22
    assert znodes.decode_id(text) == value


def test_an_address_with_colons() -> None:
    node = json.loads(BrokerNode(1, ("PLAINTEXT://[::1]:9092",), {"PLAINTEXT": "PLAINTEXT"}, 0).encode())
    assert (node["host"], node["port"]) == ("::1", 9092)
