"""Committed offsets of groups: commit, fetch, delete.

Like in `groups`, handlers translate between the wire and `GroupCoordinator`, and decide nothing but the shape of an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Any

from ottla.api.registry import Context, handles, reads, shapes_errors_of
from ottla.coordinator.groups import Committing
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
from ottla.wire.plain_commit import PlainCommit, all_in, read_plain_commit
from ottla.wire.primitives import Buffer

_EPOCHS = 9
"""From this version of OffsetCommit on a client may be a member of a consumer group, and know its epoch."""
_NO_OFFSET = CommittedOffset(UNKNOWN_OFFSET)
_UNSTABLE = CommittedOffset(UNKNOWN_OFFSET)
_NO_ERRORS: Mapping[TopicPartition, Error] = {}


def _commit_reader(version: int) -> Callable[[Buffer, int], tuple[Any, int]]:
    """Commits of the plain form are read as such, others by the table."""
    decode = OffsetCommitRequest.decoder(version)

    def read(buf: Buffer, pos: int) -> tuple[Any, int]:
        plain = read_plain_commit(buf, pos)
        return decode(buf, pos) if plain is None else (plain, len(buf))

    return read


reads(OffsetCommitRequest, 8, _commit_reader(8))
reads(OffsetCommitRequest, 9, _commit_reader(9))


@handles(OffsetCommitRequest)
def offset_commit(ctx: Context, request: OffsetCommitRequest | PlainCommit) -> Any:
    """An offset of a partition that does not exist is refused, the others are committed."""
    if not isinstance(request, PlainCommit):
        return _commit(ctx, request)
    known = ctx.image.topics
    for name, partitions in request.topics:
        image = known.get(name)
        if image is None or not partitions or not all_in(partitions, image.partitions):
            return _commit(ctx, request.request())
    if not request.topics:
        return _commit(ctx, request.request())
    written = ctx.groups.commit_plain(request, knows_epochs=ctx.version >= _EPOCHS)
    if written is None:
        return ctx.answer_with(request.taken(), tagged=True)
    full = request.request()
    return ctx.later(written, full, partial(_when_safe, full, _NO_ERRORS, Committing(written, _NO_ERRORS)))


def _commit(ctx: Context, request: OffsetCommitRequest) -> Any:
    commits: list[Commit] = []
    unknown: dict[TopicPartition, Error] = {}
    for topic in request.topics:
        image = ctx.image.topics.get(topic.name)
        for item in topic.partitions:
            partition = TopicPartition(topic.name, item.partition_index)
            if image is None or item.partition_index not in image.partitions:
                unknown[partition] = Error.UNKNOWN_TOPIC_OR_PARTITION
                continue
            offset, epoch, metadata = item.committed_offset, item.committed_leader_epoch, item.committed_metadata
            commits.append(Commit(partition, offset, epoch, metadata, item.commit_timestamp))
    if not commits:
        return _committed(request, unknown)
    committing = ctx.groups.commit(
        request.group_id,
        commits,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        retention_ms=request.retention_time_ms,
        knows_epochs=ctx.version >= _EPOCHS,
    )
    written = committing.written
    if written is None:
        return _when_safe(request, unknown, committing)
    return ctx.later(written, request, partial(_when_safe, request, unknown, committing))


def _when_safe(
    request: OffsetCommitRequest, unknown: Mapping[TopicPartition, Error], committing: Committing
) -> OffsetCommitResponse:
    if committing.written is not None:
        committing.written.result()  # or what the log refused them with
    return _committed(request, {**unknown, **committing.refused} if unknown or committing.refused else _NO_ERRORS)


@shapes_errors_of(OffsetCommitRequest)
def offset_commit_error(request: OffsetCommitRequest | PlainCommit, error: Error, message: str) -> OffsetCommitResponse:
    return _committed(request.request() if isinstance(request, PlainCommit) else request, {}, error)


def _committed(
    request: OffsetCommitRequest, errors: Mapping[TopicPartition, Error], otherwise: Error = Error.NONE
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=item.partition_index,
                        error_code=errors.get(TopicPartition(topic.name, item.partition_index), otherwise)
                        if errors
                        else otherwise,
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
