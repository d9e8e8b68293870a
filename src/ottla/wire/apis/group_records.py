"""The records of `__consumer_offsets`. A key's version tells its kind (see `GROUP_KEYS`); a null value deletes it."""

from __future__ import annotations

from ottla.wire.schema import Data, Struct, array, bytes_, int8, int32, int64, string, struct, uuid


class OffsetCommitKey(Data, versions="0-1"):
    """Key of a committed offset.

    v0 and v1 are the same.
    """

    group = string()
    topic = string()
    partition = int32()


class OffsetCommitValue(Data, versions="0-4", flexible=4):
    """A committed offset.

    v1: expiry, in this version alone.
    v3: leader epoch.
    v4: flexible.
    """

    offset = int64()
    leader_epoch = int32(since=3, default=-1)
    metadata = string()
    commit_timestamp = int64()
    expire_timestamp = int64(since=1, until=1, default=-1)


class GroupMetadataKey(Data, versions="2"):
    """Key of a classic group."""

    group = string()


class MemberMetadata(Struct):
    member_id = string()
    group_instance_id = string(since=3, nullable=True, default=None)
    client_id = string()
    client_host = string()
    rebalance_timeout = int32(since=1, default=-1)
    session_timeout = int32()
    subscription = bytes_()
    assignment = bytes_()


class GroupMetadataValue(Data, versions="0-4", flexible=4):
    """A classic group: its generation and members.

    v1: rebalance timeout.
    v2: time of the last state change.
    v3: static members.
    v4: flexible.
    """

    protocol_type = string()
    generation = int32()
    protocol = string(nullable=True)
    leader = string(nullable=True)
    current_state_timestamp = int64(since=2, default=-1)
    members = array(MemberMetadata)


class ConsumerGroupMetadataKey(Data, versions="3"):
    """Key of a consumer group's epoch."""

    group_id = string()


class ConsumerGroupMetadataValue(Data, versions="0", flexible=0):
    """A consumer group's epoch."""

    epoch = int32()


class ConsumerGroupPartitionMetadataKey(Data, versions="4"):
    """Key of what a consumer group knows about its topics."""

    group_id = string()


class PartitionMetadata(Struct):
    partition = int32()
    racks = array(string())


class TopicMetadata(Struct):
    topic_id = uuid()
    topic_name = string()
    num_partitions = int32()
    partition_metadata = array(PartitionMetadata)


class ConsumerGroupPartitionMetadataValue(Data, versions="0", flexible=0):
    """The subscribed topics as they were when the epoch was made."""

    topics = array(TopicMetadata)


class ConsumerGroupMemberMetadataKey(Data, versions="5"):
    """Key of a member of a consumer group."""

    group_id = string()
    member_id = string()


class ClassicProtocol(Struct):
    name = string()
    metadata = bytes_()


class ClassicMemberMetadata(Struct):
    session_timeout_ms = int32()
    supported_protocols = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Data, versions="0", flexible=0):
    """A member: who it is and what it subscribes to."""

    instance_id = string(nullable=True)
    rack_id = string(nullable=True)
    client_id = string()
    client_host = string()
    subscribed_topic_names = array(string())
    subscribed_topic_regex = string(nullable=True)
    rebalance_timeout_ms = int32(default=-1)
    server_assignor = string(nullable=True)
    # Null, which is sent, for a member that speaks the consumer protocol; not sent at all is an empty struct.
    classic_member_metadata = struct(ClassicMemberMetadata, nullable=True, tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(Data, versions="6"):
    """Key of the target assignment's epoch."""

    group_id = string()


class ConsumerGroupTargetAssignmentMetadataValue(Data, versions="0", flexible=0):
    """The target assignment's epoch."""

    assignment_epoch = int32()


class ConsumerGroupTargetAssignmentMemberKey(Data, versions="7"):
    """Key of what a member shall have."""

    group_id = string()
    member_id = string()


class AssignedTopicPartitions(Struct):
    topic_id = uuid()
    partitions = array(int32())


class ConsumerGroupTargetAssignmentMemberValue(Data, versions="0", flexible=0):
    """What a member shall have."""

    topic_partitions = array(AssignedTopicPartitions)


class ConsumerGroupCurrentMemberAssignmentKey(Data, versions="8"):
    """Key of what a member has."""

    group_id = string()
    member_id = string()


class ConsumerGroupCurrentMemberAssignmentValue(Data, versions="0", flexible=0):
    """What a member has, and what it still has to give up."""

    member_epoch = int32()
    previous_member_epoch = int32()
    state = int8()
    assigned_partitions = array(AssignedTopicPartitions)
    partitions_pending_revocation = array(AssignedTopicPartitions)


# Which kind of key follows its version.
GROUP_KEYS: dict[int, type[Data]] = {
    version: key
    for key in (
        OffsetCommitKey,
        GroupMetadataKey,
        ConsumerGroupMetadataKey,
        ConsumerGroupPartitionMetadataKey,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupCurrentMemberAssignmentKey,
    )
    for version in range(key.min_version, key.max_version + 1)
}
