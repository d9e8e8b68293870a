"""Changes that are asked for again: what has an outcome is left alone, and a lost answer is not taken for a refusal."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import pytest

from ottla.client.admin.groups import delete_groups
from ottla.client.admin.offsets import EARLIEST, list_offsets, try_offsets
from ottla.client.admin.topics import (
    TO_HIGH_WATERMARK,
    NewTopic,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
)
from ottla.client.cluster import GROUP, Cluster, PartitionInfo, TopicInfo
from ottla.client.connection import Connection
from ottla.client.errors import BrokerUnreachable, ClientError, UnknownTopic
from ottla.client.settings import Address
from ottla.model import Error, TopicPartition
from ottla.wire.apis.groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ottla.wire.apis.offsets import ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse
from ottla.wire.apis.topics import (
    CreatableTopicResult,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.wire.schema import Request, Response

A, B, C = (TopicPartition("t", number) for number in range(3))
HUNG_UP = BrokerUnreachable("hung up")


class Line(Connection):
    """A broker at the other end that answers what it was told to, in this order."""

    def __init__(self, broker: int, answers: Sequence[Response | BrokerUnreachable]) -> None:
        self.address = Address("broker", broker)
        self.closed = False
        self.deaf = 0  # so many requests cannot be sent
        self.heard: list[Request] = []
        self._answers = list(answers)
        self._pending = deque()

    def send(self, request: Request, **_: object) -> int:
        if self.deaf:
            self.deaf -= 1
            raise HUNG_UP
        self.heard.append(request)
        return 0

    def receive(self, *_: object) -> Response:
        answer = self._answers.pop(0)
        if isinstance(answer, BrokerUnreachable):
            raise answer
        return answer


class Scripted(Cluster):
    """Brokers with fixed answers; broker 1 is the controller, and partitions and groups belong to whom `owners` says."""

    def __init__(
        self,
        answers: Mapping[int, Sequence[Response | BrokerUnreachable]],
        owners: Mapping[object, int] | None = None,
        patience_ms: int = 60_000,
    ) -> None:
        super().__init__({"bootstrap.servers": "broker:1", "retry.backoff.ms": 1, "default.api.timeout.ms": patience_ms})
        self.lines = {broker: Line(broker, script) for broker, script in answers.items()}
        self._nodes = {broker: line.address for broker, line in self.lines.items()}
        self._owners = owners or {}
        self.partitions = 0
        self.looks, self.gone_after = 0, 100  # how often leaders were looked up, and may be until metadata drops the topic

    def _open(self, address: Address, broker: int | None) -> Connection:
        return self.lines[address.port]

    def controller(self) -> int:
        return 1

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicInfo]:
        some = PartitionInfo(1, 0, (1,), (1,))
        return {name: TopicInfo(name, bytes(16), False, dict.fromkeys(range(self.partitions), some)) for name in names or ()}

    def leaders(self, partitions: Sequence[TopicPartition], since: float | None = None) -> dict[TopicPartition, int]:
        self.looks += 1
        if self.looks > self.gone_after:
            raise UnknownTopic("gone")
        return {tp: self._owners[tp] for tp in partitions}

    def coordinators(self, keys: Sequence[str], kind: int = GROUP) -> dict[str, int]:
        return {key: self._owners[key] for key in keys}


def emptied(*results: tuple[TopicPartition, int, Error]) -> DeleteRecordsResponse:
    partitions = [
        DeleteRecordsPartitionResult(partition_index=tp.partition, low_watermark=low, error_code=error)
        for tp, low, error in results
    ]
    return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name="t", partitions=partitions)])


def emptied_by(line: Line) -> list[list[int]]:
    return [
        [one.partition_index for topic in request.topics for one in topic.partitions]
        for request in line.heard
        if isinstance(request, DeleteRecordsRequest)
    ]


def test_records_are_deleted_once_where_another_partition_has_to_be_asked_again() -> None:
    first = emptied((A, -1, Error.NOT_LEADER_OR_FOLLOWER), (B, 5, Error.NONE))
    with Scripted(
        {1: [first, emptied((A, 7, Error.NONE))], 2: [emptied((C, -1, Error.OFFSET_OUT_OF_RANGE))]}, {A: 1, B: 1, C: 2}
    ) as cluster:
        found = delete_records(cluster, dict.fromkeys((A, B, C), TO_HIGH_WATERMARK))
        assert (found[A], found[B]) == (7, 5)
        assert isinstance(found[C], ClientError)
        assert (emptied_by(cluster.lines[1]), emptied_by(cluster.lines[2])) == ([[0, 1], [0]], [[2]])


def test_records_are_deleted_once_where_another_broker_is_lost() -> None:
    with Scripted({1: [HUNG_UP, emptied((A, 7, Error.NONE))], 2: [emptied((C, 9, Error.NONE))]}, {A: 1, C: 2}) as cluster:
        assert delete_records(cluster, dict.fromkeys((A, C), TO_HIGH_WATERMARK)) == {A: 7, C: 9}
        assert (emptied_by(cluster.lines[1]), emptied_by(cluster.lines[2])) == ([[0], [0]], [[2]])


def created(**errors: Error) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[CreatableTopicResult(name=name, error_code=error) for name, error in errors.items()])


def deleted(**errors: Error) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(responses=[DeletableTopicResult(name=name, error_code=error) for name, error in errors.items()])


def grown(**errors: Error) -> CreatePartitionsResponse:
    results = [CreatePartitionsTopicResult(name=name, error_code=error) for name, error in errors.items()]
    return CreatePartitionsResponse(results=results)


def errors_of(outcomes: Mapping[str, ClientError | None]) -> dict[str, Error]:
    return {name: Error.NONE if refused is None else refused.error for name, refused in outcomes.items()}


def test_a_topic_that_exists_after_a_lost_answer_was_created() -> None:
    exists, refused = Error.TOPIC_ALREADY_EXISTS, Error.POLICY_VIOLATION
    with Scripted({1: [HUNG_UP, created(a=exists, b=refused), created(a=exists)]}) as cluster:
        outcomes = create_topics(cluster, [NewTopic("a", 1, 1), NewTopic("b", 1, 1)])
        assert errors_of(outcomes) == {"a": Error.NONE, "b": refused}
        assert errors_of(create_topics(cluster, [NewTopic("a", 1, 1)])) == {"a": exists}


def test_a_topic_that_is_missing_after_a_lost_answer_was_deleted() -> None:
    unknown = Error.UNKNOWN_TOPIC_OR_PARTITION
    with Scripted({1: [HUNG_UP, deleted(a=unknown), deleted(a=unknown)]}) as cluster:
        assert errors_of(delete_topics(cluster, ["a"])) == {"a": Error.NONE}
        assert errors_of(delete_topics(cluster, ["a"])) == {"a": unknown}


def test_a_topic_that_has_as_many_partitions_after_a_lost_answer_was_grown() -> None:
    invalid = Error.INVALID_PARTITIONS
    with Scripted({1: [HUNG_UP, grown(a=invalid), HUNG_UP, grown(a=invalid), grown(a=invalid)]}) as cluster:
        cluster.partitions = 3
        assert errors_of(create_partitions(cluster, {"a": 3})) == {"a": Error.NONE}
        assert errors_of(create_partitions(cluster, {"a": 2})) == {"a": invalid}  # it had more before
        assert errors_of(create_partitions(cluster, {"a": 3})) == {"a": invalid}


def test_a_new_controller_is_asked_for_what_the_old_one_left() -> None:
    with Scripted({1: [deleted(a=Error.NONE, b=Error.NOT_CONTROLLER), deleted(b=Error.NONE)]}) as cluster:
        assert errors_of(delete_topics(cluster, ["a", "b"])) == {"a": Error.NONE, "b": Error.NONE}
        asked = [request.topic_names for request in cluster.lines[1].heard if isinstance(request, DeleteTopicsRequest)]
        assert asked == [["a", "b"], ["b"]]


def test_a_refusal_counts_where_the_request_never_left() -> None:
    with Scripted({1: [created(a=Error.TOPIC_ALREADY_EXISTS)]}) as cluster:
        cluster.lines[1].deaf = 1
        assert errors_of(create_topics(cluster, [NewTopic("a", 1, 1)])) == {"a": Error.TOPIC_ALREADY_EXISTS}


def dropped(**errors: Error) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=name, error_code=error) for name, error in errors.items()]
    )


def dropped_by(line: Line) -> list[Sequence[str]]:
    return [request.groups_names for request in line.heard if isinstance(request, DeleteGroupsRequest)]


def test_groups_are_deleted_once_where_another_has_to_be_asked_for_again() -> None:
    moved, full = Error.NOT_COORDINATOR, Error.NON_EMPTY_GROUP
    with Scripted({1: [dropped(a=Error.NONE, b=moved, c=full), dropped(b=Error.NONE)]}, dict.fromkeys("abc", 1)) as cluster:
        assert errors_of(delete_groups(cluster, ["a", "b", "c"])) == {"a": Error.NONE, "b": Error.NONE, "c": full}
        assert dropped_by(cluster.lines[1]) == [["a", "b", "c"], ["b"]]


def test_a_group_that_is_missing_after_a_lost_answer_was_deleted() -> None:
    missing = Error.GROUP_ID_NOT_FOUND
    with Scripted(
        {1: [HUNG_UP, dropped(a=missing)], 2: [dropped(b=Error.NONE, c=missing)]}, {"a": 1, "b": 2, "c": 2}
    ) as cluster:
        assert errors_of(delete_groups(cluster, ["a", "b", "c"])) == {"a": Error.NONE, "b": Error.NONE, "c": missing}
        assert (dropped_by(cluster.lines[1]), dropped_by(cluster.lines[2])) == ([["a"], ["a"]], [["b", "c"]])


def begins(offset: int, error: Error = Error.NONE) -> ListOffsetsResponse:
    partition = ListOffsetsPartitionResponse(partition_index=A.partition, error_code=error, offset=offset, timestamp=-1)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=A.topic, partitions=[partition])])


UNKNOWN = begins(-1, Error.UNKNOWN_TOPIC_OR_PARTITION)


def test_a_leader_that_has_yet_to_hear_of_its_partition_is_asked_again() -> None:
    with Scripted({1: [UNKNOWN, begins(4)]}, {A: 1}) as cluster:
        assert list_offsets(cluster, {A: EARLIEST}) == {A: 4}


def test_a_partition_that_is_gone_is_an_unknown_topic_whoever_says_so() -> None:
    with Scripted({1: [UNKNOWN]}, {A: 1}) as cluster:
        cluster.gone_after = 1
        with pytest.raises(UnknownTopic, match="gone"):
            list_offsets(cluster, {A: EARLIEST})
    with Scripted({1: [UNKNOWN] * 100}, {A: 1}, patience_ms=1) as cluster:
        cluster.partitions = 1
        assert isinstance(try_offsets(cluster, {A: EARLIEST})[A], UnknownTopic)
        with pytest.raises(UnknownTopic, match="The offsets of partition t-0 are not known"):
            list_offsets(cluster, {A: EARLIEST})
