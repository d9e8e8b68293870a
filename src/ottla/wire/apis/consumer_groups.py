"""Groups of the consumer protocol (KIP-848): one heartbeat does it all."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, int16, int32, string, struct, uuid


class TopicPartitions(Struct):
    topic_id = uuid()
    partitions = array(int32())


class ConsumerGroupHeartbeatRequest(Request, key=68, versions="0-1", flexible=0):
    """Join, stay in and leave a group of the consumer protocol: epoch 0 joins, -1 leaves, -2 leaves for a while (static).

    v1 (Apache Kafka 4.0, the first that librdkafka speaks): a pattern of topics; the client makes its member id.
    """

    group_id = string()
    member_id = string()
    member_epoch = int32()
    instance_id = string(nullable=True, default=None)
    rack_id = string(nullable=True, default=None)
    rebalance_timeout_ms = int32(default=-1)
    subscribed_topic_names = array(string(), nullable=True, default=None)
    subscribed_topic_regex = string(since=1, nullable=True, default=None)
    server_assignor = string(nullable=True, default=None)
    topic_partitions = array(TopicPartitions, nullable=True, default=None)


class Assignment(Struct):
    topic_partitions = array(TopicPartitions)


class ConsumerGroupHeartbeatResponse(Response, answers=ConsumerGroupHeartbeatRequest):
    """The member's epoch, and its assignment when it changed."""

    throttle_time_ms = int32()
    error_code = int16()
    error_message = string(nullable=True, default=None)
    member_id = string(nullable=True, default=None)
    member_epoch = int32()
    heartbeat_interval_ms = int32()
    assignment = struct(Assignment, nullable=True)


class ConsumerGroupDescribeRequest(Request, key=69, versions="0", flexible=0):
    """Describe groups of the consumer protocol."""

    group_ids = array(string())
    include_authorized_operations = boolean()


class DescribedPartitions(Struct):
    topic_id = uuid()
    topic_name = string()
    partitions = array(int32())


class DescribedAssignment(Struct):
    topic_partitions = array(DescribedPartitions)


class Member(Struct):
    member_id = string()
    instance_id = string(nullable=True, default=None)
    rack_id = string(nullable=True, default=None)
    member_epoch = int32()
    client_id = string()
    client_host = string()
    subscribed_topic_names = array(string())
    subscribed_topic_regex = string(nullable=True, default=None)
    assignment = struct(DescribedAssignment)
    target_assignment = struct(DescribedAssignment)


class DescribedGroup(Struct):
    error_code = int16()
    error_message = string(nullable=True, default=None)
    group_id = string()
    group_state = string()
    group_epoch = int32()
    assignment_epoch = int32()
    assignor_name = string()
    members = array(Member)
    authorized_operations = int32(default=-0x80000000)


class ConsumerGroupDescribeResponse(Response, answers=ConsumerGroupDescribeRequest):
    """State, members and their assignments."""

    throttle_time_ms = int32()
    groups = array(DescribedGroup)
