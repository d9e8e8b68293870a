"""Offsets in a log: by time, by leader epoch, and where a log begins."""

from __future__ import annotations

from typing import NamedTuple

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.model import UNKNOWN_EPOCH, UNKNOWN_OFFSET, Error, KafkaError
from ottla.replication.partition import READ_COMMITTED, Partition
from ottla.wire.apis.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.wire.apis.topics import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_NEEDS_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}


class Found(NamedTuple):
    """Where a timestamp leads to."""

    timestamp: int
    offset: int
    leader_epoch: int


NOT_FOUND = Found(-1, UNKNOWN_OFFSET, UNKNOWN_EPOCH)


@handles(ListOffsetsRequest)
async def list_offsets(ctx: Context, request: ListOffsetsRequest) -> ListOffsetsResponse:
    topics = []
    for topic in request.topics:
        results = [await _list_one(ctx, topic.name, asked, request.isolation_level) for asked in topic.partitions]
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
    return ListOffsetsResponse(topics=topics)


async def _list_one(ctx: Context, topic: str, asked: ListOffsetsPartition, isolation: int) -> ListOffsetsPartitionResponse:
    result = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    try:
        partition = ctx.services.replicas.get(topic, asked.partition_index)
        partition.check_leader(asked.current_leader_epoch)
        if ctx.version < _NEEDS_VERSION.get(asked.timestamp, 0):
            raise KafkaError(Error.UNSUPPORTED_VERSION)
        if ctx.version == 0:
            result.old_style_offsets = _segment_starts(partition, asked.timestamp, asked.max_num_offsets)
            return result
        limit = partition.log.last_stable_offset if isolation == READ_COMMITTED else partition.log.high_watermark
        found = await _find(ctx, partition, asked.timestamp, limit)
        result.timestamp, result.offset, result.leader_epoch = found
    except KafkaError as problem:
        result.error_code = problem.error
    return result


async def _find(ctx: Context, partition: Partition, timestamp: int, limit: int) -> Found:
    log = partition.log
    if timestamp == LATEST:
        return Found(-1, limit, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return Found(-1, log.log_start_offset, log.leader_epochs.epoch_for(log.log_start_offset))
    if timestamp == LATEST_TIERED:
        return NOT_FOUND
    search = log.search_newest() if timestamp == MAX_TIMESTAMP else log.search_by_time(timestamp)
    found = await ctx.services.run_blocking(search)
    if found is None or found.offset >= limit:
        return NOT_FOUND
    return Found(found.timestamp, found.offset, found.leader_epoch)


def _segment_starts(partition: Partition, timestamp: int, count: int) -> list[int]:
    """Version 0 asked for the starts of segments, newest first."""
    log = partition.log
    if timestamp == EARLIEST:
        return [log.log_start_offset][:count]
    starts = [one.base_offset for one in log.segments if timestamp == LATEST or one.max_timestamp <= timestamp]
    newest_first = [max(start, log.log_start_offset) for start in reversed(starts)]
    if timestamp == LATEST and (not newest_first or newest_first[0] != log.high_watermark):
        newest_first.insert(0, log.high_watermark)
    return newest_first[:count]


@shapes_errors_of(ListOffsetsRequest)
def list_offsets_error(request: ListOffsetsRequest, error: Error, message: str) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=one.partition_index, error_code=error)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handles(OffsetForLeaderEpochRequest)
def offset_for_leader_epoch(ctx: Context, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    topics = []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            result = EpochEndOffset(partition=asked.partition)
            try:
                partition = ctx.services.replicas.get(topic.topic, asked.partition)
                partition.check_leader(asked.current_leader_epoch)
                if asked.leader_epoch == partition.leader_epoch:
                    result.leader_epoch, result.end_offset = asked.leader_epoch, partition.log.log_end_offset
                else:
                    result.leader_epoch, result.end_offset = partition.log.leader_epochs.end_offset_for(
                        asked.leader_epoch, partition.log.log_end_offset
                    )
            except KafkaError as problem:
                result.error_code = problem.error
            results.append(result)
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(topics=topics)


@shapes_errors_of(OffsetForLeaderEpochRequest)
def offset_for_leader_epoch_error(
    request: OffsetForLeaderEpochRequest, error: Error, message: str
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[EpochEndOffset(partition=one.partition, error_code=error) for one in topic.partitions],
            )
            for topic in request.topics
        ]
    )


@handles(DeleteRecordsRequest)
def delete_records(ctx: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    topics = []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
            try:
                partition = ctx.services.replicas.get(topic.name, asked.partition_index)
                if not partition.log.config.delete:
                    raise KafkaError(Error.POLICY_VIOLATION, "Records of a topic that is only compacted cannot be deleted.")
                result.low_watermark = partition.delete_records_before(asked.offset)
            except KafkaError as problem:
                result.error_code = problem.error
            results.append(result)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


@shapes_errors_of(DeleteRecordsRequest)
def delete_records_error(request: DeleteRecordsRequest, error: Error, message: str) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(partition_index=one.partition_index, low_watermark=-1, error_code=error)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
