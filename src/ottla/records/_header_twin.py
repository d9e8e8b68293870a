"""A batch's header, read and written in Python: the specification of `_header.pyx`, and what runs where that was not built."""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeVar

from fastcrc.crc32 import iscsi as crc32c

from ottla.records.codecs import Buffer

_HEADER: Final = Struct(">qiibIhiqqqhii")
_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")
_UINT32: Final = Struct(">I")

H = TypeVar("H")


def header_at(cls: type[H], buf: Buffer, pos: int) -> H | None:
    """The 13 fields at `pos` as the named tuple `cls`; None where they are not all there."""
    if pos < 0 or len(buf) - pos < _HEADER.size:
        return None
    return tuple.__new__(cls, _HEADER.unpack_from(buf, pos))  # type: ignore[type-var]


def number(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Write the base offset and the leader epoch; neither is under the checksum."""
    if pos < 0 or len(buf) - pos < 16:
        raise ValueError("a batch header reaches beyond its buffer")
    _INT64.pack_into(buf, pos, base_offset)
    _INT32.pack_into(buf, pos + 12, leader_epoch)


def seal(
    batch: bytearray, count: int, timestamp: int, producer_id: int, producer_epoch: int, base_sequence: int, attributes: int
) -> None:
    """Give `count` uncompressed records of one time that stand after the room for it their header, with their checksum."""
    if not _HEADER.size <= len(batch) <= 0x7FFFFFFF:
        raise ValueError("a batch has a header, and less than 2 GB")
    _HEADER.pack_into(
        batch, 0, 0, len(batch) - 12, -1, 2, 0, attributes, count - 1, timestamp, timestamp,
        producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    _UINT32.pack_into(batch, 17, crc32c(memoryview(batch)[21:]))
