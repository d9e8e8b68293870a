"""Topics: create, grow, delete. What may be is the controller's business; here requests become its values and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.api.services import Services
from ottla.config import TOPIC_SETTINGS, Kind, Source, to_text, topic_values
from ottla.controller.controller import NewTopic
from ottla.controller.topic_rules import INTERNAL_TOPICS, internal_prefix, internal_settings
from ottla.metadata.image import TopicImage
from ottla.model import Error, KafkaError
from ottla.wire.apis.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

BY_DEFAULT = -1


@handles(CreateTopicsRequest)
async def create_topics(ctx: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    results: dict[str, TopicImage | KafkaError] = {}
    wanted: list[NewTopic] = []
    often = Counter(topic.name for topic in request.topics)
    for topic in request.topics:
        if often[topic.name] > 1:
            results[topic.name] = KafkaError(
                Error.INVALID_REQUEST, "Create topics request from client contains multiple entries for the same topic"
            )
            continue
        try:
            wanted.append(_wanted(ctx, topic))
        except KafkaError as problem:
            results[topic.name] = problem
    results |= await ctx.services.controller.create_topics(wanted, request.validate_only)
    configs = {topic.name: dict(topic.config) for topic in wanted}
    return CreateTopicsResponse(
        topics=[_create_result(ctx, name, results[name], configs.get(name, {})) for name in dict.fromkeys(often)]
    )


@shapes_errors_of(CreateTopicsRequest)
def create_topics_error(request: CreateTopicsRequest, error: Error, message: str) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[CreatableTopicResult(name=topic.name, error_code=error, error_message=message) for topic in request.topics]
    )


def _wanted(ctx: Context, topic: CreatableTopic) -> NewTopic:
    if topic.assignments and (topic.num_partitions != BY_DEFAULT or topic.replication_factor != BY_DEFAULT):
        raise KafkaError(
            Error.INVALID_REQUEST,
            "Both numPartitions or replicationFactor and replicasAssignments were set. Both cannot be used at the same time.",
        )
    if ctx.version < 4 and not topic.assignments and BY_DEFAULT in (topic.num_partitions, topic.replication_factor):
        error = Error.INVALID_PARTITIONS if topic.num_partitions == BY_DEFAULT else Error.INVALID_REPLICATION_FACTOR
        raise KafkaError(error, "The broker's defaults can be asked for from version 4 on.")
    if len({one.partition_index for one in topic.assignments}) != len(topic.assignments):
        raise KafkaError(Error.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned twice.")
    missing = [config.name for config in topic.configs if config.value is None]
    if missing:
        raise KafkaError(Error.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(missing)}")
    config = ctx.services.config
    return NewTopic(
        topic.name,
        config.integer("num.partitions") if topic.num_partitions == BY_DEFAULT else topic.num_partitions,
        config.integer("default.replication.factor") if topic.replication_factor == BY_DEFAULT else topic.replication_factor,
        {one.partition_index: tuple(one.broker_ids) for one in topic.assignments},
        {one.name: one.value for one in topic.configs if one.value is not None},
    )


def _create_result(ctx: Context, name: str, result: TopicImage | KafkaError, config: dict[str, str]) -> CreatableTopicResult:
    if isinstance(result, KafkaError):
        return CreatableTopicResult(name=name, error_code=result.error, error_message=result.message)
    values = topic_values(ctx.services.config, config)
    first = next(iter(result.partitions.values()))
    return CreatableTopicResult(
        name=name,
        topic_id=result.topic_id,
        num_partitions=len(result.partitions),
        replication_factor=len(first.replicas),
        error_message=None,
        configs=[
            CreatableTopicConfigs(
                name=key,
                value=to_text(values[key]),
                config_source=Source.TOPIC if key in config else inherited_from(ctx.services, key),
                is_sensitive=setting.kind is Kind.PASSWORD,
            )
            for key, setting in TOPIC_SETTINGS.items()
        ],
    )


def inherited_from(services: Services, topic_setting: str) -> Source:
    """Where a value comes from that the topic does not set itself."""
    for name, _ in TOPIC_SETTINGS[topic_setting].fallbacks:
        for source, _value in services.config.sources(name):
            return source
    return Source.DEFAULT


async def create_automatically(services: Services, name: str) -> None:
    """One topic that somebody asked for by name; raises KafkaError where it cannot be."""
    problem = (await create_missing(services, [name]))[name]
    if problem is not None:
        raise problem


async def create_missing(services: Services, names: Collection[str]) -> Mapping[str, KafkaError | None]:
    """Topics that somebody asked for by name: the broker's defaults, or what an internal topic needs. Of each why not, or None.

    The controller creates them, wherever it is; until its word reaches this broker they are not in our image. Raises KafkaError
    where the controller could not be asked: NOT_CONTROLLER or BrokerUnavailable.
    """
    results = await services.create_topics([_by_default(services, name) for name in names])
    return {
        name: None if problem is not None and problem.error is Error.TOPIC_ALREADY_EXISTS else problem
        for name, problem in results.items()
    }


def _by_default(services: Services, name: str) -> NewTopic:
    config = services.config
    partitions, factor = config.integer("num.partitions"), config.integer("default.replication.factor")
    if name in INTERNAL_TOPICS:
        prefix = internal_prefix(name)
        partitions = config.integer(f"{prefix}.num.partitions")
        factor = config.integer(f"{prefix}.replication.factor")
        if not services.shared and f"{prefix}.replication.factor" not in config.set_by_user:
            factor = 1  # a broker with metadata of its own will never have company
    return NewTopic(name, partitions, factor, config=internal_settings(config, name))


@handles(DeleteTopicsRequest)
async def delete_topics(ctx: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    if not ctx.services.controller.active:
        raise KafkaError(Error.NOT_CONTROLLER)
    asked: Sequence[tuple[str | None, bytes]] = (
        [(topic.name, topic.topic_id) for topic in request.topics]
        if ctx.version >= 6
        else [(name, bytes(16)) for name in request.topic_names]
    )
    return DeleteTopicsResponse(responses=[await _delete(ctx, name, topic_id) for name, topic_id in asked])


async def _delete(ctx: Context, name: str | None, topic_id: bytes) -> DeletableTopicResult:
    result = DeletableTopicResult(name=name, topic_id=topic_id)
    try:
        if not ctx.services.config.flag("delete.topic.enable"):
            error = Error.TOPIC_DELETION_DISABLED if ctx.version >= 3 else Error.INVALID_REQUEST
            raise KafkaError(error, "Topic deletion is disabled: delete.topic.enable=false.")
        if name is not None and any(topic_id):
            raise KafkaError(Error.INVALID_REQUEST, "A topic is deleted by its name or by its id, not by both.")
        if name is None:
            name = ctx.image.topic_names.get(topic_id)
            if name is None:
                raise KafkaError(Error.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            result.name = name
        known = ctx.image.topics.get(name)
        if known is not None:
            result.topic_id = known.topic_id
        await ctx.services.controller.delete_topic(name)
    except KafkaError as problem:
        result.error_code, result.error_message = problem.error, problem.message
    return result


@shapes_errors_of(DeleteTopicsRequest)
def delete_topics_error(request: DeleteTopicsRequest, error: Error, message: str) -> DeleteTopicsResponse:
    asked: list[tuple[Any, bytes]] = [(topic.name, topic.topic_id) for topic in request.topics]
    asked += [(name, bytes(16)) for name in request.topic_names]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=name, topic_id=topic_id, error_code=error, error_message=message)
            for name, topic_id in asked
        ]
    )


@handles(CreatePartitionsRequest)
async def create_partitions(ctx: Context, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    results = []
    often = Counter(topic.name for topic in request.topics)
    for topic in request.topics:
        result = CreatePartitionsTopicResult(name=topic.name)
        try:
            if often[topic.name] > 1:
                raise KafkaError(Error.INVALID_REQUEST, "Duplicate topic in request.")
            assignments = None if topic.assignments is None else [tuple(one.broker_ids) for one in topic.assignments]
            await ctx.services.controller.create_partitions(topic.name, topic.count, assignments, request.validate_only)
        except KafkaError as problem:
            result.error_code, result.error_message = problem.error, problem.message
        results.append(result)
    return CreatePartitionsResponse(results=results)


@shapes_errors_of(CreatePartitionsRequest)
def create_partitions_error(request: CreatePartitionsRequest, error: Error, message: str) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=error, error_message=message) for topic in request.topics
        ]
    )
