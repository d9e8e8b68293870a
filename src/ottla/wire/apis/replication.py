"""What controller and brokers tell each other about replicas."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, int64, string, uuid


class LeaderAndIsrPartitionState(Struct):
    topic_name = string(until=1)
    partition_index = int32()
    controller_epoch = int32()
    leader = int32()
    leader_epoch = int32()
    isr = array(int32())
    partition_epoch = int32()
    replicas = array(int32())
    adding_replicas = array(int32(), since=3)
    removing_replicas = array(int32(), since=3)
    is_new = boolean(since=1)
    leader_recovery_state = int8(since=6)


class LeaderAndIsrLiveLeader(Struct):
    broker_id = int32()
    host_name = string()
    port = int32()


class LeaderAndIsrTopicState(Struct):
    topic_name = string()
    topic_id = uuid(since=5)
    partition_states = array(LeaderAndIsrPartitionState)


class LeaderAndIsrRequest(Request, key=4, versions="0-7", flexible=4):
    """The controller gives replicas their roles.

    v1: is_new.
    v2: broker epoch; by topic.
    v3: replicas being added and removed.
    v4: flexible.
    v5: topic ids; kind of request.
    v6: leader recovery state.
    v7: is the controller KRaft?
    """

    controller_id = int32()
    is_kraft_controller = boolean(since=7)
    controller_epoch = int32()
    broker_epoch = int64(since=2, default=-1)
    type = int8(since=5)
    ungrouped_partition_states = array(LeaderAndIsrPartitionState, until=1)
    topic_states = array(LeaderAndIsrTopicState, since=2)
    live_leaders = array(LeaderAndIsrLiveLeader)


class LeaderAndIsrPartitionError(Struct):
    topic_name = string(until=4)
    partition_index = int32()
    error_code = int16()


class LeaderAndIsrTopicError(Struct):
    topic_id = uuid()
    partition_errors = array(LeaderAndIsrPartitionError)


class LeaderAndIsrResponse(Response, answers=LeaderAndIsrRequest):
    """One result per partition.

    v5: by topic id.
    """

    error_code = int16()
    partition_errors = array(LeaderAndIsrPartitionError, until=4)
    topics = array(LeaderAndIsrTopicError, since=5)


class StopReplicaPartitionV0(Struct):
    topic_name = string()
    partition_index = int32()


class StopReplicaTopicV1(Struct):
    name = string()
    partition_indexes = array(int32())


class StopReplicaPartitionState(Struct):
    partition_index = int32()
    leader_epoch = int32(default=-1)
    delete_partition = boolean()


class StopReplicaTopicState(Struct):
    topic_name = string()
    partition_states = array(StopReplicaPartitionState)


class StopReplicaRequest(Request, key=5, versions="0-4", flexible=2):
    """The controller ends replicas, and may delete them.

    v1: by topic; broker epoch.
    v2: flexible.
    v3: leader epoch and delete flag per partition.
    v4: is the controller KRaft?
    """

    controller_id = int32()
    is_kraft_controller = boolean(since=4)
    controller_epoch = int32()
    broker_epoch = int64(since=1, default=-1)
    delete_partitions = boolean(until=2)
    ungrouped_partitions = array(StopReplicaPartitionV0, until=0)
    topics = array(StopReplicaTopicV1, since=1, until=2)
    topic_states = array(StopReplicaTopicState, since=3)


class StopReplicaPartitionError(Struct):
    topic_name = string()
    partition_index = int32()
    error_code = int16()


class StopReplicaResponse(Response, answers=StopReplicaRequest):
    """One result per partition."""

    error_code = int16()
    partition_errors = array(StopReplicaPartitionError)


class UpdateMetadataPartitionState(Struct):
    topic_name = string(until=4)
    partition_index = int32()
    controller_epoch = int32()
    leader = int32()
    leader_epoch = int32()
    isr = array(int32())
    zk_version = int32()
    replicas = array(int32())
    offline_replicas = array(int32(), since=4)


class UpdateMetadataEndpoint(Struct):
    port = int32()
    host = string()
    listener = string(since=3)
    security_protocol = int16()


class UpdateMetadataBroker(Struct):
    id = int32()
    v0_host = string(until=0)
    v0_port = int32(until=0)
    endpoints = array(UpdateMetadataEndpoint, since=1)
    rack = string(since=2, nullable=True)


class UpdateMetadataTopicState(Struct):
    topic_name = string()
    topic_id = uuid(since=7)
    partition_states = array(UpdateMetadataPartitionState)


class UpdateMetadataRequest(Request, key=6, versions="0-8", flexible=6):
    """The controller tells brokers about topics and brokers.

    v1: many endpoints.
    v2: rack.
    v3: listener names.
    v4: offline replicas.
    v5: by topic; broker epoch.
    v6: flexible.
    v7: topic ids.
    v8: is the controller KRaft, and is it the whole state?
    """

    controller_id = int32()
    is_kraft_controller = boolean(since=8)
    type = int8(since=8, tag=0)
    controller_epoch = int32()
    broker_epoch = int64(since=5, default=-1)
    ungrouped_partition_states = array(UpdateMetadataPartitionState, until=4)
    topic_states = array(UpdateMetadataTopicState, since=5)
    live_brokers = array(UpdateMetadataBroker)


class UpdateMetadataResponse(Response, answers=UpdateMetadataRequest):
    """Done, or why not."""

    error_code = int16()


class ControlledShutdownRequest(Request, key=7, versions="0-3", flexible=3):
    """A broker asks the controller to move its leaders away.

    v0: a header without client id.
    v2: broker epoch.
    v3: flexible.
    """

    broker_id = int32()
    broker_epoch = int64(since=2, default=-1)


class RemainingPartition(Struct):
    topic_name = string()
    partition_index = int32()


class ControlledShutdownResponse(Response, answers=ControlledShutdownRequest):
    """What it still leads."""

    error_code = int16()
    remaining_partitions = array(RemainingPartition)


class BrokerState(Struct):
    broker_id = int32()
    broker_epoch = int64(default=-1)


class AlterPartitionRequestPartition(Struct):
    partition_index = int32()
    leader_epoch = int32()
    new_isr = array(int32(), until=2)
    new_isr_with_epochs = array(BrokerState, since=3)
    leader_recovery_state = int8(since=1)
    partition_epoch = int32()


class AlterPartitionRequestTopic(Struct):
    topic_name = string(until=1)
    topic_id = uuid(since=2)
    partitions = array(AlterPartitionRequestPartition)


class AlterPartitionRequest(Request, key=56, versions="0-3", flexible=0):
    """A leader asks the controller for a new ISR.

    v1: leader recovery state.
    v2: topic ids in place of names.
    v3: ISR members with their broker epochs.
    """

    broker_id = int32()
    broker_epoch = int64(default=-1)
    topics = array(AlterPartitionRequestTopic)


class AlterPartitionResponsePartition(Struct):
    partition_index = int32()
    error_code = int16()
    leader_id = int32()
    leader_epoch = int32()
    isr = array(int32())
    leader_recovery_state = int8(since=1)
    partition_epoch = int32()


class AlterPartitionResponseTopic(Struct):
    topic_name = string(until=1)
    topic_id = uuid(since=2)
    partitions = array(AlterPartitionResponsePartition)


class AlterPartitionResponse(Response, answers=AlterPartitionRequest):
    """Leader and ISR as they are now.

    v1: leader recovery state.
    v2: topic ids in place of names.
    """

    throttle_time_ms = int32()
    error_code = int16()
    topics = array(AlterPartitionResponseTopic)
