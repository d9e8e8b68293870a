"""The entries of a segment file as they stand, sound or not: batches of format v2, messages of v0 and v1, and their records.

Guards: whatever the bytes say, the only exception is `Unreadable`, and what stood before the damage was handed out by then.
Reads through one window, so that memory is bound by the largest batch and not by the file; a broker may append meanwhile.
An entry is what Apache Kafka's own tool takes for one: a checksum is told, not demanded, and a magic beyond 2 is read as 2.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812  (a class under a lower-case name)
from typing import Final, NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from ottla.model import NO_TIMESTAMP
from ottla.records import kernel
from ottla.records.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MAX_UNPACKED,
    BatchHeader,
    ControlType,
    payload,
    read_header,
)
from ottla.records.codecs import Buffer, Codec, decompress
from ottla.records.errors import CorruptRecords

_WINDOW: Final = 1024 * 1024
_LEAST_LENGTH: Final = 14
_SEQUENCES: Final = 1 << 31
_PREFIX: Final = Struct(">qi")
_V0: Final = Struct(">qiIbb")
_V1: Final = Struct(">qiIbbq")
_SIZE: Final = Struct(">i")
_MARKER_KEY: Final = Struct(">hh")
_MARKER_VALUE: Final = Struct(">hi")
_DELETE_HORIZON_BIT: Final = 0x40
# The kinds of control records that Apache Kafka has names for.
_CONTROL_TYPES: Final = {2: "LEADER_CHANGE", 3: "SNAPSHOT_HEADER", 4: "SNAPSHOT_FOOTER", 5: "KRAFT_VERSION", 6: "KRAFT_VOTERS"}


class Unreadable(Exception):
    """Bytes that are not what they should be; the words are Apache Kafka's where it has some."""


class Reader:
    """A file that is read by position through one window."""

    __slots__ = ("_start", "_window", "fd", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._window = memoryview(b"")
        self._start = 0

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def view(self, position: int, length: int) -> memoryview:
        """The bytes at `position`; fewer than `length` where the file ends."""
        at = position - self._start
        if at < 0 or at + length > len(self._window):
            self._window = memoryview(os.pread(self.fd, max(length, _WINDOW), position))
            self._start, at = position, 0
        return self._window[at : at + length]

    def forget(self) -> None:
        """Read anew: the file may have changed."""
        self._window = memoryview(b"")

    def close(self) -> None:
        os.close(self.fd)


class Entry(NamedTuple):
    """A batch with all its bytes; or a message of an old format, in whose header what the format lacks is -1."""

    position: int
    header: BatchHeader
    data: memoryview

    @property
    def end(self) -> int:
        return self.position + self.header.size

    @property
    def legacy(self) -> bool:
        return self.header.magic < MAGIC_V2

    @property
    def valid(self) -> bool:
        """Whether the checksum is that of the bytes."""
        if self.legacy:
            return zlib.crc32(self.data[MAGIC_AT:]) == self.header.crc
        return self.header.size >= HEADER_SIZE and crc32c(self.data[ATTRIBUTES_AT:]) == self.header.crc

    @property
    def codec(self) -> str:
        number = self.header.attributes & CODEC_MASK
        return Codec(number).label if number < len(Codec) else f"unknown({number})"

    @property
    def timestamp_type(self) -> str:
        if self.legacy and self.header.magic != 1:
            return "NoTimestampType"
        return "LogAppendTime" if self.header.is_log_append_time else "CreateTime"

    @property
    def delete_horizon(self) -> int | None:
        """When its delete markers may go, once the cleaner has passed over it."""
        return self.header.base_timestamp if self.header.attributes & _DELETE_HORIZON_BIT and not self.legacy else None


class Row(NamedTuple):
    """A record as it stands. `crc` is None in format v2, where records have no checksum of their own."""

    offset: int
    timestamp: int
    key_size: int
    value_size: int
    key: bytes | None
    value: bytes | None
    sequence: int = -1
    headers: tuple[tuple[str, bytes | None], ...] = ()
    crc: int | None = None
    valid: bool = True


class Control(NamedTuple):
    """What a control record says: a transaction's end with the coordinator's epoch, or a type that is only named."""

    type_id: int
    name: str
    coordinator_epoch: int | None = None


def entries(reader: Reader, position: int, end: int, *, live: bool = False) -> Iterator[Entry]:
    """The whole entries in position..end. A length that cannot be one is `Unreadable`.

    `live`: the file is being written, and a length of zero is space that was only reserved.
    """
    while end - position > MAGIC_AT + 1:
        head = reader.view(position, MAGIC_AT + 1)
        if len(head) <= MAGIC_AT:
            return  # cut off since its size was asked for
        _, length = _PREFIX.unpack_from(head)
        if length == 0 and live:
            return
        if length < _LEAST_LENGTH:
            raise Unreadable(
                f"Found record size {length} smaller than minimum record overhead ({_LEAST_LENGTH}) in file {reader.path}."
            )
        size = LOG_OVERHEAD + length
        if size > end - position:
            return
        if MAGIC_V2 <= head[MAGIC_AT] < 0x80:
            # Of a batch that claims to be smaller than its own header, the header is read from what follows.
            data = reader.view(position, max(size, HEADER_SIZE))
            if len(data) < max(size, HEADER_SIZE):
                return
            yield Entry(position, read_header(data), data[:size])
        else:
            data = reader.view(position, size)
            if len(data) < size:
                return
            message = _message(data, 0, sizes=False)
            time = message.timestamp
            yield Entry(
                position,
                BatchHeader(
                    message.offset, length, -1, message.magic, message.crc, message.attributes, 0, time, time, -1, -1, -1, 1
                ),
                data,
            )
        position += size


def rows(entry: Entry) -> Iterator[Row]:
    """The records of an entry. `Unreadable` after those that stand before the damage."""
    return _messages(entry) if entry.legacy else _records(entry)


# Format v2


def _records(entry: Entry) -> Iterator[Row]:
    header = entry.header
    if header.size < HEADER_SIZE:
        raise Unreadable(f"Found a batch of {header.size} bytes, smaller than its header ({HEADER_SIZE})")
    if header.count < 0:
        raise Unreadable(f"Found invalid record count {header.count} in magic v{header.magic} batch")
    _known_codec(header, len(Codec))
    try:
        area = payload(entry.data, 0, header)
    except CorruptRecords as error:
        raise Unreadable(f"Failed to decompress record stream: {error}") from None
    first = header.base_sequence
    logged = header.max_timestamp if header.is_log_append_time else None
    for offset, timestamp, key, value, headers in _opened(area, header):
        yield Row(
            offset,
            timestamp if logged is None else logged,
            -1 if key is None else len(key),
            -1 if value is None else len(value),
            key,
            value,
            (first + offset - header.base_offset) % _SEQUENCES if first >= 0 else -1,
            headers,
        )


_Opened = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def _opened(area: Buffer, header: BatchHeader) -> Iterator[_Opened]:
    try:
        yield from kernel.records(area, 0, len(area), header.base_offset, header.base_timestamp, header.count)
    except ValueError:  # before the first one was handed out: the kernel opens all or none
        yield from _one_by_one(area, header)


def _one_by_one(area: Buffer, header: BatchHeader) -> Iterator[_Opened]:
    """The records before the one that is broken."""
    position = 0
    for _ in range(header.count):
        if position >= len(area):
            raise Unreadable("Incorrect declared batch size, premature EOF reached")
        stop = _stop(area, position)
        try:
            found = kernel.records(area, position, stop, header.base_offset, header.base_timestamp, 1)
        except ValueError:
            raise Unreadable(f"Found invalid record structure at byte {position} of {len(area)} in the records") from None
        yield from found
        position = stop
    if position < len(area):
        raise Unreadable("Incorrect declared batch size, records still remaining in file")


def _stop(area: Buffer, position: int) -> int:
    """Where the record at `position` says that it ends; the position itself if it does not say."""
    number = 0
    for at in range(position, min(position + 5, len(area))):
        number |= (area[at] & 0x7F) << 7 * (at - position)
        if area[at] < 0x80:
            stop = at + 1 + (number >> 1 ^ -(number & 1))
            return stop if position < stop <= len(area) else position
    return position


def control(row: Row) -> Control:
    """What a control record says."""
    key = row.key or b""
    if len(key) < _MARKER_KEY.size:
        raise Unreadable(
            f"Invalid value size found for end control record key. Must have at least {_MARKER_KEY.size} bytes, "
            f"but found only {len(key)}"
        )
    _, type_id = _MARKER_KEY.unpack_from(key)
    if type_id not in (ControlType.ABORT, ControlType.COMMIT):
        return Control(type_id, _CONTROL_TYPES.get(type_id, "UNKNOWN"))
    value = row.value or b""
    if len(value) < _MARKER_VALUE.size:
        raise Unreadable(
            f"Invalid value size found for end transaction marker. Must have at least {_MARKER_VALUE.size} bytes, "
            f"but found only {len(value)}"
        )
    return Control(type_id, ControlType(type_id).name, _MARKER_VALUE.unpack_from(value)[1])


def _known_codec(header: BatchHeader, codecs: int) -> Codec:
    number = header.attributes & CODEC_MASK
    if number >= codecs:
        raise Unreadable(f"Unknown compression type id: {number}")
    return Codec(number)


# Formats v0 and v1


class _Message(NamedTuple):
    offset: int
    size: int
    crc: int
    magic: int
    attributes: int
    timestamp: int
    valid: bool
    key: tuple[int, memoryview | None]
    value: tuple[int, memoryview | None]

    def row(self, offset: int, timestamp: int) -> Row:
        (key_size, key), (value_size, value) = self.key, self.value
        return Row(
            offset,
            timestamp,
            key_size,
            value_size,
            None if key is None else bytes(key),
            None if value is None else bytes(value),
            crc=self.crc,
            valid=self.valid,
        )


_ABSENT: Final = (-1, None)


def _messages(entry: Entry) -> Iterator[Row]:
    """The message itself; or, of a wrapper, those inside, with absolute offsets and the time that a reader is to see."""
    outer = _message(entry.data, 0)
    codec = _known_codec(entry.header, Codec.ZSTD)
    if codec is Codec.NONE:
        yield outer.row(outer.offset, outer.timestamp)
        return
    try:
        area = memoryview(decompress(codec, outer.value[1] or b"", MAX_UNPACKED, broken_lz4_header=True))
    except CorruptRecords as error:
        raise Unreadable(f"Failed to decompress record stream: {error}") from None
    inner: list[_Message] = []
    position = 0
    while position < len(area):
        inner.append(_message(area, position))
        position += inner[-1].size
    base = max(outer.offset - inner[-1].offset, 0) if outer.magic == 1 and inner else 0
    logged = entry.header.is_log_append_time and outer.magic == 1
    for message in inner:
        yield message.row(base + message.offset, outer.timestamp if logged else message.timestamp)


def _message(view: memoryview, position: int, *, sizes: bool = True) -> _Message:
    """The message at `position`; without `sizes`, its head alone."""
    try:
        offset, length, crc, magic, attributes = _V0.unpack_from(view, position)
        at, stop = position + _V0.size, position + LOG_OVERHEAD + length
        timestamp = NO_TIMESTAMP
        if magic == 1:
            timestamp, at = (_V1.unpack_from(view, position)[5] if stop >= position + _V1.size else NO_TIMESTAMP), at + 8
        if not sizes:
            return _Message(offset, stop - position, crc, magic, attributes, timestamp, False, _ABSENT, _ABSENT)
        if length < _LEAST_LENGTH or stop > len(view):
            raise Unreadable(f"Found a message of {length} bytes at byte {position} where {len(view) - position} are left")
        key, at = _part(view, at, stop)
        value, _ = _part(view, at, stop)
    except StructError:
        raise Unreadable(f"Found a message at byte {position} that is cut off") from None
    valid = zlib.crc32(view[position + MAGIC_AT : stop]) == crc
    return _Message(offset, stop - position, crc, magic, attributes, timestamp, valid, key, value)


def _part(view: memoryview, position: int, stop: int) -> tuple[tuple[int, memoryview | None], int]:
    """A key or a value with the size that it claims, and the position after it; a negative size is null."""
    (size,) = _SIZE.unpack_from(view, position)
    position += _SIZE.size
    if size > stop - position:
        raise Unreadable(f"Found a key or value of {size} bytes where {stop - position} are left")
    return ((size, None), position) if size < 0 else ((size, view[position : position + size]), position + size)
