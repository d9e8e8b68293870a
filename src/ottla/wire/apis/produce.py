"""Produce: the records' way in."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, int16, int32, int64, records, string, struct


class PartitionProduceData(Struct):
    index = int32()
    records = records()


class TopicProduceData(Struct):
    name = string()
    partition_data = array(PartitionProduceData)


class ProduceRequest(Request, key=0, versions="0-11", flexible=9):
    """Record batches to append, per partition.

    v3: batches in format v2, transactions.
    v7: zstd.
    v9: flexible.
    v11: TRANSACTION_ABORTABLE understood.
    """

    transactional_id = string(since=3, nullable=True, default=None)
    acks = int16()
    timeout_ms = int32()
    topic_data = array(TopicProduceData)


class BatchIndexAndErrorMessage(Struct):
    batch_index = int32()
    batch_index_error_message = string(nullable=True, default=None)


class LeaderIdAndEpoch(Struct):
    leader_id = int32(default=-1)
    leader_epoch = int32(default=-1)


class PartitionProduceResponse(Struct):
    index = int32()
    error_code = int16()
    base_offset = int64()
    log_append_time_ms = int64(since=2, default=-1)
    log_start_offset = int64(since=5, default=-1)
    record_errors = array(BatchIndexAndErrorMessage, since=8)
    error_message = string(since=8, nullable=True, default=None)
    current_leader = struct(LeaderIdAndEpoch, since=10, tag=0)


class TopicProduceResponse(Struct):
    name = string()
    partition_responses = array(PartitionProduceResponse)


class NodeEndpoint(Struct):
    node_id = int32()
    host = string()
    port = int32()
    rack = string(nullable=True, default=None)


class ProduceResponse(Response, answers=ProduceRequest):
    """The offset each batch got, or why it was refused.

    v1: throttle time.
    v2: log append time.
    v5: log start offset.
    v8: which records were refused, and why.
    v10: the current leader, with its address, when it moved.
    """

    responses = array(TopicProduceResponse)
    throttle_time_ms = int32(since=1)
    node_endpoints = array(NodeEndpoint, since=10, tag=0)
