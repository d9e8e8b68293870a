"""What leaders and operators ask of the controller: values in, outcomes out, and NOT_CONTROLLER wherever it is looked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.metadata.image import Image, PartitionState, TopicImage
from ottla.model import Error, KafkaError, TopicPartition
from ottla.replication.isr import IsrOutcome, IsrProposal
from ottla.wire.apis.reassignment import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.apis.replication import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    BrokerState,
)
from ottla.wire.apis.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from unit.api.handler_kit import Calls, ask

TOPIC_ID, OTHER_ID = bytes(range(16)), bytes(16 * [9])
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
IMAGE = Image().with_topics([TopicImage("t", TOPIC_ID, {})])
NOT_CONTROLLER = KafkaError(Error.NOT_CONTROLLER, "no")


def services(**answers: Any) -> SimpleNamespace:
    return SimpleNamespace(controller=Calls(**answers), metadata=SimpleNamespace(image=IMAGE))


def alter(version: int) -> AlterPartitionRequest:
    def partition(number: int) -> AlterPartitionRequestPartition:
        return AlterPartitionRequestPartition(
            partition_index=number,
            leader_epoch=3,
            new_isr=[1, 2],
            new_isr_with_epochs=[BrokerState(broker_id=1, broker_epoch=11), BrokerState(broker_id=2, broker_epoch=-1)],
            partition_epoch=8,
        )

    return AlterPartitionRequest(
        broker_id=1,
        broker_epoch=11,
        topics=[
            AlterPartitionRequestTopic(topic_name="t", topic_id=TOPIC_ID, partitions=[partition(0), partition(1)]),
            AlterPartitionRequestTopic(topic_name="gone", topic_id=OTHER_ID, partitions=[partition(0)]),
        ],
    )


@pytest.mark.parametrize("version", range(4))
def test_a_leader_asks_for_another_isr(version: int) -> None:
    known = services(
        topic_names={TOPIC_ID: "t"},
        alter_partitions={T0: IsrOutcome(Error.NONE, 1, 3, (1, 2), 9), T1: IsrOutcome(Error.INVALID_UPDATE_VERSION)},
    )
    known.metadata.image = Image()  # our own broker has not heard of the topic yet: the controller's word counts
    response = ask(known, alter(version), AlterPartitionResponse, version)
    _, broker, epoch, proposals = known.controller.asked[-1]
    assert (broker, epoch) == (1, 11)
    epochs = {1: 11, 2: -1} if version >= 3 else {}
    topic_id = TOPIC_ID if version >= 2 else bytes(16)
    assert proposals[:2] == [IsrProposal(tp, topic_id, 3, (1, 2), 8, epochs) for tp in (T0, T1)]
    first, second = response.topics
    good, bad = first.partitions
    assert (good.error_code, good.leader_id, good.leader_epoch, list(good.isr), good.partition_epoch) == (0, 1, 3, [1, 2], 9)
    assert (bad.error_code, bad.leader_id, list(bad.isr)) == (Error.INVALID_UPDATE_VERSION, 0, [])
    unknown = Error.UNKNOWN_TOPIC_ID if version >= 2 else Error.UNKNOWN_TOPIC_OR_PARTITION
    assert [one.error_code for one in second.partitions] == [unknown]
    assert (second.topic_id, second.topic_name) == ((OTHER_ID, "") if version >= 2 else (bytes(16), "gone"))


@pytest.mark.parametrize("error", [Error.NOT_CONTROLLER, Error.STALE_BROKER_EPOCH])
def test_a_leader_is_refused_whole(error: Error) -> None:
    response = ask(services(topic_names={}, alter_partitions=KafkaError(error)), alter(3), AlterPartitionResponse, 3)
    assert response.error_code == error
    assert response.topics == []


def elections(response: Any) -> dict[TopicPartition, tuple[int, str | None]]:
    return {
        TopicPartition(topic.topic, one.partition_id): (one.error_code, one.error_message)
        for topic in response.replica_election_results
        for one in topic.partition_result
    }


@pytest.mark.parametrize("version", range(3))
def test_leaders_on_request(version: int) -> None:
    known = services(elect_leaders={T0: None, T1: KafkaError(Error.ELECTION_NOT_NEEDED, "it leads")})
    asked = [ElectLeadersTopic(topic="t", partitions=[0, 1])]
    request = ElectLeadersRequest(election_type=1, topic_partitions=asked)
    response = ask(known, request, ElectLeadersResponse, version)
    assert elections(response) == {T0: (0, None), T1: (Error.ELECTION_NOT_NEEDED, "it leads")}
    assert known.controller.asked == [("elect_leaders", version >= 1, [T0, T1])]


def test_of_all_leaders_only_changes_are_told() -> None:
    known = services(
        elect_leaders={
            T0: None,
            T1: KafkaError(Error.ELECTION_NOT_NEEDED),
            T2: KafkaError(Error.PREFERRED_LEADER_NOT_AVAILABLE, "down"),
        }
    )
    response = ask(known, ElectLeadersRequest(topic_partitions=None), ElectLeadersResponse, 2)
    assert elections(response) == {T0: (0, None), T2: (Error.PREFERRED_LEADER_NOT_AVAILABLE, "down")}
    assert known.controller.asked == [("elect_leaders", False, None)]


@pytest.mark.parametrize("version", range(3))
def test_leaders_are_asked_of_a_broker_that_is_not_the_controller(version: int) -> None:
    asked = [ElectLeadersTopic(topic="t", partitions=[0])]
    response = ask(
        services(elect_leaders=NOT_CONTROLLER), ElectLeadersRequest(topic_partitions=asked), ElectLeadersResponse, version
    )
    assert response.error_code == (Error.NOT_CONTROLLER if version else 0)
    assert elections(response) == {T0: (Error.NOT_CONTROLLER, "no")}


def test_an_election_of_a_kind_that_there_is_not() -> None:
    assert ask(services(), ElectLeadersRequest(election_type=7), ElectLeadersResponse, 2).error_code == Error.INVALID_REQUEST


def moves() -> AlterPartitionReassignmentsRequest:
    wanted = [
        ReassignablePartition(partition_index=0, replicas=[2, 3]),
        ReassignablePartition(partition_index=1, replicas=None),
    ]
    return AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=wanted)])


def reassigned(response: Any) -> dict[TopicPartition, tuple[int, str | None]]:
    return {
        TopicPartition(topic.name, one.partition_index): (one.error_code, one.error_message)
        for topic in response.responses
        for one in topic.partitions
    }


def test_replicas_are_moved_and_called_back() -> None:
    known = services(reassign={T0: None, T1: KafkaError(Error.NO_REASSIGNMENT_IN_PROGRESS, "none")})
    response = ask(known, moves(), AlterPartitionReassignmentsResponse, 0)
    assert (response.error_code, response.error_message) == (0, None)
    assert reassigned(response) == {T0: (0, None), T1: (Error.NO_REASSIGNMENT_IN_PROGRESS, "none")}
    assert known.controller.asked == [("reassign", {T0: (2, 3), T1: None})]


def test_moves_are_asked_of_a_broker_that_is_not_the_controller() -> None:
    response = ask(services(reassign=NOT_CONTROLLER), moves(), AlterPartitionReassignmentsResponse, 0)
    assert (response.error_code, response.error_message) == (Error.NOT_CONTROLLER, "no")
    assert reassigned(response) == dict.fromkeys((T0, T1), (Error.NOT_CONTROLLER, "no"))


@pytest.mark.parametrize("asked", [None, [T0]])
def test_what_moves(asked: list[TopicPartition] | None) -> None:
    known = services(reassignments={T0: PartitionState(1, 3, (1,), (1, 2, 3), adding=(3,), removing=(2,))})
    topics = None if asked is None else [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]
    response = ask(known, ListPartitionReassignmentsRequest(topics=topics), ListPartitionReassignmentsResponse, 0)
    [topic] = response.topics
    [one] = topic.partitions
    assert (topic.name, one.partition_index) == T0
    assert (list(one.replicas), list(one.adding_replicas), list(one.removing_replicas)) == ([1, 2, 3], [3], [2])
    assert known.controller.asked == [("reassignments", asked)]


def test_what_moves_is_asked_of_a_broker_that_is_not_the_controller() -> None:
    request = ListPartitionReassignmentsRequest(topics=None)
    response = ask(services(reassignments=NOT_CONTROLLER), request, ListPartitionReassignmentsResponse, 0)
    assert (response.error_code, response.error_message) == (Error.NOT_CONTROLLER, "no")


# Topics, asked of a broker that is not the controller


def elsewhere(**answers: Any) -> SimpleNamespace:
    made_up = services(**answers)
    made_up.controller.active = False
    made_up.config = SimpleNamespace(integer=lambda _name: 1, flag=lambda _name: False)
    return made_up


@pytest.mark.parametrize("version", range(8))
def test_create_topics_elsewhere(version: int) -> None:
    wanted = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("a", "b")]
    response = ask(elsewhere(create_topics=NOT_CONTROLLER), CreateTopicsRequest(topics=wanted), CreateTopicsResponse, version)
    assert {one.name: one.error_code for one in response.topics} == dict.fromkeys("ab", Error.NOT_CONTROLLER)


@pytest.mark.parametrize("version", [1, 5, 6])
def test_delete_topics_elsewhere(version: int) -> None:
    """Also where topics may not be deleted at all: that is for the controller to say."""
    if version < 6:
        request = DeleteTopicsRequest(topic_names=["a"])
    else:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="a"), DeleteTopicState(topic_id=TOPIC_ID)])
    response = ask(elsewhere(), request, DeleteTopicsResponse, version)
    told = {(one.name, one.topic_id): one.error_code for one in response.responses}
    by_id = {(None, TOPIC_ID): Error.NOT_CONTROLLER} if version >= 6 else {}
    assert told == {("a", bytes(16)): Error.NOT_CONTROLLER} | by_id


def test_create_partitions_elsewhere() -> None:
    request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)])
    response = ask(elsewhere(create_partitions=NOT_CONTROLLER), request, CreatePartitionsResponse, 3)
    assert [(one.name, one.error_code) for one in response.results] == [("t", Error.NOT_CONTROLLER)]
