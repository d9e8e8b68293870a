"""Topics: create, grow, empty and delete."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, int64, string, uuid


class CreatableReplicaAssignment(Struct):
    partition_index = int32()
    broker_ids = array(int32())


class CreatableTopicConfig(Struct):
    name = string()
    value = string(nullable=True)


class CreatableTopic(Struct):
    name = string()
    num_partitions = int32()
    replication_factor = int16()
    assignments = array(CreatableReplicaAssignment)
    configs = array(CreatableTopicConfig)


class CreateTopicsRequest(Request, key=19, versions="0-7", flexible=5):
    """Make topics, by count or by assignment.

    v1: validate_only.
    v4: -1 for the broker's own counts.
    v5: flexible.
    v6: may be refused by quota.
    """

    topics = array(CreatableTopic)
    timeout_ms = int32(default=60000)
    validate_only = boolean(since=1)


class CreatableTopicConfigs(Struct):
    name = string()
    value = string(nullable=True)
    read_only = boolean()
    config_source = int8(default=-1)
    is_sensitive = boolean()


class CreatableTopicResult(Struct):
    name = string()
    topic_id = uuid(since=7)
    error_code = int16()
    error_message = string(since=1, nullable=True)
    topic_config_error_code = int16(since=5, tag=0)
    num_partitions = int32(since=5, default=-1)
    replication_factor = int16(since=5, default=-1)
    configs = array(CreatableTopicConfigs, since=5, nullable=True)


class CreateTopicsResponse(Response, answers=CreateTopicsRequest):
    """One result per topic.

    v1: message.
    v2: throttle time.
    v5: counts and settings of the new topic.
    v7: topic id.
    """

    throttle_time_ms = int32(since=2)
    topics = array(CreatableTopicResult)


class DeleteTopicState(Struct):
    name = string(nullable=True, default=None)
    topic_id = uuid()


class DeleteTopicsRequest(Request, key=20, versions="0-6", flexible=4):
    """Delete topics.

    v4: flexible.
    v5: may be refused by quota.
    v6: by name or by id.
    """

    topics = array(DeleteTopicState, since=6)
    topic_names = array(string(), until=5)
    timeout_ms = int32()


class DeletableTopicResult(Struct):
    name = string(nullable=6)
    topic_id = uuid(since=6)
    error_code = int16()
    error_message = string(since=5, nullable=True, default=None)


class DeleteTopicsResponse(Response, answers=DeleteTopicsRequest):
    """One result per topic.

    v1: throttle time.
    v5: message.
    v6: topic id; the name may be null.
    """

    throttle_time_ms = int32(since=1)
    responses = array(DeletableTopicResult)


class CreatePartitionsAssignment(Struct):
    broker_ids = array(int32())


class CreatePartitionsTopic(Struct):
    name = string()
    count = int32()
    assignments = array(CreatePartitionsAssignment, nullable=True)


class CreatePartitionsRequest(Request, key=37, versions="0-3", flexible=2):
    """Grow topics.

    v2: flexible.
    v3: may be refused by quota.
    """

    topics = array(CreatePartitionsTopic)
    timeout_ms = int32()
    validate_only = boolean()


class CreatePartitionsTopicResult(Struct):
    name = string()
    error_code = int16()
    error_message = string(nullable=True, default=None)


class CreatePartitionsResponse(Response, answers=CreatePartitionsRequest):
    """One result per topic."""

    throttle_time_ms = int32()
    results = array(CreatePartitionsTopicResult)


class DeleteRecordsPartition(Struct):
    partition_index = int32()
    offset = int64()


class DeleteRecordsTopic(Struct):
    name = string()
    partitions = array(DeleteRecordsPartition)


class DeleteRecordsRequest(Request, key=21, versions="0-2", flexible=2):
    """Move log start offsets up; -1 means to the high watermark.

    v2: flexible.
    """

    topics = array(DeleteRecordsTopic)
    timeout_ms = int32()


class DeleteRecordsPartitionResult(Struct):
    partition_index = int32()
    low_watermark = int64()
    error_code = int16()


class DeleteRecordsTopicResult(Struct):
    name = string()
    partitions = array(DeleteRecordsPartitionResult)


class DeleteRecordsResponse(Response, answers=DeleteRecordsRequest):
    """The new low watermark per partition."""

    throttle_time_ms = int32()
    topics = array(DeleteRecordsTopicResult)
