"""What a fetch brought, as Arrow: batches found and checked, aborted transactions left out, records turned into columns.

Guards: a batch is handed out whole and as it was written, or not at all: its checksum is compared, its records are walked to
the last byte, and what does not fit raises `CorruptBatch` with partition and offset, after everything before it was handed out.
No Python object is made per record, except of the old formats v0 and v1, which are turned into v2 first.

Two steps, because two threads do them: `split` looks at headers alone and says where to read on, `Decoder` opens the batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from ottla.client.errors import CorruptBatch, InvalidSetting
from ottla.model import KafkaError, TopicPartition
from ottla.records.batch import (
    HEADER_SIZE,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MIN_LENGTH,
    BatchHeader,
    ControlType,
    Record,
    crc_ok,
    encode_records,
    payload,
    read_header,
    read_marker,
)
from ottla.records.columns import Columns, Piece, Sizes, fill, measure
from ottla.records.errors import BadPiece
from ottla.records.legacy import read_entries

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    ]
)
"""All columns, with the names and types of Spark's Kafka source."""

COLUMNS = tuple(SCHEMA.names[:-1])
"""What a reader gets unless it says otherwise: all but the headers."""

NO_TIMESTAMP_TYPE = -1
_AT_ONCE = 4 << 20  # unpacked bytes that become one record batch, unless a single batch has more: what a fetch brings at once
_INT64_MAX = (1 << 63) - 1


class Part(NamedTuple):
    """A batch of format v2 at a place of the answer, or (`header` None) a message set of an older one up to `end`."""

    start: int
    end: int
    header: BatchHeader | None


class Slice(NamedTuple):
    """What a fetch brought of one partition: where the batches are, where to read on, and what is wrong with the next one."""

    parts: list[Part]
    next_offset: int
    problem: CorruptBatch | None


def split(
    partition: TopicPartition,
    view: memoryview,
    position: int,
    aborted: Sequence[tuple[int, int]] | None,
    *,
    end: int | None = None,
    check_crcs: bool = True,
) -> Slice:
    """Find the batches that are to be opened; an incomplete one at the end is left for the next fetch.

    Of those that begin at the offset `end` or behind it nothing is wanted: the first of them ends the search.
    `aborted` holds producer id and first offset of the transactions that did not commit; None keeps what they wrote.
    """
    parts: list[Part] = []
    pos, size, next_offset = 0, len(view), position
    transactions = None if aborted is None else _Aborted(aborted)
    try:
        while size - pos > MAGIC_AT:
            magic = view[pos + MAGIC_AT]
            length = int.from_bytes(view[pos + LENGTH_AT : pos + LOG_OVERHEAD], "big", signed=True)
            base_offset = int.from_bytes(view[pos : pos + LENGTH_AT], "big", signed=True)
            stop = pos + LOG_OVERHEAD + length
            if magic > MAGIC_V2:
                raise CorruptBatch(partition, base_offset, f"its format is {magic}")
            if length < (MIN_LENGTH if magic == MAGIC_V2 else 14):
                raise CorruptBatch(partition, base_offset, f"its length is {length}")
            if stop > size:
                break
            if magic < MAGIC_V2:
                parts.append(Part(pos, stop, None))
                next_offset = max(next_offset, base_offset + 1)
            else:
                header = read_header(view, pos)
                if check_crcs and not crc_ok(view, pos, header):
                    raise CorruptBatch(partition, base_offset, "its checksum is not that of its bytes")
                if header.last_offset_delta < 0 or header.count < 0:
                    raise CorruptBatch(partition, base_offset, "its header counts backwards")
                if end is not None and base_offset >= end:
                    next_offset = max(next_offset, base_offset)
                    break
                kept = transactions is None or not transactions.cover(view, pos, header)
                if kept and not header.is_control and header.count and header.last_offset >= position:
                    parts.append(Part(pos, stop, header))
                next_offset = max(next_offset, header.next_offset)
            pos = stop
    except CorruptBatch as problem:
        return Slice(parts, next_offset, problem)
    except KafkaError as problem:  # a control batch that cannot be read
        return Slice(parts, next_offset, CorruptBatch(partition, base_offset, problem.message))
    return Slice(parts, next_offset, None)


class _Aborted:
    """Which batches belong to transactions that were aborted: from each one's first offset to its marker."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._coming = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def cover(self, view: memoryview, pos: int, header: BatchHeader) -> bool:
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        if not header.is_transactional or header.producer_id not in self._open:
            return False
        if header.is_control:
            marker = read_marker(view, pos, header)
            if marker is not None and marker.type is ControlType.ABORT:
                self._open.discard(header.producer_id)
        return True


class _Opened(NamedTuple):
    piece: Piece
    timestamp_type: int
    offset: int


class Decoder:
    """Turns the batches of one partition into record batches with the chosen columns."""

    def __init__(
        self, partition: TopicPartition, columns: Sequence[str] = COLUMNS, constants: dict[str, Any] | None = None
    ) -> None:
        """With `constants`, columns that say the same in every row are kept there, together with other decoders'."""
        self._partition = partition
        self.schema = schema_of(columns)
        self._wanted = frozenset(columns)
        self._constants: dict[str, Any] = {} if constants is None else constants

    def decode(self, view: memoryview, parts: Sequence[Part], first: int, end: int | None) -> Iterator[pa.RecordBatch]:
        """The records with offsets in `first..end`; several record batches where there is much to unpack."""
        last = _INT64_MAX if end is None else end
        for group in self._groups(view, parts):
            batch = self._table(group, first, last)
            if batch.num_rows:
                yield batch

    def _groups(self, view: memoryview, parts: Sequence[Part]) -> Iterator[list[_Opened]]:
        """Pieces that become one record batch: of one timestamp type, and not too large together."""
        group: list[_Opened] = []
        size = 0
        for is_old, run in groupby(parts, key=lambda part: part.header is None):
            same = list(run)
            for one in self._open_old(view, same) if is_old else (self._open(view, part) for part in same):
                area = len(one.piece.area)
                if group and (size + area > _AT_ONCE or one.timestamp_type != group[0].timestamp_type):
                    yield group
                    group, size = [], 0
                group.append(one)
                size += area
        if group:
            yield group

    def _open(self, view: memoryview, part: Part) -> _Opened:
        header = part.header
        assert header is not None
        try:
            area = payload(view, part.start, header) if header.is_compressed else view[part.start + HEADER_SIZE : part.end]
        except KafkaError as problem:
            raise CorruptBatch(self._partition, header.base_offset, problem.message) from None
        logged = header.is_log_append_time
        piece = Piece(
            area,
            header.base_offset,
            header.base_timestamp,
            header.max_timestamp if logged else None,
            header.count,
            header.last_offset,
        )
        return _Opened(piece, int(logged), header.base_offset)

    def _open_old(self, view: memoryview, parts: Sequence[Part]) -> Iterator[_Opened]:
        """Message sets of v0 and v1, as pieces of v2; their messages lie close together, a wrapper's as well."""
        for part in parts:
            offset = int.from_bytes(view[part.start : part.start + LENGTH_AT], "big", signed=True)
            try:
                for entry in read_entries(view[part.start : part.end]):
                    records: list[Record] = entry.records
                    base = records[0].offset
                    times = NO_TIMESTAMP_TYPE if entry.magic == 0 else int(entry.timestamp_type)
                    area = encode_records(records, base, records[0].timestamp)
                    piece = Piece(area, base, records[0].timestamp, None, len(records), records[-1].offset)
                    yield _Opened(piece, times, base)
            except (KafkaError, ValueError) as problem:
                raise CorruptBatch(self._partition, offset, str(problem)) from None

    # ---- columns ---------------------------------------------------------------------------------------------------------

    def _table(self, group: Sequence[_Opened], first: int, end: int) -> pa.RecordBatch:
        pieces = [one.piece for one in group]
        try:
            sizes = measure(pieces, first, end)
        except BadPiece as problem:
            raise CorruptBatch(self._partition, group[problem.piece].offset, str(problem)) from None
        rows = sizes.rows
        buffers = self._buffers(sizes)
        if rows:
            fill(pieces, first, end, Columns(**buffers))
        same = {
            "topic": self._partition.topic,
            "partition": self._partition.partition,
            "timestampType": group[0].timestamp_type,
        }
        columns = [
            self._array(field.name, buffers, sizes)
            if _holder(field.name) in buffers
            else self._constant(field, same.get(field.name), rows)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _buffers(self, sizes: Sizes) -> dict[str, Any]:
        """Room for what differs from row to row, under the kernel's names. A column that is null throughout needs none."""
        rows = sizes.rows
        buffers: dict[str, Any] = {}
        for name in ("offset", "timestamp"):
            if name in self._wanted:
                buffers[name] = pa.allocate_buffer(8 * rows)
        if "key" in self._wanted and sizes.key_nulls < rows:
            buffers |= _room("key", rows, sizes.key_bytes, sizes.key_nulls)
        if "value" in self._wanted and sizes.value_nulls < rows:
            buffers |= _room("value", rows, sizes.value_bytes, sizes.value_nulls)
        if "headers" in self._wanted and sizes.header_nulls < rows:
            buffers["header_offsets"] = pa.allocate_buffer(4 * (rows + 1))
            buffers["header_valid"] = pa.allocate_buffer((rows + 7) // 8) if sizes.header_nulls else None
            buffers |= _room("name", sizes.headers, sizes.name_bytes, 0)
            buffers |= _room("header_value", sizes.headers, sizes.header_value_bytes, sizes.header_value_nulls)
        return buffers

    def _array(self, name: str, buffers: dict[str, Any], sizes: Sizes) -> pa.Array:
        """A column whose buffers are filled."""
        rows = sizes.rows
        if name == "key":
            return _binary(buffers, name, pa.binary(), rows, sizes.key_nulls)
        if name == "value":
            return _binary(buffers, name, pa.binary(), rows, sizes.value_nulls)
        if name == "headers":
            names = _binary(buffers, "name", pa.string(), sizes.headers, 0)
            values = _binary(buffers, "header_value", pa.binary(), sizes.headers, sizes.header_value_nulls)
            pairs = pa.Array.from_buffers(HEADERS.value_type, sizes.headers, [None], 0, 0, [names, values])
            outer = [buffers["header_valid"], buffers["header_offsets"]]
            return pa.Array.from_buffers(HEADERS, rows, outer, sizes.header_nulls, 0, [pairs])
        return pa.Array.from_buffers(SCHEMA.field(name).type, rows, [None, buffers[name]], 0)

    def _constant(self, field: pa.Field, value: object, rows: int) -> pa.Array:
        """A column that says the same in every row: made once for many rows, and handed out in slices."""
        known = self._constants.get(field.name)
        if known is None or known[0] != value or len(known[1]) < rows:
            known = self._constants[field.name] = (value, pa.repeat(pa.scalar(value, field.type), max(rows, 1)))
        return known[1].slice(0, rows)


def _holder(column: str) -> str:
    """The buffer that is there if a column differs from row to row."""
    return {"key": "key_offsets", "value": "value_offsets", "headers": "header_offsets"}.get(column, column)


def _room(name: str, rows: int, size: int, nulls: int) -> dict[str, Any]:
    return {
        f"{name}_offsets": pa.allocate_buffer(4 * (rows + 1)),
        f"{name}_data": pa.allocate_buffer(size),
        **({f"{name}_valid": pa.allocate_buffer((rows + 7) // 8)} if nulls else {}),
    }


def _binary(buffers: dict[str, Any], name: str, kind: pa.DataType, rows: int, nulls: int) -> pa.Array:
    parts = [buffers.get(f"{name}_valid"), buffers[f"{name}_offsets"], buffers[f"{name}_data"]]
    return pa.Array.from_buffers(kind, rows, parts, nulls)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of the chosen columns."""
    for name in columns:
        if name not in SCHEMA.names:
            raise InvalidSetting(f"There is no column {name}: allowed are {', '.join(SCHEMA.names)}.")
    if not columns:
        raise InvalidSetting(f"No column is chosen: allowed are {', '.join(SCHEMA.names)}.")
    return pa.schema([SCHEMA.field(name) for name in columns])
