"""Metadata, DescribeTopicPartitions and DescribeCluster: the image, as a client of this listener sees it."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.api.topics import create_missing
from ottla.controller.topic_rules import INTERNAL_TOPICS, check_name
from ottla.metadata.image import Image, PartitionState, TopicImage
from ottla.model import NO_LEADER, Error, KafkaError
from ottla.wire.apis.cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse
from ottla.wire.apis.metadata import (
    DescribedTopicPartition,
    DescribedTopicPartitions,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    TopicPartitionsCursor,
)

log = logging.getLogger("ottla.api")

NO_TOPIC_ID = bytes(16)
# Without ACLs everything is allowed. Bits are Kafka's AclOperation codes.
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED = -0x80000000
# The controller moves, or cannot be reached: nothing is wrong with what it was asked for.
_NO_CONTROLLER = frozenset({Error.NOT_CONTROLLER, Error.BROKER_NOT_AVAILABLE})


@handles(MetadataRequest)
async def metadata(ctx: Context, request: MetadataRequest) -> MetadataResponse:
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    if request.topics is None or (ctx.version == 0 and not request.topics):
        view = _View.of(ctx)
        topics = [_describe(view, topic, operations) for topic in ctx.image.topics.values()]
    else:
        if ctx.version < 12:
            _only_names(request)
        refused = await _create_missing(ctx, request)
        view = _View.of(ctx)
        topics = [_look_up(view, asked.name, asked.topic_id, operations) for asked in request.topics]
        for topic in topics:
            if topic.name in refused:
                topic.error_code = refused[topic.name]
    return MetadataResponse(
        brokers=_brokers(ctx),
        cluster_id=ctx.services.cluster_id,
        controller_id=ctx.image.controller_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED,
    )


@shapes_errors_of(MetadataRequest)
def metadata_error(request: MetadataRequest, error: Error, message: str) -> MetadataResponse:
    asked = request.topics or ()
    return MetadataResponse(
        topics=[MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id) for topic in asked]
    )


def _only_names(request: MetadataRequest) -> None:
    """Versions 10 and 11 have a place for topic ids, but only version 12 gave it a meaning."""
    for topic in request.topics or ():
        if topic.name is None:
            raise KafkaError(Error.INVALID_REQUEST, "Topics can be asked for without a name from version 12 on.")
        if topic.topic_id != NO_TOPIC_ID:
            raise KafkaError(Error.INVALID_REQUEST, "Topics can be asked for by id from version 12 on.")


async def _create_missing(ctx: Context, request: MetadataRequest) -> dict[str, Error]:
    """Create what is asked for by name and not there, where client and broker want that; what is not there yet, and why.

    What the controller has created and not told us of, or could not be asked for now, will have a leader soon: the client
    asks again.
    """
    if not (request.allow_auto_topic_creation and ctx.services.config.flag("auto.create.topics.enable")):
        return {}
    refused: dict[str, KafkaError] = {}
    missing: list[str] = []
    for name in sorted({topic.name for topic in request.topics or () if topic.name and topic.name not in ctx.image.topics}):
        try:
            check_name(name)
            missing.append(name)
        except KafkaError as problem:
            refused[name] = problem
    if missing:
        try:
            results = await asyncio.shield(create_missing(ctx.services, missing))
            refused |= {name: problem for name, problem in results.items() if problem is not None}
        except KafkaError as problem:
            refused |= dict.fromkeys(missing, problem)
    for name, refusal in refused.items():
        log.warning("Topic %s was asked for and could not be created: %s", name, refusal.message)
    created = {name: Error.LEADER_NOT_AVAILABLE for name in missing if name not in ctx.image.topics}
    return created | {
        name: Error.LEADER_NOT_AVAILABLE if refusal.error in _NO_CONTROLLER else refusal.error
        for name, refusal in refused.items()
    }


class _View(NamedTuple):
    """The image as a client of one listener sees it, in the words of one version."""

    image: Image
    reachable: frozenset[int]
    """The live brokers that have an address for this listener."""
    without_address: Error
    """What a partition says whose leader lives, but not for this listener."""
    only_reachable: bool
    """Version 0 does not name replicas that cannot be reached, and says that some are missing."""

    @classmethod
    def of(cls, ctx: Context) -> _View:
        reachable = frozenset(broker for broker in ctx.image.brokers if ctx.node(broker) is not None)
        without_address = Error.LISTENER_NOT_FOUND if ctx.version >= 6 else Error.LEADER_NOT_AVAILABLE
        return cls(ctx.image, reachable, without_address, ctx.version == 0)


def _look_up(view: _View, name: str | None, topic_id: bytes, operations: int) -> MetadataResponseTopic:
    if name is None or topic_id != NO_TOPIC_ID:  # Java's admin client sends an empty name beside an id: the id counts
        name = view.image.topic_names.get(topic_id)
        if name is None:
            return MetadataResponseTopic(error_code=Error.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    topic = view.image.topics.get(name)
    if topic is not None:
        return _describe(view, topic, operations)
    try:
        check_name(name)
    except KafkaError as problem:
        return MetadataResponseTopic(error_code=problem.error, name=name)
    return MetadataResponseTopic(error_code=Error.UNKNOWN_TOPIC_OR_PARTITION, name=name)


def _describe(view: _View, topic: TopicImage, operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=Error.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(view, number, state) for number, state in topic.partitions.items()],
        topic_authorized_operations=operations,
    )


def _partition(view: _View, number: int, state: PartitionState) -> MetadataResponsePartition:
    reachable = view.reachable
    offline = [replica for replica in state.replicas if replica not in reachable]
    error = Error.NONE
    replicas, isr = state.replicas, state.isr
    if offline and view.only_reachable:
        error = Error.REPLICA_NOT_AVAILABLE
        replicas, isr = (tuple(one for one in some if one in reachable) for some in (replicas, isr))
    known = state.leader in reachable
    if not known:
        error = view.without_address if state.leader in view.image.brokers else Error.LEADER_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=error,
        partition_index=number,
        leader_id=state.leader if known else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=offline,
    )


def _brokers(ctx: Context) -> list[MetadataResponseBroker]:
    brokers = []
    for broker in ctx.image.brokers.values():
        endpoint = ctx.node(broker.id)
        if endpoint is not None:
            brokers.append(MetadataResponseBroker(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack))
    return brokers


@handles(DescribeTopicPartitionsRequest)
def describe_topic_partitions(ctx: Context, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """Topics in the order of their names, until the limit is reached; the next request goes on from there."""
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise KafkaError(Error.INVALID_REQUEST, "DescribeTopicPartitionsRequest cursor partition must be valid.")
    names = sorted({topic.name for topic in request.topics} or ctx.image.topics)
    left = max(min(ctx.services.config.integer("max.request.partition.size.limit"), request.response_partition_limit), 1)
    view = _View.of(ctx)
    answer: list[DescribedTopicPartitions] = []
    for name in names:
        if cursor is not None and name < cursor.topic_name:
            continue
        found = _look_up(view, name, NO_TOPIC_ID, TOPIC_OPERATIONS)
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        chosen = [one for one in found.partitions if one.partition_index >= first]
        if chosen and not left:
            return _partitions_answer(answer, name, chosen[0])
        answer.append(_described(found, chosen[:left]))
        if len(chosen) > left:
            return _partitions_answer(answer, name, chosen[left])
        left -= len(chosen)
    return DescribeTopicPartitionsResponse(topics=answer)


@shapes_errors_of(DescribeTopicPartitionsRequest)
def describe_topic_partitions_error(
    request: DescribeTopicPartitionsRequest, error: Error, message: str
) -> DescribeTopicPartitionsResponse:
    topics = [DescribedTopicPartitions(error_code=error, name=topic.name) for topic in request.topics]
    return DescribeTopicPartitionsResponse(topics=topics)


def _partitions_answer(
    topics: list[DescribedTopicPartitions], name: str, following: MetadataResponsePartition
) -> DescribeTopicPartitionsResponse:
    cursor = TopicPartitionsCursor(topic_name=name, partition_index=following.partition_index)
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)


def _described(topic: MetadataResponseTopic, partitions: list[MetadataResponsePartition]) -> DescribedTopicPartitions:
    return DescribedTopicPartitions(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            DescribedTopicPartition(
                error_code=one.error_code,
                partition_index=one.partition_index,
                leader_id=one.leader_id,
                leader_epoch=one.leader_epoch,
                replica_nodes=one.replica_nodes,
                isr_nodes=one.isr_nodes,
                eligible_leader_replicas=[],  # Java's admin client cannot read null, which the message allows
                last_known_elr=[],
                offline_replicas=one.offline_replicas,
            )
            for one in partitions
        ],
        topic_authorized_operations=topic.topic_authorized_operations,
    )


@handles(DescribeClusterRequest)
def describe_cluster(ctx: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type != 1:
        raise KafkaError(Error.UNSUPPORTED_ENDPOINT_TYPE, "Only brokers can be described here: endpoint type 1.")
    return DescribeClusterResponse(
        cluster_id=ctx.services.cluster_id,
        controller_id=ctx.image.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in _brokers(ctx)
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED,
    )
