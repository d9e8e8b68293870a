"""Committed offsets of groups: fetch, delete. Commits are in `offset_commits`.

Like in `groups`, handlers translate between the wire and `GroupCoordinator`, and decide nothing but the shape of an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.coordinator.records import CommittedOffset
from ottla.model import UNKNOWN_OFFSET, Error, KafkaError, TopicPartition
from ottla.wire.apis.group_offsets import (
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
_UNSTABLE = CommittedOffset(UNKNOWN_OFFSET)


def _exists(ctx: Context, partition: TopicPartition) -> bool:
    topic = ctx.image.topics.get(partition.topic)
    return topic is not None and partition.partition in topic.partitions


@handles(OffsetFetchRequest)
async def offset_fetch(ctx: Context, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if ctx.version >= 8:
        return OffsetFetchResponse(groups=[await _fetch_group(ctx, group, request.require_stable) for group in request.groups])
    offsets = await ctx.groups.committed(request.group_id, stable=request.require_stable)
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
                        error_code=missing if value is _NO_OFFSET else _stability(value),
                    )
                    for partition, value in items
                ],
            )
            for name, items in _asked(request.topics, offsets)
        ]
    )


async def _fetch_group(ctx: Context, group: OffsetFetchRequestGroup, stable: bool) -> OffsetFetchResponseGroup:
    try:
        offsets = await ctx.groups.committed(
            group.group_id, stable=stable, member_id=group.member_id, member_epoch=group.member_epoch
        )
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
                        error_code=_stability(value),
                    )
                    for partition, value in items
                ],
            )
            for name, items in _asked(group.topics, offsets)
        ],
    )


def _asked(
    topics: Iterable[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
    offsets: Mapping[TopicPartition, CommittedOffset | None],
) -> list[tuple[str, list[tuple[int, CommittedOffset]]]]:
    """Topic by topic the offsets that were asked for; without a question, all there are."""

    def value(partition: TopicPartition) -> CommittedOffset:
        return offsets.get(partition, _NO_OFFSET) or _UNSTABLE

    if topics is None:
        return [
            (name, [(partition.partition, value(partition)) for partition in partitions])
            for name, partitions in groupby(sorted(offsets), key=lambda partition: partition.topic)
        ]
    return [
        (topic.name, [(index, value(TopicPartition(topic.name, index))) for index in topic.partition_indexes])
        for topic in topics
    ]


def _stability(value: CommittedOffset) -> Error:
    return Error.UNSTABLE_OFFSET_COMMIT if value is _UNSTABLE else Error.NONE


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
