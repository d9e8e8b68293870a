"""What a leader refuses, and with which error, by table; and what it changes in what it accepts."""

from __future__ import annotations

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from fastcrc.crc32 import iscsi

from ottla.clock import ManualClock
from ottla.model import Error, KafkaError
from ottla.records.batch import Record, build, read_header, read_records, repack
from ottla.records.codecs import Codec
from ottla.storage.append import Origin, prepare, whole_batches
from ottla.storage.log_config import COMPACT, LOG_APPEND_TIME, LogConfig
from unit.storage.refusals import GOOD, HOUR, MARKER, REFUSED, STAMPED, broken
from unit.storage.storage_kit import NOW, batch, view

CLOCK = ManualClock(NOW)


@pytest.mark.parametrize(("data", "config", "version", "error"), REFUSED)
def test_what_is_refused(data, config, version, error):
    with pytest.raises(KafkaError) as refused:
        prepare(view(data), LogConfig(**config), CLOCK, Origin.CLIENT, version)
    assert refused.value.error is error


@pytest.mark.parametrize(
    ("data", "config"),
    [
        (GOOD, {}),
        (batch(3, codec=Codec.ZSTD), {}),
        (batch(1, timestamp=-1), {"message_timestamp_before_max_ms": HOUR}),
        (batch(1, timestamp=NOW - HOUR), {"message_timestamp_before_max_ms": HOUR}),
        (batch(1, timestamp=NOW + HOUR), {"message_timestamp_after_max_ms": HOUR}),
        (batch(1, timestamp=0), {"message_timestamp_before_max_ms": HOUR, "message_timestamp_type": LOG_APPEND_TIME}),
        (batch(2), {"cleanup_policy": frozenset({COMPACT})}),
        (batch(2, codec=Codec.SNAPPY), {"cleanup_policy": frozenset({COMPACT})}),
        (batch(1, pid=5, seq=9), {}),
    ],
)
def test_what_is_accepted(data, config):
    assert prepare(view(data), LogConfig(**config), CLOCK, Origin.CLIENT, 9).headers[0].count > 0


def test_a_cut_off_rest_is_dropped():
    ready = prepare(view(GOOD + GOOD[:20]), LogConfig(), CLOCK, Origin.CLIENT, 9)
    assert bytes(ready.records) == GOOD


def test_a_writable_buffer_is_not_copied_and_a_readonly_one_is():
    mine = view(GOOD)
    assert prepare(mine, LogConfig(), CLOCK, Origin.CLIENT, 9).records.obj is mine.obj
    assert not prepare(memoryview(GOOD), LogConfig(), CLOCK, Origin.CLIENT, 9).records.readonly


def test_log_append_time():
    ready = prepare(view(batch(3, timestamp=5)), LogConfig(message_timestamp_type=LOG_APPEND_TIME), CLOCK, Origin.CLIENT, 9)
    header = read_header(ready.records)
    assert ready.log_append_time == header.max_timestamp == NOW
    assert {record.timestamp for record in read_records(ready.records, 0, header)} == {NOW}
    assert iscsi(ready.records[21:]) == header.crc


def test_a_client_does_not_stamp_for_the_broker():
    """The bit for the broker's time is taken back where the producer's counts."""
    ready = prepare(view(STAMPED), LogConfig(), CLOCK, Origin.CLIENT, 9)
    assert bytes(ready.records) == GOOD
    assert ready.headers == (read_header(GOOD),)


@pytest.mark.parametrize("sent", list(Codec))
@pytest.mark.parametrize(
    ("compression_type", "stored"), [("producer", None), ("uncompressed", Codec.NONE), ("lz4", Codec.LZ4), ("zstd", Codec.ZSTD)]
)
def test_compression_type(sent, compression_type, stored):
    data = batch(20, codec=sent)
    ready = prepare(view(data), LogConfig(compression_type=compression_type), CLOCK, Origin.CLIENT, 9)
    header = read_header(ready.records)
    assert header.codec is (sent if stored is None else stored)
    assert read_records(ready.records, 0, header) == read_records(data, 0, read_header(data))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression", [0, 1, 2])
def test_old_message_sets_become_batches(magic, compression):
    builder = LegacyRecordBatchBuilder(magic, compression, 1 << 20)
    for number in range(5):
        builder.append(number, timestamp=NOW if magic else None, key=b"k%d" % number, value=b"v")
    ready = prepare(view(bytes(builder.build())), LogConfig(), CLOCK, Origin.CLIENT, 2)
    assert [header.magic for header in ready.headers] == [2]
    found = read_records(ready.records, 0, ready.headers[0])
    assert [record.key for record in found] == [b"k%d" % number for number in range(5)]
    assert {record.timestamp for record in found} == {NOW if magic else -1}


def test_a_coordinator_may_write_markers():
    assert prepare(view(MARKER), LogConfig(), CLOCK, Origin.COORDINATOR, None).headers[0].is_control


def test_a_follower_takes_whole_batches_with_sound_checksums():
    two = GOOD + batch(2, base_offset=3)
    whole, headers = whole_batches(view(two + GOOD[:-1]))
    assert bytes(whole) == two
    assert [header.base_offset for header in headers] == [0, 3]
    with pytest.raises(KafkaError) as refused:
        whole_batches(view(GOOD + broken(GOOD, 65)))
    assert refused.value.error is Error.CORRUPT_MESSAGE


def edited(data, *changes):
    """A batch with some of its bytes changed, and its checksum right again."""
    changed = bytearray(data)
    for at, value in changes:
        changed[at : at + len(value)] = value
    changed[17:21] = iscsi(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


LAST_TIME = (27, ((1 << 63) - 1).to_bytes(8, "big") * 2)
TWO = build([Record(0, NOW, b"a", b"1"), Record(1, NOW + 1, b"b", b"2")])
SECOND = len(TWO) - 9  # its length: after it attributes, time, offset, key and value with their lengths, headers


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize(
    "data",
    [
        edited(TWO, (SECOND + 3, b"\x00")),  # the same offset twice
        edited(TWO, (SECOND + 3, b"\x04")),  # a gap
        edited(TWO, LAST_TIME),  # the second one's time is beyond 64 bits
        edited(TWO, (SECOND + 6, b"\x40")),  # a value that is not there
    ],
    ids=["twice", "gap", "time", "value"],
)
def test_a_compacted_topic_refuses_what_could_not_be_cleaned(data, codec):
    packed = repack(read_header(data), data[61:], codec, None)
    config = LogConfig(cleanup_policy=frozenset({COMPACT}))
    with pytest.raises(KafkaError) as refused:
        prepare(view(packed), config, CLOCK, Origin.CLIENT, 9)
    assert refused.value.error is Error.INVALID_RECORD
    assert "record 2 of the batch" in str(refused.value)
    assert prepare(view(packed), LogConfig(), CLOCK, Origin.CLIENT, 9), "elsewhere nobody looks"
    assert prepare(view(repack(read_header(TWO), TWO[61:], codec, None)), config, CLOCK, Origin.CLIENT, 9)


def test_an_empty_key_is_a_key():
    data = build([Record(0, NOW, b"", None)])
    assert prepare(view(data), LogConfig(cleanup_policy=frozenset({COMPACT})), CLOCK, Origin.CLIENT, 9)
