"""Groups of the classic protocol: finding their coordinator, joining, staying, leaving, and looking at them."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, bytes_, int8, int16, int32, string


class FindCoordinatorRequest(Request, key=10, versions="0-6", flexible=3):
    """Who coordinates a group (0) or a transactional id (1)?

    v1: key type.
    v3: flexible.
    v4: many keys at once.
    v5: TRANSACTION_ABORTABLE understood.
    v6: share groups (2).
    """

    key = string(until=3)
    key_type = int8(since=1)
    coordinator_keys = array(string(), since=4)


class Coordinator(Struct):
    key = string()
    node_id = int32()
    host = string()
    port = int32()
    error_code = int16()
    error_message = string(nullable=True)


class FindCoordinatorResponse(Response, answers=FindCoordinatorRequest):
    """The coordinators.

    v1: throttle time and message.
    v4: one entry per key.
    """

    throttle_time_ms = int32(since=1)
    error_code = int16(until=3)
    error_message = string(since=1, until=3, nullable=True)
    node_id = int32(until=3)
    host = string(until=3)
    port = int32(until=3)
    coordinators = array(Coordinator, since=4)


class JoinGroupRequestProtocol(Struct):
    name = string()
    metadata = bytes_()


class JoinGroupRequest(Request, key=11, versions="0-9", flexible=6):
    """Enter a group, or its next generation.

    v1: rebalance timeout.
    v4: a new member is first told its id.
    v5: static members.
    v6: flexible.
    v8: reason.
    v9: the leader may skip assignment.
    """

    group_id = string()
    session_timeout_ms = int32()
    rebalance_timeout_ms = int32(since=1, default=-1)
    member_id = string()
    group_instance_id = string(since=5, nullable=True, default=None)
    protocol_type = string()
    protocols = array(JoinGroupRequestProtocol)
    reason = string(since=8, nullable=True, default=None)


class JoinGroupResponseMember(Struct):
    member_id = string()
    group_instance_id = string(since=5, nullable=True, default=None)
    metadata = bytes_()


class JoinGroupResponse(Response, answers=JoinGroupRequest):
    """The generation; the leader also gets all members.

    v2: throttle time.
    v5: static members.
    v7: protocol type; the protocol may be null.
    v9: skip_assignment.
    """

    throttle_time_ms = int32(since=2)
    error_code = int16()
    generation_id = int32(default=-1)
    protocol_type = string(since=7, nullable=True, default=None)
    protocol_name = string(nullable=7)
    leader = string()
    skip_assignment = boolean(since=9)
    member_id = string()
    members = array(JoinGroupResponseMember)


class SyncGroupRequestAssignment(Struct):
    member_id = string()
    assignment = bytes_()


class SyncGroupRequest(Request, key=14, versions="0-5", flexible=4):
    """Hand in (leader) and fetch the assignment.

    v3: static members.
    v4: flexible.
    v5: protocol type and name, to be checked.
    """

    group_id = string()
    generation_id = int32()
    member_id = string()
    group_instance_id = string(since=3, nullable=True, default=None)
    protocol_type = string(since=5, nullable=True, default=None)
    protocol_name = string(since=5, nullable=True, default=None)
    assignments = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Response, answers=SyncGroupRequest):
    """The member's assignment.

    v1: throttle time.
    v5: protocol type and name.
    """

    throttle_time_ms = int32(since=1)
    error_code = int16()
    protocol_type = string(since=5, nullable=True, default=None)
    protocol_name = string(since=5, nullable=True, default=None)
    assignment = bytes_()


class HeartbeatRequest(Request, key=12, versions="0-4", flexible=4):
    """A member says that it is alive.

    v3: group_instance_id for static members.
    v4: flexible.
    """

    group_id = string()
    generation_id = int32()
    member_id = string()
    group_instance_id = string(since=3, nullable=True, default=None)


class HeartbeatResponse(Response, answers=HeartbeatRequest):
    """Goes on, or must rejoin.

    v1: throttle time.
    """

    throttle_time_ms = int32(since=1)
    error_code = int16()


class MemberIdentity(Struct):
    member_id = string()
    group_instance_id = string(nullable=True, default=None)
    reason = string(since=5, nullable=True, default=None)


class LeaveGroupRequest(Request, key=13, versions="0-5", flexible=4):
    """Members leave.

    v3: many at once, by member or instance id.
    v4: flexible.
    v5: reason.
    """

    group_id = string()
    member_id = string(until=2)
    members = array(MemberIdentity, since=3)


class MemberResponse(Struct):
    member_id = string()
    group_instance_id = string(nullable=True)
    error_code = int16()


class LeaveGroupResponse(Response, answers=LeaveGroupRequest):
    """One result per member from v3 on.

    v1: throttle time.
    """

    throttle_time_ms = int32(since=1)
    error_code = int16()
    members = array(MemberResponse, since=3)


class DescribeGroupsRequest(Request, key=15, versions="0-5", flexible=5):
    """Describe groups.

    v3: authorized operations.
    v5: flexible.
    """

    groups = array(string())
    include_authorized_operations = boolean(since=3)


class DescribedGroupMember(Struct):
    member_id = string()
    group_instance_id = string(since=4, nullable=True, default=None)
    client_id = string()
    client_host = string()
    member_metadata = bytes_()
    member_assignment = bytes_()


class DescribedGroup(Struct):
    error_code = int16()
    group_id = string()
    group_state = string()
    protocol_type = string()
    protocol_data = string()
    members = array(DescribedGroupMember)
    authorized_operations = int32(since=3, default=-0x80000000)


class DescribeGroupsResponse(Response, answers=DescribeGroupsRequest):
    """State and members.

    v1: throttle time.
    v4: static members.
    """

    throttle_time_ms = int32(since=1)
    groups = array(DescribedGroup)


class ListGroupsRequest(Request, key=16, versions="0-5", flexible=3):
    """List this broker's groups.

    v3: flexible.
    v4: filter by state.
    v5: filter by type.
    """

    states_filter = array(string(), since=4)
    types_filter = array(string(), since=5)


class ListedGroup(Struct):
    group_id = string()
    protocol_type = string()
    group_state = string(since=4)
    group_type = string(since=5)


class ListGroupsResponse(Response, answers=ListGroupsRequest):
    """The groups.

    v1: throttle time.
    v4: state.
    v5: type.
    """

    throttle_time_ms = int32(since=1)
    error_code = int16()
    groups = array(ListedGroup)


class DeleteGroupsRequest(Request, key=42, versions="0-2", flexible=2):
    """Delete empty groups.

    v2: flexible.
    """

    groups_names = array(string())


class DeletableGroupResult(Struct):
    group_id = string()
    error_code = int16()


class DeleteGroupsResponse(Response, answers=DeleteGroupsRequest):
    """One result per group."""

    throttle_time_ms = int32()
    results = array(DeletableGroupResult)
