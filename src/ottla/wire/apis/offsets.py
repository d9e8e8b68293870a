"""Offsets in a log: by time, and by leader epoch."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, int8, int16, int32, int64, string


class ListOffsetsPartition(Struct):
    partition_index = int32()
    current_leader_epoch = int32(since=4, default=-1)
    timestamp = int64()
    max_num_offsets = int32(until=0, default=1)


class ListOffsetsTopic(Struct):
    name = string()
    partitions = array(ListOffsetsPartition)


class ListOffsetsRequest(Request, key=2, versions="0-9", flexible=6):
    """Offsets by time: -1 latest, -2 earliest, -3 max timestamp, -4 earliest local, -5 latest tiered.

    v0: up to max_num_offsets segment bases.
    v1: one offset with its timestamp.
    v2: isolation level.
    v4: leader epoch.
    v6: flexible.
    v7: max timestamp.
    v8: earliest local.
    v9: latest tiered.
    """

    replica_id = int32()
    isolation_level = int8(since=2)
    topics = array(ListOffsetsTopic)


class ListOffsetsPartitionResponse(Struct):
    partition_index = int32()
    error_code = int16()
    old_style_offsets = array(int64(), until=0)
    timestamp = int64(since=1, default=-1)
    offset = int64(since=1, default=-1)
    leader_epoch = int32(since=4, default=-1)


class ListOffsetsTopicResponse(Struct):
    name = string()
    partitions = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Response, answers=ListOffsetsRequest):
    """The offset found, -1 if none.

    v0: a list of offsets.
    v1: one offset and timestamp.
    v2: throttle time.
    v4: leader epoch of the offset.
    """

    throttle_time_ms = int32(since=2)
    topics = array(ListOffsetsTopicResponse)


class OffsetForLeaderPartition(Struct):
    partition = int32()
    current_leader_epoch = int32(since=2, default=-1)
    leader_epoch = int32()


class OffsetForLeaderTopic(Struct):
    topic = string()
    partitions = array(OffsetForLeaderPartition)


class OffsetForLeaderEpochRequest(Request, key=23, versions="0-4", flexible=4):
    """Where does an epoch end? Followers and consumers truncate by it.

    v2: the asker's current epoch.
    v3: replica id: -2 is a consumer, -1 a debugger.
    v4: flexible.
    """

    replica_id = int32(since=3, default=-2)
    topics = array(OffsetForLeaderTopic)


class EpochEndOffset(Struct):
    error_code = int16()
    partition = int32()
    leader_epoch = int32(since=1, default=-1)
    end_offset = int64(default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic = string()
    partitions = array(EpochEndOffset)


class OffsetForLeaderEpochResponse(Response, answers=OffsetForLeaderEpochRequest):
    """The largest epoch not above the one asked, and its end offset.

    v1: the epoch found.
    v2: throttle time.
    """

    throttle_time_ms = int32(since=2)
    topics = array(OffsetForLeaderTopicResult)
