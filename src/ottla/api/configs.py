"""Settings: read with their sources, changed whole or one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.api.topics import inherited_from
from ottla.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    ConfigError,
    Kind,
    Setting,
    Source,
    check_dynamic_settings,
    check_topic_settings,
    to_text,
    topic_values,
)
from ottla.controller.topic_rules import check_name
from ottla.metadata.configs import ALL_BROKERS
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

Synonym = tuple[str, str | None, Source]


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
    config = ctx.services.config
    values = topic_values(config, overrides)
    for name, setting in TOPIC_SETTINGS.items():
        chain: list[Synonym] = [(name, overrides[name], Source.TOPIC)] if name in overrides else []
        chain += [(other, to_text(value), source) for other, _ in setting.fallbacks for source, value in config.sources(other)]
        chain.append((setting.fallbacks[0][0] if setting.fallbacks else name, to_text(setting.default), Source.DEFAULT))
        source = Source.TOPIC if name in overrides else inherited_from(ctx.services, name)
        yield _row(setting, to_text(values[name]), source, False, chain if synonyms else [])


def _broker_rows(ctx: Context, name: str, synonyms: bool) -> Iterable[DescribeConfigsResourceResult]:
    if name and name != str(ctx.broker_id):
        raise KafkaError(
            Error.INVALID_REQUEST, f"Unexpected broker id, expected {ctx.broker_id} or empty string, but received {name}"
        )
    config = ctx.services.config
    for setting in BROKER_SETTINGS.values():
        sources = config.sources(setting.name)
        if not name:  # without a broker only what was set for all of them is told
            sources = [(source, value) for source, value in sources if source is Source.DYNAMIC_DEFAULT]
            if not sources:
                continue
        value = (
            str(ctx.broker_id) if setting.name == "broker.id" else to_text(sources[0][1] if sources else config[setting.name])
        )
        chain: list[Synonym] = [(setting.name, to_text(set_to), source) for source, set_to in sources]
        if setting.default is not None:
            chain.append((setting.name, to_text(setting.default), Source.DEFAULT))
        source = sources[0][0] if sources else Source.DEFAULT
        yield _row(setting, value, source, not setting.dynamic, chain if synonyms else [])


def _row(
    setting: Setting, value: str | None, source: Source, read_only: bool, chain: list[Synonym]
) -> DescribeConfigsResourceResult:
    sensitive = setting.kind is Kind.PASSWORD
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=None if sensitive else value,
        read_only=read_only,
        is_default=source is Source.DEFAULT,
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
            async with ctx.services.configs.changing:
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
            async with ctx.services.configs.changing:
                wanted = _current(ctx, one.resource_type, one.resource_name)
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
    setting = TOPIC_SETTINGS.get(name) or BROKER_SETTINGS.get(name)
    if setting is None or setting.kind is not Kind.LIST:
        raise KafkaError(Error.INVALID_CONFIG, f"Config value append is not allowed for config key: {name}")
    inherited = topic_values(ctx.services.config, {})[name] if name in TOPIC_SETTINGS else ctx.services.config[name]
    current = wanted.get(name) or to_text(inherited) or ""
    parts = [part for part in current.split(",") if part]
    changed = [part.strip() for part in value.split(",") if part.strip()]
    if operation == Operation.APPEND:
        parts += [part for part in changed if part not in parts]
    elif operation == Operation.SUBTRACT:
        parts = [part for part in parts if part not in changed]
    else:
        raise KafkaError(Error.INVALID_REQUEST, f"Unknown config operation {operation}")
    wanted[name] = ",".join(parts)


def _current(ctx: Context, resource_type: int, name: str) -> dict[str, str]:
    """What was set for a resource so far."""
    if resource_type == Resource.TOPIC:
        return dict(ctx.services.configs.of_topic(name))
    return dict(ctx.services.configs.of_broker(name or ALL_BROKERS))


async def _store(ctx: Context, resource_type: int, name: str, wanted: Mapping[str, str], validate_only: bool) -> None:
    """Check and write the settings of a resource."""
    try:
        if resource_type == Resource.TOPIC:
            check_name(name)
            if name not in ctx.image.topics:
                raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            check_topic_settings(wanted.items())
            if not validate_only:
                await ctx.services.configs.set_topic(name, wanted)
        elif resource_type == Resource.BROKER:
            if name and name != str(ctx.broker_id):
                raise KafkaError(Error.INVALID_REQUEST, f"Unexpected broker id: {name} is not {ctx.broker_id}")
            check_dynamic_settings(wanted.items())
            if not validate_only:
                await ctx.services.configs.set_broker(name or ALL_BROKERS, wanted)
        else:
            raise KafkaError(Error.INVALID_REQUEST, f"Unsupported resource type: {resource_type}")
    except ConfigError as problem:
        error = Error.INVALID_CONFIG if resource_type == Resource.TOPIC else Error.INVALID_REQUEST
        raise KafkaError(error, str(problem)) from None
