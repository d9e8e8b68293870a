"""What the controller tells this broker, and the broker that wants to leave: LeaderAndIsr, StopReplica, UpdateMetadata and
ControlledShutdown, in every version that controllers ever spoke.

Handlers turn wire into values and hand them to the one `Channel` that there is here. Who is too old to be listened to is
decided there; a request that is refused whole says so in its own error code, a partition that failed in its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.controller.channels import Stamp, Stop
from ottla.metadata.image import BrokerImage, Endpoint, MetadataUpdate, PartitionState, TopicImage
from ottla.model import SECURITY_PROTOCOLS, UNKNOWN_EPOCH, Error, KafkaError, TopicPartition
from ottla.wire.apis.replication import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
    RemainingPartition,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)

_NO_ERRORS: Mapping[TopicPartition, Error] = {}


# Roles


@handles(LeaderAndIsrRequest)
async def leader_and_isr(ctx: Context, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
    states = _role_topics(request)
    new: set[TopicPartition] = set()
    topics = []
    for topic in states:
        name = topic.topic_name
        partitions = {}
        for one in topic.partition_states:
            partitions[one.partition_index] = PartitionState(
                one.leader,
                one.leader_epoch,
                tuple(one.isr),
                tuple(one.replicas),
                one.controller_epoch,
                one.partition_epoch,
                tuple(one.adding_replicas),
                tuple(one.removing_replicas),
            )
            if one.is_new:
                new.add(TopicPartition(name, one.partition_index))
        topics.append(TopicImage(name, topic.topic_id, partitions))
    live = {leader.broker_id for leader in request.live_leaders}
    errors = await ctx.services.replicas.leader_and_isr(await _trusted(ctx, request), topics, live, new)
    return _roles_taken(states, errors)


@shapes_errors_of(LeaderAndIsrRequest)
def leader_and_isr_error(request: LeaderAndIsrRequest, error: Error, message: str) -> LeaderAndIsrResponse:
    """The whole was refused, and with it every partition."""
    response = _roles_taken(_role_topics(request), _NO_ERRORS, error)
    response.error_code = error
    return response


def _role_topics(request: LeaderAndIsrRequest) -> list[LeaderAndIsrTopicState]:
    """By topic, as versions from 2 on have it."""
    if not request.ungrouped_partition_states:
        return list(request.topic_states)
    grouped: dict[str, list[LeaderAndIsrPartitionState]] = {}
    for one in request.ungrouped_partition_states:
        grouped.setdefault(one.topic_name, []).append(one)
    return [LeaderAndIsrTopicState(topic_name=name, partition_states=states) for name, states in grouped.items()]


def _roles_taken(
    topics: Iterable[LeaderAndIsrTopicState], errors: Mapping[TopicPartition, Error], otherwise: Error = Error.NONE
) -> LeaderAndIsrResponse:
    """Versions before 5 name the topic in every result, later ones have results by topic id."""
    flat: list[LeaderAndIsrPartitionError] = []
    by_topic = []
    for topic in topics:
        name = topic.topic_name
        results = [
            LeaderAndIsrPartitionError(
                topic_name=name,
                partition_index=one.partition_index,
                error_code=errors.get(TopicPartition(name, one.partition_index), otherwise) if errors else otherwise,
            )
            for one in topic.partition_states
        ]
        flat += results
        by_topic.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=results))
    return LeaderAndIsrResponse(partition_errors=flat, topics=by_topic)


# Replicas that are given up


@handles(StopReplicaRequest)
async def stop_replica(ctx: Context, request: StopReplicaRequest) -> StopReplicaResponse:
    stops = _stops(request)
    errors = await ctx.services.replicas.stop_replicas(await _trusted(ctx, request), stops)
    return StopReplicaResponse(
        partition_errors=[
            StopReplicaPartitionError(
                topic_name=stop.tp.topic,
                partition_index=stop.tp.partition,
                error_code=errors.get(stop.tp, Error.NONE),
            )
            for stop in stops
        ]
    )


def _stops(request: StopReplicaRequest) -> list[Stop]:
    """Version 3 brought the leader epoch, and says of each partition whether it is to be deleted."""
    stops = [
        Stop(TopicPartition(topic.topic_name, one.partition_index), one.leader_epoch, one.delete_partition)
        for topic in request.topic_states
        for one in topic.partition_states
    ]
    delete = request.delete_partitions
    for old in request.ungrouped_partitions:
        stops.append(Stop(TopicPartition(old.topic_name, old.partition_index), UNKNOWN_EPOCH, delete))
    for grouped in request.topics:
        stops += [Stop(TopicPartition(grouped.name, number), UNKNOWN_EPOCH, delete) for number in grouped.partition_indexes]
    return stops


# The cluster


@handles(UpdateMetadataRequest)
async def update_metadata(ctx: Context, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
    update = MetadataUpdate(
        request.controller_id,
        {broker.id: _broker(broker) for broker in request.live_brokers},
        [
            TopicImage(
                topic.topic_name, topic.topic_id, {one.partition_index: _known_state(one) for one in topic.partition_states}
            )
            for topic in _known_topics(request)
        ],
    )
    await ctx.services.replicas.update_metadata(await _trusted(ctx, request), update)
    return UpdateMetadataResponse()


def _known_topics(request: UpdateMetadataRequest) -> list[UpdateMetadataTopicState]:
    """By topic, as versions from 5 on have it."""
    if not request.ungrouped_partition_states:
        return list(request.topic_states)
    grouped: dict[str, list[UpdateMetadataPartitionState]] = {}
    for one in request.ungrouped_partition_states:
        grouped.setdefault(one.topic_name, []).append(one)
    return [UpdateMetadataTopicState(topic_name=name, partition_states=states) for name, states in grouped.items()]


def _known_state(one: UpdateMetadataPartitionState) -> PartitionState:
    return PartitionState(
        one.leader, one.leader_epoch, tuple(one.isr), tuple(one.replicas), one.controller_epoch, one.zk_version
    )


def _broker(broker: UpdateMetadataBroker) -> BrokerImage:
    """Version 0 knows one address, 1 and 2 one for each security protocol, later ones one for each listener."""
    endpoints: dict[str, Endpoint] = {}
    if broker.v0_host:
        endpoints[SECURITY_PROTOCOLS[0]] = Endpoint(broker.v0_host, broker.v0_port)
    for one in broker.endpoints:
        if not 0 <= one.security_protocol < len(SECURITY_PROTOCOLS):
            raise KafkaError(Error.INVALID_REQUEST, f"There is no security protocol {one.security_protocol}.")
        protocol = SECURITY_PROTOCOLS[one.security_protocol]
        endpoints[one.listener or protocol] = Endpoint(one.host, one.port, protocol)
    return BrokerImage(broker.id, endpoints, broker.rack or None)


async def _trusted(ctx: Context, request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest) -> Stamp:
    """Who speaks; raises where the store knows of no such controller: any client can send these requests."""
    await ctx.services.check_controller(request.controller_epoch)
    return Stamp(request.controller_id, request.controller_epoch, request.broker_epoch)


# Leaving


@handles(ControlledShutdownRequest)
async def controlled_shutdown(ctx: Context, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
    try:
        left = await ctx.services.controller.controlled_shutdown(request.broker_id, request.broker_epoch)
    except KafkaError as refusal:
        if refusal.error is not Error.NOT_CONTROLLER:
            raise
        # What Apache Kafka calls it here: the controller moved to another broker.
        raise KafkaError(Error.STALE_CONTROLLER_EPOCH, refusal.message) from None
    return ControlledShutdownResponse(
        remaining_partitions=[RemainingPartition(topic_name=tp.topic, partition_index=tp.partition) for tp in sorted(left)]
    )
