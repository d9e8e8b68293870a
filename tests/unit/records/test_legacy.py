"""Message sets of v0 and v1: read, written and converted as old clients and old brokers did it."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder as PythonBuilder
from kafka.record.memory_records import MemoryRecords as PythonRecords

from ottla.model import Error, KafkaError
from ottla.records import batch, legacy
from ottla.records.batch import CorruptRecords, InvalidRecords, Record, TimestampType
from ottla.records.codecs import Codec, compress

OLD = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
BYTES = st.none() | st.binary(max_size=100)
ROWS = st.lists(st.tuples(st.integers(0, 1 << 45), BYTES, BYTES), min_size=1, max_size=10)
# What the other clients can do here: kafka-python's snappy needs a library that nothing else does, and so does the lz4 of v0.
ABLE = {
    (name, magic): {Codec.NONE, Codec.GZIP, *extra, *([Codec.LZ4] if magic else [])}
    for name, extra in (("aiokafka", [Codec.SNAPPY]), ("kafka-python", []))
    for magic in (0, 1)
}
BUILDERS = {"aiokafka": AioBuilder, "kafka-python": PythonBuilder}
READERS = {"aiokafka": AioRecords, "kafka-python": PythonRecords}
CASES = [(name, magic, codec) for (name, magic), codecs in ABLE.items() for codec in sorted(codecs)]
NOW = 1_700_000_000_000


def some(count: int = 4, base: int = 0) -> list[Record]:
    return [
        Record(base + i, 1000 + 10 * (i % 3), b"k%d" % i if i % 2 else None, b"v" * 40 * i if i else None) for i in range(count)
    ]


def read(data: bytes) -> list[Record]:
    return [record for entry in legacy.read_entries(data) for record in entry.records]


def timeless(records: list[Record]) -> list[Record]:
    return [record._replace(timestamp=-1) for record in records]


def opened(data: bytes) -> list[Record]:
    out: list[Record] = []
    for pos, header in batch.split(data):
        assert batch.crc_ok(data, pos, header)
        out += batch.read_records(data, pos, header)
    return out


@settings(max_examples=100, deadline=None)
@given(ROWS)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("builder", [AioBuilder, PythonBuilder])
def test_same_bytes_as_other_clients(builder: type, magic: int, rows: list[tuple]) -> None:
    theirs = builder(magic, 0, 10_000_000)
    for offset, (timestamp, key, value) in enumerate(rows):
        theirs.append(offset, timestamp, key, value)
    ours = legacy.write_messages([Record(i, *row) for i, row in enumerate(rows)], magic)
    assert ours == bytes(theirs.build())


@pytest.mark.parametrize(("name", "magic", "codec"), CASES)
def test_we_read_what_other_clients_write(name: str, magic: int, codec: Codec) -> None:
    theirs = BUILDERS[name](magic, int(codec), 10_000_000)
    records = some(20)
    for record in records:
        theirs.append(record.offset, record.timestamp, record.key, record.value)
    data = bytes(theirs.build())
    assert legacy.magic_of(data) == magic
    assert read(data) == (records if magic else timeless(records))
    assert opened(legacy.to_v2(data, NOW, base_offset=0)) == (records if magic else timeless(records))


@pytest.mark.parametrize(("name", "magic", "codec"), CASES)
@pytest.mark.parametrize("base", [0, 5000])
def test_down_conversion_is_read_by_other_clients(name: str, magic: int, codec: Codec, base: int) -> None:
    records = some(20, base)
    data = b"".join(batch.build(records[i : i + 10], base_offset=base + i, codec=codec) for i in (0, 10))
    theirs = READERS[name](legacy.from_v2(data, magic))
    found = []
    while theirs.has_next():
        entry = theirs.next_batch()
        assert entry.validate_crc()
        found += [(r.offset, r.timestamp, r.key, r.value) for r in entry]
    assert found == [(r.offset, r.timestamp if magic else None, r.key, r.value) for r in records]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD)
def test_down_conversion_is_read_by_ourselves(magic: int, codec: Codec) -> None:
    records = some(20, 5000)
    down = legacy.from_v2(batch.build(records, base_offset=5000, codec=codec), magic)
    assert read(down) == (records if magic else timeless(records))
    assert {entry.codec for entry in legacy.read_entries(down)} == {codec}


@settings(max_examples=100, deadline=None)
@given(ROWS, st.sampled_from(OLD), st.integers(0, 1 << 40))
def test_down_and_up_again(rows: list[tuple], codec: Codec, base: int) -> None:
    records = [Record(base + i, *row) for i, row in enumerate(rows)]
    down = legacy.from_v2(batch.build(records, base_offset=base, codec=codec), 1)
    assert opened(legacy.to_v2(down, NOW, base_offset=base)) == records


@pytest.mark.parametrize("codec", OLD)
def test_gaps_in_offsets_survive_the_way_down(codec: Codec) -> None:
    records = [Record(10, 1, b"a", b"1"), Record(13, 2, b"b", b"2"), Record(20, 3, b"c", b"3")]
    data = batch.build(records, base_offset=8, codec=codec)
    for magic in (0, 1):
        assert [r.offset for r in read(legacy.from_v2(data, magic))] == [10, 13, 20]


def test_down_conversion_drops_what_old_formats_do_not_have() -> None:
    marker = batch.end_transaction_marker(
        batch.ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=5, base_offset=1
    )
    data = (
        batch.build(
            [Record(0, 5, b"k", b"v", (("h", b"1"),))], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
        )
        + marker
        + batch.build([Record(2, 6, None, b"w")], base_offset=2)
    )
    assert read(legacy.from_v2(data, 1)) == [Record(0, 5, b"k", b"v"), Record(2, 6, None, b"w")]
    assert legacy.from_v2(marker, 1) == b""
    assert read(legacy.from_v2(data[:-1], 1)) == [Record(0, 5, b"k", b"v")], "an incomplete batch at the end is left out"


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_has_no_way_down(magic: int) -> None:
    with pytest.raises(KafkaError) as caught:
        legacy.from_v2(batch.build(some(), codec=Codec.ZSTD), magic)
    assert caught.value.error is Error.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", OLD)
def test_log_append_time_on_the_way_down(codec: Codec) -> None:
    data = bytearray(batch.build(some(), codec=codec))
    batch.with_log_append_time(data, 0, batch.read_header(data), NOW)
    down = legacy.from_v2(data, 1)
    assert {r.timestamp for r in read(down)} == {NOW}
    assert {entry.timestamp_type for entry in legacy.read_entries(down)} == {TimestampType.LOG_APPEND_TIME}
    assert read(legacy.from_v2(data, 0)) == timeless(some())


@pytest.mark.parametrize("codec", OLD)
@pytest.mark.parametrize("magic", [0, 1])
def test_up_conversion_with_log_append_time(codec: Codec, magic: int) -> None:
    up = legacy.to_v2(
        legacy.write_messages(some(), magic, codec=codec),
        NOW,
        base_offset=9,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        leader_epoch=4,
    )
    header = batch.read_header(up)
    assert header.is_log_append_time
    assert (header.base_offset, header.leader_epoch, header.max_timestamp) == (9, 4, NOW)
    assert {r.timestamp for r in opened(up)} == {NOW}


def test_up_conversion_numbers_anew_and_keeps_order() -> None:
    plain, packed = some(3), some(4)
    data = (
        legacy.write_messages(plain, 1) + legacy.write_messages(packed, 1, codec=Codec.GZIP) + legacy.write_messages(plain, 0)
    )
    up = legacy.to_v2(data, NOW, base_offset=100)
    headers = [header for _, header in batch.split(up)]
    assert [(h.base_offset, h.count, h.codec) for h in headers] == [
        (100, 3, Codec.NONE),
        (103, 4, Codec.GZIP),
        (107, 3, Codec.NONE),
    ]
    assert [r.offset for r in opened(up)] == list(range(100, 110))
    assert [r.value for r in opened(up)] == [r.value for r in plain + packed + plain]


@pytest.mark.parametrize("codec", Codec)
def test_up_conversion_into_the_codec_of_the_topic(codec: Codec) -> None:
    up = legacy.to_v2(legacy.write_messages(some(), 1, codec=Codec.SNAPPY), NOW, codec=codec)
    assert batch.read_header(up).codec is codec
    assert opened(up) == some()


def test_an_empty_set_stays_empty() -> None:
    assert legacy.to_v2(b"", NOW) == b""
    assert legacy.from_v2(b"", 1) == b""


def test_a_producer_that_leaves_the_wrapper_at_offset_zero() -> None:
    data = bytearray(legacy.write_messages(some(5), 1, codec=Codec.GZIP))
    struct.pack_into(">q", data, 0, 0)
    assert [r.offset for r in read(bytes(data))] == [0, 1, 2, 3, 4]


def test_a_wrapper_that_the_broker_numbered() -> None:
    data = bytearray(legacy.write_messages(some(5), 1, codec=Codec.GZIP))
    struct.pack_into(">q", data, 0, 1004)
    assert [r.offset for r in read(bytes(data))] == [1000, 1001, 1002, 1003, 1004]


@pytest.mark.parametrize(
    ("timestamp", "append_time"),
    [(-2, False), (-(1 << 63), False), (5, True)],
    ids=["before 1970", "long before 1970", "log append time from a producer"],
)
def test_timestamps_that_a_producer_may_not_send(timestamp: int, append_time: bool) -> None:
    kind = TimestampType.LOG_APPEND_TIME if append_time else TimestampType.CREATE_TIME
    with pytest.raises(KafkaError) as caught:
        legacy.to_v2(legacy.write_messages([Record(0, timestamp, None, b"v")], 1, timestamp_type=kind), NOW)
    assert caught.value.error is Error.INVALID_TIMESTAMP


def message(magic: int, attributes: int, value: bytes | None, *, size: int | None = None, crc: int | None = None) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", 5) if magic else b"") + struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    checksum = zlib.crc32(body) if crc is None else crc
    return struct.pack(">qiI", 0, 4 + len(body) if size is None else size, checksum) + body


GOOD_V0 = legacy.write_messages(some(2), 0)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (message(1, 0, b"v")[:-1], CorruptRecords),
        (message(1, 0, b"v") + b"\0" * 10, CorruptRecords),
        (message(1, 0, b"v", size=-1), CorruptRecords),
        (message(1, 0, b"v", size=21), CorruptRecords),
        (message(0, 0, b"v", size=13), CorruptRecords),
        (message(1, 0, b"v", size=1 << 30), CorruptRecords),
        (message(1, 0, b"v", crc=1), CorruptRecords),
        (message(1, 4, b"v"), InvalidRecords),  # zstd, which v1 does not know
        (message(1, 7, b"v"), InvalidRecords),
        (message(1, 1, None), InvalidRecords),  # a wrapper around nothing
        (message(1, 1, b"not gzip"), CorruptRecords),
        (message(1, 1, compress(Codec.GZIP, b"")), InvalidRecords),
        (message(1, 1, compress(Codec.GZIP, GOOD_V0)), InvalidRecords),  # v0 inside v1
        (message(0, 1, compress(Codec.GZIP, message(0, 1, compress(Codec.GZIP, GOOD_V0)))), InvalidRecords),  # packed twice
        (message(0, 1, compress(Codec.GZIP, GOOD_V0[:-1])), CorruptRecords),
        (message(1, 0, b"v") + batch.build(some()), InvalidRecords),  # v2 among v1
        (message(9, 0, b"v"), InvalidRecords),
    ],
)
def test_what_a_message_set_may_not_be(data: bytes, error: type[CorruptRecords]) -> None:
    with pytest.raises(error) as caught:
        legacy.to_v2(data, NOW)
    assert type(caught.value) is error


def test_wrappers_share_one_limit() -> None:
    wrapper = legacy.write_messages([Record(0, 1, None, b"a" * 10_000)], 1, codec=Codec.GZIP)
    assert len(read(wrapper * 3)) == 3
    with pytest.raises(CorruptRecords):
        legacy.to_v2(wrapper * 3, NOW, limit=25_000)
    down = batch.build([Record(0, 1, None, b"a" * 10_000)], codec=Codec.GZIP)
    with pytest.raises(CorruptRecords):
        legacy.from_v2(down * 3, 1, limit=25_000)


@pytest.mark.parametrize("data", [b"", b"\0" * 16])
def test_magic_of_too_few_bytes(data: bytes) -> None:
    with pytest.raises(CorruptRecords):
        legacy.magic_of(data)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_magic_of(magic: int) -> None:
    data = batch.build(some()) if magic == 2 else legacy.write_messages(some(), magic)
    assert legacy.magic_of(b"xyz" + data, 3) == magic


@pytest.mark.parametrize("seed", range(3))
def test_mutations_end_in_a_clean_refusal(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1500):
        codec = rng.choice(OLD)
        data = bytearray(legacy.write_messages(some(rng.randint(1, 4)), rng.randint(0, 1), codec=codec))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        if rng.random() < 0.7:  # a checksum that is right, so that the lies behind it are reached
            (size,) = struct.unpack_from(">i", data, 8)
            if 0 < size <= len(data) - 12:
                struct.pack_into(">I", data, 12, zlib.crc32(data[16 : 12 + size]))
        try:
            opened(legacy.to_v2(bytes(data), NOW, limit=1_000_000))
        except KafkaError:
            pass
