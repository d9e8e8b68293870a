"""OffsetCommit as nearly every client sends it: version 8 or 9, no metadata, no tagged fields. Read and answered by hand.

Groups commit thousands of times a second, and most of what the tables make of such a request and of its answer are objects
that nobody looks at twice. Here the partitions of a topic stay the bytes that they came as, to be looked at in C. Guards: what
is not of this form, or is not sound, is left to the table, which reads it or says what is wrong with it; the tests hold the two
against each other.
"""

from __future__ import annotations

import struct
from typing import Final

from ottla.wire.apis.group_offsets import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.primitives import Buffer

try:
    from ottla.wire._commits import all_in, read_plain, taken
except ImportError:
    from ottla.wire._commits_twin import all_in, read_plain, taken

__all__ = ["PlainCommit", "all_in", "partitions_of", "read_plain_commit"]

PlainPartition = tuple[int, int, int, int, int]
"""Partition, offset, leader epoch; then a byte that is 0 or 1 for null or empty metadata, and one that is 0 for no tags."""

_ROWS: Final = struct.Struct(">iqiBB")


def partitions_of(rows: bytes) -> list[PlainPartition]:
    """A topic's partitions, for whoever looks at them one by one."""
    return list(_ROWS.iter_unpack(rows))


class PlainCommit:
    """A commit's fields, as in `OffsetCommitRequest`; topics are names with their partitions as bytes."""

    __slots__ = ("generation", "group_id", "instance_id", "member_id", "topics")

    def __init__(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None, topics: list[tuple[str, bytes]]
    ) -> None:
        self.group_id = group_id
        self.generation = generation
        self.member_id = member_id
        self.instance_id = instance_id
        self.topics = topics

    def request(self) -> OffsetCommitRequest:
        """The same as the table reads it."""
        return OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=index,
                            committed_offset=offset,
                            committed_leader_epoch=epoch,
                            committed_metadata="" if metadata else None,
                        )
                        for index, offset, epoch, metadata, _ in partitions_of(rows)
                    ],
                )
                for name, rows in self.topics
            ],
        )

    def taken(self) -> bytes:
        """The body of the answer that says so of every partition."""
        answer: bytes = taken(self.topics)
        return answer


def read_plain_commit(buf: Buffer, start: int) -> PlainCommit | None:
    """The request whose body begins at `start`; None where it is of another form."""
    fields = read_plain(buf, start)
    if fields is None:
        return None
    group_id, generation, member_id, instance_id, topics = fields
    return PlainCommit(group_id, generation, member_id, instance_id, topics)
