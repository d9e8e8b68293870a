"""Metadata and DescribeCluster: the image, as a client of this listener sees it."""

from __future__ import annotations

import asyncio
import logging

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.api.topics import create_automatically
from ottla.controller.topic_rules import INTERNAL_TOPICS, check_name
from ottla.metadata.image import Image, PartitionState, TopicImage
from ottla.model import NO_LEADER, Error, KafkaError
from ottla.wire.apis.cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse
from ottla.wire.apis.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

log = logging.getLogger("ottla.api")

NO_TOPIC_ID = bytes(16)
# Without ACLs everything is allowed. Bits are Kafka's AclOperation codes.
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED = -0x80000000


@handles(MetadataRequest)
async def metadata(ctx: Context, request: MetadataRequest) -> MetadataResponse:
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    if request.topics is None or (ctx.version == 0 and not request.topics):
        topics = [_describe(ctx.image, topic, operations) for topic in ctx.image.topics.values()]
    else:
        if ctx.version < 12:
            _only_names(request)
        refused = await _create_missing(ctx, request)
        topics = [_look_up(ctx.image, asked.name, asked.topic_id, operations) for asked in request.topics]
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
    """Create what is asked for by name and not there, where client and broker want that; what was refused, and why."""
    refused: dict[str, Error] = {}
    if not (request.allow_auto_topic_creation and ctx.services.config.flag("auto.create.topics.enable")):
        return refused
    missing = {topic.name for topic in request.topics or () if topic.name and topic.name not in ctx.image.topics}
    for name in sorted(missing):
        try:
            check_name(name)
            await asyncio.shield(create_automatically(ctx.services, name))
        except KafkaError as problem:
            log.warning("Topic %s was asked for and could not be created: %s", name, problem.message)
            refused[name] = problem.error
    return refused


def _look_up(image: Image, name: str | None, topic_id: bytes, operations: int) -> MetadataResponseTopic:
    if name is None:
        name = image.topic_names.get(topic_id)
        if name is None:
            return MetadataResponseTopic(error_code=Error.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    topic = image.topics.get(name)
    if topic is not None:
        return _describe(image, topic, operations)
    try:
        check_name(name)
    except KafkaError as problem:
        return MetadataResponseTopic(error_code=problem.error, name=name)
    return MetadataResponseTopic(error_code=Error.UNKNOWN_TOPIC_OR_PARTITION, name=name)


def _describe(image: Image, topic: TopicImage, operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=Error.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(image, number, state) for number, state in topic.partitions.items()],
        topic_authorized_operations=operations,
    )


def _partition(image: Image, number: int, state: PartitionState) -> MetadataResponsePartition:
    known = state.leader in image.brokers
    return MetadataResponsePartition(
        error_code=Error.NONE if known else Error.LEADER_NOT_AVAILABLE,
        partition_index=number,
        leader_id=state.leader if known else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        offline_replicas=[replica for replica in state.replicas if replica not in image.brokers],
    )


def _brokers(ctx: Context) -> list[MetadataResponseBroker]:
    brokers = []
    for broker in ctx.image.brokers.values():
        endpoint = ctx.node(broker.id)
        if endpoint is not None:
            brokers.append(MetadataResponseBroker(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack))
    return brokers


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
