"""Walks over the batches of a segment file by their headers, in chunks and in constant memory.

Two walks: `walk` trusts the file (a lookup near an index entry), `verify` does not (recovery): it checks each length,
magic and checksum and stops with `Damage` at the first byte that is not a whole batch. Entries of formats v0 and v1,
which an old Apache Kafka directory may hold, are shown as headers too: what a log needs to know of them is their
offset, size and timestamp.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final

from fastcrc.crc32 import iscsi as crc32c

from ottla.model import NO_TIMESTAMP
from ottla.records.batch import (
    ATTRIBUTES_AT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MIN_LENGTH,
    BatchHeader,
    read_header,
)
from ottla.storage.slices import pread

_LEGACY: Final = Struct(">qiIbbq")  # offset, size, crc, magic, attributes, and in v1 the timestamp
_LEGACY_MIN_LENGTH: Final = 14
_LOOKUP_CHUNK: Final = 8 * 1024
_VERIFY_CHUNK: Final = 1024 * 1024


class Damage(Exception):
    """From `position` on the file does not hold whole batches."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position = position
        self.reason = reason


def header_at(buffer: bytes | bytearray | memoryview, position: int) -> BatchHeader:
    """The header of the entry at `position`, of whatever format. 61 bytes of it must be there, or all of it."""
    if buffer[position + MAGIC_AT] == MAGIC_V2:
        return read_header(buffer, position)
    padded = bytes(buffer[position : position + _LEGACY.size]).ljust(_LEGACY.size, b"\0")
    offset, size, crc, magic, attributes, timestamp = _LEGACY.unpack(padded)
    if magic != 1:
        timestamp = NO_TIMESTAMP
    return BatchHeader(offset, size, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, 1)


def walk(fd: int, start: int, end: int, nowait: bool = False) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch in start..end. BlockingIOError if `nowait` and a page is cold."""
    position, chunk, chunk_start = start, b"", start
    while end - position > LOG_OVERHEAD:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = pread(fd, min(_LOOKUP_CHUNK, end - position), position, nowait), position, 0
            if len(chunk) < HEADER_SIZE and len(chunk) < end - position:
                if nowait:
                    raise BlockingIOError  # the next page is cold
                raise Damage(position, "the file ends within a batch")
            if len(chunk) <= MAGIC_AT:
                return
        header = header_at(chunk, at)
        if header.length < _LEGACY_MIN_LENGTH:
            raise Damage(position, f"a batch with a length of {header.length}")
        if position + header.size > end:
            return
        yield position, header
        position += header.size


class Scratch:
    """The one buffer that a verifying walk reads through."""

    __slots__ = ("buffer", "filled", "start", "view")

    def __init__(self) -> None:
        self.buffer = bytearray(_VERIFY_CHUNK)
        self.view = memoryview(self.buffer)
        self.start = 0
        self.filled = 0

    def fill(self, fd: int, position: int) -> None:
        self.start = position
        self.filled = os.preadv(fd, [self.buffer], position)

    def holds(self, position: int, length: int) -> bool:
        return self.start <= position and position + length <= self.start + self.filled


def verify(fd: int, start: int, end: int, scratch: Scratch | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each sound batch from `start` on; `Damage` where the first one is not. Blocks: for threads."""
    scratch = scratch or Scratch()
    scratch.fill(fd, start)
    position = start
    while position < end:
        left = end - position
        if not scratch.holds(position, min(left, HEADER_SIZE)):
            scratch.fill(fd, position)
        at = position - scratch.start
        if left < LOG_OVERHEAD + _LEGACY_MIN_LENGTH or scratch.filled - at < LOG_OVERHEAD + _LEGACY_MIN_LENGTH:
            raise Damage(position, f"{left} bytes are too few for a batch")
        magic = scratch.buffer[at + MAGIC_AT]
        if magic > MAGIC_V2:
            raise Damage(position, f"magic {magic} is not known")
        if magic == MAGIC_V2 and left < HEADER_SIZE:
            raise Damage(position, f"{left} bytes are too few for a batch header")
        header = header_at(scratch.view, at)
        if header.length < (MIN_LENGTH if magic == MAGIC_V2 else _LEGACY_MIN_LENGTH):
            raise Damage(position, f"a batch with a length of {header.length}")
        if header.size > left:
            raise Damage(position, f"a batch of {header.size} bytes of which {left} are there")
        if magic == MAGIC_V2 and (header.last_offset_delta < 0 or header.base_offset < 0):
            raise Damage(position, f"a batch with the offsets {header.base_offset} to {header.last_offset}")
        if _checksum(fd, position, header, scratch) != header.crc:
            raise Damage(position, f"the checksum of the batch at offset {header.base_offset} is wrong")
        yield position, header
        position += header.size


def _checksum(fd: int, position: int, header: BatchHeader, scratch: Scratch) -> int:
    v2 = header.magic == MAGIC_V2
    start = position + (ATTRIBUTES_AT if v2 else LOG_OVERHEAD + 4)
    end = position + header.size
    if not scratch.holds(position, header.size):
        scratch.fill(fd, position)
    checksum: int | None = None
    while True:
        at = start - scratch.start
        piece = scratch.view[at : min(scratch.filled, at + end - start)]
        more = crc32c if v2 else zlib.crc32
        checksum = more(piece) if checksum is None else more(piece, checksum)
        start += len(piece)
        if start >= end or not piece:
            return checksum
        scratch.fill(fd, start)
