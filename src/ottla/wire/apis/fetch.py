"""Fetch: the records' way out, for consumers and followers."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, int8, int16, int32, int64, records, string, struct, uuid


class FetchPartition(Struct):
    partition = int32()
    current_leader_epoch = int32(since=9, default=-1)
    fetch_offset = int64()
    last_fetched_epoch = int32(since=12, default=-1)
    log_start_offset = int64(since=5, default=-1)
    partition_max_bytes = int32()
    replica_directory_id = uuid(since=17, tag=0)


class FetchTopic(Struct):
    topic = string(until=12)
    topic_id = uuid(since=13)
    partitions = array(FetchPartition)


class ForgottenTopic(Struct):
    topic = string(until=12)
    topic_id = uuid(since=13)
    partitions = array(int32())


class ReplicaState(Struct):
    replica_id = int32(default=-1)
    replica_epoch = int64(default=-1)


class FetchRequest(Request, key=1, versions="0-17", flexible=12):
    """Read partitions from given offsets; followers replicate with it too.

    v3: a bound for the whole answer; partitions are answered in the order asked.
    v4: isolation level.
    v5: a follower's log start offset.
    v7: incremental sessions.
    v9: leader epoch of the reader.
    v10: zstd.
    v11: rack of the reader.
    v12: flexible; truncation by the last fetched epoch.
    v13: topic ids in place of names.
    v15: replica state in place of the replica id.
    v17: directory id of a follower.
    """

    cluster_id = string(since=12, nullable=True, default=None, tag=0)
    replica_id = int32(until=14, default=-1)
    replica_state = struct(ReplicaState, since=15, tag=1)
    max_wait_ms = int32()
    min_bytes = int32()
    max_bytes = int32(since=3, default=0x7FFFFFFF)
    isolation_level = int8(since=4)
    session_id = int32(since=7)
    session_epoch = int32(since=7, default=-1)
    topics = array(FetchTopic)
    forgotten_topics_data = array(ForgottenTopic, since=7)
    rack_id = string(since=11)


class AbortedTransaction(Struct):
    producer_id = int64()
    first_offset = int64()


class EpochEndOffset(Struct):
    epoch = int32(default=-1)
    end_offset = int64(default=-1)


class LeaderIdAndEpoch(Struct):
    leader_id = int32(default=-1)
    leader_epoch = int32(default=-1)


class SnapshotId(Struct):
    end_offset = int64(default=-1)
    epoch = int32(default=-1)


class PartitionData(Struct):
    partition_index = int32()
    error_code = int16()
    high_watermark = int64()
    last_stable_offset = int64(since=4, default=-1)
    log_start_offset = int64(since=5, default=-1)
    diverging_epoch = struct(EpochEndOffset, since=12, tag=0)
    current_leader = struct(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id = struct(SnapshotId, since=12, tag=2)
    aborted_transactions = array(AbortedTransaction, since=4, nullable=True)
    preferred_read_replica = int32(since=11, default=-1)
    records = records()


class FetchableTopicResponse(Struct):
    topic = string(until=12)
    topic_id = uuid(since=13)
    partitions = array(PartitionData)


class NodeEndpoint(Struct):
    node_id = int32()
    host = string()
    port = int32()
    rack = string(nullable=True, default=None)


class FetchResponse(Response, answers=FetchRequest):
    """Batches as they lie in the log.

    v1: throttle time.
    v4: last stable offset and aborted transactions.
    v5: log start offset.
    v7: session id and an error for the whole.
    v11: a closer replica to read from.
    v12: diverging epoch, current leader, snapshot, all tagged.
    v13: topic ids in place of names.
    v16: addresses of current leaders.
    """

    throttle_time_ms = int32(since=1)
    error_code = int16(since=7)
    session_id = int32(since=7)
    responses = array(FetchableTopicResponse)
    node_endpoints = array(NodeEndpoint, since=16, tag=0)
