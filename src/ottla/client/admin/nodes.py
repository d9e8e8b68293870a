"""The brokers of a cluster: where they are, and what they serve."""

from __future__ import annotations

from typing import NamedTuple

from ottla import __version__
from ottla.client.cluster import Cluster
from ottla.client.errors import BrokerUnreachable, check
from ottla.wire.apis.versions import ApiVersionsRequest, ApiVersionsResponse


class Node(NamedTuple):
    """A broker that is alive."""

    id: int
    host: str
    port: int
    rack: str | None


class ClusterDescription(NamedTuple):
    """A cluster. The controller is -1 where none is known at the moment."""

    id: str | None
    controller: int
    brokers: tuple[Node, ...]


class Range(NamedTuple):
    """Versions of an API, both ends included."""

    first: int
    last: int


def describe_cluster(cluster: Cluster) -> ClusterDescription:
    """Who is there."""
    answer = cluster.patiently(lambda: cluster.metadata([]))
    brokers = sorted(Node(one.node_id, one.host, one.port, one.rack) for one in answer.brokers)
    return ClusterDescription(answer.cluster_id, answer.controller_id, tuple(brokers))


def check_broker(cluster: Cluster, *brokers: int) -> None:
    """Refuse brokers that are not alive: those that a person names are not waited for."""
    alive = cluster.brokers()
    for broker in brokers:
        if broker not in alive:
            known = ", ".join(map(str, sorted(alive))) or "none"
            raise BrokerUnreachable(f"Broker {broker} is not in the cluster: brokers that are alive are {known}.")


def api_versions(cluster: Cluster, broker: int) -> dict[int, Range]:
    """The requests that a broker serves, by API key."""
    request = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)

    def look() -> dict[int, Range]:
        answer: ApiVersionsResponse = cluster.ask(request, broker)
        check(answer.error_code, f"Broker {broker} does not say what it serves")
        return {one.api_key: Range(one.min_version, one.max_version) for one in answer.api_keys}

    return cluster.patiently(look)
