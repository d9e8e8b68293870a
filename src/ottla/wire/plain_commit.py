"""OffsetCommit as nearly every client sends it: version 8 or 9, no metadata, no tagged fields. Read and answered by hand.

Groups commit thousands of times a second, and most of what the tables make of such a request and of its answer are objects that
nobody looks at twice. Here a partition is one tuple. Guards: what is not of this form, or is not sound, is left to the table,
which reads it or says what is wrong with it; the tests hold the two against each other.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Final

from ottla.wire.apis.group_offsets import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.primitives import Buffer, uvarint

PlainPartition = tuple[int, int, int, int, int]
"""Partition, offset, leader epoch; then a byte that is 0 or 1 for null or empty metadata, and one that is 0 for no tags."""

_PARTITION: Final = struct.Struct(">iqiBB")
_PARTITION_SIZE: Final = 18
_INT32: Final = struct.Struct(">i")
_LONGEST: Final = 127  # a length or count of one byte
_KNOWN: Final = 1024
_TAKEN: Final = tuple(struct.pack(">ihx", index, 0) for index in range(_KNOWN))
"""A partition in an answer: its number, no error, no tags."""
_taken: Final = struct.Struct(">ihx").pack


class PlainCommit:
    """A commit's fields, as in `OffsetCommitRequest`; topics are names with their partitions."""

    __slots__ = ("generation", "group_id", "instance_id", "member_id", "topics")

    def __init__(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        topics: list[tuple[str, list[PlainPartition]]],
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
                        for index, offset, epoch, metadata, _ in partitions
                    ],
                )
                for name, partitions in self.topics
            ],
        )

    def taken(self) -> bytes:
        """The body of the answer that says so of every partition."""
        parts: list[bytes] = [b"\0\0\0\0", uvarint(len(self.topics) + 1)]
        for name, partitions in self.topics:
            text = name.encode()
            parts.append(uvarint(len(text) + 1))
            parts.append(text)
            parts.append(uvarint(len(partitions) + 1))
            for partition in partitions:
                index = partition[0]
                parts.append(_TAKEN[index] if 0 <= index < _KNOWN else _taken(index, 0))
            parts.append(b"\0")
        parts.append(b"\0")
        return b"".join(parts)


def all_in(partitions: list[PlainPartition], there: Container[int]) -> bool:
    """Whether all of a topic's partitions are there."""
    for partition in partitions:  # noqa: SIM110 - compiled, a loop costs a quarter of a generator
        if partition[0] not in there:
            return False
    return True


def read_plain_commit(buf: Buffer, start: int) -> PlainCommit | None:
    """The request whose body begins at `start`; None where it is of another form."""
    data = bytes(buf[start:])
    try:
        end = data[0]
        if not 0 < end <= _LONGEST:
            return None
        group_id = data[1:end].decode()
        generation: int = _INT32.unpack_from(data, end)[0]
        pos = end + 4
        length = data[pos]
        if not 0 < length <= _LONGEST:
            return None
        member_id = data[pos + 1 : pos + length].decode()
        pos += length
        instance_id: str | None = None
        length = data[pos]
        if length > _LONGEST:
            return None
        if length:
            instance_id = data[pos + 1 : pos + length].decode()
            pos += length
        else:
            pos += 1
        topics = _topics(data, pos)
    except (IndexError, ValueError, struct.error):
        return None
    return None if topics is None else PlainCommit(group_id, generation, member_id, instance_id, topics)


def _topics(data: bytes, pos: int) -> list[tuple[str, list[PlainPartition]]] | None:
    count = data[pos]
    if not 0 < count <= _LONGEST:
        return None
    pos += 1
    topics: list[tuple[str, list[PlainPartition]]] = []
    for _ in range(count - 1):
        length = data[pos]
        if not 0 < length <= _LONGEST:
            return None
        stop = pos + length
        name = data[pos + 1 : stop].decode()
        rows = data[stop]
        if not 0 < rows <= _LONGEST:
            return None
        pos = stop + 1 + (rows - 1) * _PARTITION_SIZE
        partitions: list[PlainPartition] = list(_PARTITION.iter_unpack(data[stop + 1 : pos]))
        for partition in partitions:
            if partition[3] > 1 or partition[4]:
                return None
        if data[pos]:  # this also sees to it that all of the partitions are there
            return None
        pos += 1
        topics.append((name, partitions))
    return None if data[pos] or len(data) != pos + 1 else topics
