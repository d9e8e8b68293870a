"""A broker's directories and what lies in them."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string


class AlterReplicaLogDirTopic(Struct):
    name = string()
    partitions = array(int32())


class AlterReplicaLogDir(Struct):
    path = string()
    topics = array(AlterReplicaLogDirTopic)


class AlterReplicaLogDirsRequest(Request, key=34, versions="0-2", flexible=2):
    """Move replicas between this broker's directories.

    v2: flexible.
    """

    dirs = array(AlterReplicaLogDir)


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index = int32()
    error_code = int16()


class AlterReplicaLogDirTopicResult(Struct):
    topic_name = string()
    partitions = array(AlterReplicaLogDirPartitionResult)


class AlterReplicaLogDirsResponse(Response, answers=AlterReplicaLogDirsRequest):
    """One result per partition."""

    throttle_time_ms = int32()
    results = array(AlterReplicaLogDirTopicResult)


class DescribableLogDirTopic(Struct):
    topic = string()
    partitions = array(int32())


class DescribeLogDirsRequest(Request, key=35, versions="0-4", flexible=2):
    """What lies in this broker's directories? Null asks for all.

    v2: flexible.
    """

    topics = array(DescribableLogDirTopic, nullable=True)


class DescribeLogDirsPartition(Struct):
    partition_index = int32()
    partition_size = int64()
    offset_lag = int64()
    is_future_key = boolean()


class DescribeLogDirsTopic(Struct):
    name = string()
    partitions = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Struct):
    error_code = int16()
    log_dir = string()
    topics = array(DescribeLogDirsTopic)
    total_bytes = int64(since=4, default=-1)
    usable_bytes = int64(since=4, default=-1)


class DescribeLogDirsResponse(Response, answers=DescribeLogDirsRequest):
    """Directories with their replicas.

    v3: an error for the whole.
    v4: size of the volume.
    """

    throttle_time_ms = int32()
    error_code = int16(since=3)
    results = array(DescribeLogDirsResult)
