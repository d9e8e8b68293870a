"""Records to Arrow's buffers and back: the native kernel and its twin give the same answer to everything."""

from __future__ import annotations

import random
import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.records import _columns_twin as twin
from ottla.records import batch, columns
from ottla.records._columns_twin import Binary, Columns, Headers, Piece, Rows, Sizes
from ottla.records.batch import Record
from ottla.records.errors import BadPiece

try:
    from ottla.records import _columns as native_columns
    from ottla.records import _rows as native_rows
except ImportError:
    native_columns = native_rows = None  # type: ignore[assignment]

native = pytest.mark.skipif(
    native_columns is None, reason="the native kernel is not built: python setup.py build_ext --inplace"
)
BOTH = [pytest.param(twin, id="twin"), pytest.param(native_columns, id="native", marks=native)]
BACK = [pytest.param(twin, id="twin"), pytest.param(native_rows, id="native", marks=native)]
EVERYTHING = 1 << 62

CONTENT = st.none() | st.binary(max_size=200)
HEADER = st.tuples(st.text(max_size=8), CONTENT)
ROW = st.tuples(st.integers(0, 3), st.integers(-5000, 5000), CONTENT, CONTENT, st.lists(HEADER, max_size=3))


def records(rows: list[Any], base: int = 0) -> list[Record]:
    """Records from generated rows: gaps between offsets, times, keys, values, headers."""
    out = []
    for gap, time, key, value, headers in rows:
        base += gap
        out.append(Record(base, 1_000_000 + time, key, value, tuple(headers)))
        base += 1
    return out


def piece(rows: list[Record], append_time: int | None = None) -> Piece:
    area = bytes(batch.encode_records(rows, rows[0].offset, rows[0].timestamp))
    return Piece(area, rows[0].offset, rows[0].timestamp, append_time, len(rows), rows[-1].offset)


def room(sizes: Sizes, spare: int = 0) -> Columns:
    """Buffers of just the sizes that are needed, full of rubbish."""

    def some(size: int) -> bytearray:
        return bytearray(b"\xaa" * (size + spare))

    rows, headers = sizes.rows, sizes.headers
    bits, header_bits = (rows + 7) // 8, (headers + 7) // 8
    return Columns(
        some(8 * rows), some(8 * rows), some(4 * rows + 4), some(sizes.key_bytes), some(bits),
        some(4 * rows + 4), some(sizes.value_bytes), some(bits), some(4 * rows + 4), some(bits),
        some(4 * headers + 4), some(sizes.name_bytes),
        some(4 * headers + 4), some(sizes.header_value_bytes), some(header_bits),
    )  # fmt: skip


def read_back(filled: Columns, rows: int) -> list[tuple[Any, ...]]:
    """What the buffers say, read by hand as Arrow reads them."""

    def values(offsets: Any, data: Any, valid: Any, count: int) -> list[bytes | None]:
        ends = struct.unpack_from(f"={count + 1}i", offsets)
        present = [valid is None or valid[row >> 3] >> (row & 7) & 1 for row in range(count)]
        return [bytes(data[ends[row] : ends[row + 1]]) if present[row] else None for row in range(count)]

    ends = struct.unpack_from(f"={rows + 1}i", filled.header_offsets)  # type: ignore[arg-type]
    names = values(filled.name_offsets, filled.name_data, None, ends[-1])
    contents = values(filled.header_value_offsets, filled.header_value_data, filled.header_value_valid, ends[-1])
    pairs = list(zip(names, contents, strict=True))
    has_headers = [filled.header_valid[row >> 3] >> (row & 7) & 1 for row in range(rows)]  # type: ignore[index]
    headers = [pairs[ends[row] : ends[row + 1]] if has_headers[row] else None for row in range(rows)]
    return list(
        zip(
            struct.unpack_from(f"={rows}q", filled.offset),  # type: ignore[arg-type]
            struct.unpack_from(f"={rows}q", filled.timestamp),  # type: ignore[arg-type]
            values(filled.key_offsets, filled.key_data, filled.key_valid, rows),
            values(filled.value_offsets, filled.value_data, filled.value_valid, rows),
            headers,
            strict=True,
        )
    )


def expected(rows: list[Record], first: int = 0, end: int = EVERYTHING) -> list[tuple[Any, ...]]:
    return [
        (r.offset, r.timestamp * 1000, r.key, r.value, [(name.encode(), value) for name, value in r.headers] or None)
        for r in rows
        if first <= r.offset < end
    ]


def decode(k: ModuleType, pieces: list[Piece], first: int = 0, end: int = EVERYTHING) -> list[tuple[Any, ...]]:
    sizes = k.measure(pieces, first, end)
    filled = room(sizes)
    assert k.fill(pieces, first, end, filled) == sizes.rows
    return read_back(filled, sizes.rows)


def test_the_native_one_is_used_where_it_is_built() -> None:
    assert (native_columns is not None) is columns.NATIVE


@pytest.mark.parametrize("k", BOTH)
@given(st.lists(st.lists(ROW, min_size=1, max_size=12), min_size=1, max_size=4), st.integers(0, 20), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_batches_become_columns(k: ModuleType, batches: list[list[Any]], first: int, length: int) -> None:
    pieces, rows, base = [], [], 0
    for one in batches:
        made = records(one, base)
        base = made[-1].offset + 1
        pieces.append(piece(made))
        rows += made
    assert decode(k, pieces) == expected(rows)
    assert decode(k, pieces, first, first + length) == expected(rows, first, first + length)


@pytest.mark.parametrize("k", BOTH)
def test_log_append_time_is_everybodys(k: ModuleType) -> None:
    rows = records([(0, 1, b"k", b"v", []), (2, 5, None, None, [])])
    assert [row[1] for row in decode(k, [piece(rows, append_time=77)])] == [77_000, 77_000]


@pytest.mark.parametrize("k", BOTH)
@pytest.mark.parametrize(("time", "micros"), [((1 << 63) - 1, (1 << 63) - 1), (-(1 << 63), -(1 << 63)), (-1, -1000)])
def test_times_beyond_what_arrow_can_say_stay_at_its_ends(k: ModuleType, time: int, micros: int) -> None:
    assert decode(k, [piece([Record(0, time, None, b"")])])[0][1] == micros


@pytest.mark.parametrize("k", BOTH)
@pytest.mark.parametrize("name", [b"\xff", b"a\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"ok\xe2\x82"])
def test_a_header_name_that_is_not_text_has_question_marks(k: ModuleType, name: bytes) -> None:
    row = Record(0, 0, None, b"v", ((name.decode("utf-8", "surrogateescape"), b"x"), ("\u20ac\U0001f600", None)))
    headers = decode(k, [piece([row])])[0][4]
    assert headers[0] == (bytes(byte if byte < 128 else 63 for byte in name), b"x")
    assert headers[1] == ("\u20ac\U0001f600".encode(), None)


@pytest.mark.parametrize("k", BOTH)
def test_the_bad_piece_is_named(k: ModuleType) -> None:
    good = piece(records([(0, 0, b"k", b"v", [])] * 3))
    with pytest.raises(BadPiece, match="record 2 of the batch is corrupt") as caught:
        k.measure([good, good._replace(area=good.area[:9])], 0, EVERYTHING)
    assert caught.value.piece == 1
    with pytest.raises(BadPiece, match="bytes follow the last record"):
        k.measure([good._replace(count=2)], 0, EVERYTHING)
    with pytest.raises(BadPiece, match="record 4 "):
        k.measure([good._replace(count=4)], 0, EVERYTHING)
    with pytest.raises(BadPiece, match="record 3 "):
        k.measure([good._replace(last_offset=1)], 0, EVERYTHING)
    assert k.measure([], 0, 5).rows == 0


@pytest.mark.parametrize("k", BOTH)
def test_a_buffer_that_is_too_small_is_not_written_beyond(k: ModuleType) -> None:
    pieces = [piece(records([(0, 0, b"key", b"value", [("name", b"content")])] * 20))]
    full = room(k.measure(pieces, 0, EVERYTHING))
    for name in Columns._fields:
        small = full._replace(**{name: bytearray(len(getattr(full, name)) - (1 if "valid" in name or "data" in name else 4))})
        with pytest.raises(ValueError, match="too small"):
            k.fill(pieces, 0, EVERYTHING, small)


def _outcome(work: Any) -> Any:
    try:
        return work()
    except ValueError as problem:
        return type(problem).__name__, str(problem), getattr(problem, "piece", None)


@native
@given(st.lists(ROW, min_size=1, max_size=8), st.randoms(use_true_random=False), st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_both_say_the_same_of_mutated_bytes(rows: list[Any], chance: random.Random, mutations: int) -> None:
    one = piece(records(rows))
    area = bytearray(one.area)
    for _ in range(mutations):
        at = chance.randrange(len(area))
        if chance.random() < 0.2:
            del area[at]
            area = area or bytearray(1)
        else:
            area[at] = chance.randrange(256)
    pieces = [one._replace(area=bytes(area))]
    answers = [_outcome(lambda k=k: decode(k, pieces, 1, 6)) for k in (twin, native_columns)]
    assert answers[0] == answers[1]


# ---- and back ------------------------------------------------------------------------------------------------------------


def binary(values: list[bytes | None], offset: int = 0) -> Binary:
    """A column as Arrow lays it out, with `offset` rows of something else before it."""
    everything = [b"not this"] * offset + values
    ends = [0]
    for value in everything:
        ends.append(ends[-1] + len(value or b""))
    bits = bytearray((len(everything) + 7) // 8)
    for row, value in enumerate(everything):
        bits[row >> 3] |= (value is not None) << (row & 7)
    return Binary(offset, struct.pack(f"={len(ends)}i", *ends), b"".join(value or b"" for value in everything), bytes(bits))


def source(rows: list[Record], offset: int = 0) -> Rows:
    pairs = [(name.encode(), value) for row in rows for name, value in row.headers]
    ends = [0] * (offset + 1)
    for row in rows:
        ends.append(ends[-1] + len(row.headers))
    headers = Headers(
        offset,
        struct.pack(f"={len(ends)}i", *ends),
        None,
        binary([name for name, _ in pairs]),
        binary([value for _, value in pairs]),
    )
    times = struct.pack(f"={len(rows)}q", *(row.timestamp for row in rows))
    return Rows(
        len(rows), binary([row.key for row in rows], offset), binary([row.value for row in rows], offset), times, headers
    )


@pytest.mark.parametrize("k", BACK)
@given(st.lists(ROW, min_size=1, max_size=20), st.integers(0, 9), st.integers(1, 2000), st.integers(0, 61))
@settings(max_examples=60, deadline=None)
def test_columns_become_batches(k: ModuleType, generated: list[Any], offset: int, limit: int, room_before: int) -> None:
    rows = records([(0, *row[1:]) for row in generated])
    columns_of = source(rows, offset)
    start, found = 0, []
    while start < len(rows):
        area, stop, first, latest = k.encode(columns_of, None, start, len(rows), 5, room_before, limit)
        assert bytes(area[:room_before]) == bytes(room_before)
        chunk = rows[start:stop]
        same = [row._replace(offset=number) for number, row in enumerate(chunk)]
        assert bytes(area[room_before:]) == batch.encode_records(same, 0, chunk[0].timestamp)
        assert (first, latest) == (chunk[0].timestamp, max(row.timestamp for row in chunk))
        assert len(chunk) == 1 or len(area) - room_before <= limit
        found += chunk
        start = stop
    assert found == rows


@pytest.mark.parametrize("k", BACK)
def test_rows_in_another_order_and_without_times(k: ModuleType) -> None:
    rows = records([(0, 0, b"%d" % number, None, []) for number in range(5)])
    columns_of = source(rows)._replace(timestamps=None)
    order = struct.pack("=3q", 4, 0, 2)
    area, stop, first, latest = k.encode(columns_of, order, 0, 3, 99, 0, 1000)
    assert (stop, first, latest) == (3, 99, 99)
    assert bytes(area) == batch.encode_records([Record(at, 99, b"%d" % n, None) for at, n in enumerate((4, 0, 2))], 0, 99)


@pytest.mark.parametrize("k", BACK)
def test_columns_that_lie_are_refused(k: ModuleType) -> None:
    good = source(records([(0, 0, b"key", b"value", [("h", b"x")])] * 4))
    key = good.key
    assert key is not None
    assert good.headers is not None
    for bad in (
        good._replace(key=key._replace(data=b"ke")),
        good._replace(key=key._replace(offsets=struct.pack("=5i", 0, 3, -1, 9, 12))),
        good._replace(key=key._replace(offsets=struct.pack("=5i", 0, 9, 3, 9, 12))),
        good._replace(key=key._replace(offsets=struct.pack("=3i", 0, 3, 6))),
        good._replace(headers=good.headers._replace(offsets=struct.pack("=5i", 0, 1, 2, 3, 900))),
        good._replace(headers=good.headers._replace(names=binary([None] * 4))),
        good._replace(timestamps=struct.pack("=4q", 1, (1 << 63) - 1, -2, -(1 << 63))),
    ):
        with pytest.raises(ValueError, match="cannot be written"):
            k.encode(bad, None, 0, 4, 0, 0, 1000)
    for start, stop, order in ((0, 5, None), (2, 2, None), (-1, 2, None), (0, 3, bytes(16))):
        with pytest.raises(ValueError, match="no such rows"):
            k.encode(good, order, start, stop, 0, 0, 1000)
    with pytest.raises(ValueError, match="row 9 cannot"):
        k.encode(good, struct.pack("=q", 9), 0, 1, 0, 0, 1000)
    with pytest.raises(ValueError, match="too small"):
        k.encode(good._replace(timestamps=bytes(8)), None, 0, 4, 0, 0, 1000)


KNOWN = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
"""From the tests of Apache Kafka's `Utils.murmur2`."""


def test_murmur2_is_javas() -> None:
    assert {key: struct.unpack("=i", struct.pack("=I", twin.murmur2(key)))[0] for key in KNOWN} == KNOWN


@pytest.mark.parametrize("k", BACK)
def test_rows_are_put_where_java_puts_them(k: ModuleType) -> None:
    keys: list[bytes | None] = [*KNOWN, None, b"", None, None, None]
    given_numbers = struct.pack("=9i", -1, -1, -1, -1, 2, -1, -1, -1, -1)
    out = bytearray(36)
    sticky = k.choose(9, binary(keys), given_numbers, 7, 0, 2, out)
    hashed = [(number & 0x7FFFFFFF) % 7 for number in KNOWN.values()]
    empty = (twin.murmur2(b"") & 0x7FFFFFFF) % 7
    assert struct.unpack("=9i", out) == (*hashed, 2, empty, 0, 0, 1)
    assert sticky == 3
    order = bytearray(72)
    starts = k.group(out, 7, order)
    chosen = struct.unpack("=9i", out)
    rows = struct.unpack("=9q", order)
    assert list(rows) == sorted(range(9), key=lambda row: (chosen[row], row))
    assert starts == [sum(one < number for one in chosen) for number in range(8)]
    with pytest.raises(ValueError, match="row 4 has no partition among the 2"):
        k.choose(9, binary(keys), given_numbers, 2, 0, 2, out)
    with pytest.raises(ValueError, match="row 0 has no partition"):
        k.group(struct.pack("=i", -1), 3, bytearray(8))


@native
@given(st.lists(CONTENT, max_size=40), st.integers(1, 50), st.integers(0, 100), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_both_choose_the_same(keys: list[bytes | None], partitions: int, sticky: int, run: int) -> None:
    answers = []
    for k in (twin, native_rows):
        out, order = bytearray(4 * len(keys)), bytearray(8 * len(keys))
        after = k.choose(len(keys), binary(keys), None, partitions, sticky, run, out)
        answers.append((after, out, k.group(out, partitions, order), order))
    assert answers[0] == answers[1]
