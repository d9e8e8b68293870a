"""Committed offsets of groups: commit, fetch, delete.

Like in `groups`, handlers translate between the wire and `GroupCoordinator`, and decide nothing but the shape of an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.coordinator.offsets import Commit
from ottla.coordinator.records import CommittedOffset
from ottla.model import UNKNOWN_OFFSET, Error, KafkaError, TopicPartition
from ottla.wire.apis.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_NO_OFFSET = CommittedOffset(UNKNOWN_OFFSET)


@handles(OffsetCommitRequest)
async def offset_commit(ctx: Context, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """An offset of a partition that does not exist is refused, the others are committed."""
    commits = [
        Commit(
            TopicPartition(topic.name, item.partition_index),
            item.committed_offset,
            item.committed_leader_epoch,
            item.committed_metadata,
            item.commit_timestamp,
        )
        for topic in request.topics
        for item in topic.partitions
    ]
    known = [commit for commit in commits if _exists(ctx, commit.partition)]
    errors: Mapping[TopicPartition, Error] = {}
    if known:
        errors = await ctx.groups.commit(
            request.group_id,
            known,
            generation=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            retention_ms=request.retention_time_ms,
        )
    return _committed(request, errors)


@shapes_errors_of(OffsetCommitRequest)
def offset_commit_error(request: OffsetCommitRequest, error: Error, message: str) -> OffsetCommitResponse:
    return _committed(request, {}, error)


def _committed(
    request: OffsetCommitRequest,
    errors: Mapping[TopicPartition, Error],
    otherwise: Error = Error.UNKNOWN_TOPIC_OR_PARTITION,
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=item.partition_index,
                        error_code=errors.get(TopicPartition(topic.name, item.partition_index), otherwise),
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _exists(ctx: Context, partition: TopicPartition) -> bool:
    topic = ctx.image.topics.get(partition.topic)
    return topic is not None and partition.partition in topic.partitions


@handles(OffsetFetchRequest)
async def offset_fetch(ctx: Context, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if ctx.version >= 8:
        return OffsetFetchResponse(groups=[await _fetch_group(ctx, group) for group in request.groups])
    offsets = await ctx.groups.committed(request.group_id)
    # In version 0 a missing offset is an error; later it is -1.
    missing = Error.UNKNOWN_TOPIC_OR_PARTITION if ctx.version == 0 else Error.NONE
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition,
                        committed_offset=value.offset,
                        committed_leader_epoch=value.leader_epoch,
                        metadata=value.metadata,
                        error_code=missing if value is _NO_OFFSET else Error.NONE,
                    )
                    for partition, value in items
                ],
            )
            for name, items in _asked(request.topics, offsets)
        ]
    )


async def _fetch_group(ctx: Context, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    try:
        offsets = await ctx.groups.committed(group.group_id)
    except KafkaError as problem:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=problem.error)
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=partition,
                        committed_offset=value.offset,
                        committed_leader_epoch=value.leader_epoch,
                        metadata=value.metadata,
                    )
                    for partition, value in items
                ],
            )
            for name, items in _asked(group.topics, offsets)
        ],
    )


def _asked(
    topics: Iterable[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> list[tuple[str, list[tuple[int, CommittedOffset]]]]:
    """Topic by topic the offsets that were asked for; without a question, all there are."""
    if topics is None:
        return [
            (name, [(partition.partition, offsets[partition]) for partition in partitions])
            for name, partitions in groupby(sorted(offsets), key=lambda partition: partition.topic)
        ]
    return [
        (topic.name, [(index, offsets.get(TopicPartition(topic.name, index), _NO_OFFSET)) for index in topic.partition_indexes])
        for topic in topics
    ]


@shapes_errors_of(OffsetFetchRequest)
def offset_fetch_error(request: OffsetFetchRequest, error: Error, message: str) -> OffsetFetchResponse:
    """Versions 0 and 1 have the error in every partition, 2 to 7 in one place, later ones in every group."""
    return OffsetFetchResponse(
        error_code=error,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(partition_index=index, committed_offset=UNKNOWN_OFFSET, error_code=error)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
        groups=[OffsetFetchResponseGroup(group_id=group.group_id, error_code=error) for group in request.groups],
    )


@handles(OffsetDeleteRequest)
async def offset_delete(ctx: Context, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    asked = [TopicPartition(topic.name, item.partition_index) for topic in request.topics for item in topic.partitions]
    errors = await ctx.groups.delete_offsets(request.group_id, [partition for partition in asked if _exists(ctx, partition)])
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=item.partition_index,
                        error_code=errors.get(
                            TopicPartition(topic.name, item.partition_index), Error.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
