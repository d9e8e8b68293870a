"""`ottla broker-api-versions`: flags and lines are those of Apache Kafka's kafka-broker-api-versions.sh.

What is usable is what the broker and Ottla's own client both know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple

import click

from ottla import __version__
from ottla.cli.output import Column, print_rows
from ottla.cli.tool import OneLine, cluster_options
from ottla.client.admin.nodes import Node, Range, api_versions, describe_cluster
from ottla.client.cluster import Cluster
from ottla.wire import apis
from ottla.wire.schema import Request

_NOT_SPOKEN = {
    55: "DescribeQuorum",
    64: "UnregisterBroker",
    71: "GetTelemetrySubscriptions",
    72: "PushTelemetry",
    74: "ListClientMetricsResources",
    76: "ShareGroupHeartbeat",
    77: "ShareGroupDescribe",
    78: "ShareFetch",
    79: "ShareAcknowledge",
    80: "AddRaftVoter",
    81: "RemoveRaftVoter",
    83: "InitializeShareGroupState",
    84: "ReadShareGroupState",
    85: "WriteShareGroupState",
    86: "DeleteShareGroupState",
    87: "ReadShareGroupStateSummary",
}
"""Requests that brokers of Apache Kafka 3.9 may serve and that we have no messages for."""

_COLUMNS = (
    Column("Broker", "broker"),
    Column("Key", "key"),
    Column("API", "api"),
    Column("From", "minVersion"),
    Column("To", "maxVersion"),
    Column("Usable", "usable"),
)


class Api(NamedTuple):
    """A request as we know it; `versions` is None where we do not speak it."""

    name: str
    versions: Range | None


@cache
def known_apis() -> dict[int, Api]:
    """All requests that have a name here, by their keys."""
    for module in iter_modules(apis.__path__):
        import_module(f"{apis.__name__}.{module.name}")
    spoken = {
        one.api_key: Api(one.name.removesuffix("Request"), Range(one.min_version, one.max_version))
        for one in Request.__subclasses__()
    }
    return dict(sorted((spoken | {key: Api(name, None) for key, name in _NOT_SPOKEN.items()}).items()))


@click.command("broker-api-versions", cls=OneLine)
@click.version_option(__version__, prog_name="ottla")
@cluster_options
def command(cluster: Cluster, as_json: bool) -> None:
    """Show which requests the brokers serve. Flags and output are those of kafka-broker-api-versions.sh."""
    found = {node: api_versions(cluster, node.id) for node in describe_cluster(cluster).brokers}
    rows = [
        (node.id, key, _name(key), served.first, served.last, _usable(key, served))
        for node, versions in found.items()
        for key, served in versions.items()
    ]
    print_rows(_COLUMNS, rows, as_json=as_json, lines=_lines(found))


def _lines(found: Mapping[Node, Mapping[int, Range]]) -> Iterator[str]:
    for node, versions in found.items():
        yield f"{node.host}:{node.port} (id: {node.id} rack: {node.rack or 'null'}) -> ("
        keys = [*known_apis(), *sorted(versions.keys() - known_apis().keys())]
        for key in keys:
            yield f"\t{_name(key)}({key}): {_shown(key, versions.get(key))}{',' if key != keys[-1] else ''}"
        yield ")"


def _shown(key: int, served: Range | None) -> str:
    if served is None:
        return "UNSUPPORTED"
    versions = f"{served.first} to {served.last}" if served.first != served.last else str(served.first)
    usable = _usable(key, served)
    if usable is not None:
        return f"{versions} [usable: {usable}]"
    ours = known_apis()[key].versions if key in known_apis() else None
    too_old = ours is not None and served.last < ours.first
    return f"{versions} [unusable: node too {'old' if too_old else 'new'}]"


def _name(key: int) -> str:
    return known_apis()[key].name if key in known_apis() else "UNKNOWN"


def _usable(key: int, served: Range) -> int | None:
    """The version that we would speak with such a broker."""
    ours = known_apis()[key].versions if key in known_apis() else None
    if ours is None or served.last < ours.first or served.first > ours.last:
        return None
    return min(served.last, ours.last)
