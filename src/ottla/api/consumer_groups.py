"""Groups of the consumer protocol (KIP-848): the heartbeat that does it all, and looking at such groups.

Like in `groups`, handlers translate between the wire and `GroupCoordinator`, and decide nothing but the shape of an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.api.groups import GROUP_OPERATIONS, NOT_ASKED, client_address
from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.coordinator.consumer_membership import ConsumerHeartbeat
from ottla.coordinator.consumer_records import Partitions
from ottla.coordinator.descriptions import ConsumerGroupDescription, NamedPartitions
from ottla.model import Error, KafkaError
from ottla.wire.apis.consumer_groups import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedGroup,
    DescribedPartitions,
    Member,
    TopicPartitions,
)

_CLIENT_MAKES_ID = 1


@handles(ConsumerGroupHeartbeatRequest)
async def consumer_group_heartbeat(ctx: Context, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    topics = request.subscribed_topic_names
    result = await ctx.groups.consumer_heartbeat(
        ConsumerHeartbeat(
            request.group_id,
            request.member_id,
            request.member_epoch,
            ctx.header.client_id or "",
            client_address(ctx),
            request.instance_id,
            request.rack_id,
            request.rebalance_timeout_ms,
            None if topics is None else frozenset(topics),
            request.subscribed_topic_regex,
            request.server_assignor,
            _owned(request.topic_partitions),
        ),
        client_makes_id=ctx.version >= _CLIENT_MAKES_ID,
    )
    return ConsumerGroupHeartbeatResponse(
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.interval_ms,
        assignment=None if result.assignment is None else _assignment(result.assignment),
    )


def _owned(topics: Iterable[TopicPartitions] | None) -> Partitions | None:
    if topics is None:
        return None
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}


def _assignment(partitions: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(numbers)) for topic_id, numbers in partitions.items()
        ]
    )


@handles(ConsumerGroupDescribeRequest)
async def consumer_group_describe(ctx: Context, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    described: list[DescribedGroup] = []
    for group_id in request.group_ids:
        try:
            described.append(_described(await ctx.groups.describe_consumer_group(group_id), operations))
        except KafkaError as problem:
            described.append(DescribedGroup(group_id=group_id, error_code=problem.error, error_message=problem.message))
    return ConsumerGroupDescribeResponse(groups=described)


def _described(group: ConsumerGroupDescription, operations: int) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[
            Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=member.topics,
                subscribed_topic_regex=member.pattern,
                assignment=_described_assignment(member.assignment),
                target_assignment=_described_assignment(member.target),
            )
            for member in group.members
        ],
        authorized_operations=operations,
    )


def _described_assignment(topics: Iterable[NamedPartitions]) -> DescribedAssignment:
    return DescribedAssignment(
        topic_partitions=[
            DescribedPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=topic.partitions) for topic in topics
        ]
    )


@shapes_errors_of(ConsumerGroupDescribeRequest)
def consumer_group_describe_error(
    request: ConsumerGroupDescribeRequest, error: Error, message: str
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=error, error_message=message) for group_id in request.group_ids]
    )
