"""Records to Arrow's buffers and back, in pure Python: as `_columns.pyx` and `_rows.pyx` do it.

Guards: no index leaves a piece, a column or a buffer to be filled; a piece is believed only after it was walked to its end. A
change here is a change there.

The layout is Arrow's: a binary column is row+1 offsets of 32 bits and the bytes one behind the other, a validity is one bit a
row, low bits first, a list column is offsets into its values. Decoding goes in two steps, so that the caller can allocate:
`measure` checks every record and says how much there is, `fill` writes it. Nothing in here knows pyarrow.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.records._twin import _Bad, _body, _bytes, _times, _varint32
from ottla.records.codecs import Buffer
from ottla.records.errors import BadPiece

_INT32_MAX = (1 << 31) - 1
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1

Header = tuple[bytes, bytes | None]
Row = tuple[int, int, bytes | None, bytes | None, list[Header]]


class Piece(NamedTuple):
    """The records of one batch, unpacked. `append_time`, if it is set, is the time of all of them."""

    area: Buffer
    base_offset: int
    base_timestamp: int
    append_time: int | None
    count: int  # type: ignore[assignment]  # Kafka's noun, over a method of tuple that nobody calls here
    last_offset: int


class Sizes(NamedTuple):
    """How much some pieces hold: what the buffers of their columns need."""

    rows: int
    key_bytes: int
    key_nulls: int
    value_bytes: int
    value_nulls: int
    header_nulls: int
    headers: int
    name_bytes: int
    header_value_bytes: int
    header_value_nulls: int


class Columns(NamedTuple):
    """Writable buffers to fill, None for what is not wanted. Timestamps are microseconds; no headers are a null."""

    offset: Buffer | None = None
    timestamp: Buffer | None = None
    key_offsets: Buffer | None = None
    key_data: Buffer | None = None
    key_valid: Buffer | None = None
    value_offsets: Buffer | None = None
    value_data: Buffer | None = None
    value_valid: Buffer | None = None
    header_offsets: Buffer | None = None
    header_valid: Buffer | None = None
    name_offsets: Buffer | None = None
    name_data: Buffer | None = None
    header_value_offsets: Buffer | None = None
    header_value_data: Buffer | None = None
    header_value_valid: Buffer | None = None


class Binary(NamedTuple):
    """A binary column to read: its rows begin at `offset` of the buffers."""

    offset: int
    offsets: Buffer
    data: Buffer
    valid: Buffer | None


class Headers(NamedTuple):
    """A column of lists of names and values."""

    offset: int
    offsets: Buffer
    valid: Buffer | None
    names: Binary
    values: Binary


class Rows(NamedTuple):
    """What is to be written: columns of `count` rows; timestamps in milliseconds."""

    count: int  # type: ignore[assignment]
    key: Binary | None
    value: Binary | None
    timestamps: Buffer | None
    headers: Headers | None


# ---- records to columns --------------------------------------------------------------------------------------------------


def _walk(pieces: list[Piece], first: int, end: int) -> list[Row]:
    """The rows with offsets in `first..end`, of pieces that are sound to the last byte."""
    rows: list[Row] = []
    for number, piece in enumerate(pieces):
        view = memoryview(piece.area).cast("B")
        pos, stop, last, index = 0, len(view), -1, 0
        try:
            while index < piece.count:
                index += 1
                inner, pos = _body(view, pos, stop)
                timestamp, delta, inner = _times(view, inner, pos, piece.base_timestamp)
                offset = piece.base_offset + delta
                if delta <= last or offset > _INT64_MAX or offset > piece.last_offset:
                    raise _Bad
                last = delta
                key, inner = _bytes(view, inner, pos)
                value, inner = _bytes(view, inner, pos)
                headers, inner = _headers(view, inner, pos)
                if inner != pos:
                    raise _Bad
                if first <= offset < end:
                    rows.append((offset, timestamp if piece.append_time is None else piece.append_time, key, value, headers))
        except _Bad:
            raise BadPiece(number, f"record {index} of the batch is corrupt") from None
        if pos != stop:
            raise BadPiece(number, "bytes follow the last record")
    return rows


def _headers(view: memoryview, pos: int, end: int) -> tuple[list[Header], int]:
    count, pos = _varint32(view, pos, end)
    if count < 0 or count > end - pos:
        raise _Bad
    headers: list[Header] = []
    for _ in range(count):
        name, pos = _bytes(view, pos, end, 0)
        value, pos = _bytes(view, pos, end)
        headers.append((name or b"", value))
    return headers, pos


def measure(pieces: list[Piece], first: int, end: int) -> Sizes:
    """How much the records with offsets in `first..end` hold; raises `BadPiece` on the first that is not sound."""
    rows = _walk(pieces, first, end)
    keys = [row[2] for row in rows]
    values = [row[3] for row in rows]
    headers = [header for row in rows for header in row[4]]
    return Sizes(
        rows=len(rows),
        key_bytes=sum(len(key) for key in keys if key is not None),
        key_nulls=keys.count(None),
        value_bytes=sum(len(value) for value in values if value is not None),
        value_nulls=values.count(None),
        header_nulls=sum(not row[4] for row in rows),
        headers=len(headers),
        name_bytes=sum(len(name) for name, _ in headers),
        header_value_bytes=sum(len(value) for _, value in headers if value is not None),
        header_value_nulls=sum(value is None for _, value in headers),
    )


def fill(pieces: list[Piece], first: int, end: int, columns: Columns) -> int:
    """Write the rows into the buffers, and say how many; `ValueError` where a buffer is too small or a piece is corrupt.

    A header's name that is not UTF-8 gets a question mark for each byte that is not ASCII.
    """
    try:
        rows = _walk(pieces, first, end)
        headers = [header for row in rows for header in row[4]]
        _fill_numbers(columns.offset, [row[0] for row in rows])
        _fill_numbers(columns.timestamp, [_micros(row[1]) for row in rows])
        _fill_binary(columns.key_offsets, columns.key_data, columns.key_valid, [row[2] for row in rows])
        _fill_binary(columns.value_offsets, columns.value_data, columns.value_valid, [row[3] for row in rows])
        if columns.header_offsets is not None:
            _fill_ends(columns.header_offsets, [len(row[4]) for row in rows])
            _fill_bits(columns.header_valid, [bool(row[4]) for row in rows])
            _fill_binary(columns.name_offsets, columns.name_data, None, [_name(name) for name, _ in headers])
            values = [value for _, value in headers]
            _fill_binary(columns.header_value_offsets, columns.header_value_data, columns.header_value_valid, values)
    except (BadPiece, IndexError):
        raise ValueError("the buffers are too small for the records") from None
    return len(rows)


def _micros(millis: int) -> int:
    return max(_INT64_MIN, min(_INT64_MAX, millis * 1000))


def _name(name: bytes) -> bytes:
    try:
        name.decode()
    except UnicodeDecodeError:
        return bytes(byte if byte < 0x80 else ord("?") for byte in name)
    return name


def _fill_numbers(buffer: Buffer | None, numbers: list[int]) -> None:
    if buffer is not None:
        view = _whole(buffer, "q", 8)
        for row, number in enumerate(numbers):
            view[row] = number


def _whole(buffer: Buffer, code: str, size: int) -> memoryview:
    """As many whole numbers as a buffer has room for."""
    view = memoryview(buffer).cast("B")
    return view[: len(view) // size * size].cast(code)  # type: ignore[call-overload, no-any-return]


def _fill_ends(buffer: Buffer, sizes: list[int]) -> None:
    """The offsets of a column, from the sizes of its values."""
    view = _whole(buffer, "i", 4)
    view[0] = end = 0
    for row, size in enumerate(sizes):
        end += size
        if end > _INT32_MAX:
            raise IndexError
        view[row + 1] = end


def _fill_bits(buffer: Buffer | None, bits: list[bool]) -> None:
    if buffer is None:
        return
    view = memoryview(buffer).cast("B")
    view[:] = bytes(len(view))
    for row, bit in enumerate(bits):
        view[row >> 3] |= bit << (row & 7)


def _fill_binary(
    offsets: Buffer | None, data: Buffer | None, valid: Buffer | None, values: list[bytes | None] | list[bytes]
) -> None:
    if offsets is None:
        return
    _fill_ends(offsets, [len(value or b"") for value in values])
    joined = b"".join(value or b"" for value in values)
    if joined:
        view = memoryview(data if data is not None else b"").cast("B")
        if len(joined) > len(view):
            raise IndexError
        view[: len(joined)] = joined
    _fill_bits(valid, [value is not None for value in values])


# ---- columns to records --------------------------------------------------------------------------------------------------


class _Column:
    """A binary column behind its offsets."""

    def __init__(self, column: Binary) -> None:
        self._offset, offsets, data, valid = column
        self._offsets = _whole(offsets, "i", 4)
        self._data = memoryview(data).cast("B")
        self._valid = None if valid is None else memoryview(valid).cast("B")
        rows = len(self._offsets) - 1
        self._rows = (rows if self._valid is None else min(rows, len(self._valid) * 8)) - self._offset
        if self._offset < 0 or self._rows < 0:
            raise ValueError("a column's buffers are too small")

    def at(self, row: int) -> bytes | None:
        """One value; raises `_Bad` where the column's own offsets lie."""
        if not 0 <= row < self._rows:
            raise _Bad
        row += self._offset
        if self._valid is not None and not self._valid[row >> 3] >> (row & 7) & 1:
            return None
        start, stop = self._offsets[row], self._offsets[row + 1]
        if not 0 <= start <= stop <= len(self._data):
            raise _Bad
        return bytes(self._data[start:stop])


def _column(column: Binary | None) -> _Column | None:
    return None if column is None else _Column(column)


def murmur2(data: bytes) -> int:
    """As Java's producer hashes a key."""
    size, mask, factor = len(data), 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ size
    whole = size // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * factor & mask
        k = (k ^ k >> 24) * factor & mask
        h = (h * factor & mask) ^ k
    if size > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * factor & mask
    h = (h ^ h >> 13) * factor & mask
    return h ^ h >> 15


def choose(rows: int, key: Binary | None, given: Buffer | None, partitions: int, sticky: int, run: int, out: Buffer) -> int:
    """Write each row's partition into `out`: the given one unless it is negative, else by its key's hash, else a sticky one.

    `sticky` counts the rows without a key, over calls; `run` of them share a partition. Its new value is the answer.
    """
    if not 0 < partitions <= _INT32_MAX or run <= 0 or rows < 0 or sticky < 0:
        raise ValueError("there is nothing to choose from")
    keys = _column(key)
    wanted = None if given is None else _whole(given, "i", 4)
    chosen = _whole(out, "i", 4)
    if len(chosen) < rows or (wanted is not None and len(wanted) < rows):
        raise ValueError("a column's buffers are too small")
    for row in range(rows):
        number = -1 if wanted is None else wanted[row]
        try:
            if number < 0:
                content = None if keys is None else keys.at(row)
                if content is None:
                    number = sticky // run % partitions
                    sticky += 1
                else:
                    number = (murmur2(content) & 0x7FFFFFFF) % partitions
            elif number >= partitions:
                raise _Bad
        except _Bad:
            raise ValueError(f"row {row} has no partition among the {partitions} that there are") from None
        chosen[row] = number
    return sticky


def group(chosen: Buffer, partitions: int, order: Buffer) -> list[int]:
    """Write the rows' numbers into `order`, by partition and then as they came; the answer is where each partition begins."""
    if not 0 < partitions <= _INT32_MAX:
        raise ValueError("there is nothing to choose from")
    which = _whole(chosen, "i", 4).tolist()
    rows = _whole(order, "q", 8)
    if len(rows) < len(which):
        raise ValueError("a column's buffers are too small")
    starts = [0] * (partitions + 1)
    for row, number in enumerate(which):
        if not 0 <= number < partitions:
            raise ValueError(f"row {row} has no partition among the {partitions} that there are")
        starts[number + 1] += 1
    for number in range(partitions):
        starts[number + 1] += starts[number]
    for at, row in enumerate(sorted(range(len(which)), key=which.__getitem__)):
        rows[at] = row
    return starts


def encode(
    source: Rows, order: Buffer | None, start: int, stop: int, now: int, room: int, limit: int
) -> tuple[bytearray, int, int, int]:
    """The records of one batch behind `room` empty bytes, the place after its last row, the first and the latest timestamp.

    It takes the rows at `start..stop` of `order` (or of the columns themselves), the first in any case and then as many as stay
    within `limit` bytes. A row without a timestamp gets `now`.
    """
    key, value = _column(source.key), _column(source.value)
    times = None if source.timestamps is None else _whole(source.timestamps, "q", 8)
    if times is not None and len(times) < source.count:
        raise ValueError("a column's buffers are too small")
    headers = None if source.headers is None else _HeaderColumn(source.headers)
    numbers = None if order is None else _whole(order, "q", 8)
    if not 0 <= start < stop <= (source.count if numbers is None else len(numbers)) or room < 0 or stop - start > _INT32_MAX:
        raise ValueError("there are no such rows")
    area = bytearray(room)
    first = latest = 0
    for at in range(start, stop):
        row = at if numbers is None else numbers[at]
        try:
            if not 0 <= row < source.count:
                raise _Bad
            time = now if times is None else times[row]
            if at == start:
                first = latest = time
            if not _INT64_MIN <= time - first <= _INT64_MAX:
                raise _Bad
            body = b"\0" + _varint(time - first) + _varint(at - start)
            body += _sized(key.at(row) if key else None) + _sized(value.at(row) if value else None)
            pairs = headers.at(row) if headers else []
            body += _varint(len(pairs)) + b"".join(_sized(name) + _sized(content) for name, content in pairs)
            if len(body) > _INT32_MAX:
                raise _Bad
        except _Bad:
            raise ValueError(f"row {row} cannot be written") from None
        record = _varint(len(body)) + body
        if at > start and len(area) - room + len(record) > limit:
            stop = at
            break
        latest = max(latest, time)
        area += record
    return area, stop, first, latest


class _HeaderColumn:
    """A column of headers behind its offsets."""

    def __init__(self, headers: Headers) -> None:
        self._offset, offsets, valid, names, values = headers
        self._offsets = _whole(offsets, "i", 4)
        self._valid = None if valid is None else memoryview(valid).cast("B")
        rows = len(self._offsets) - 1
        self._rows = (rows if self._valid is None else min(rows, len(self._valid) * 8)) - self._offset
        if self._offset < 0 or self._rows < 0:
            raise ValueError("a column's buffers are too small")
        self._names, self._values = _Column(names), _Column(values)

    def at(self, row: int) -> list[Header]:
        if not 0 <= row < self._rows:
            raise _Bad
        row += self._offset
        if self._valid is not None and not self._valid[row >> 3] >> (row & 7) & 1:
            return []
        start, stop = self._offsets[row], self._offsets[row + 1]
        if not 0 <= start <= stop:
            raise _Bad
        pairs: list[Header] = []
        for at in range(start, stop):
            name = self._names.at(at)
            if name is None:
                raise _Bad
            pairs.append((name, self._values.at(at)))
        return pairs


def _varint(number: int) -> bytes:
    rest = number << 1 if number >= 0 else ~(number << 1)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _sized(content: bytes | None) -> bytes:
    return b"\x01" if content is None else _varint(len(content)) + content
