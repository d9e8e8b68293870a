"""Consumer groups of both protocols: who is in them, what they committed, and an end to either."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ottla.client.admin.grouping import by_topic
from ottla.client.cluster import Cluster
from ottla.client.errors import AnswerLost, BrokerUnreachable, ClientError, UnsupportedByBroker, check, lasting
from ottla.model import Error, TopicPartition
from ottla.wire.apis.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, DescribedAssignment
from ottla.wire.apis.consumer_groups import DescribedGroup as DescribedConsumerGroup
from ottla.wire.apis.consumer_protocol import ConsumerProtocolAssignment
from ottla.wire.apis.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from ottla.wire.apis.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from ottla.wire.schema import Malformed, decode_versioned

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups of consumers, in both protocols."""

_BY_STATE, _BY_TYPE = 4, 5  # the first versions of ListGroups that filter by them
_ALL_PARTITIONS, _STABLE, _MANY_GROUPS = 2, 7, 8  # the first versions of OffsetFetch that take them
_WITHOUT_MEMBER = 2  # the first version of OffsetCommit that keeps offsets in the log

_K = TypeVar("_K")


class ListedGroup(NamedTuple):
    """A group in a list. `state` and `type` are empty where the broker is too old to say."""

    id: str
    protocol_type: str
    state: str
    type: str
    coordinator: int


class Member(NamedTuple):
    """A consumer in a group. `epoch` and `target` belong to the consumer protocol: None in the classic one."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    epoch: int | None = None
    target: tuple[TopicPartition, ...] | None = None


class GroupDescription(NamedTuple):
    """A group with its members. One that does not exist is Dead, and has none."""

    id: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...]
    epoch: int | None = None
    target_epoch: int | None = None


class Committed(NamedTuple):
    """What a group committed for a partition."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


# ---- groups --------------------------------------------------------------------------------------------------------------


def list_groups(cluster: Cluster, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[ListedGroup]:
    """The groups of all brokers, by name: in these states and of these types, or all."""
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    least = _BY_TYPE if types else _BY_STATE if states else 0

    def look() -> list[ListedGroup]:
        found = {}
        answers: dict[int, ListGroupsResponse] = cluster.ask_each(dict.fromkeys(cluster.brokers(), request), at_least=least)
        for broker, answer in answers.items():
            check(answer.error_code, f"Broker {broker} does not list its groups")
            for one in answer.groups:
                found[one.group_id] = ListedGroup(one.group_id, one.protocol_type, one.group_state, one.group_type, broker)
        return [found[name] for name in sorted(found)]

    return cluster.patiently(look)


def describe_groups(cluster: Cluster, groups: Sequence[str]) -> dict[str, GroupDescription]:
    """Groups with their members, whatever their protocol."""

    def look() -> dict[str, GroupDescription]:
        found: dict[str, GroupDescription] = {}
        coordinators = _by_value(cluster.coordinators(groups))
        try:
            newer = {broker: ConsumerGroupDescribeRequest(group_ids=names) for broker, names in coordinators.items()}
            described: dict[int, ConsumerGroupDescribeResponse] = cluster.ask_each(newer)
        except UnsupportedByBroker:
            described = {}
        for broker, answer in described.items():
            for one in answer.groups:
                # Not of this protocol, or not there at all: the classic question answers both.
                if one.error_code not in (Error.GROUP_ID_NOT_FOUND, Error.UNSUPPORTED_VERSION):
                    check(one.error_code, f"Group {one.group_id} cannot be described", one.error_message)
                    found[one.group_id] = _described(one, broker)
        rest = {broker: [name for name in names if name not in found] for broker, names in coordinators.items()}
        older = {broker: DescribeGroupsRequest(groups=names) for broker, names in rest.items() if names}
        classic: dict[int, DescribeGroupsResponse] = cluster.ask_each(older)
        for broker, said in classic.items():
            for other in said.groups:
                if other.error_code != Error.GROUP_ID_NOT_FOUND:
                    check(other.error_code, f"Group {other.group_id} cannot be described")
                found[other.group_id] = _described_classic(other, broker)
        return {name: found[name] for name in groups}

    return cluster.patiently(look) if groups else {}


def _described(one: DescribedConsumerGroup, broker: int) -> GroupDescription:
    members = tuple(
        Member(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _partitions(member.assignment),
            member.member_epoch,
            _partitions(member.target_assignment),
        )
        for member in one.members
    )
    return GroupDescription(
        one.group_id,
        "Consumer",
        one.group_state,
        CONSUMER_PROTOCOL,
        one.assignor_name,
        broker,
        members,
        one.group_epoch,
        one.assignment_epoch,
    )


def _partitions(assignment: DescribedAssignment) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(one.topic_name, number) for one in assignment.topic_partitions for number in one.partitions)


def _described_classic(one: DescribedGroup, broker: int) -> GroupDescription:
    is_consumer = one.protocol_type in (CONSUMER_PROTOCOL, "")
    members = tuple(
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _assigned(bytes(member.member_assignment)) if is_consumer else (),
        )
        for member in one.members
    )
    state = one.group_state if one.error_code == Error.NONE else "Dead"
    return GroupDescription(one.group_id, "Classic", state, one.protocol_type, one.protocol_data, broker, members)


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """What the group's leader wrote; a stranger's bytes are no assignment."""
    if not data:
        return ()
    try:
        assignment = decode_versioned(ConsumerProtocolAssignment, data)
    except Malformed:
        return ()
    return tuple(TopicPartition(one.topic, number) for one in assignment.assigned_partitions for number in one.partitions)


def delete_groups(cluster: Cluster, groups: Sequence[str]) -> dict[str, ClientError | None]:
    """Delete groups that have no members, and what they committed; what became of each."""
    found: dict[str, ClientError | None] = {}
    unsure: set[str] = set()  # asked for, but the answer was lost: such a group may be gone by now

    def delete() -> dict[str, ClientError | None]:
        coordinators = _by_value(cluster.coordinators([name for name in groups if name not in found]))
        requests = {broker: DeleteGroupsRequest(groups_names=names) for broker, names in coordinators.items()}
        answers: dict[int, DeleteGroupsResponse | BrokerUnreachable] = cluster.try_each(requests)
        passing: ClientError | None = None
        for broker, answer in answers.items():
            if isinstance(answer, BrokerUnreachable):
                passing = answer
                if isinstance(answer, AnswerLost):
                    unsure.update(coordinators[broker])
                continue
            for one in answer.results:
                is_gone = one.error_code == Error.GROUP_ID_NOT_FOUND and one.group_id in unsure
                try:
                    refused = lasting(one.error_code, f"Group {one.group_id} was not deleted")
                    found[one.group_id] = None if is_gone else refused
                except ClientError as moved:
                    passing = moved
        if passing is not None:
            raise passing
        return found

    return cluster.patiently(delete) if groups else {}


# ---- offsets -------------------------------------------------------------------------------------------------------------


def committed_offsets(
    cluster: Cluster, group: str, partitions: Sequence[TopicPartition] | None = None, *, stable: bool = False
) -> dict[TopicPartition, Committed]:
    """What a group committed for these partitions, or for all; a partition without an offset is left out.

    With `stable` it waits until no transaction holds offsets that may still be committed.
    """

    def look() -> dict[TopicPartition, Committed]:
        return _fetch_one(cluster, group, cluster.coordinator_of(group), partitions, stable=stable)

    return cluster.patiently(look)


def committed_offsets_of(cluster: Cluster, groups: Sequence[str]) -> dict[str, dict[TopicPartition, Committed]]:
    """What each of these groups committed, for all partitions."""

    def look() -> dict[str, dict[TopicPartition, Committed]]:
        coordinators = _by_value(cluster.coordinators(groups))
        requests = {
            broker: OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names])
            for broker, names in coordinators.items()
        }
        try:
            answers: dict[int, OffsetFetchResponse] = cluster.ask_each(requests, at_least=_MANY_GROUPS)
        except UnsupportedByBroker:
            return {name: _fetch_one(cluster, name, broker, None) for broker, names in coordinators.items() for name in names}
        found = {one.group_id: _committed(one.group_id, one) for answer in answers.values() for one in answer.groups}
        return {name: found[name] for name in groups}

    return cluster.patiently(look) if groups else {}


def _fetch_one(
    cluster: Cluster, group: str, coordinator: int, partitions: Sequence[TopicPartition] | None, *, stable: bool = False
) -> dict[TopicPartition, Committed]:
    names = by_topic(partitions or ())
    old = [OffsetFetchRequestTopic(name=name, partition_indexes=numbers) for name, numbers in names.items()]
    new = [OffsetFetchRequestTopics(name=name, partition_indexes=numbers) for name, numbers in names.items()]
    request = OffsetFetchRequest(
        group_id=group,
        topics=None if partitions is None else old,
        groups=[OffsetFetchRequestGroup(group_id=group, topics=None if partitions is None else new)],
        require_stable=stable,
    )
    answer: OffsetFetchResponse = cluster.ask(request, coordinator, at_least=_STABLE if stable else _ALL_PARTITIONS)
    return _committed(group, answer.groups[0] if answer.groups else answer)


def _committed(group: str, found: OffsetFetchResponseGroup | OffsetFetchResponse) -> dict[TopicPartition, Committed]:
    check(found.error_code, f"The offsets of group {group} cannot be read")
    committed = {}
    for topic in found.topics:
        for one in topic.partitions:
            tp = TopicPartition(topic.name, one.partition_index)
            check(one.error_code, f"The offset of group {group} for partition {tp} cannot be read")
            if one.committed_offset >= 0:
                committed[tp] = Committed(one.committed_offset, one.metadata or "", one.committed_leader_epoch)
    return committed


def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int | Committed]) -> None:
    """Commit offsets for a group that has no members: what a lag tool then sees."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for tp, one in offsets.items():
        committed = one if isinstance(one, Committed) else Committed(one)
        wanted = OffsetCommitRequestPartition(
            partition_index=tp.partition,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            committed_metadata=committed.metadata,
        )
        topics.setdefault(tp.topic, []).append(wanted)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=name, partitions=wanted) for name, wanted in topics.items()],
    )

    def commit() -> None:
        answer: OffsetCommitResponse = cluster.ask(request, cluster.coordinator_of(group), at_least=_WITHOUT_MEMBER)
        for topic in answer.topics:
            for one in topic.partitions:
                tp = TopicPartition(topic.name, one.partition_index)
                check(one.error_code, f"Group {group} could not commit an offset of partition {tp}")

    if offsets:
        cluster.patiently(commit)


def delete_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ClientError | None]:
    """Delete what a group committed for partitions that it does not read any more; what became of each."""
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
            )
            for topic, numbers in by_topic(partitions).items()
        ],
    )

    def delete() -> dict[TopicPartition, ClientError | None]:
        answer: OffsetDeleteResponse = cluster.ask(request, cluster.coordinator_of(group))
        check(answer.error_code, f"The offsets of group {group} were not deleted")
        found = {}
        for topic in answer.topics:
            for one in topic.partitions:
                tp = TopicPartition(topic.name, one.partition_index)
                found[tp] = lasting(one.error_code, f"The offset of group {group} for partition {tp} was not deleted")
        return found

    return cluster.patiently(delete)


def _by_value(places: Mapping[_K, int]) -> dict[int, list[_K]]:
    found: dict[int, list[_K]] = {}
    for key, value in places.items():
        found.setdefault(value, []).append(key)
    return found
