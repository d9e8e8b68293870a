"""What the controller tells a broker: every version becomes the same values, and errors go where controllers look for them."""

from __future__ import annotations

from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.controller.channels import Stamp, Stop
from ottla.metadata.image import Endpoint, PartitionState, TopicImage
from ottla.model import Error, KafkaError, TopicPartition
from ottla.wire.apis.replication import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
    StopReplicaTopicV1,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from unit.api.handler_kit import Calls, ask

TOPIC_ID = bytes(range(16))
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
STAMP = Stamp(1, 5, 77)


def role(number: int, *, is_new: bool = False) -> LeaderAndIsrPartitionState:
    return LeaderAndIsrPartitionState(
        topic_name="t", partition_index=number, controller_epoch=4, leader=1, leader_epoch=3, isr=[1, 2], partition_epoch=9,
        replicas=[1, 2, 3], adding_replicas=[3], removing_replicas=[2], is_new=is_new,
    )  # fmt: skip


def hearing(replicas: Any) -> Any:
    """The services of a broker whose store knows the controller that speaks."""

    async def known(_epoch: int) -> None: ...

    return SimpleNamespace(replicas=replicas, check_controller=known)


def roles(version: int) -> LeaderAndIsrRequest:
    states = [role(0), role(1, is_new=True)]
    return LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=5,
        broker_epoch=77,
        ungrouped_partition_states=states if version < 2 else [],
        topic_states=[LeaderAndIsrTopicState(topic_name="t", topic_id=TOPIC_ID, partition_states=states)]
        if version > 1
        else [],
        live_leaders=[LeaderAndIsrLiveLeader(broker_id=1, host_name="a", port=9092)],
    )


def by_partition(response: Any, version: int) -> dict[int, int]:
    if version < 5:
        assert all(one.topic_name == "t" for one in response.partition_errors)
        return {one.partition_index: one.error_code for one in response.partition_errors}
    [topic] = response.topics
    assert topic.topic_id == TOPIC_ID
    return {one.partition_index: one.error_code for one in topic.partition_errors}


@pytest.mark.parametrize("version", range(8))
def test_roles(version: int) -> None:
    replicas = Calls(leader_and_isr={T1: Error.KAFKA_STORAGE_ERROR})
    response = ask(hearing(replicas), roles(version), LeaderAndIsrResponse, version)
    assert response.error_code == Error.NONE
    assert by_partition(response, version) == {0: Error.NONE, 1: Error.KAFKA_STORAGE_ERROR}
    moves = ((3,), (2,)) if version >= 3 else ((), ())
    state = PartitionState(1, 3, (1, 2), (1, 2, 3), 4, 9, *moves)
    [(_, stamp, topics, live, new)] = replicas.asked
    assert stamp == Stamp(1, 5, 77 if version >= 2 else -1)
    assert topics == [TopicImage("t", TOPIC_ID if version >= 5 else bytes(16), {0: state, 1: state})]
    assert live == {1}
    assert new == ({T1} if version >= 1 else set())


@pytest.mark.parametrize("error", [Error.STALE_CONTROLLER_EPOCH, Error.STALE_BROKER_EPOCH])
@pytest.mark.parametrize("version", range(8))
def test_roles_that_are_refused_whole(version: int, error: Error) -> None:
    services = hearing(Calls(leader_and_isr=KafkaError(error)))
    response = ask(services, roles(version), LeaderAndIsrResponse, version)
    assert response.error_code == error
    assert by_partition(response, version) == {0: error, 1: error}


def stops(version: int, delete: bool) -> StopReplicaRequest:
    fixed = {"controller_id": 1, "controller_epoch": 5, "broker_epoch": 77}
    if version == 0:
        old = [StopReplicaPartitionV0(topic_name="t", partition_index=number) for number in (0, 1)]
        return StopReplicaRequest(**fixed, delete_partitions=delete, ungrouped_partitions=old)
    if version < 3:
        topics = [StopReplicaTopicV1(name="t", partition_indexes=[0, 1])]
        return StopReplicaRequest(**fixed, delete_partitions=delete, topics=topics)
    states = [StopReplicaPartitionState(partition_index=number, leader_epoch=6, delete_partition=delete) for number in (0, 1)]
    return StopReplicaRequest(**fixed, topic_states=[StopReplicaTopicState(topic_name="t", partition_states=states)])


@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize("version", range(5))
def test_replicas_that_are_given_up(version: int, delete: bool) -> None:
    replicas = Calls(stop_replicas={T0: Error.FENCED_LEADER_EPOCH})
    response = ask(hearing(replicas), stops(version, delete), StopReplicaResponse, version)
    assert response.error_code == Error.NONE
    told = [(one.topic_name, one.partition_index, one.error_code) for one in response.partition_errors]
    assert told == [("t", 0, Error.FENCED_LEADER_EPOCH), ("t", 1, Error.NONE)]
    epoch = 6 if version >= 3 else -1
    stamp = STAMP if version else Stamp(1, 5, -1)
    assert replicas.asked == [("stop_replicas", stamp, [Stop(T0, epoch, delete), Stop(T1, epoch, delete)])]


def test_a_stop_from_an_old_controller_is_refused_whole() -> None:
    services = hearing(Calls(stop_replicas=KafkaError(Error.STALE_CONTROLLER_EPOCH)))
    response = ask(services, stops(4, True), StopReplicaResponse, 4)
    assert response.error_code == Error.STALE_CONTROLLER_EPOCH
    assert response.partition_errors == []


def known(number: int) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        topic_name="t", partition_index=number, controller_epoch=4, leader=2, leader_epoch=3, isr=[2], zk_version=8,
        replicas=[2, 1], offline_replicas=[1],
    )  # fmt: skip


def update(version: int) -> UpdateMetadataRequest:
    states = [known(0), known(1)]
    broker = UpdateMetadataBroker(
        id=2,
        v0_host="h",
        v0_port=9092,
        endpoints=[
            UpdateMetadataEndpoint(port=9092, host="h", listener="INTERNAL", security_protocol=0),
            UpdateMetadataEndpoint(port=9093, host="h", listener="OUTSIDE", security_protocol=3),
        ],
        rack="r",
    )
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=5,
        broker_epoch=77,
        ungrouped_partition_states=states if version < 5 else [],
        topic_states=[UpdateMetadataTopicState(topic_name="t", topic_id=TOPIC_ID, partition_states=states)]
        if version > 4
        else [],
        live_brokers=[broker],
    )


@pytest.mark.parametrize("version", range(9))
def test_metadata(version: int) -> None:
    replicas = Calls(update_metadata=None)
    response = ask(hearing(replicas), update(version), UpdateMetadataResponse, version)
    assert response.error_code == Error.NONE
    [(_, stamp, told)] = replicas.asked
    assert stamp == Stamp(1, 5, 77 if version >= 5 else -1)
    state = PartitionState(2, 3, (2,), (2, 1), 4, 8)
    assert told.controller_id == 1
    assert told.topics == [TopicImage("t", TOPIC_ID if version >= 7 else bytes(16), {0: state, 1: state})]
    plain, safe = Endpoint("h", 9092), Endpoint("h", 9093, "SASL_SSL")
    expected = (
        {"PLAINTEXT": plain} if version == 0
        else {"PLAINTEXT": plain, "SASL_SSL": safe} if version < 3
        else {"INTERNAL": plain, "OUTSIDE": safe}
    )  # fmt: skip
    assert told.brokers[2].endpoints == expected
    assert told.brokers[2].rack == ("r" if version >= 2 else None)


def test_metadata_for_an_earlier_life_are_refused() -> None:
    services = hearing(Calls(update_metadata=KafkaError(Error.STALE_BROKER_EPOCH)))
    assert ask(services, update(8), UpdateMetadataResponse, 8).error_code == Error.STALE_BROKER_EPOCH


@pytest.mark.parametrize("version", range(4))
def test_a_broker_that_leaves_is_told_what_it_still_leads(version: int) -> None:
    controller = Calls(controlled_shutdown={T1, T0})
    request = ControlledShutdownRequest(broker_id=3, broker_epoch=77)
    response = ask(SimpleNamespace(controller=controller), request, ControlledShutdownResponse, version)
    assert [(one.topic_name, one.partition_index) for one in response.remaining_partitions] == [T0, T1]
    assert controller.asked == [("controlled_shutdown", 3, 77 if version >= 2 else -1)]


@pytest.mark.parametrize(
    ("raised", "told"),
    [(Error.NOT_CONTROLLER, Error.STALE_CONTROLLER_EPOCH), (Error.STALE_BROKER_EPOCH, Error.STALE_BROKER_EPOCH)],
)
def test_a_broker_that_leaves_and_asks_in_vain(raised: Error, told: Error) -> None:
    services = SimpleNamespace(controller=Calls(controlled_shutdown=KafkaError(raised)))
    response = ask(services, ControlledShutdownRequest(broker_id=3, broker_epoch=77), ControlledShutdownResponse, 3)
    assert response.error_code == told


def test_ten_thousand_partitions_in_one_request() -> None:
    request = roles(7)
    request.topic_states = [
        LeaderAndIsrTopicState(topic_name=f"t{n}", topic_id=bytes([n]) * 16, partition_states=[role(p) for p in range(100)])
        for n in range(100)
    ]
    begin = perf_counter()
    response = ask(hearing(Calls(leader_and_isr={})), request, LeaderAndIsrResponse, 7)
    assert sum(len(topic.partition_errors) for topic in response.topics) == 10_000
    assert perf_counter() - begin < 2, "a generous bound: it takes about a tenth of a second"


@pytest.mark.parametrize("request_type", ["roles", "stops", "update"])
def test_word_of_a_controller_that_nobody_elected_changes_nothing(request_type: str) -> None:
    async def unknown(epoch: int) -> None:
        raise KafkaError(Error.STALE_CONTROLLER_EPOCH, f"no controller of epoch {epoch}")

    refused = AssertionError("nobody may be told")
    replicas = Calls(leader_and_isr=refused, stop_replicas=refused, update_metadata=refused)
    services = SimpleNamespace(replicas=replicas, check_controller=unknown)
    request, kind, version = {
        "roles": (roles(7), LeaderAndIsrResponse, 7),
        "stops": (stops(4, True), StopReplicaResponse, 4),
        "update": (update(8), UpdateMetadataResponse, 8),
    }[request_type]
    assert ask(services, request, kind, version).error_code == Error.STALE_CONTROLLER_EPOCH
