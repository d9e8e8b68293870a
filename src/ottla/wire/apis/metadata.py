"""Metadata: what every client asks first. And DescribeTopicPartitions, which answers about many partitions in pieces."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, int16, int32, string, struct, uuid


class MetadataRequestTopic(Struct):
    topic_id = uuid(since=10)
    name = string(nullable=10)


class MetadataRequest(Request, key=3, versions="0-12", flexible=9):
    """Which topics, partitions and brokers are there? Null asks for all topics, from v1 on; v0 asks for all with an empty list.

    v4: may topics be created?
    v8: authorized operations.
    v9: flexible.
    v10: topic ids.
    v11: the cluster's operations moved to DescribeCluster.
    v12: topics by id alone.
    """

    topics = array(MetadataRequestTopic, nullable=1)
    allow_auto_topic_creation = boolean(since=4, default=True)
    include_cluster_authorized_operations = boolean(since=8, until=10)
    include_topic_authorized_operations = boolean(since=8)


class MetadataResponseBroker(Struct):
    node_id = int32()
    host = string()
    port = int32()
    rack = string(since=1, nullable=True, default=None)


class MetadataResponsePartition(Struct):
    error_code = int16()
    partition_index = int32()
    leader_id = int32()
    leader_epoch = int32(since=7, default=-1)
    replica_nodes = array(int32())
    isr_nodes = array(int32())
    offline_replicas = array(int32(), since=5)


class MetadataResponseTopic(Struct):
    error_code = int16()
    name = string(nullable=12)
    topic_id = uuid(since=10)
    is_internal = boolean(since=1)
    partitions = array(MetadataResponsePartition)
    topic_authorized_operations = int32(since=8, default=-0x80000000)


class MetadataResponse(Response, answers=MetadataRequest):
    """The cluster as this broker knows it.

    v1: rack, controller, internal topics.
    v2: cluster id.
    v3: throttle time.
    v5: offline replicas.
    v7: leader epochs.
    v8: authorized operations.
    v10: topic ids.
    v12: the name may be null.
    """

    throttle_time_ms = int32(since=3)
    brokers = array(MetadataResponseBroker)
    cluster_id = string(since=2, nullable=True, default=None)
    controller_id = int32(since=1, default=-1)
    topics = array(MetadataResponseTopic)
    cluster_authorized_operations = int32(since=8, until=10, default=-0x80000000)


class DescribeTopicPartitionsTopic(Struct):
    name = string()


class TopicPartitionsCursor(Struct):
    topic_name = string()
    partition_index = int32()


class DescribeTopicPartitionsRequest(Request, key=75, versions="0", flexible=0):
    """Describe topics, or all of them, at most so many partitions at once; the cursor says where to go on."""

    topics = array(DescribeTopicPartitionsTopic)
    response_partition_limit = int32(default=2000)
    cursor = struct(TopicPartitionsCursor, nullable=True)


class DescribedTopicPartition(Struct):
    error_code = int16()
    partition_index = int32()
    leader_id = int32()
    leader_epoch = int32(default=-1)
    replica_nodes = array(int32())
    isr_nodes = array(int32())
    eligible_leader_replicas = array(int32(), nullable=True, default=None)
    last_known_elr = array(int32(), nullable=True, default=None)
    offline_replicas = array(int32())


class DescribedTopicPartitions(Struct):
    error_code = int16()
    name = string(nullable=True)
    topic_id = uuid()
    is_internal = boolean()
    partitions = array(DescribedTopicPartition)
    topic_authorized_operations = int32(default=-0x80000000)


class DescribeTopicPartitionsResponse(Response, answers=DescribeTopicPartitionsRequest):
    """The topics in the order of their names, and where the next answer begins if this is not all."""

    throttle_time_ms = int32()
    topics = array(DescribedTopicPartitions)
    next_cursor = struct(TopicPartitionsCursor, nullable=True)
