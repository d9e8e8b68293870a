"""A topic's offsets as records and as entries of a table, in Python: the specification of `_offset_rows.pyx`, and what runs
where that was not built. They come as the bytes of a plain commit: 18 for each partition."""

from __future__ import annotations

from struct import Struct
from typing import Final

from ottla.coordinator.records import CommittedOffset
from ottla.model import TopicPartition

_ROW: Final = Struct(">iqiBB")
_NUMBER: Final = Struct(">i")
_VERSION: Final = 3
_VALUE: Final = Struct(">hqihq")


def append_rows(out: list[tuple[bytes, bytes | None]], head: bytes, rows: bytes, now_ms: int) -> None:
    """Append each partition's key and value; `head` is what stands in the keys before the partition's number."""
    for number, offset, leader_epoch, _, _ in _ROW.iter_unpack(rows):
        out.append((head + _NUMBER.pack(number), _VALUE.pack(_VERSION, offset, leader_epoch, 0, now_ms)))


def put_into(offsets: dict[TopicPartition, CommittedOffset], topic: str, rows: bytes, now_ms: int) -> None:
    """Set each partition's offset in the table of its group."""
    for number, offset, leader_epoch, _, _ in _ROW.iter_unpack(rows):
        offsets[TopicPartition(topic, number)] = CommittedOffset(offset, leader_epoch, "", now_ms)
