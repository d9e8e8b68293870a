"""The offsets of one commit as most are, without metadata and outside of transactions: all of them as one thing.

They are a sequence of records only where somebody must look at each of them (`records`). Guards: their bytes are those that
`record_format` gives (the tests hold one against the other).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final

from ottla.coordinator.records import CommittedOffset, OffsetRecord
from ottla.model import NO_TIMESTAMP, TopicPartition
from ottla.wire.plain_commit import PlainPartition

_KEY: Final = 1
_VALUE: Final = 3
_HEAD: Final = Struct(">hh")
_LENGTH: Final = Struct(">h")
_NUMBER: Final = Struct(">i")
_PLAIN_VALUE: Final = Struct(">hqihq")
_KNOWN: Final = 1024
_NUMBERS: Final = tuple(_NUMBER.pack(number) for number in range(_KNOWN))


class PlainOffsets:
    """What a group commits at a time."""

    __slots__ = ("group_id", "now_ms", "topics")

    def __init__(self, group_id: str, topics: list[tuple[str, list[PlainPartition]]], now_ms: int) -> None:
        self.group_id = group_id
        self.topics = topics
        self.now_ms = now_ms

    def rows(self) -> list[tuple[bytes, bytes | None]]:
        """Keys and values."""
        rows: list[tuple[bytes, bytes | None]] = []
        now = self.now_ms
        for topic, partitions in self.topics:
            head = key_head(self.group_id, topic)
            for number, offset, leader_epoch, _, _ in partitions:
                end = _NUMBERS[number] if 0 <= number < _KNOWN else _NUMBER.pack(number)
                rows.append((head + end, _PLAIN_VALUE.pack(_VALUE, offset, leader_epoch, 0, now)))
        return rows

    def put_into(self, offsets: dict[TopicPartition, CommittedOffset]) -> None:
        """Set them in the table of their group."""
        now = self.now_ms
        for topic, partitions in self.topics:
            for number, offset, leader_epoch, _, _ in partitions:
                value = tuple.__new__(CommittedOffset, (offset, leader_epoch, "", now, NO_TIMESTAMP))
                offsets[tuple.__new__(TopicPartition, (topic, number))] = value

    def records(self) -> list[OffsetRecord]:
        """One by one."""
        return [
            OffsetRecord(self.group_id, TopicPartition(topic, number), CommittedOffset(offset, leader_epoch, "", self.now_ms))
            for topic, partitions in self.topics
            for number, offset, leader_epoch, _, _ in partitions
        ]


@lru_cache(maxsize=4096)
def key_head(group_id: str, topic: str) -> bytes:
    """The key of an offset up to the partition's number: a group commits for the same few topics again and again."""
    group, name = group_id.encode(), topic.encode()
    return _HEAD.pack(_KEY, len(group)) + group + _LENGTH.pack(len(name)) + name
