"""Bytes that a broker might send: what is found in them, and that no byte of them can do harm."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client import CorruptBatch
from ottla.client.decoding import SCHEMA, Decoder, Part, split
from ottla.model import TopicPartition
from ottla.records import batch, legacy
from ottla.records.batch import ControlType, Record, TimestampType
from ottla.records.codecs import Codec

TP = TopicPartition("t", 0)


def records(first: int, count: int) -> list[Record]:
    return [
        Record(n, 1000 + n, b"k%d" % n if n % 3 else None, b"v%d" % n if n % 4 else None, (("h", b"%d" % n),) * (n % 2))
        for n in range(first, first + count)
    ]


def build(rows: list[Record], **options: Any) -> bytes:
    return batch.build(rows, base_offset=rows[0].offset, **options)


def rows(data: bytes, first: int = 0, end: int | None = None, aborted: Any = None) -> list[tuple[Any, ...]]:
    found = split(TP, memoryview(data), first, aborted)
    if found.problem is not None:
        raise found.problem
    decoder = Decoder(TP, SCHEMA.names)
    tables = list(decoder.decode(memoryview(data), found.parts, first, end))
    for one in tables:
        one.validate(full=True)
    table = pa.Table.from_batches(tables, schema=SCHEMA)
    times = table["timestamp"].cast(pa.int64())  # Python's datetime does not reach as far
    return [tuple(row.values()) for row in table.set_column(5, "timestamp", times).to_pylist()]


def offsets(data: bytes, *arguments: Any) -> list[int]:
    return [row[4] for row in rows(data, *arguments)]


def test_batches_of_all_formats_side_by_side() -> None:
    data = (
        legacy.write_messages([r._replace(headers=()) for r in records(0, 5)], 0)
        + legacy.write_messages([r._replace(headers=()) for r in records(5, 5)], 1, codec=Codec.GZIP)
        + legacy.write_messages(
            [r._replace(headers=()) for r in records(10, 5)], 1, timestamp_type=TimestampType.LOG_APPEND_TIME
        )
        + build(records(15, 5), codec=Codec.ZSTD)
        + build(records(20, 5), timestamp_type=TimestampType.LOG_APPEND_TIME)
    )
    got = rows(data)
    assert [row[4] for row in got] == list(range(25))
    assert [row[6] for row in got] == [-1] * 5 + [0] * 5 + [1] * 5 + [0] * 5 + [1] * 5
    assert [(row[0], row[1]) for row in got] == [(r.key, r.value) for r in records(0, 25)]
    assert offsets(data, 3, 17) == list(range(3, 17))


def test_an_incomplete_batch_is_left_for_the_next_fetch() -> None:
    last = build(records(3, 3))
    data = build(records(0, 3)) + last
    for cut in range(1, len(last) + 1):
        found = split(TP, memoryview(data[:-cut]), 0, None)
        assert found.problem is None
        assert found.next_offset == 3
    assert split(TP, memoryview(data), 0, None).next_offset == 6


def test_what_was_aborted_goes_up_to_its_marker() -> None:
    def marker(kind: ControlType, producer: int, offset: int) -> bytes:
        return batch.end_transaction_marker(
            kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=offset
        )

    def mine(offset: int, producer: int, transactional: bool = True) -> bytes:
        return build(records(offset, 2), producer_id=producer, producer_epoch=0, base_sequence=0, transactional=transactional)

    data = (
        mine(0, 7) + mine(2, 8) + mine(4, 7) + marker(ControlType.ABORT, 7, 6) + mine(7, 7) + marker(ControlType.COMMIT, 8, 9)
        + mine(10, 7, transactional=False) + marker(ControlType.COMMIT, 7, 12) + mine(13, 9) + marker(ControlType.ABORT, 9, 15)
    )  # fmt: skip
    assert offsets(data, 0, None, [(7, 0), (9, 13)]) == [2, 3, 7, 8, 10, 11]
    assert offsets(data, 0, None, []) == [0, 1, 2, 3, 4, 5, 7, 8, 10, 11, 13, 14]
    assert offsets(data) == offsets(data, 0, None, []), "control batches go in any case"
    found = split(TP, memoryview(data), 0, [(7, 0), (9, 13)])
    assert found.next_offset == 16, "markers are stepped over"


def test_batches_that_compaction_emptied() -> None:
    header = batch.read_header(build(records(0, 4)))
    empty = batch.assemble(header._replace(count=0), b"")
    found = split(TP, memoryview(empty + build(records(9, 1))), 0, None)
    assert found.next_offset == 10
    assert offsets(empty + build(records(9, 1))) == [9]


def test_what_begins_behind_the_end_is_not_opened() -> None:
    first, second, third = build(records(0, 4)), build(records(10, 4), codec=Codec.ZSTD), build(records(14, 4))
    data = memoryview(first + second + third)
    for end, parts, next_offset in ((3, 1, 10), (4, 1, 10), (10, 1, 10), (11, 2, 14), (14, 2, 14), (15, 3, 18)):
        found = split(TP, data, 0, None, end=end)
        assert (len(found.parts), found.next_offset) == (parts, next_offset), end
    assert split(TP, memoryview(first), 0, None, end=8).next_offset == 4, "more may come before the end"


def test_an_offset_that_only_damage_made_so_large_does_not_end_the_search() -> None:
    damaged = bytearray(build(records(4, 4)))
    damaged[:8] = (1 << 40).to_bytes(8, "big")
    damaged[-1] ^= 1
    found = split(TP, memoryview(build(records(0, 4)) + damaged), 0, None, end=8)
    assert found.next_offset == 4
    assert found.problem is not None


@pytest.mark.parametrize(("at", "why"), [(8, "its length is"), (16, "its format is"), (70, "its checksum is not")])
def test_a_corrupt_batch_comes_after_the_good_ones(at: int, why: str) -> None:
    good = build(records(0, 3))
    bad = bytearray(build(records(3, 3)))
    bad[at] = 0xFE
    found = split(TP, memoryview(good + bytes(bad) + build(records(6, 3))), 0, None)
    assert found.problem is not None
    assert f"The batch at offset 3 of partition t-0 is corrupt ({why}" in str(found.problem)
    assert [part.header.base_offset for part in found.parts if part.header] == [0]


def _with_crc(data: bytearray) -> bytes:
    """A batch whose checksum is right whatever it holds: a liar, not an accident."""
    struct.pack_into(">I", data, batch.CRC_AT, crc32c(bytes(data[batch.ATTRIBUTES_AT :])))
    return bytes(data)


@given(st.randoms(use_true_random=False), st.sampled_from(list(Codec)), st.integers(1, 5))
@settings(max_examples=400, deadline=None)
def test_batches_that_lie_are_refused_or_read_but_never_crash(chance: random.Random, codec: Codec, mutations: int) -> None:
    data = bytearray(build(records(0, 8), codec=codec))
    for _ in range(mutations):
        data[chance.randrange(batch.ATTRIBUTES_AT, len(data))] = chance.randrange(256)
    try:
        rows(_with_crc(data), chance.randrange(4), chance.choice([None, 6]), chance.choice([None, [(3, 0)]]))
    except CorruptBatch:
        pass


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=300, deadline=None)
def test_bytes_that_are_no_batch(data: bytes, checked: bool) -> None:
    found = split(TP, memoryview(data), 0, [], check_crcs=checked)
    try:
        list(Decoder(TP, SCHEMA.names).decode(memoryview(data), found.parts, 0, None))
    except CorruptBatch:
        pass


@given(st.randoms(use_true_random=False), st.sampled_from([0, 1]), st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4]))
@settings(max_examples=200, deadline=None)
def test_old_messages_that_lie(chance: random.Random, magic: int, codec: Codec) -> None:
    data = bytearray(legacy.write_messages([r._replace(headers=()) for r in records(0, 5)], magic, codec=codec))
    for _ in range(3):
        data[chance.randrange(len(data))] = chance.randrange(256)
    try:
        rows(bytes(data))
    except CorruptBatch:
        pass


def test_much_that_is_packed_comes_in_several_record_batches() -> None:
    """Three batches of zeros that unpack to 20 MB each: no more than 32 MB become one record batch."""
    large = [build([Record(n, 0, None, bytes(20 << 20))], codec=Codec.ZSTD) for n in range(3)]
    data = b"".join(large)
    parts: list[Part] = split(TP, memoryview(data), 0, None).parts
    assert [table.num_rows for table in Decoder(TP, ["value"]).decode(memoryview(data), parts, 0, None)] == [1, 1, 1]
