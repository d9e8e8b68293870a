"""Settings: read with their sources, changed whole or one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.api.topics import SOURCE_DEFAULT, SOURCE_STATIC_BROKER, SOURCE_TOPIC, source_of_default
from ottla.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    ConfigError,
    Kind,
    Setting,
    check_topic_settings,
    to_text,
    topic_values,
)
from ottla.controller.topic_rules import check_name
from ottla.model import Error, KafkaError
from ottla.wire.apis.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)


class Resource(IntEnum):
    """What has settings."""

    TOPIC = 2
    BROKER = 4


class Operation(IntEnum):
    """What is done to one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@handles(DescribeConfigsRequest)
def describe_configs(ctx: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_describe(ctx, one, request.include_synonyms) for one in request.resources])


def _describe(ctx: Context, resource: DescribeConfigsResource, synonyms: bool) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None, configs=[]
    )
    try:
        if resource.resource_type == Resource.TOPIC:
            rows = _topic_rows(ctx, resource.resource_name, synonyms)
        elif resource.resource_type == Resource.BROKER:
            rows = _broker_rows(ctx, resource.resource_name, synonyms)
        else:
            raise KafkaError(Error.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")
        wanted = resource.configuration_keys
        result.configs = [row for row in rows if wanted is None or row.name in wanted]
    except KafkaError as problem:
        result.error_code, result.error_message = problem.error, problem.message
    return result


def _topic_rows(ctx: Context, topic: str, synonyms: bool) -> Iterable[DescribeConfigsResourceResult]:
    check_name(topic)
    if topic not in ctx.image.topics:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
    overrides = ctx.services.configs.of_topic(topic)
    values = topic_values(ctx.services.config, overrides)
    for name, setting in TOPIC_SETTINGS.items():
        chain: list[tuple[str, str | None, int]] = []
        if name in overrides:
            chain.append((name, overrides[name], SOURCE_TOPIC))
        set_by_user = ctx.services.config.set_by_user
        chain += [
            (other, to_text(set_by_user[other]), SOURCE_STATIC_BROKER) for other, _ in setting.fallbacks if other in set_by_user
        ]
        inherited = setting.fallbacks[0][0] if setting.fallbacks else name
        chain.append((inherited, to_text(setting.default), SOURCE_DEFAULT))
        source = SOURCE_TOPIC if name in overrides else source_of_default(ctx.services, name)
        yield _row(setting, to_text(values[name]), source, False, chain if synonyms else [])


def _broker_rows(ctx: Context, name: str, synonyms: bool) -> Iterable[DescribeConfigsResourceResult]:
    if name and name != str(ctx.broker_id):
        raise KafkaError(
            Error.INVALID_REQUEST, f"Unexpected broker id, expected {ctx.broker_id} or empty string, but received {name}"
        )
    config = ctx.services.config
    for setting in BROKER_SETTINGS.values():
        given = setting.name in config.set_by_user
        if not name and not given:
            continue  # without a broker only what was set for all of them is told
        value = str(ctx.broker_id) if setting.name == "broker.id" else to_text(config[setting.name])
        chain = [(setting.name, value, SOURCE_STATIC_BROKER)] if given else []
        if setting.default is not None:
            chain.append((setting.name, to_text(setting.default), SOURCE_DEFAULT))
        yield _row(setting, value, SOURCE_STATIC_BROKER if given else SOURCE_DEFAULT, True, chain if synonyms else [])


def _row(
    setting: Setting, value: str | None, source: int, read_only: bool, chain: list[tuple[str, str | None, int]]
) -> DescribeConfigsResourceResult:
    sensitive = setting.kind is Kind.PASSWORD
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=None if sensitive else value,
        read_only=read_only,
        is_default=source == SOURCE_DEFAULT,
        config_source=source,
        is_sensitive=sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=None if sensitive else text, source=where) for name, text, where in chain
        ],
        config_type=setting.kind,
        documentation=None,
    )


@shapes_errors_of(DescribeConfigsRequest)
def describe_configs_error(request: DescribeConfigsRequest, error: Error, message: str) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                error_code=error, error_message=message, resource_type=one.resource_type, resource_name=one.resource_name
            )
            for one in request.resources
        ]
    )


@handles(AlterConfigsRequest)
async def alter_configs(ctx: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    responses = []
    for one in request.resources:
        result = AlterConfigsResourceResponse(
            resource_type=one.resource_type, resource_name=one.resource_name, error_message=None
        )
        try:
            null = [config.name for config in one.configs if config.value is None]
            if null:
                raise KafkaError(Error.INVALID_REQUEST, f"Null value not supported for : {','.join(null)}")
            wanted = {config.name: config.value for config in one.configs if config.value is not None}
            await _store(ctx, one.resource_type, one.resource_name, wanted, request.validate_only)
        except KafkaError as problem:
            result.error_code, result.error_message = problem.error, problem.message
        responses.append(result)
    return AlterConfigsResponse(responses=responses)


@shapes_errors_of(AlterConfigsRequest)
def alter_configs_error(request: AlterConfigsRequest, error: Error, message: str) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=error, error_message=message, resource_type=one.resource_type, resource_name=one.resource_name
            )
            for one in request.resources
        ]
    )


@handles(IncrementalAlterConfigsRequest)
async def incremental_alter_configs(ctx: Context, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    responses = []
    for one in request.resources:
        result = IncrementalAlterConfigsResourceResponse(
            resource_type=one.resource_type, resource_name=one.resource_name, error_message=None
        )
        try:
            names = [config.name for config in one.configs]
            if len(set(names)) != len(names):
                raise KafkaError(Error.INVALID_REQUEST, "A setting is changed twice in one request.")
            wanted = dict(ctx.services.configs.of_topic(one.resource_name)) if one.resource_type == Resource.TOPIC else {}
            for config in one.configs:
                _apply(ctx, wanted, config.name, config.config_operation, config.value)
            await _store(ctx, one.resource_type, one.resource_name, wanted, request.validate_only)
        except KafkaError as problem:
            result.error_code, result.error_message = problem.error, problem.message
        responses.append(result)
    return IncrementalAlterConfigsResponse(responses=responses)


@shapes_errors_of(IncrementalAlterConfigsRequest)
def incremental_alter_configs_error(
    request: IncrementalAlterConfigsRequest, error: Error, message: str
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResourceResponse(
                error_code=error, error_message=message, resource_type=one.resource_type, resource_name=one.resource_name
            )
            for one in request.resources
        ]
    )


def _apply(ctx: Context, wanted: dict[str, str], name: str, operation: int, value: str | None) -> None:
    """Change one setting in `wanted`."""
    if operation == Operation.DELETE:
        wanted.pop(name, None)
        return
    if value is None:
        raise KafkaError(Error.INVALID_REQUEST, f"Null value not supported for : {name}")
    if operation == Operation.SET:
        wanted[name] = value
        return
    setting = TOPIC_SETTINGS.get(name)
    if setting is None or setting.kind is not Kind.LIST:
        raise KafkaError(Error.INVALID_CONFIG, f"Config value append is not allowed for config key: {name}")
    current = wanted.get(name) or to_text(topic_values(ctx.services.config, wanted)[name]) or ""
    parts = [part for part in current.split(",") if part]
    changed = [part.strip() for part in value.split(",") if part.strip()]
    if operation == Operation.APPEND:
        parts += [part for part in changed if part not in parts]
    elif operation == Operation.SUBTRACT:
        parts = [part for part in parts if part not in changed]
    else:
        raise KafkaError(Error.INVALID_REQUEST, f"Unknown config operation {operation}")
    wanted[name] = ",".join(parts)


async def _store(ctx: Context, resource_type: int, name: str, wanted: Mapping[str, str], validate_only: bool) -> None:
    """Check and write the settings of a resource."""
    if resource_type == Resource.BROKER:
        raise KafkaError(
            Error.INVALID_REQUEST, "Settings of a running broker cannot be changed in this version; change its properties."
        )
    if resource_type != Resource.TOPIC:
        raise KafkaError(Error.INVALID_REQUEST, f"Unsupported resource type: {resource_type}")
    check_name(name)
    if name not in ctx.image.topics:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    try:
        check_topic_settings(wanted.items())
    except ConfigError as problem:
        raise KafkaError(Error.INVALID_CONFIG, str(problem)) from None
    if not validate_only:
        await ctx.services.configs.set_topic(name, wanted)
