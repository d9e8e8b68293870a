"""OffsetCommit: the request that a coordinator gets most of.

Handlers translate between the wire and `GroupCoordinator`, and decide nothing but the shape of an error. Guards: a plain commit
and one that the table reads come to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ottla.api.registry import Context, handles, reads, shapes_errors_of
from ottla.coordinator.groups import Committing
from ottla.coordinator.offsets import Commit
from ottla.model import Error, TopicPartition
from ottla.wire.apis.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.plain_commit import PlainCommit, all_in, read_plain_commit
from ottla.wire.primitives import Buffer

_EPOCHS: Final = 9
"""From this version of OffsetCommit on a client may be a member of a consumer group, and know its epoch."""
_NO_ERRORS: Final[Mapping[TopicPartition, Error]] = {}


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
    written = ctx.groups.commits.plain(request, knows_epochs=ctx.version >= _EPOCHS)
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
