"""Settings of topics and brokers: where they come from, and changes to single ones.

Settings of one broker are asked of that broker and changed there; all else may be asked of any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, UnknownTopic, check, refusal
from ottla.model import Error
from ottla.wire.apis.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""What has settings. A broker's name is its id; an empty one stands for the default of all brokers."""

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""What a `Change` does; the last two work on lists."""

SOURCES = (
    "UNKNOWN",
    "DYNAMIC_TOPIC_CONFIG",
    "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER_CONFIG",
    "DEFAULT_CONFIG",
    "DYNAMIC_BROKER_LOGGER_CONFIG",
    "DYNAMIC_CLIENT_METRICS_CONFIG",
    "DYNAMIC_GROUP_CONFIG",
)
"""Where a value comes from, by its number."""

_SOURCES_AND_SYNONYMS = 1  # the first version of DescribeConfigs that tells them
_KINDS = {TOPIC: "topic", BROKER: "broker", BROKER_LOGGER: "broker", CLIENT_METRICS: "client metrics", GROUP: "group"}

Resource = tuple[int, str]
"""What has settings: its kind and its name."""


class Synonym(NamedTuple):
    """A place that a setting may come from, under the name that it has there."""

    name: str
    value: str | None
    source: str


class Config(NamedTuple):
    """A setting as it is in force. The value of a sensitive one is None."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody set it."""
        return self.source == "DEFAULT_CONFIG"


class Change(NamedTuple):
    """A change of one setting."""

    name: str
    value: str | None
    operation: int = SET


def describe_configs(
    cluster: Cluster, resources: Sequence[Resource], *, names: Sequence[str] | None = None, documentation: bool = False
) -> dict[Resource, list[Config]]:
    """The settings of these, or those of them that are named."""
    asked: dict[int | None, list[Resource]] = {}
    for resource in resources:
        asked.setdefault(_broker_of(resource), []).append(resource)
    requests = {
        broker: DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=None if names is None else list(names)
                )
                for kind, name in wanted
            ],
            include_synonyms=True,
            include_documentation=documentation,
        )
        for broker, wanted in asked.items()
    }

    def look() -> dict[Resource, list[Config]]:
        answers: list[DescribeConfigsResponse] = list(
            cluster.ask_each(
                {broker: request for broker, request in requests.items() if broker is not None}, at_least=_SOURCES_AND_SYNONYMS
            ).values()
        )
        if None in requests:
            answers.append(cluster.ask(requests[None], at_least=_SOURCES_AND_SYNONYMS))
        return {
            (result.resource_type, result.resource_name): _configs(result) for answer in answers for result in answer.results
        }

    return cluster.patiently(look)


def _configs(result: DescribeConfigsResult) -> list[Config]:
    what = _named((result.resource_type, result.resource_name))
    if result.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopic(f"{what[0].upper()}{what[1:]} does not exist: check its name, or create it.")
    check(result.error_code, f"The settings of {what} cannot be read", result.error_message)
    return [
        Config(
            one.name,
            one.value,
            _source(one.config_source),
            one.read_only,
            one.is_sensitive,
            tuple(Synonym(other.name, other.value, _source(other.source)) for other in one.synonyms),
            one.documentation,
        )
        for one in result.configs
    ]


def describe_topic(cluster: Cluster, name: str) -> dict[str, str | None]:
    """The settings of a topic, defaults included."""
    return {one.name: one.value for one in describe_configs(cluster, [(TOPIC, name)])[TOPIC, name]}


def alter_configs(
    cluster: Cluster, changes: Mapping[Resource, Sequence[Change]], *, validate_only: bool = False
) -> dict[Resource, ClientError | None]:
    """Change single settings and leave the others as they are; what became of each resource."""
    asked: dict[int | None, list[Resource]] = {}
    for resource in changes:
        asked.setdefault(_broker_of(resource), []).append(resource)
    found: dict[Resource, ClientError | None] = {}
    for broker, resources in asked.items():
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=resource[0],
                    resource_name=resource[1],
                    configs=[
                        IncrementalAlterableConfig(name=one.name, config_operation=one.operation, value=one.value)
                        for one in changes[resource]
                    ],
                )
                for resource in resources
            ],
            validate_only=validate_only,
        )

        def alter(request: IncrementalAlterConfigsRequest = request, broker: int | None = broker) -> None:
            # Any broker may be asked, but only the controller need not ask another.
            answer: IncrementalAlterConfigsResponse = cluster.ask(request, cluster.controller() if broker is None else broker)
            for one in answer.responses:
                resource = one.resource_type, one.resource_name
                what = f"The settings of {_named(resource)} were not changed"
                found[resource] = refusal(one.error_code, what, one.error_message)

        cluster.patiently(alter)
    return found


def _broker_of(resource: Resource) -> int | None:
    """The broker that has to be asked, where it matters."""
    kind, name = resource
    if kind not in (BROKER, BROKER_LOGGER) or not name:
        return None
    if not (name.isascii() and name.isdigit()):
        raise ClientError(Error.INVALID_REQUEST, f"{name!r} is not the id of a broker: it is a number.")
    return int(name)


def _named(resource: Resource) -> str:
    kind, name = resource
    return f"{_KINDS.get(kind, 'resource')} {name}" if name else f"all {_KINDS.get(kind, 'resource')}s"


def _source(number: int) -> str:
    return SOURCES[number] if 0 <= number < len(SOURCES) else SOURCES[0]
