"""The native kernel's twin in pure Python: the same functions, answers and errors, for machines without a C compiler.

Guards: no index leaves `start..end`, whatever the bytes say; every answer is that of `_kernel.pyx`, which the tests check
on mutated input. The records area of a v2 batch is a row of records, each behind its length; inside, numbers are zig-zag
varints: attributes (one byte), timestamp delta (64 bits), offset delta, key, value, and the headers behind their count (32
bits each). A change here is a change there.
"""

from __future__ import annotations

from typing import TypeAlias

from ottla.records.codecs import Buffer

Row: TypeAlias = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]

_MIN_BODY = 6  # attributes, two deltas, two lengths and a header count, of one byte each
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class _Bad(Exception):
    """A number that is not one, or that is too large for its field."""


def _bounded(buf: Buffer, start: int, end: int) -> memoryview:
    view = memoryview(buf).cast("B")
    if not 0 <= start <= end <= len(view):
        raise ValueError("the records lie outside the buffer")
    return view


def _varint32(view: memoryview, pos: int, end: int) -> tuple[int, int]:
    """The number at `pos` and the position after it."""
    number = shift = 0
    while pos < end:
        byte = view[pos]
        pos += 1
        if shift == 28 and byte > 0x0F:
            break
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), pos
        shift += 7
    raise _Bad


def _varint64(view: memoryview, pos: int, end: int) -> tuple[int, int]:
    number = shift = 0
    while pos < end:
        byte = view[pos]
        pos += 1
        if shift == 63 and byte > 1:
            break
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), pos
        shift += 7
    raise _Bad


def _bytes(view: memoryview, pos: int, end: int, least: int = -1) -> tuple[bytes | None, int]:
    """Bytes behind their length; -1 is null, where `least` allows it."""
    size, pos = _varint32(view, pos, end)
    if size < least or size > end - pos:
        raise _Bad
    if size < 0:
        return None, pos
    return bytes(view[pos : pos + size]), pos + size


def _body(view: memoryview, pos: int, end: int) -> tuple[int, int]:
    """Where the next record's body begins and ends."""
    size, pos = _varint32(view, pos, end)
    if size < _MIN_BODY or size > end - pos:
        raise _Bad
    return pos, pos + size


def _times(view: memoryview, pos: int, end: int, base_timestamp: int) -> tuple[int, int, int]:
    """A record's timestamp and offset delta, and the position after them."""
    delta, pos = _varint64(view, pos + 1, end)
    timestamp = base_timestamp + delta
    if not _INT64_MIN <= timestamp <= _INT64_MAX:
        raise _Bad
    offset_delta, pos = _varint32(view, pos, end)
    if offset_delta < 0:
        raise _Bad
    return timestamp, offset_delta, pos


def check_records(buf: Buffer, start: int, end: int, count: int) -> int:
    """0 if exactly `count` records, each behind its length, fill `start..end`; else a code of `kernel.FAULTS`."""
    view = _bounded(buf, start, end)
    pos = start
    for _ in range(count):
        if pos >= end:
            return 3
        try:
            size, pos = _varint32(view, pos, end)
        except _Bad:
            return 1
        if size < _MIN_BODY or size > end - pos:
            return 2
        pos += size
    return 4 if pos < end else 0


def keys_present(buf: Buffer, start: int, end: int, base_timestamp: int, count: int) -> bool:
    """Whether every record has a key; `ValueError` on what the cleaner could not read, before the first that has none.

    That is corruption, an offset delta out of the row 0, 1, 2, or a timestamp beyond 64 bits.
    """
    view = _bounded(buf, start, end)
    pos = start
    index = 0
    try:
        while index < count:
            index += 1
            inner, pos = _body(view, pos, end)
            _, delta, inner = _times(view, inner, pos, base_timestamp)
            size, inner = _varint32(view, inner, pos)
            if size < -1 or size > pos - inner:
                raise _Bad
            if size < 0:
                return False
            value, value_at = _varint32(view, inner + size, pos)
            if delta != index - 1 or value < -1 or value > pos - value_at:
                raise _Bad
    except _Bad:
        raise ValueError(f"record {index} of the batch is corrupt") from None
    return True


def records(buf: Buffer, start: int, end: int, base_offset: int, base_timestamp: int, count: int) -> list[Row]:
    """Every record as (offset, timestamp, key, value, headers); `ValueError` unless `count` of them fill `start..end`."""
    view = _bounded(buf, start, end)
    rows: list[Row] = []
    pos = start
    last_delta = -1
    index = 0
    try:
        while index < count:
            index += 1
            inner, pos = _body(view, pos, end)
            timestamp, delta, inner = _times(view, inner, pos, base_timestamp)
            if delta <= last_delta or base_offset + delta > _INT64_MAX:
                raise _Bad
            last_delta = delta
            key, inner = _bytes(view, inner, pos)
            value, inner = _bytes(view, inner, pos)
            number, inner = _varint32(view, inner, pos)
            if number < 0 or number > pos - inner:
                raise _Bad
            headers = []
            for _ in range(number):
                name, inner = _bytes(view, inner, pos, 0)
                content, inner = _bytes(view, inner, pos)
                headers.append(((name or b"").decode("utf-8", "surrogateescape"), content))
            if inner != pos:
                raise _Bad
            rows.append((base_offset + delta, timestamp, key, value, tuple(headers)))
    except _Bad:
        raise ValueError(f"record {index} of the batch is corrupt") from None
    if pos != end:
        raise ValueError("bytes follow the last record")
    return rows


def max_timestamp(buf: Buffer, start: int, end: int, base_timestamp: int, count: int) -> tuple[int, int]:
    """The largest timestamp and the offset delta of the first record that has it; `ValueError` if there is no record."""
    view = _bounded(buf, start, end)
    if count <= 0:
        raise ValueError("there is no record")
    best: tuple[int, int] | None = None
    pos = start
    index = 0
    try:
        while index < count:
            index += 1
            inner, pos = _body(view, pos, end)
            timestamp, delta, _ = _times(view, inner, pos, base_timestamp)
            if best is None or timestamp > best[0]:
                best = timestamp, delta
    except _Bad:
        raise ValueError(f"record {index} of the batch is corrupt") from None
    assert best is not None
    return best


def first_at_or_after(
    buf: Buffer, start: int, end: int, base_timestamp: int, count: int, timestamp: int
) -> tuple[int, int] | None:
    """The offset delta and the timestamp of the first record that is at least as late as `timestamp`."""
    view = _bounded(buf, start, end)
    pos = start
    index = 0
    try:
        while index < count:
            index += 1
            inner, pos = _body(view, pos, end)
            found, delta, _ = _times(view, inner, pos, base_timestamp)
            if found >= timestamp:
                return delta, found
    except _Bad:
        raise ValueError(f"record {index} of the batch is corrupt") from None
    return None


def _put_varint(out: bytearray, number: int) -> None:
    """A number that is not negative."""
    rest = number << 1
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def plain_records(rows: list[tuple[bytes, bytes | None]], room: int) -> bytearray:
    """`room` zero bytes, then each (key, value) as a record without headers, at the batch's time; no value is a tombstone."""
    made = bytearray(room)
    for index, (key, value) in enumerate(rows):
        body = bytearray(2)  # attributes, and no time beyond the batch's
        _put_varint(body, index)
        _put_varint(body, len(key))
        body += key
        if value is None:
            body.append(1)
        else:
            _put_varint(body, len(value))
            body += value
        body.append(0)
        _put_varint(made, len(body))
        made += body
    return made
