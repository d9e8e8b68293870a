"""The offsets of one commit as most are, without metadata and outside of transactions: all of them as one thing.

They are a sequence of records only where somebody must look at each of them (`records`). Guards: their bytes are those that
`record_format` gives (the tests hold one against the other).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final

from ottla.coordinator.records import CommittedOffset, OffsetRecord
from ottla.model import TopicPartition
from ottla.wire.plain_commit import partitions_of

try:
    from ottla.coordinator._offset_rows import append_rows, put_into
except ImportError:
    from ottla.coordinator._offset_rows_twin import append_rows, put_into

_KEY: Final = 1
_HEAD: Final = Struct(">hh")
_LENGTH: Final = Struct(">h")


class PlainOffsets:
    """What a group commits at a time."""

    __slots__ = ("group_id", "now_ms", "topics")

    def __init__(self, group_id: str, topics: list[tuple[str, bytes]], now_ms: int) -> None:
        self.group_id = group_id
        self.topics = topics
        self.now_ms = now_ms

    def rows(self) -> list[tuple[bytes, bytes | None]]:
        """Keys and values."""
        found: list[tuple[bytes, bytes | None]] = []
        for topic, rows in self.topics:
            append_rows(found, key_head(self.group_id, topic), rows, self.now_ms)
        return found

    def put_into(self, offsets: dict[TopicPartition, CommittedOffset]) -> None:
        """Set them in the table of their group."""
        for topic, rows in self.topics:
            put_into(offsets, topic, rows, self.now_ms)

    def records(self) -> list[OffsetRecord]:
        """One by one."""
        return [
            OffsetRecord(self.group_id, TopicPartition(topic, number), CommittedOffset(offset, leader_epoch, "", self.now_ms))
            for topic, rows in self.topics
            for number, offset, leader_epoch, _, _ in partitions_of(rows)
        ]


@lru_cache(maxsize=4096)
def key_head(group_id: str, topic: str) -> bytes:
    """The key of an offset up to the partition's number: a group commits for the same few topics again and again."""
    group, name = group_id.encode(), topic.encode()
    return _HEAD.pack(_KEY, len(group)) + group + _LENGTH.pack(len(name)) + name
