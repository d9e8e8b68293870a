"""Access control lists."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, int8, int16, int32, string


class DescribeAclsRequest(Request, key=29, versions="0-3", flexible=2):
    """Read ACLs that match a filter.

    v1: pattern types.
    v2: flexible.
    v3: user resources.
    """

    resource_type_filter = int8()
    resource_name_filter = string(nullable=True)
    pattern_type_filter = int8(since=1, default=3)
    principal_filter = string(nullable=True)
    host_filter = string(nullable=True)
    operation = int8()
    permission_type = int8()


class AclDescription(Struct):
    principal = string()
    host = string()
    operation = int8()
    permission_type = int8()


class DescribeAclsResource(Struct):
    resource_type = int8()
    resource_name = string()
    pattern_type = int8(since=1, default=3)
    acls = array(AclDescription)


class DescribeAclsResponse(Response, answers=DescribeAclsRequest):
    """ACLs by resource."""

    throttle_time_ms = int32()
    error_code = int16()
    error_message = string(nullable=True)
    resources = array(DescribeAclsResource)


class AclCreation(Struct):
    resource_type = int8()
    resource_name = string()
    resource_pattern_type = int8(since=1, default=3)
    principal = string()
    host = string()
    operation = int8()
    permission_type = int8()


class CreateAclsRequest(Request, key=30, versions="0-3", flexible=2):
    """Add ACLs.

    v1: pattern types.
    v2: flexible.
    v3: user resources.
    """

    creations = array(AclCreation)


class AclCreationResult(Struct):
    error_code = int16()
    error_message = string(nullable=True)


class CreateAclsResponse(Response, answers=CreateAclsRequest):
    """One result per ACL."""

    throttle_time_ms = int32()
    results = array(AclCreationResult)


class DeleteAclsFilter(Struct):
    resource_type_filter = int8()
    resource_name_filter = string(nullable=True)
    pattern_type_filter = int8(since=1, default=3)
    principal_filter = string(nullable=True)
    host_filter = string(nullable=True)
    operation = int8()
    permission_type = int8()


class DeleteAclsRequest(Request, key=31, versions="0-3", flexible=2):
    """Delete the ACLs that match filters.

    v1: pattern types.
    v2: flexible.
    v3: user resources.
    """

    filters = array(DeleteAclsFilter)


class DeleteAclsMatchingAcl(Struct):
    error_code = int16()
    error_message = string(nullable=True)
    resource_type = int8()
    resource_name = string()
    pattern_type = int8(since=1, default=3)
    principal = string()
    host = string()
    operation = int8()
    permission_type = int8()


class DeleteAclsFilterResult(Struct):
    error_code = int16()
    error_message = string(nullable=True)
    matching_acls = array(DeleteAclsMatchingAcl)


class DeleteAclsResponse(Response, answers=DeleteAclsRequest):
    """What was deleted, per filter."""

    throttle_time_ms = int32()
    filter_results = array(DeleteAclsFilterResult)
