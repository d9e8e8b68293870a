"""Settings of topics and brokers."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string


class DescribeConfigsResource(Struct):
    resource_type = int8()
    resource_name = string()
    configuration_keys = array(string(), nullable=True)


class DescribeConfigsRequest(Request, key=32, versions="0-4", flexible=4):
    """Read settings of topics and brokers.

    v1: synonyms.
    v3: documentation and types.
    v4: flexible.
    """

    resources = array(DescribeConfigsResource)
    include_synonyms = boolean(since=1)
    include_documentation = boolean(since=3)


class DescribeConfigsSynonym(Struct):
    name = string()
    value = string(nullable=True)
    source = int8()


class DescribeConfigsResourceResult(Struct):
    name = string()
    value = string(nullable=True)
    read_only = boolean()
    is_default = boolean(until=0)
    config_source = int8(since=1, default=-1)
    is_sensitive = boolean()
    synonyms = array(DescribeConfigsSynonym, since=1)
    config_type = int8(since=3)
    documentation = string(since=3, nullable=True)


class DescribeConfigsResult(Struct):
    error_code = int16()
    error_message = string(nullable=True)
    resource_type = int8()
    resource_name = string()
    configs = array(DescribeConfigsResourceResult)


class DescribeConfigsResponse(Response, answers=DescribeConfigsRequest):
    """Settings with their sources.

    v1: source and synonyms in place of is_default.
    v3: type and documentation.
    """

    throttle_time_ms = int32()
    results = array(DescribeConfigsResult)


class AlterableConfig(Struct):
    name = string()
    value = string(nullable=True)


class AlterConfigsResource(Struct):
    resource_type = int8()
    resource_name = string()
    configs = array(AlterableConfig)


class AlterConfigsRequest(Request, key=33, versions="0-2", flexible=2):
    """Set all settings of a resource; what is not named goes back to its default.

    v2: flexible.
    """

    resources = array(AlterConfigsResource)
    validate_only = boolean()


class AlterConfigsResourceResponse(Struct):
    error_code = int16()
    error_message = string(nullable=True)
    resource_type = int8()
    resource_name = string()


class AlterConfigsResponse(Response, answers=AlterConfigsRequest):
    """One result per resource."""

    throttle_time_ms = int32()
    responses = array(AlterConfigsResourceResponse)


class IncrementalAlterableConfig(Struct):
    name = string()
    config_operation = int8()
    value = string(nullable=True)


class IncrementalAlterConfigsResource(Struct):
    resource_type = int8()
    resource_name = string()
    configs = array(IncrementalAlterableConfig)


class IncrementalAlterConfigsRequest(Request, key=44, versions="0-1", flexible=1):
    """Change single settings: 0 set, 1 delete, 2 append, 3 subtract.

    v1: flexible.
    """

    resources = array(IncrementalAlterConfigsResource)
    validate_only = boolean()


class IncrementalAlterConfigsResourceResponse(Struct):
    error_code = int16()
    error_message = string(nullable=True)
    resource_type = int8()
    resource_name = string()


class IncrementalAlterConfigsResponse(Response, answers=IncrementalAlterConfigsRequest):
    """One result per resource."""

    throttle_time_ms = int32()
    responses = array(IncrementalAlterConfigsResourceResponse)
