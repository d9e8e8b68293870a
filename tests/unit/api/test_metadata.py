"""Metadata as clients of a listener see it: who leads, who can be reached, and what is said where nobody does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.metadata.image import BrokerImage, Endpoint, Image, PartitionState, TopicImage
from ottla.model import Error
from ottla.wire.apis.metadata import MetadataRequest, MetadataResponse
from unit.api.handler_kit import ask

BROKERS = {
    1: BrokerImage(1, {"PLAINTEXT": Endpoint("one", 9091)}, "r"),
    2: BrokerImage(2, {"OTHER": Endpoint("two", 9092)}),
    3: BrokerImage(3, {"PLAINTEXT": Endpoint("three", 9093), "OTHER": Endpoint("x", 1)}),
}


def described(version: int, leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> tuple[Any, Any]:
    topic = TopicImage("t", b"t" * 16, {0: PartitionState(leader, 7, isr, replicas)})
    image = Image(controller_id=3, brokers=BROKERS).with_topics([topic])
    services = SimpleNamespace(broker_id=1, cluster_id="c", metadata=SimpleNamespace(image=image))
    request = MetadataRequest(topics=None if version else [])
    response = ask(services, request, MetadataResponse, version)
    return response, response.topics[0].partitions[0]


@pytest.mark.parametrize(
    ("version", "leader", "error", "told"),
    [
        (12, 1, Error.NONE, 1),
        (0, 1, Error.NONE, 1),
        (12, 9, Error.LEADER_NOT_AVAILABLE, -1),
        (12, -1, Error.LEADER_NOT_AVAILABLE, -1),
        (12, 2, Error.LISTENER_NOT_FOUND, -1),
        (5, 2, Error.LEADER_NOT_AVAILABLE, -1),
    ],
)
def test_leaders(version: int, leader: int, error: Error, told: int) -> None:
    _, partition = described(version, leader, (1, 3), (1, 3))
    assert (partition.error_code, partition.leader_id) == (error, told)
    assert partition.leader_epoch == (7 if version >= 7 else -1)


@pytest.mark.parametrize(
    ("version", "error", "replicas", "isr", "offline"),
    [
        (0, Error.REPLICA_NOT_AVAILABLE, [1], [1], []),
        (1, Error.NONE, [1, 2, 9], [1, 9], []),
        (5, Error.NONE, [1, 2, 9], [1, 9], [2, 9]),
    ],
)
def test_replicas_out_of_reach(version: int, error: Error, replicas: list[int], isr: list[int], offline: list[int]) -> None:
    _, partition = described(version, 1, (1, 2, 9), (1, 9))
    assert partition.error_code == error
    assert (list(partition.replica_nodes), list(partition.isr_nodes)) == (replicas, isr)
    assert list(partition.offline_replicas) == offline


def test_brokers_and_controller() -> None:
    response, _ = described(12, 1, (1,), (1,))
    brokers = {one.node_id: (one.host, one.port, one.rack) for one in response.brokers}
    assert brokers == {1: ("one", 9091, "r"), 3: ("three", 9093, None)}
    assert response.controller_id == 3
