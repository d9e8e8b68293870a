"""Topics as `ottla topics --describe` shows them: which partitions, and in which form."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.cli.output import Cell
from ottla.client.admin.configs import TOPIC, describe_configs
from ottla.client.admin.nodes import api_versions
from ottla.client.admin.topics import Reassignment, list_reassignments
from ottla.client.cluster import Cluster, PartitionInfo, TopicInfo
from ottla.client.errors import ClientError
from ottla.model import NO_LEADER, Error, TopicPartition
from ottla.wire.apis.metadata import DescribeTopicPartitionsRequest


class Filters(NamedTuple):
    """What is to be shown of all that there is."""

    with_overrides: bool = False
    under_replicated: bool = False
    unavailable: bool = False
    under_min_isr: bool = False
    at_min_isr: bool = False

    @property
    def partitions_only(self) -> bool:
        """Whether single partitions are looked for, and not topics."""
        return self.under_replicated or self.unavailable or self.under_min_isr or self.at_min_isr


class Described(NamedTuple):
    """A topic with the settings that somebody gave it, and the partitions that are to be shown."""

    topic: TopicInfo
    settings: Mapping[str, str | None]
    partitions: Mapping[int, PartitionInfo]
    moves: Mapping[int, Reassignment]
    elr: str
    """Its eligible leader replicas: none, or not to be had."""

    @property
    def replication_factor(self) -> int:
        """Of its first partition, without what is only being added."""
        for number, partition in self.topic.partitions.items():
            return _factor(partition, self.moves.get(number))
        return 0


def describe_all(cluster: Cluster, found: Mapping[str, TopicInfo], filters: Filters, *, by_id: bool) -> list[Described]:
    """The topics with all that is shown of them."""
    moves = _moves(cluster)
    live = cluster.brokers()
    elr = _elr(cluster, live, by_id)
    configs = describe_configs(cluster, [(TOPIC, name) for name in found]) if found else {}
    described = []
    for name, topic in found.items():
        values = {one.name: one for one in configs[TOPIC, name]}
        min_isr = int(values["min.insync.replicas"].value or 1) if "min.insync.replicas" in values else 1
        own = {one.name: one.value for one in values.values() if not one.is_default}
        moving = {tp.partition: move for tp, move in moves.items() if tp.topic == name}
        shown = {
            number: partition
            for number, partition in topic.partitions.items()
            if not filters.partitions_only or _is_meant(partition, moving.get(number), live, min_isr, filters)
        }
        if own or not filters.with_overrides:
            described.append(Described(topic, own, shown, moving, elr))
    return described


def _elr(cluster: Cluster, live: Mapping[int, object], by_id: bool) -> str:
    """Apache's tool asks brokers that serve DescribeTopicPartitions, by name only; those of ZooKeeper clusters have none."""
    asked = not by_id and live and DescribeTopicPartitionsRequest.api_key in api_versions(cluster, min(live))
    return "" if asked else "N/A"


def _moves(cluster: Cluster) -> dict[TopicPartition, Reassignment]:
    """What is being moved; nothing where we may not know it, or the broker is too old to say."""
    try:
        return list_reassignments(cluster)
    except ClientError as refused:
        if refused.error not in (Error.UNSUPPORTED_VERSION, Error.CLUSTER_AUTHORIZATION_FAILED):
            raise
        return {}


def _factor(partition: PartitionInfo, move: Reassignment | None) -> int:
    return len(partition.replicas) - (len(move.adding) if move is not None else 0)


def _is_meant(
    partition: PartitionInfo, move: Reassignment | None, live: Mapping[int, object], min_isr: int, filters: Filters
) -> bool:
    in_sync, led = len(partition.isr), partition.leader != NO_LEADER
    return (
        (filters.under_replicated and in_sync < _factor(partition, move))
        or (filters.unavailable and (not led or partition.leader not in live))
        or (filters.under_min_isr and (not led or in_sync < min_isr))
        or (filters.at_min_isr and in_sync == min_isr)
    )


# ---- forms ---------------------------------------------------------------------------------------------------------------


def lines_of(found: Sequence[Described], filters: Filters) -> Iterator[str]:
    """As Apache's tool prints them."""
    for one in found:
        name = one.topic.name
        if not filters.partitions_only:
            settings = ",".join(f"{key}={value}" for key, value in one.settings.items())
            yield (
                f"Topic: {name}\tTopicId: {_shown(one.topic.id)}\tPartitionCount: {len(one.topic.partitions)}"
                f"\tReplicationFactor: {one.replication_factor}\tConfigs: {settings}"
            )
        if filters.with_overrides:
            continue
        for number, partition in one.partitions.items():
            leader = "none" if partition.leader == NO_LEADER else partition.leader
            line = f"\tTopic: {name}\tPartition: {number}\tLeader: {leader}"
            line += f"\tReplicas: {_joined(partition.replicas)}\tIsr: {_joined(partition.isr)}"
            if number in one.moves:
                move = one.moves[number]
                line += f"\tAdding Replicas: {_joined(move.adding)}\tRemoving Replicas: {_joined(move.removing)}"
            yield f"{line}\tElr: {one.elr}\tLastKnownElr: {one.elr}"


def rows_of(found: Sequence[Described], filters: Filters) -> list[tuple[Cell, ...]]:
    """For a table: a row for each partition; the topic's settings are in its first."""
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        settings = ", ".join(f"{key}={value}" for key, value in one.settings.items())
        if filters.with_overrides:
            rows.append((one.topic.name, None, None, None, None, settings))
            continue
        for at, (number, partition) in enumerate(one.partitions.items()):
            leader = None if partition.leader == NO_LEADER else partition.leader
            shown = settings if at == 0 and not filters.partitions_only else ""
            rows.append((one.topic.name, number, leader, partition.replicas, partition.isr, shown))
    return rows


def objects_of(found: Sequence[Described], filters: Filters) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {
            "topic": one.topic.name,
            "topicId": _shown(one.topic.id),
            "internal": one.topic.internal,
            "partitionCount": len(one.topic.partitions),
            "replicationFactor": one.replication_factor,
            "configs": dict(one.settings),
            "partitions": [
                {
                    "partition": number,
                    "leader": None if partition.leader == NO_LEADER else partition.leader,
                    "replicas": partition.replicas,
                    "isr": partition.isr,
                    "addingReplicas": one.moves[number].adding if number in one.moves else (),
                    "removingReplicas": one.moves[number].removing if number in one.moves else (),
                }
                for number, partition in one.partitions.items()
            ],
        }
        for one in found
        if one.partitions or not filters.partitions_only
    ]


def _shown(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def _joined(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))
