"""Consumer groups: finding their coordinator, membership, looking at them and removing them.

Handlers translate between the wire and `GroupCoordinator`, and decide nothing about groups. What they do decide is shape: in
which version an error belongs to the whole answer, and in which to every item of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.coordinator.descriptions import GroupDescription
from ottla.coordinator.groups import TOPIC, GroupCoordinator
from ottla.coordinator.membership import Join, Leaver, Sync
from ottla.coordinator.transactions import TOPIC as TRANSACTIONS_TOPIC
from ottla.coordinator.transactions import TransactionCoordinator
from ottla.model import Error, KafkaError, TopicPartition
from ottla.wire.apis.groups import (
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

GROUP = 0
TRANSACTION = 1

# Without ACLs everything is allowed. Bits are Kafka's AclOperation codes.
GROUP_OPERATIONS = sum(1 << code for code in (3, 6, 8))
NOT_ASKED = -0x80000000


# Finding the coordinator


@handles(FindCoordinatorRequest)
async def find_coordinator(ctx: Context, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if ctx.version >= 4:
        return FindCoordinatorResponse(
            coordinators=[await _find(ctx, key, request.key_type) for key in request.coordinator_keys]
        )
    found = await _find(ctx, request.key, request.key_type)
    return FindCoordinatorResponse(
        error_code=found.error_code, error_message=found.error_message, node_id=found.node_id, host=found.host, port=found.port
    )


@shapes_errors_of(FindCoordinatorRequest)
def find_coordinator_error(request: FindCoordinatorRequest, error: Error, message: str) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=error,
        error_message=message,
        node_id=-1,
        port=-1,
        coordinators=[_not_found(key, error, message) for key in request.coordinator_keys],
    )


async def _find(ctx: Context, key: str, key_type: int) -> Coordinator:
    coordinator: GroupCoordinator | TransactionCoordinator
    if key_type == GROUP:
        coordinator, topic = ctx.groups, TOPIC
    elif key_type == TRANSACTION:
        coordinator, topic = ctx.transactions, TRANSACTIONS_TOPIC
    else:
        return _not_found(
            key, Error.INVALID_REQUEST, f"There is no coordinator of type {key_type}: 0 is a group, 1 a transaction."
        )
    try:
        partition = await coordinator.partition_of(key)
        leader = ctx.image.partition(TopicPartition(topic, partition)).leader
    except KafkaError as problem:
        return _not_found(key, Error.COORDINATOR_NOT_AVAILABLE, problem.message)
    node = ctx.node(leader)
    if node is None:
        return _not_found(key, Error.COORDINATOR_NOT_AVAILABLE, f"Partition {partition} of {topic} has no leader now.")
    return Coordinator(key=key, node_id=leader, host=node.host, port=node.port, error_message=None)


def _not_found(key: str, error: Error, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=message)


# Membership


@handles(JoinGroupRequest)
async def join_group(ctx: Context, request: JoinGroupRequest) -> JoinGroupResponse:
    timeout = request.session_timeout_ms if ctx.version == 0 else request.rebalance_timeout_ms
    result = await ctx.groups.join(
        Join(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            ctx.header.client_id or "",
            client_address(ctx),
            request.session_timeout_ms,
            timeout,
            request.protocol_type,
            tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            member_id_required=ctx.version >= 4,
            may_skip_assignment=ctx.version >= 9,
        )
    )
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol if ctx.version >= 7 else result.protocol or "",
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata)
            for member in result.members
        ],
    )


def client_address(ctx: Context) -> str:
    """The client's address as Kafka shows it: a host name, which is not known, and an address after a slash."""
    return f"/{ctx.client_host}"


@handles(SyncGroupRequest)
async def sync_group(ctx: Context, request: SyncGroupRequest) -> SyncGroupResponse:
    if ctx.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL, "SyncGroup from version 5 on must name the protocol.")
    result = await ctx.groups.sync(
        Sync(
            request.group_id,
            request.generation_id,
            request.member_id,
            request.group_instance_id,
            request.protocol_type,
            request.protocol_name,
            {item.member_id: item.assignment for item in request.assignments},
        )
    )
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


@handles(HeartbeatRequest)
async def heartbeat(ctx: Context, request: HeartbeatRequest) -> HeartbeatResponse:
    await ctx.groups.heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
    return HeartbeatResponse()


@handles(LeaveGroupRequest)
async def leave_group(ctx: Context, request: LeaveGroupRequest) -> LeaveGroupResponse:
    if ctx.version < 3:
        (error,) = await ctx.groups.leave(request.group_id, [Leaver(request.member_id)])
        return LeaveGroupResponse(error_code=error)
    leavers = [Leaver(member.member_id, member.group_instance_id) for member in request.members]
    errors = await ctx.groups.leave(request.group_id, leavers)
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error)
            for leaver, error in zip(leavers, errors, strict=True)
        ]
    )


# Looking at groups and removing them


@handles(DescribeGroupsRequest)
async def describe_groups(ctx: Context, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    described: list[DescribedGroup] = []
    for group_id in request.groups:
        try:
            described.append(_described(await ctx.groups.describe_group(group_id), operations))
        except KafkaError as problem:
            described.append(DescribedGroup(group_id=group_id, error_code=problem.error))
    return DescribeGroupsResponse(groups=described)


def _described(group: GroupDescription, operations: int) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
        authorized_operations=operations,
    )


@shapes_errors_of(DescribeGroupsRequest)
def describe_groups_error(request: DescribeGroupsRequest, error: Error, message: str) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[DescribedGroup(group_id=group_id, error_code=error) for group_id in request.groups])


@handles(ListGroupsRequest)
async def list_groups(ctx: Context, request: ListGroupsRequest) -> ListGroupsResponse:
    """The groups of this broker: of each partition of the topic that it leads, which no one may have asked for before."""
    topic = ctx.image.topics.get(TOPIC)
    ours = [number for number, state in topic.partitions.items() if state.leader == ctx.broker_id] if topic else []
    missing = Error.NONE
    for partition in ours:
        if not ctx.groups.elect(partition):
            missing = Error.COORDINATOR_NOT_AVAILABLE  # its disk has failed
    if not await ctx.groups.loaded():
        missing = Error.COORDINATOR_LOAD_IN_PROGRESS
    return ListGroupsResponse(
        error_code=missing,
        groups=[
            ListedGroup(
                group_id=group.group_id, protocol_type=group.protocol_type, group_state=group.state, group_type=group.type
            )
            for group in ctx.groups.list_groups()
            if _wanted(group.state, request.states_filter) and _wanted(group.type, request.types_filter)
        ],
    )


def _wanted(value: str, allowed: Sequence[str]) -> bool:
    """An empty filter lets everything through."""
    return not allowed or value.lower() in {item.lower() for item in allowed}


@handles(DeleteGroupsRequest)
async def delete_groups(ctx: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    results: list[DeletableGroupResult] = []
    for group_id in dict.fromkeys(request.groups_names):
        try:
            await ctx.groups.delete_group(group_id)
            results.append(DeletableGroupResult(group_id=group_id))
        except KafkaError as problem:
            results.append(DeletableGroupResult(group_id=group_id, error_code=problem.error))
    return DeleteGroupsResponse(results=results)


@shapes_errors_of(DeleteGroupsRequest)
def delete_groups_error(request: DeleteGroupsRequest, error: Error, message: str) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=error) for group_id in request.groups_names]
    )
