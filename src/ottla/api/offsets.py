"""Offsets in a log: by time, by leader epoch, and where a log begins."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.model import UNKNOWN_EPOCH, UNKNOWN_OFFSET, Error, KafkaError
from ottla.replication.partition import READ_COMMITTED, Partition
from ottla.replication.waiting import Waiter
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


_Deleting = tuple[Partition, int, DeleteRecordsPartitionResult]

NOT_FOUND = Found(-1, UNKNOWN_OFFSET, UNKNOWN_EPOCH)


@handles(ListOffsetsRequest)
async def list_offsets(ctx: Context, request: ListOffsetsRequest) -> ListOffsetsResponse:
    topics = []
    for topic in request.topics:
        results = [await _list_one(ctx, topic.name, asked, request) for asked in topic.partitions]
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
    return ListOffsetsResponse(topics=topics)


async def _list_one(
    ctx: Context, topic: str, asked: ListOffsetsPartition, request: ListOffsetsRequest
) -> ListOffsetsPartitionResponse:
    result = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    try:
        partition = ctx.services.replicas.get(topic, asked.partition_index)
        partition.check_leader(asked.current_leader_epoch)
        if ctx.version < _NEEDS_VERSION.get(asked.timestamp, 0):
            raise KafkaError(Error.UNSUPPORTED_VERSION)
        if ctx.version == 0:
            result.old_style_offsets = _segment_starts(partition, asked.timestamp, asked.max_num_offsets)
            return result
        found = await _find(ctx, partition, asked.timestamp, _limit(partition, request), request.replica_id >= 0)
        result.timestamp, result.offset, result.leader_epoch = found
    except KafkaError as problem:
        result.error_code = problem.error
    return result


def _limit(partition: Partition, request: ListOffsetsRequest) -> int:
    """How far the asker may look: a follower to the end, consumers to what is committed."""
    if request.replica_id >= 0:
        return partition.log.log_end_offset
    return partition.log.last_stable_offset if request.isolation_level == READ_COMMITTED else partition.log.high_watermark


async def _find(ctx: Context, partition: Partition, timestamp: int, limit: int, for_follower: bool) -> Found:
    log = partition.log
    if timestamp == LATEST:
        _check_end(ctx, partition, for_follower)
        return Found(-1, limit, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return Found(-1, log.log_start_offset, log.leader_epochs.epoch_for(log.log_start_offset))
    if timestamp == LATEST_TIERED:
        return NOT_FOUND
    search = log.search_newest() if timestamp == MAX_TIMESTAMP else log.search_by_time(timestamp)
    found = await ctx.services.run_blocking(search)
    if found is None or found.offset >= limit:
        _check_end(ctx, partition, for_follower)
        return NOT_FOUND
    return Found(found.timestamp, found.offset, found.leader_epoch)


def _check_end(ctx: Context, partition: Partition, for_follower: bool) -> None:
    """Raise where the end that a consumer would be told may lie before what it has read; version 5 brought a name for that."""
    if not for_follower and not partition.knows_its_end:
        raise KafkaError(Error.OFFSET_NOT_AVAILABLE if ctx.version >= 5 else Error.LEADER_NOT_AVAILABLE)


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
                found = partition.epoch_end(asked.leader_epoch)
                result.leader_epoch, result.end_offset = found.epoch, found.end_offset
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
async def delete_records(ctx: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Done when every live replica begins where it was told to: until then a new leader might still have the records."""
    topics = []
    waiting: list[_Deleting] = []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
            try:
                partition = ctx.services.replicas.get(topic.name, asked.partition_index)
                if not partition.log.config.delete:
                    raise KafkaError(Error.POLICY_VIOLATION, "Records of a topic that is only compacted cannot be deleted.")
                start = partition.delete_records_before(asked.offset)
                result.low_watermark = partition.low_watermark
                if result.low_watermark < start:
                    waiting.append((partition, start, result))
            except KafkaError as problem:
                result.error_code = problem.error
            results.append(result)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    if waiting:
        await _wait_for_followers(ctx, waiting, request.timeout_ms / 1000)
    return DeleteRecordsResponse(topics=topics)


async def _wait_for_followers(ctx: Context, waiting: list[_Deleting], timeout: float) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def complete() -> None:
        if not done.done():
            done.set_result(None)

    def enough(_size: int) -> bool:
        return all(partition.low_watermark >= start for partition, start, _ in waiting)

    def over() -> bool:
        return not all(partition.is_leader for partition, _, _ in waiting)

    waiter = Waiter(enough, complete, {partition for partition, _, _ in waiting}, ctx.services.timer, timeout, over=over)
    try:
        await done
    finally:
        waiter.discard()
    for partition, start, result in waiting:
        if not partition.is_leader:
            result.error_code, result.low_watermark = Error.NOT_LEADER_OR_FOLLOWER, -1
        elif partition.low_watermark < start:
            result.error_code, result.low_watermark = Error.REQUEST_TIMED_OUT, -1
        else:
            result.low_watermark = partition.low_watermark


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
