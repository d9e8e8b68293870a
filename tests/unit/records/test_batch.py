"""The v2 batch: byte for byte what other clients build, and no lie in it goes unnoticed."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as PythonBuilder
from kafka.record.memory_records import MemoryRecords as PythonRecords

from ottla.model import Error
from ottla.records import batch
from ottla.records.batch import ControlType, CorruptRecords, InvalidRecords, Record, TimestampType
from ottla.records.codecs import Codec

BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=10), BYTES), max_size=3).map(tuple)
TIMES = st.integers(0, 1 << 45)
ROWS = st.lists(st.tuples(TIMES, BYTES, BYTES, HEADERS), min_size=1, max_size=20)


def numbered(rows: list[tuple], base: int = 0) -> list[Record]:
    return [Record(base + i, *row) for i, row in enumerate(rows)]


def some(count: int = 3, base: int = 0) -> list[Record]:
    return [Record(base + i, 1000 + i, b"k%d" % i, b"v" * 50, (("h", b"1"),)) for i in range(count)]


@settings(max_examples=150, deadline=None)
@given(ROWS, st.sampled_from(list(Codec)), st.integers(0, 1 << 40))
def test_round_trip(rows: list[tuple], codec: Codec, base: int) -> None:
    records = numbered(rows, base)
    data = batch.build(records, base_offset=base, codec=codec)
    header = batch.read_header(data)
    assert batch.crc_ok(data, 0, header)
    assert header.size == len(data)
    assert (header.count, header.last_offset, header.next_offset) == (len(rows), base + len(rows) - 1, base + len(rows))
    assert header.codec is codec
    assert header.max_timestamp == max(r.timestamp for r in records)
    assert batch.read_records(data, 0, header) == records


@settings(max_examples=150, deadline=None)
@given(ROWS, st.sampled_from([(False, -1, -1, -1), (False, 4000, 3, 17), (True, 1 << 40, 0, 0)]))
@pytest.mark.parametrize("builder", [AioBuilder, PythonBuilder])
def test_same_bytes_as_other_clients(builder: type, rows: list[tuple], producer: tuple[bool, int, int, int]) -> None:
    transactional, producer_id, epoch, sequence = producer
    theirs = builder(2, 0, transactional, producer_id, epoch, sequence, 10_000_000)
    for offset, (timestamp, key, value, headers) in enumerate(rows):
        assert theirs.append(offset, timestamp, key, value, list(headers)) is not None
    ours = batch.build(
        numbered(rows), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )
    expected = bytearray(theirs.build())
    struct.pack_into(">i", expected, batch.LEADER_EPOCH_AT, -1)  # theirs is 0 or -1; the broker writes it anyway
    assert ours == bytes(expected)


@pytest.mark.parametrize(
    ("reader", "codec"),
    # kafka-python reads snappy and zstd only with libraries that nothing else here needs
    [*((AioRecords, codec) for codec in Codec), *((PythonRecords, codec) for codec in (Codec.NONE, Codec.GZIP, Codec.LZ4))],
)
def test_other_clients_read_ours(codec: Codec, reader: type) -> None:
    records = some(50, base=700)
    data = batch.build(records, base_offset=700, codec=codec)
    theirs = reader(data).next_batch()
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(map(tuple, r.headers))) for r in theirs] == [
        tuple(r) for r in records
    ]


def test_offsets_may_have_gaps_but_must_rise() -> None:
    records = [Record(5, 1, None, b"a"), Record(9, 1, None, b"b")]
    data = batch.build(records, base_offset=3)
    header = batch.read_header(data)
    assert (header.base_offset, header.last_offset_delta, header.count) == (3, 6, 2)
    assert batch.read_records(data, 0, header) == records


@pytest.mark.parametrize(
    ("records", "base"),
    [
        ([], 0),
        ([Record(1, 0, None, None)], 2),
        ([Record(1, 0, None, None), Record(1, 0, None, None)], 0),
        ([Record(1 << 31, 0, None, None)], 0),
        ([Record(0, -(1 << 63), None, None), Record(1, (1 << 63) - 1, None, None)], 0),
    ],
)
def test_build_refuses_what_no_batch_can_hold(records: list[Record], base: int) -> None:
    with pytest.raises(ValueError):
        batch.build(records, base_offset=base)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (0x00, (Codec.NONE, False, False, False)),
        (0x04, (Codec.ZSTD, False, False, False)),
        (0x0A, (Codec.SNAPPY, True, False, False)),
        (0x13, (Codec.LZ4, False, True, False)),
        (0x30, (Codec.NONE, False, True, True)),
    ],
)
def test_attributes(attributes: int, expected: tuple) -> None:
    h = batch.read_header(batch.build(some()))._replace(attributes=attributes)
    assert (h.codec, h.is_log_append_time, h.is_transactional, h.is_control) == expected
    assert h.is_compressed is (expected[0] is not Codec.NONE)


@pytest.mark.parametrize("number", [5, 6, 7])
def test_unknown_codec(number: int) -> None:
    data = bytearray(batch.build(some()))
    data[batch.ATTRIBUTES_AT + 1] |= number
    with pytest.raises(InvalidRecords) as caught:
        batch.read_records(data, 0, batch.read_header(data))
    assert caught.value.error is Error.INVALID_RECORD


@pytest.mark.parametrize(
    ("base", "delta", "expected"),
    [(0, 0, 0), (5, 4, 9), ((1 << 31) - 1, 0, (1 << 31) - 1), ((1 << 31) - 1, 1, 0), ((1 << 31) - 2, 5, 3), (-1, 9, -1)],
)
def test_last_sequence_wraps(base: int, delta: int, expected: int) -> None:
    header = batch.read_header(batch.build(some()))._replace(base_sequence=base, last_offset_delta=delta)
    assert header.last_sequence == expected


def test_patch_leaves_the_checksum_right() -> None:
    data = bytearray(b"xx" + batch.build(some()))
    batch.patch(data, 2, 123456789012, 7)
    header = batch.read_header(data, 2)
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (123456789012, 7, 123456789014)
    assert batch.crc_ok(data, 2, header)
    assert [r.offset for r in batch.read_records(data, 2, header)] == [123456789012 + i for i in range(3)]


@pytest.mark.parametrize("codec", Codec)
def test_log_append_time(codec: Codec) -> None:
    data = bytearray(b"x" + batch.build(some(), codec=codec) + b"y")
    returned = batch.with_log_append_time(data, 1, batch.read_header(data, 1), 999_999)
    header = batch.read_header(data, 1)
    assert header == returned
    assert batch.crc_ok(data, 1, header)
    assert header.is_log_append_time
    assert {r.timestamp for r in batch.read_records(data, 1, header)} == {999_999}
    theirs = AioRecords(bytes(data[1:-1])).next_batch()
    assert {r.timestamp for r in theirs} == {999_999}
    assert batch.build(some(), timestamp_type=TimestampType.LOG_APPEND_TIME)[batch.ATTRIBUTES_AT + 1] == 0x08


@pytest.mark.parametrize("before", Codec)
@pytest.mark.parametrize("after", Codec)
def test_repack(before: Codec, after: Codec) -> None:
    records = some(30, base=4)
    data = b"x" + batch.build(
        records, base_offset=4, codec=before, producer_id=9, producer_epoch=1, base_sequence=8, leader_epoch=2
    )
    old = batch.read_header(data, 1)
    again = batch.repack(old, batch.payload(data, 1, old), after)
    new = batch.read_header(again)
    assert batch.crc_ok(again, 0, new)
    assert new.codec is after
    assert new == old._replace(length=new.length, crc=new.crc, attributes=int(after))
    assert batch.read_records(again, 0, new) == records


def test_every_flipped_bit_under_the_checksum_is_seen() -> None:
    data = batch.build(some())
    for at in range(batch.ATTRIBUTES_AT, len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        assert not batch.crc_ok(flipped, 0, batch.read_header(flipped)), at


def test_split() -> None:
    parts = [batch.build(some(n, base=n), base_offset=n) for n in (1, 2, 3)]
    joined = b"".join(parts)
    found = list(batch.split(joined))
    assert [pos for pos, _ in found] == [0, len(parts[0]), len(parts[0] + parts[1])]
    assert [h.base_offset for _, h in found] == [1, 2, 3]
    assert list(batch.split(b"")) == []


@pytest.mark.parametrize("cut_off", [1, 30, 60, 61, 62])
def test_split_of_a_cut_buffer(cut_off: int) -> None:
    first, second = batch.build(some()), batch.build(some())
    data = first + second[:cut_off]
    with pytest.raises(CorruptRecords):
        list(batch.split(data))
    assert [pos for pos, _ in batch.split(data, cut=True)] == [0]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("length", [-1, -(1 << 31), 0, 48])
def test_split_refuses_impossible_lengths(length: int, cut: bool) -> None:
    data = bytearray(batch.build(some()))
    struct.pack_into(">i", data, batch.LENGTH_AT, length)
    with pytest.raises(CorruptRecords) as caught:
        list(batch.split(data, cut=cut))
    assert caught.value.error is Error.CORRUPT_MESSAGE


@pytest.mark.parametrize("beyond", [1, 1000, (1 << 31) - 1000])
def test_split_refuses_lengths_beyond_the_buffer(beyond: int) -> None:
    data = bytearray(batch.build(some()))
    struct.pack_into(">i", data, batch.LENGTH_AT, len(data) - 12 + beyond)
    with pytest.raises(CorruptRecords):
        list(batch.split(data))


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_split_refuses_other_formats(magic: int) -> None:
    data = bytearray(batch.build(some()))
    struct.pack_into(">b", data, batch.MAGIC_AT, magic)
    with pytest.raises(InvalidRecords):
        list(batch.split(data))


def test_a_header_that_is_cut() -> None:
    with pytest.raises(CorruptRecords):
        batch.read_header(batch.build(some())[:60])
    with pytest.raises(CorruptRecords):
        batch.read_header(batch.build(some(1)), 100)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [0, 2, 4, -1, (1 << 31) - 1])
def test_lying_counts(codec: Codec, count: int) -> None:
    data = batch.build(some(), codec=codec)
    with pytest.raises(InvalidRecords):
        batch.read_records(data, 0, batch.read_header(data)._replace(count=count))


def test_a_record_beyond_the_last_offset() -> None:
    data = batch.build(some())
    with pytest.raises(InvalidRecords):
        batch.read_records(data, 0, batch.read_header(data)._replace(last_offset_delta=1))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_unpacks_beyond_the_limit(codec: Codec) -> None:
    data = batch.build([Record(0, 0, None, b"a" * 100_000)], codec=codec)
    header = batch.read_header(data)
    assert len(batch.read_records(data, 0, header, limit=100_100)) == 1
    with pytest.raises(CorruptRecords):
        batch.read_records(data, 0, header, limit=99_999)
    with pytest.raises(CorruptRecords):
        batch.payload(data, 0, header, 99_999)


@pytest.mark.parametrize("outcome", ControlType)
def test_transaction_markers(outcome: ControlType) -> None:
    data = batch.end_transaction_marker(
        outcome, producer_id=77, producer_epoch=5, coordinator_epoch=12, timestamp=1000, base_offset=40, leader_epoch=3
    )
    header = batch.read_header(data)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 5, -1)
    assert (header.base_offset, header.leader_epoch, header.count) == (40, 3, 1)
    assert batch.read_marker(data, 0, header) == (outcome, 12)
    (record,) = AioRecords(data).next_batch()
    assert record.key == struct.pack(">hh", 0, outcome)
    assert record.value == struct.pack(">hi", 0, 12)


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, None), (b"\0\0\0", b"\0" * 6), (b"\xff\xff\0\1", b"\0" * 6), (b"\0\0\0\1", b"\0" * 5), (b"\0\0\0\1", None)],
)
def test_broken_markers(key: bytes | None, value: bytes | None) -> None:
    data = batch.build([Record(0, 0, key, value)], control=True)
    with pytest.raises(InvalidRecords):
        batch.read_marker(data, 0, batch.read_header(data))


def test_other_control_records_are_stepped_over() -> None:
    data = batch.build([Record(0, 0, struct.pack(">hh", 0, 2), b"leader change")], control=True)
    assert batch.read_marker(data, 0, batch.read_header(data)) is None
