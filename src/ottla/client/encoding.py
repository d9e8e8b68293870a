"""Arrow columns as record batches of format v2: which column is what, which row goes to which partition, and the bytes.

Guards: rows of a partition keep their order; a key always goes to the partition where Java's producer (and librdkafka's
`murmur2`) would put it; a column of another type is refused with its name before anything is sent. The per-row work is the
kernel's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, NamedTuple

import pyarrow as pa
from fastcrc.crc32 import iscsi as crc32c

from ottla.client.errors import InvalidTable
from ottla.records.batch import ATTRIBUTES_AT, CRC_AT, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, TRANSACTIONAL_BIT
from ottla.records.codecs import Codec, compress
from ottla.records.columns import Binary, Headers, Rows, choose, encode, group

_HEADER = Struct(">qiibIhiqqqhii")
_UINT32 = Struct(">I")
_CHUNK_ROWS = 1 << 17
_CHUNK_BYTES = 16 << 20


class ColumnNames(NamedTuple):
    """Which column holds what; None where nothing does."""

    key: str | None
    value: str | None
    partition: str | None
    timestamp: str | None
    headers: str | None
    topic: str | None


class Block(NamedTuple):
    """The records of one batch behind room for its header."""

    partition: int
    area: bytearray
    records: int
    base_timestamp: int
    max_timestamp: int


def chunks(data: Any) -> Iterator[pa.RecordBatch]:
    """Whatever holds Arrow data, as record batches that are neither tiny nor huge."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in _batches(data):
        for start in range(0, batch.num_rows, _CHUNK_ROWS):
            piece = batch.slice(start, _CHUNK_ROWS)
            waiting.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
            if rows >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
                yield _joined(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _batches(data: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif hasattr(data, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(data)
    elif isinstance(data, Iterable):
        for one in data:
            yield from _batches(one)
    else:
        raise InvalidTable(f"A {type(data).__name__} cannot be written: give an Arrow table, record batches, or a data frame.")


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    try:
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    except pa.ArrowInvalid as problem:
        raise InvalidTable(f"The record batches do not have the same columns: {problem}") from None


def named(schema: pa.Schema, wanted: ColumnNames) -> ColumnNames:
    """The names that count for a schema: a column of the default name is taken if it is there, another one has to be."""
    found = {}
    for role, name in wanted._asdict().items():
        missing = name is not None and name not in schema.names
        if missing and (name != role or role == "value"):
            columns = ", ".join(schema.names) or "none"
            raise InvalidTable(f"There is no column {name} for the {role}: the columns are {columns}.")
        found[role] = None if missing else name
    return ColumnNames(**found)


def by_topic(batch: pa.RecordBatch, names: ColumnNames, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic: of the given one, or as a column says."""
    if topic is not None:
        yield topic, batch
        return
    if names.topic is None:
        raise InvalidTable("No topic: name one, or give a column that does.")
    column = batch.column(names.topic).cast(pa.string())
    if column.null_count:
        raise InvalidTable(f"Column {names.topic} has {column.null_count} rows without a topic.")
    import pyarrow.compute as pc  # noqa: PLC0415 - takes 30 ms, and who only reads needs none of it

    for name in column.unique().to_pylist():
        yield name, batch.filter(pc.equal(column, name))


class Encoder:
    """Encodes one record batch for one topic; its blocks come partition by partition, in turns."""

    def __init__(self, batch: pa.RecordBatch, names: ColumnNames, partitions: int, now_ms: int, batch_size: int) -> None:
        self._rows = _rows(batch, names, now_ms)
        self._partitions = partitions
        self._now = now_ms
        self._size = batch_size
        self._given = None if names.partition is None else _numbers(batch, names.partition, pa.int32(), -1)
        self._run = max(1, batch_size * max(batch.num_rows, 1) // max(batch.nbytes, 1))

    def blocks(self, sticky: int) -> tuple[Iterator[Block], int]:
        """The blocks, and how many rows without a key or a partition there were up to now."""
        count = self._rows.count
        if self._partitions == 1 and self._given is None:
            return self._encode(None, [0, count]), sticky
        chosen, order = bytearray(4 * count), bytearray(8 * count)
        try:
            sticky = choose(count, self._rows.key, self._given, self._partitions, sticky, self._run, chosen)
        except ValueError as problem:
            raise InvalidTable(f"The rows cannot be put into partitions: {problem}.") from None
        return self._encode(order, group(chosen, self._partitions, order)), sticky

    def _encode(self, order: bytearray | None, starts: list[int]) -> Iterator[Block]:
        at = starts[:-1]
        left = [number for number, start in enumerate(at) if start < starts[number + 1]]
        while left:
            for number in left:
                start = at[number]
                try:
                    area, at[number], first, latest = encode(
                        self._rows, order, start, starts[number + 1], self._now, HEADER_SIZE, self._size
                    )
                except ValueError as problem:
                    raise InvalidTable(f"The rows cannot be written: {problem}.") from None
                yield Block(number, area, at[number] - start, first, latest)
            left = [number for number in left if at[number] < starts[number + 1]]


def finish(block: Block, codec: Codec, producer_id: int, epoch: int, sequence: int, *, transactional: bool) -> bytearray:
    """The batch of a block: packed, with its header, and its checksum last."""
    data = block.area
    if codec:
        packed = compress(codec, memoryview(data)[HEADER_SIZE:])
        data = bytearray(HEADER_SIZE + len(packed))
        data[HEADER_SIZE:] = packed
    attributes = int(codec) | (TRANSACTIONAL_BIT if transactional else 0)
    _HEADER.pack_into(
        data, 0, 0, len(data) - LOG_OVERHEAD, -1, MAGIC_V2, 0, attributes, block.records - 1, block.base_timestamp,
        block.max_timestamp, producer_id, epoch, sequence, block.records,
    )  # fmt: skip
    _UINT32.pack_into(data, CRC_AT, crc32c(memoryview(data)[ATTRIBUTES_AT:]))
    return data


# ---- columns -------------------------------------------------------------------------------------------------------------


def _rows(batch: pa.RecordBatch, names: ColumnNames, now_ms: int) -> Rows:
    return Rows(
        batch.num_rows,
        None if names.key is None else _binary(batch.column(names.key), names.key),
        None if names.value is None else _binary(batch.column(names.value), names.value),
        None if names.timestamp is None else _times(batch, names.timestamp, now_ms),
        None if names.headers is None else _headers(batch.column(names.headers), names.headers),
    )


def _binary(column: pa.Array, name: str) -> Binary | None:
    """A column of bytes or text; one that is null throughout is none."""
    if column.null_count == len(column):
        return None
    try:
        column = column.cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidTable(f"Column {name} has type {column.type}: a record needs bytes or text, so cast it first.") from None
    valid, offsets, data = column.buffers()
    return Binary(column.offset, offsets, data if data is not None else b"", valid if column.null_count else None)


def _numbers(batch: pa.RecordBatch, name: str, kind: pa.DataType, default: int) -> memoryview:
    column = batch.column(name)
    try:
        column = column.cast(kind).fill_null(default)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidTable(f"Column {name} has type {column.type}, which cannot be {kind}.") from None
    width = kind.bit_width // 8
    buffer = column.buffers()[1]
    view = memoryview(buffer if buffer is not None else b"").cast("B")
    return view[column.offset * width : (column.offset + len(column)) * width]


def _times(batch: pa.RecordBatch, name: str, now_ms: int) -> memoryview:
    """Milliseconds; a row without a time gets the present one."""
    kind = batch.schema.field(name).type
    if pa.types.is_timestamp(kind):
        in_ms = batch.column(name).cast(pa.timestamp("ms", tz=kind.tz), safe=False)
        return _numbers(pa.RecordBatch.from_arrays([in_ms], names=[name]), name, pa.int64(), now_ms)
    if not pa.types.is_integer(kind):
        raise InvalidTable(f"Column {name} has type {kind}: a timestamp or milliseconds are needed.")
    return _numbers(batch, name, pa.int64(), now_ms)


def _headers(column: pa.Array, name: str) -> Headers | None:
    """A list of names and values for each row, as Spark has them; a map does as well."""
    if column.null_count == len(column):
        return None
    kind = column.type
    if pa.types.is_map(kind):
        keys, values = column.keys, column.items
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2:
        keys, values = column.values.flatten()
    else:
        raise InvalidTable(f"Column {name} has type {kind}: headers are a list of a struct of key and value.")
    if keys.null_count:
        raise InvalidTable(f"Column {name} has a header without a key.")
    valid, offsets = column.buffers()[:2]
    nothing = Binary(0, bytes(4), b"", None)
    nulls = Binary(0, bytes(4 * (len(values) + 1)), b"", bytes((len(values) + 7) // 8))
    return Headers(
        column.offset,
        offsets,
        valid if column.null_count else None,
        _binary(keys, name) or nothing,
        _binary(values, name) or nulls,
    )
