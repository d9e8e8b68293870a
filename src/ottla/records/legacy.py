"""Message sets, formats v0 and v1: what clients before 0.11 send and read, turned into v2 batches and back.

Guards: what enters the log is v2, whatever an old producer sent (`to_v2`); what an old consumer gets is a format that it
knows (`from_v2`). Every length is held against the bytes that are there, every checksum is compared, compression is
unpacked once and bounded.

A message set is a row of entries: offset, size, CRC-32 over the rest, magic, attributes, in v1 a timestamp, then key and
value. A compressed set is one entry, the wrapper, whose value is a packed message set and whose offset is that of its last
message. Inside it, v0 writes absolute offsets and v1 offsets relative to the first, so that a broker can number a wrapper
without opening it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import groupby
from struct import Struct
from typing import NamedTuple

from ottla.model import NO_TIMESTAMP, Error, KafkaError
from ottla.records.batch import (
    CODEC_MASK,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MAX_UNPACKED,
    TIMESTAMP_TYPE_BIT,
    Record,
    TimestampType,
    build,
    open_records,
    payload,
    split,
)
from ottla.records.codecs import Buffer, Codec, compress, decompress, with_lz4_header_checksum
from ottla.records.errors import CorruptRecords, InvalidRecords

__all__ = ["Entry", "from_v2", "magic_of", "read_entries", "to_v2", "write_messages"]

_PREFIX = Struct(">qi")
_V0 = Struct(">qiIbb")
_V1 = Struct(">qiIbbq")
_LENGTH = Struct(">i")
_UINT32 = Struct(">I")
_HEADS = (_V0, _V1)
_CRC_AT = 12
_MIN_SIZES = tuple(head.size + 2 * _LENGTH.size - LOG_OVERHEAD for head in _HEADS)
_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


class Entry(NamedTuple):
    """One entry of a message set, opened: its messages (several behind a wrapper) and how it carried them."""

    magic: int
    codec: Codec
    timestamp_type: TimestampType
    records: list[Record]


class _Message(NamedTuple):
    """One message as it stands: a plain one, or a wrapper with its packed value."""

    magic: int
    attributes: int
    offset: int
    timestamp: int
    key: bytes | None
    value: memoryview | None

    @property
    def codec(self) -> Codec:
        number = self.attributes & CODEC_MASK
        if number >= len(_CODECS):
            raise InvalidRecords(
                f"the message at offset {self.offset} has codec {number}, which format v{self.magic} does not know"
            )
        return _CODECS[number]

    @property
    def timestamp_type(self) -> TimestampType:
        logged = self.magic > 0 and self.attributes & TIMESTAMP_TYPE_BIT
        return TimestampType.LOG_APPEND_TIME if logged else TimestampType.CREATE_TIME

    def record(self) -> Record:
        return Record(self.offset, self.timestamp, self.key, None if self.value is None else bytes(self.value))


def magic_of(buf: Buffer, pos: int = 0) -> int:
    """The format of the entry at `pos`. All formats keep it at the same place."""
    if len(buf) - pos <= MAGIC_AT:
        raise CorruptRecords(f"{len(buf) - pos} bytes at {pos} are too few to say their format")
    magic = buf[pos + MAGIC_AT]
    if magic > MAGIC_V2:
        raise InvalidRecords(f"the entry at {pos} has magic {magic}, which no format has")
    return magic


def read_entries(buf: Buffer, limit: int = MAX_UNPACKED) -> Iterator[Entry]:
    """The entries of a message set of v0 or v1, wrappers opened; `limit` bounds what all of them together unpack to."""
    left = limit
    for message in _messages(memoryview(buf)):
        codec = message.codec
        if codec is Codec.NONE:
            yield Entry(message.magic, codec, message.timestamp_type, [message.record()])
            continue
        if message.value is None:
            raise InvalidRecords(f"the compressed message at offset {message.offset} is empty")
        area = decompress(codec, message.value, left, broken_lz4_header=True)
        left -= len(area)
        yield Entry(message.magic, codec, message.timestamp_type, _unwrap(message, area))


def _unwrap(wrapper: _Message, area: bytes) -> list[Record]:
    """The messages inside a wrapper, with absolute offsets and the timestamps that a reader is to see."""
    inner = list(_messages(memoryview(area)))
    if not inner:
        raise InvalidRecords(f"the compressed message at offset {wrapper.offset} holds no message")
    for message in inner:
        if message.magic != wrapper.magic:
            raise InvalidRecords(f"a message of format v{message.magic} inside one of v{wrapper.magic}")
        if message.codec is not Codec.NONE:
            raise InvalidRecords(f"a compressed message inside the compressed message at offset {wrapper.offset}")
    # A producer may leave the wrapper's offset at 0, for the broker to set: then the inner ones stand as they are.
    base = wrapper.offset - inner[-1].offset if wrapper.magic > 0 else 0
    records = [message._replace(offset=message.offset + max(base, 0)).record() for message in inner]
    if wrapper.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return [record._replace(timestamp=wrapper.timestamp) for record in records]
    return records


def _messages(view: memoryview) -> Iterator[_Message]:
    pos, end = 0, len(view)
    while pos < end:
        message, pos = _message(view, pos, end)
        yield message


def _message(view: memoryview, pos: int, end: int) -> tuple[_Message, int]:
    """The message at `pos` and the position after it."""
    magic = magic_of(view, pos)
    if magic >= MAGIC_V2:
        raise InvalidRecords(f"the entry at {pos} is a batch of format v{magic} among messages of older ones")
    _, size = _PREFIX.unpack_from(view, pos)
    if size < _MIN_SIZES[magic]:
        raise CorruptRecords(f"the message at {pos} claims a size of {size}, less than its header")
    if size > end - pos - LOG_OVERHEAD:
        raise CorruptRecords(f"the message at {pos} claims {size} bytes, {end - pos - LOG_OVERHEAD} are there")
    stop = pos + LOG_OVERHEAD + size
    head = _HEADS[magic]
    offset, _, crc, _, attributes, *rest = head.unpack_from(view, pos)
    if zlib.crc32(view[pos + MAGIC_AT : stop]) != crc:
        raise CorruptRecords(f"the message at {pos} does not have the checksum that it says")
    key, at = _part(view, pos + head.size, stop)
    value, at = _part(view, at, stop)
    if at != stop:
        raise CorruptRecords(f"the message at {pos} has {stop - at} bytes after its value")
    timestamp = rest[0] if rest else NO_TIMESTAMP
    return _Message(magic, attributes, offset, timestamp, None if key is None else bytes(key), value), stop


def _part(view: memoryview, pos: int, stop: int) -> tuple[memoryview | None, int]:
    """A key or a value behind its length, and the position after it; a length of -1 is null."""
    if stop - pos < _LENGTH.size:
        raise CorruptRecords(f"a length at {pos} is cut")
    (size,) = _LENGTH.unpack_from(view, pos)
    pos += _LENGTH.size
    if size < -1 or size > stop - pos:
        raise CorruptRecords(f"a length of {size} at {pos}, where {stop - pos} bytes are left")
    return (None, pos) if size < 0 else (view[pos : pos + size], pos + size)


def to_v2(
    message_set: Buffer,
    now_ms: int,
    *,
    base_offset: int = 0,
    codec: Codec | None = None,
    level: int | None = None,
    leader_epoch: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    limit: int = MAX_UNPACKED,
) -> bytes:
    """What an old producer sent as v2 batches, numbered from `base_offset` on; empty for an empty set.

    Plain messages that follow each other come into one batch, a wrapper's into one of its own, under its codec unless `codec`
    says another. A message of v0 has no timestamp, and gets none, unless the topic has log append time: all get `now_ms` then.
    """
    out = bytearray()
    offset = base_offset
    logged = timestamp_type is TimestampType.LOG_APPEND_TIME
    for kept, records in _runs(read_entries(message_set, limit)):
        numbered = [
            record._replace(offset=number, timestamp=now_ms if logged else _sent(record.timestamp))
            for number, record in enumerate(records, offset)
        ]
        out += build(
            numbered,
            base_offset=offset,
            codec=kept if codec is None else codec,
            level=level,
            leader_epoch=leader_epoch,
            timestamp_type=timestamp_type,
        )
        offset += len(numbered)
    return bytes(out)


def _sent(timestamp: int) -> int:
    """A producer's timestamp, as a log may hold it."""
    if timestamp < NO_TIMESTAMP:
        raise KafkaError(Error.INVALID_TIMESTAMP, f"the timestamp {timestamp} is before 1970")
    return timestamp


def _runs(entries: Iterable[Entry]) -> Iterator[tuple[Codec, list[Record]]]:
    """The records that share a batch: neighbours without compression, or those of one wrapper."""
    for codec, run in groupby(map(_producible, entries), key=lambda entry: entry.codec):
        if codec is Codec.NONE:
            yield codec, [record for entry in run for record in entry.records]
        else:
            for entry in run:
                yield codec, entry.records


def _producible(entry: Entry) -> Entry:
    if entry.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise KafkaError(Error.INVALID_TIMESTAMP, "a producer may not set the timestamp type to LogAppendTime: the broker does")
    return entry


def from_v2(buf: Buffer, magic: int, limit: int = MAX_UNPACKED) -> bytes:
    """A slice of a log for a client that reads format `magic`, 0 or 1; an incomplete batch at its end is left out.

    Offsets and compression stay; headers and control batches, which those formats do not have, go. A codec that came later than
    the format raises UNSUPPORTED_COMPRESSION_TYPE. Batches share `limit`, so a slice of bombs is refused like one bomb.
    """
    out = bytearray()
    left = limit
    for pos, header in split(buf, cut=True):
        if header.is_control:
            continue
        codec = header.codec
        if codec not in _CODECS:
            raise KafkaError(
                Error.UNSUPPORTED_COMPRESSION_TYPE,
                f"{codec.label} does not exist in message format v{magic}: use a newer client",
            )
        area = payload(buf, pos, header, left)
        if codec:
            left -= len(area)
        records = open_records(area, header)
        logged = TimestampType.LOG_APPEND_TIME if header.is_log_append_time else TimestampType.CREATE_TIME
        if records:
            out += write_messages(records, magic, codec=codec, timestamp_type=logged)
    return bytes(out)


def write_messages(
    records: list[Record],
    magic: int,
    *,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    """A message set of format `magic`: one entry a record, or, with a codec, one wrapper around them all."""
    attributes = TIMESTAMP_TYPE_BIT if magic > 0 and timestamp_type is TimestampType.LOG_APPEND_TIME else 0
    base = records[0].offset if magic > 0 and codec else 0
    area = b"".join(_write(magic, attributes, r.offset - base, r.timestamp, r.key, r.value) for r in records)
    if not codec:
        return area
    packed = compress(codec, area)
    if codec is Codec.LZ4 and magic == 0:
        packed = with_lz4_header_checksum(packed, broken=True)  # the only one that readers of v0 accept
    latest = max(record.timestamp for record in records)
    return _write(magic, attributes | codec, records[-1].offset, latest, None, packed)


def _write(magic: int, attributes: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    head = _HEADS[magic]
    size = head.size + 2 * _LENGTH.size + len(key or b"") + len(value or b"")
    entry = bytearray(head.size)
    fields = (offset, size - LOG_OVERHEAD, 0, magic, attributes)
    head.pack_into(entry, 0, *fields, *((timestamp,) if magic > 0 else ()))
    for part in (key, value):
        entry += _LENGTH.pack(-1 if part is None else len(part))
        entry += part or b""
    _UINT32.pack_into(entry, _CRC_AT, zlib.crc32(memoryview(entry)[MAGIC_AT:]))
    return bytes(entry)
