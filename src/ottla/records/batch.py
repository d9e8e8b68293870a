"""Record batches, format v2: the unit that is produced, stored, replicated and fetched.

Guards: a length is believed only after it was held against the bytes that are there; a count only after the records were
walked. The functions of the produce and fetch paths (`read_header`, `crc_ok`, `split`, `patch`, `with_log_append_time`) do
nothing per record. Those that open a batch (`payload`, `read_records`) say so, and bound what they unpack.

The first 21 bytes are outside the checksum: base offset, length, leader epoch, magic and the checksum itself. That is why a
leader can number a batch and stamp its epoch in place (`patch`) and leave the rest as the producer sent it. All offsets in
`Record` are absolute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from ottla.records import kernel
from ottla.records.codecs import Buffer, Codec, compress, decompress
from ottla.records.errors import CorruptRecords, InvalidRecords

try:
    from ottla.records._header import header_at, number
except ImportError:
    from ottla.records._header_twin import header_at, number

__all__ = [
    "BatchHeader",
    "ControlType",
    "CorruptRecords",
    "EndTransactionMarker",
    "InvalidRecords",
    "Record",
    "TimestampType",
    "assemble",
    "build",
    "crc_ok",
    "encode_records",
    "end_transaction_marker",
    "open_records",
    "patch",
    "payload",
    "read_header",
    "read_marker",
    "read_records",
    "repack",
    "split",
    "with_log_append_time",
]

LOG_OVERHEAD: Final = 12  # base offset and length: what stands before every entry of a log, in every format
HEADER_SIZE: Final = 61
MIN_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
MAGIC_V2: Final = 2

BASE_OFFSET_AT: Final = 0
LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
COUNT_AT: Final = 57

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

MAX_UNPACKED: Final = 128 * 1024 * 1024
"""The most that one batch may unpack to, unless the caller says otherwise."""

_HEADER: Final = Struct(">qiibIhiqqqhii")
_INT64: Final = Struct(">q")
_INT16: Final = Struct(">h")
_UINT32: Final = Struct(">I")
_MARKER_KEY: Final = Struct(">hh")
_MARKER_VALUE: Final = Struct(">hi")
_MARKER_ROW: Final = Struct(">5shhBhib")
MARKER_HEAD: Final = b"\x20\x00\x00\x00\x08"
"""A marker's record up to its key: 16 bytes follow, no attributes, no deltas, a key of 4 bytes."""
MARKER_VALUE_SIZE: Final = 0x0C
MARKER_BATCH_SIZE: Final = 61 + 17
"""A marker of version 0, and nothing else: what coordinators write."""
_CODECS: Final = tuple(Codec)
_SEQUENCES: Final = 1 << 31


class TimestampType(IntEnum):
    """Who set the timestamps: the producer, or the broker when it appended."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, as they are; derived figures are properties."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # Kafka's noun, over a method of tuple that nobody calls here

    @property
    def size(self) -> int:
        """Bytes of the whole batch, this header and what stands before its length included."""
        return LOG_OVERHEAD + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """The codec of the records; raises `InvalidRecords` for an id that no codec has."""
        number = self.attributes & CODEC_MASK
        if number >= len(_CODECS):
            raise InvalidRecords(f"unknown compression codec {number}")
        return _CODECS[number]

    @property
    def is_compressed(self) -> bool:
        return self.attributes & CODEC_MASK != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & TIMESTAMP_TYPE_BIT != 0

    @property
    def delete_horizon(self) -> int | None:
        """From when on compaction may drop the batch's tombstones or its marker; None before it was compacted once."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record: after 2^31-1 comes 0. A batch without a sequence has -1."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES


class Record(NamedTuple):
    """One record, opened. `offset` is absolute; a header's key is text, its value bytes or null."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`. It checks nothing but that the bytes are there."""
    header = header_at(BatchHeader, buf, pos)
    if header is None:
        raise CorruptRecords(f"a batch header needs {HEADER_SIZE} bytes, {len(buf) - pos} are there")
    return header


def crc_ok(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Whether the checksum in `header` is that of the batch at `pos`. The bytes are not copied."""
    return bool(crc32c(memoryview(buf)[pos + ATTRIBUTES_AT : pos + LOG_OVERHEAD + header.length]) == header.crc)


def split(buf: Buffer, *, cut: bool = False) -> Iterator[tuple[int, BatchHeader]]:
    """Every batch of `buf` with its position; raises on a length that lies and on another format.

    `cut`: the buffer is a slice of a log, so that its last batch may be incomplete, and is then left out.
    """
    pos, end = 0, len(buf)
    while pos < end:
        if end - pos < HEADER_SIZE:
            if cut:
                return
            raise CorruptRecords(f"{end - pos} bytes at {pos} are too few for a batch header")
        header = read_header(buf, pos)
        if header.length < MIN_LENGTH:
            raise CorruptRecords(f"the batch at {pos} claims a length of {header.length}, less than its header")
        if header.magic != MAGIC_V2:
            raise InvalidRecords(f"the batch at {pos} has magic {header.magic}, not {MAGIC_V2}")
        if header.size > end - pos:
            if cut:
                return
            raise CorruptRecords(f"the batch at {pos} claims {header.size} bytes, {end - pos} are there")
        yield pos, header
        pos += header.size


def is_transactional(buf: bytes | bytearray | memoryview) -> bool:
    """Whether what a producer sent is a v2 batch that claims to belong to a transaction; looks at one byte."""
    return len(buf) > ATTRIBUTES_AT + 1 and buf[MAGIC_AT] == MAGIC_V2 and buf[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT != 0


def patch(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Number the batch and stamp the leader's epoch, in place. Neither is under the checksum."""
    number(buf, pos, base_offset, leader_epoch)


def with_log_append_time(buf: bytearray | memoryview, pos: int, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Make `now_ms` the time of every record of the batch, in place, by its header alone; the new header.

    Readers of a batch of this timestamp type take its max timestamp and ignore what the records say.
    """
    attributes = header.attributes | TIMESTAMP_TYPE_BIT
    _INT16.pack_into(buf, pos + ATTRIBUTES_AT, attributes)
    _INT64.pack_into(buf, pos + MAX_TIMESTAMP_AT, now_ms)
    crc = crc32c(memoryview(buf)[pos + ATTRIBUTES_AT : pos + header.size])
    _UINT32.pack_into(buf, pos + CRC_AT, crc)
    return header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc)


def payload(buf: Buffer, pos: int, header: BatchHeader, limit: int = MAX_UNPACKED) -> Buffer:
    """The records' bytes, unpacked; a view into `buf` where they are not compressed."""
    area = memoryview(buf)[pos + HEADER_SIZE : pos + header.size]
    codec = header.codec
    return decompress(codec, area, limit) if codec else area


def read_records(buf: Buffer, pos: int, header: BatchHeader, limit: int = MAX_UNPACKED) -> list[Record]:
    """Open a batch: every record of it, or `InvalidRecords` if they are not what the header says."""
    return open_records(payload(buf, pos, header, limit), header)


def open_records(area: Buffer, header: BatchHeader) -> list[Record]:
    """The records of a batch whose `payload` is at hand."""
    try:
        rows = kernel.records(area, 0, len(area), header.base_offset, header.base_timestamp, header.count)
    except ValueError as error:
        raise InvalidRecords(f"the batch at offset {header.base_offset} is not well-formed: {error}") from None
    if rows and rows[-1][0] > header.last_offset:
        raise InvalidRecords(f"a record at offset {rows[-1][0]} in a batch that ends at {header.last_offset}")
    if header.is_log_append_time:
        time = header.max_timestamp
        return [Record(offset, time, key, value, headers) for offset, _, key, value, headers in rows]
    return list(map(Record._make, rows))


def build(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """One batch of `records`, whose offsets rise from `base_offset` on; `ValueError` if they do not, or if there are none."""
    rows = list(records)
    if not rows:
        raise ValueError("a batch needs a record")
    base_timestamp = rows[0].timestamp
    area = encode_records(rows, base_offset, base_timestamp)
    attributes = codec | timestamp_type << 3 | (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC_V2,
        crc=0,
        attributes=attributes,
        last_offset_delta=rows[-1].offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max(row.timestamp for row in rows),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(rows),
    )
    return assemble(header, compress(codec, area, level) if codec else area)


def repack(header: BatchHeader, area: Buffer, codec: Codec, level: int | None = None) -> bytes:
    """The batch of `header` from its unpacked records, under another codec."""
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble(header._replace(attributes=attributes), compress(codec, area, level) if codec else area)


def assemble(header: BatchHeader, area: Buffer) -> bytes:
    """The bytes of a batch, with the length and the checksum that `area` gives it."""
    batch = bytearray(HEADER_SIZE + len(area))
    _HEADER.pack_into(batch, 0, *header._replace(length=len(batch) - LOG_OVERHEAD))
    batch[HEADER_SIZE:] = area
    _UINT32.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)


def encode_records(rows: list[Record], base_offset: int, base_timestamp: int) -> bytearray:
    """The records of a batch that is not compressed."""
    area = bytearray()
    last = -1
    if max(abs(row.timestamp - base_timestamp) for row in rows) >= 1 << 63:
        raise ValueError("the timestamps of a batch lie too far apart")
    for offset, timestamp, key, value, headers in rows:
        delta = offset - base_offset
        if not last < delta < _SEQUENCES:
            raise ValueError(f"offset {offset} cannot follow {base_offset + last} in a batch that starts at {base_offset}")
        last = delta
        body = bytearray(1)  # the record's own attributes: no bit of them is used
        body += _varint(timestamp - base_timestamp)
        body += _varint(delta)
        for part in (key, value):
            _put(body, part)
        body += _varint(len(headers))
        for name, content in headers:
            _put(body, name.encode("utf-8", "surrogateescape"))
            _put(body, content)
        area += _varint(len(body))
        area += body
    return area


def _put(body: bytearray, part: bytes | None) -> None:
    if part is None:
        body += _VARINT_1[1]  # a length of -1
    else:
        body += _varint(len(part))
        body += part


_VARINT_1 = [bytes((n,)) for n in range(128)]


def _varint(number: int) -> bytes:
    """Zig-zag, seven bits a byte, low bits first."""
    rest = number << 1 if number >= 0 else ~(number << 1)
    if rest < 0x80:
        return _VARINT_1[rest]
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


class ControlType(IntEnum):
    """How a transaction ended, in the key of its marker."""

    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    """What a transaction marker says: how it ended, and by which coordinator's word."""

    type: ControlType
    coordinator_epoch: int


def end_transaction_marker(
    outcome: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends a producer's transaction in one partition."""
    key, value = _MARKER_KEY.pack(0, outcome), _MARKER_VALUE.pack(0, coordinator_epoch)
    return build(
        [Record(base_offset, timestamp, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


_MARKERS: Final = {kind.value: kind for kind in (ControlType.ABORT, ControlType.COMMIT)}


def read_marker(buf: Buffer, pos: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The marker in a control batch; `None` for a control record of another kind, which is to be stepped over."""
    if header.length == MARKER_BATCH_SIZE - LOG_OVERHEAD and len(buf) - pos >= MARKER_BATCH_SIZE:
        head, version, kind, size, _, coordinator_epoch, headers = _MARKER_ROW.unpack_from(buf, pos + HEADER_SIZE)
        usual = head == MARKER_HEAD and size == MARKER_VALUE_SIZE and not headers and not header.attributes & CODEC_MASK
        if usual and header.count == 1 and version >= 0 and kind in _MARKERS:
            return EndTransactionMarker(_MARKERS[kind], coordinator_epoch)
    records = read_records(buf, pos, header)
    key = records[0].key if records else None
    if key is None or len(key) < _MARKER_KEY.size:
        raise InvalidRecords(f"the control batch at offset {header.base_offset} has no control key")
    version, kind = _MARKER_KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecords(f"the control key at offset {header.base_offset} has version {version}")
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    value = records[0].value
    if value is None or len(value) < _MARKER_VALUE.size:
        raise InvalidRecords(f"the transaction marker at offset {header.base_offset} has no coordinator epoch")
    _, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    return EndTransactionMarker(ControlType(kind), coordinator_epoch)
