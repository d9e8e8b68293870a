"""The offsets that groups commit."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string


class OffsetCommitRequestPartition(Struct):
    partition_index = int32()
    committed_offset = int64()
    committed_leader_epoch = int32(since=6, default=-1)
    commit_timestamp = int64(since=1, until=1, default=-1)
    committed_metadata = string(nullable=True)


class OffsetCommitRequestTopic(Struct):
    name = string()
    partitions = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Request, key=8, versions="0-9", flexible=8):
    """Commit a group's offsets.

    v1: generation, member, and a timestamp in this version alone.
    v2: retention time, until v4.
    v6: leader epoch.
    v7: static members.
    v8: flexible.
    v9: member epochs of the consumer protocol.
    """

    group_id = string()
    generation_id_or_member_epoch = int32(since=1, default=-1)
    member_id = string(since=1)
    group_instance_id = string(since=7, nullable=True, default=None)
    retention_time_ms = int64(since=2, until=4, default=-1)
    topics = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Struct):
    partition_index = int32()
    error_code = int16()


class OffsetCommitResponseTopic(Struct):
    name = string()
    partitions = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Response, answers=OffsetCommitRequest):
    """One result per partition.

    v3: throttle time.
    """

    throttle_time_ms = int32(since=3)
    topics = array(OffsetCommitResponseTopic)


class OffsetFetchRequestTopic(Struct):
    name = string()
    partition_indexes = array(int32())


class OffsetFetchRequestTopics(Struct):
    name = string()
    partition_indexes = array(int32())


class OffsetFetchRequestGroup(Struct):
    group_id = string()
    member_id = string(since=9, nullable=True, default=None)
    member_epoch = int32(since=9, default=-1)
    topics = array(OffsetFetchRequestTopics, nullable=True)


class OffsetFetchRequest(Request, key=9, versions="0-9", flexible=6):
    """Read committed offsets. v0 reads from ZooKeeper in Apache Kafka.

    v2: null asks for all topics.
    v6: flexible.
    v7: require_stable waits for open transactions.
    v8: many groups at once.
    v9: member id and epoch.
    """

    group_id = string(until=7)
    topics = array(OffsetFetchRequestTopic, until=7, nullable=2)
    groups = array(OffsetFetchRequestGroup, since=8)
    require_stable = boolean(since=7)


class OffsetFetchResponsePartition(Struct):
    partition_index = int32()
    committed_offset = int64()
    committed_leader_epoch = int32(since=5, default=-1)
    metadata = string(nullable=True)
    error_code = int16()


class OffsetFetchResponseTopic(Struct):
    name = string()
    partitions = array(OffsetFetchResponsePartition)


class OffsetFetchResponsePartitions(Struct):
    partition_index = int32()
    committed_offset = int64()
    committed_leader_epoch = int32(default=-1)
    metadata = string(nullable=True)
    error_code = int16()


class OffsetFetchResponseTopics(Struct):
    name = string()
    partitions = array(OffsetFetchResponsePartitions)


class OffsetFetchResponseGroup(Struct):
    group_id = string()
    topics = array(OffsetFetchResponseTopics)
    error_code = int16()


class OffsetFetchResponse(Response, answers=OffsetFetchRequest):
    """Offsets, -1 where none is committed.

    v2: an error for the whole.
    v3: throttle time.
    v5: leader epoch.
    v8: per group.
    """

    throttle_time_ms = int32(since=3)
    topics = array(OffsetFetchResponseTopic, until=7)
    error_code = int16(since=2, until=7)
    groups = array(OffsetFetchResponseGroup, since=8)


class OffsetDeleteRequestPartition(Struct):
    partition_index = int32()


class OffsetDeleteRequestTopic(Struct):
    name = string()
    partitions = array(OffsetDeleteRequestPartition)


class OffsetDeleteRequest(Request, key=47, versions="0"):
    """Delete committed offsets of topics that the group no longer reads."""

    group_id = string()
    topics = array(OffsetDeleteRequestTopic)


class OffsetDeleteResponsePartition(Struct):
    partition_index = int32()
    error_code = int16()


class OffsetDeleteResponseTopic(Struct):
    name = string()
    partitions = array(OffsetDeleteResponsePartition)


class OffsetDeleteResponse(Response, answers=OffsetDeleteRequest):
    """One result per partition."""

    error_code = int16()
    throttle_time_ms = int32()
    topics = array(OffsetDeleteResponseTopic)
