"""Moving replicas and leaders."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, int8, int16, int32, string


class ReassignablePartition(Struct):
    partition_index = int32()
    replicas = array(int32(), nullable=True, default=None)


class ReassignableTopic(Struct):
    name = string()
    partitions = array(ReassignablePartition)


class AlterPartitionReassignmentsRequest(Request, key=45, versions="0", flexible=0):
    """Begin, or with null replicas cancel, the move of partitions."""

    timeout_ms = int32(default=60000)
    topics = array(ReassignableTopic)


class ReassignablePartitionResponse(Struct):
    partition_index = int32()
    error_code = int16()
    error_message = string(nullable=True)


class ReassignableTopicResponse(Struct):
    name = string()
    partitions = array(ReassignablePartitionResponse)


class AlterPartitionReassignmentsResponse(Response, answers=AlterPartitionReassignmentsRequest):
    """One result per partition."""

    throttle_time_ms = int32()
    error_code = int16()
    error_message = string(nullable=True)
    responses = array(ReassignableTopicResponse)


class ListPartitionReassignmentsTopics(Struct):
    name = string()
    partition_indexes = array(int32())


class ListPartitionReassignmentsRequest(Request, key=46, versions="0", flexible=0):
    """What is moving? Null asks for all."""

    timeout_ms = int32(default=60000)
    topics = array(ListPartitionReassignmentsTopics, nullable=True, default=None)


class OngoingPartitionReassignment(Struct):
    partition_index = int32()
    replicas = array(int32())
    adding_replicas = array(int32())
    removing_replicas = array(int32())


class OngoingTopicReassignment(Struct):
    name = string()
    partitions = array(OngoingPartitionReassignment)


class ListPartitionReassignmentsResponse(Response, answers=ListPartitionReassignmentsRequest):
    """Moves that are under way."""

    throttle_time_ms = int32()
    error_code = int16()
    error_message = string(nullable=True)
    topics = array(OngoingTopicReassignment)


class ElectLeadersTopic(Struct):
    topic = string()
    partitions = array(int32())


class ElectLeadersRequest(Request, key=43, versions="0-2", flexible=2):
    """Elect preferred (0) or unclean (1) leaders; null asks for all partitions.

    v1: election type.
    v2: flexible.
    """

    election_type = int8(since=1)
    topic_partitions = array(ElectLeadersTopic, nullable=True)
    timeout_ms = int32(default=60000)


class PartitionResult(Struct):
    partition_id = int32()
    error_code = int16()
    error_message = string(nullable=True)


class ReplicaElectionResult(Struct):
    topic = string()
    partition_result = array(PartitionResult)


class ElectLeadersResponse(Response, answers=ElectLeadersRequest):
    """One result per partition.

    v1: an error for the whole.
    """

    throttle_time_ms = int32()
    error_code = int16(since=1)
    replica_election_results = array(ReplicaElectionResult)
