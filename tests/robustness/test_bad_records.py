"""Records that lie: wrong checksums, counts, lengths, few bytes that unpack to many. Refused with Kafka's error, unwritten."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Iterator

import cramjam
import lz4.frame
import pytest
from fastcrc.crc32 import iscsi as crc32c

from ottla.model import Error
from ottla.records import legacy
from ottla.records.batch import Record, build
from ottla.records.codecs import Codec, compress
from ottla.wire.apis.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic
from ottla.wire.apis.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, CreateTopicsResponse
from robustness.health import Patient
from robustness.raw import RawClient

NOW = 1_700_000_000_000
RECORDS = [Record(offset, NOW, b"k%d" % offset, b"value %d" % offset, ()) for offset in range(3)]
COUNT_AT, DELTA_AT, LENGTH_AT, MAGIC_AT, CRC_AT, ATTRIBUTES_AT, TIMESTAMP_AT, BODY_AT = 57, 23, 8, 16, 17, 21, 27, 61

CORRUPT, INVALID = Error.CORRUPT_MESSAGE, Error.INVALID_RECORD


@pytest.fixture(scope="module")
def topics(patient: Patient) -> Patient:
    def topic(name: str, **configs: str) -> CreatableTopic:
        rows = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        return CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=rows)

    wanted = [
        topic("plain"),
        topic("to-lz4", compression_type="lz4"),
        topic("to-none", compression_type="uncompressed"),
        topic("compacted", cleanup_policy="compact"),
    ]
    with patient.connect() as client:
        response = client.ask(CreateTopicsRequest(topics=wanted, timeout_ms=5000), 5)
        assert isinstance(response, CreateTopicsResponse)
        assert [one.error_code for one in response.topics] == [0, 0, 0, 0]
    return patient


@pytest.fixture
def client(topics: Patient) -> Iterator[RawClient]:
    with topics.connect(timeout=30) as connected:
        yield connected


def end_offset(client: RawClient, topic: str) -> int:
    asked = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    response = client.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 1)
    assert isinstance(response, ListOffsetsResponse)
    return response.topics[0].partitions[0].offset


def changed(at: int, layout: str, value: int, codec: Codec = Codec.NONE, crc: bool = True) -> bytes:
    """A batch of three records with one field changed, under a checksum that is right all the same."""
    batch = bytearray(build(RECORDS, codec=codec))
    struct.pack_into(layout, batch, at, value)
    if crc:
        struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    return bytes(batch)


def with_body(body: bytes, codec: Codec = Codec.NONE, count: int = 3) -> bytes:
    """A batch that claims `count` records, with any bytes as its records."""
    head = bytearray(build(RECORDS)[:BODY_AT])
    struct.pack_into(">i", head, LENGTH_AT, BODY_AT - 12 + len(body))
    struct.pack_into(">h", head, ATTRIBUTES_AT, codec)
    struct.pack_into(">i", head, DELTA_AT, count - 1)
    struct.pack_into(">i", head, COUNT_AT, count)
    struct.pack_into(">I", head, CRC_AT, crc32c(bytes(head[ATTRIBUTES_AT:]) + body))
    return bytes(head) + body


def flipped(batch: bytes, at: int) -> bytes:
    spoilt = bytearray(batch)
    spoilt[at] ^= 0x10
    return bytes(spoilt)


SOUND = build(RECORDS)
BATCHES: dict[str, tuple[bytes, set[Error]]] = {
    "wrong checksum": (flipped(SOUND, CRC_AT), {CORRUPT}),
    "a bit of a value": (flipped(SOUND, len(SOUND) - 3), {CORRUPT}),
    "a bit of its first timestamp": (flipped(SOUND, TIMESTAMP_AT), {CORRUPT}),
    "claims to be longer than it is": (changed(LENGTH_AT, ">i", 100_000, crc=False), {CORRUPT, INVALID}),
    "claims two gigabytes": (changed(LENGTH_AT, ">i", 2**31 - 1, crc=False), {CORRUPT, INVALID}),
    "claims to be shorter": (changed(LENGTH_AT, ">i", 60, crc=False), {CORRUPT, INVALID}),
    "claims less than a header": (changed(LENGTH_AT, ">i", 1, crc=False), {CORRUPT}),
    "claims a negative length": (changed(LENGTH_AT, ">i", -1, crc=False), {CORRUPT}),
    "counts more records than it has": (changed(COUNT_AT, ">i", 1000), {INVALID}),
    "counts two billion": (with_body(SOUND[BODY_AT:], count=2**31 - 1), {INVALID}),
    "counts fewer records than it has": (with_body(SOUND[BODY_AT:], count=2), {INVALID}),
    "counts more, and its last offset agrees": (with_body(SOUND[BODY_AT:], count=4), {INVALID}),
    "counts none": (with_body(b"", count=0), {INVALID}),
    "counts minus one": (changed(COUNT_AT, ">i", -1), {INVALID}),
    "last offset does not fit": (changed(DELTA_AT, ">i", 17), {INVALID}),
    "a record longer than the batch": (with_body(b"\xfe\xff\x03" + SOUND[BODY_AT + 1 :]), {INVALID}),
    "a record of negative length": (with_body(b"\x01" + SOUND[BODY_AT + 1 :]), {INVALID}),
    "a varint without an end": (with_body(b"\xff" * 40), {INVALID}),
    "unknown codec": (changed(ATTRIBUTES_AT, ">h", 7), {Error.UNSUPPORTED_COMPRESSION_TYPE, INVALID}),
    "control batch from a client": (changed(ATTRIBUTES_AT, ">h", 0x20), {INVALID}),
    "unknown format": (changed(MAGIC_AT, ">b", 3, crc=False), {CORRUPT, INVALID}),
    "negative format": (changed(MAGIC_AT, ">b", -1, crc=False), {CORRUPT, INVALID}),
    "two batches": (SOUND + SOUND, {INVALID}),
    "cut short": (SOUND[:-1], {CORRUPT, INVALID}),
    "only a header's beginning": (SOUND[:20], {CORRUPT, INVALID}),
    "nothing": (b"", {INVALID}),
    "random bytes": (bytes(range(256)) * 2, {CORRUPT, INVALID}),
    "larger than max.message.bytes": (build([Record(0, NOW, None, bytes(2 << 20), ())]), {Error.MESSAGE_TOO_LARGE}),
}


@pytest.mark.parametrize(("records", "allowed"), BATCHES.values(), ids=list(BATCHES))
def test_a_lying_batch_is_refused(topics: Patient, client: RawClient, records: bytes, allowed: set[Error]) -> None:
    before = end_offset(client, "plain")
    with topics.unharmed(grows_mb=6):
        error, base = client.produce("plain", records)
        assert Error(error) in allowed
        assert base == -1
    assert end_offset(client, "plain") == before, "nothing was written"
    assert client.produce("plain", SOUND) == (0, before), "and the same connection goes on"


LIES_INSIDE = {
    "not compressed at all": b"no gzip, no lz4",
    "garbage behind a right beginning": zlib.compress(b"x" * 100, wbits=31)[:30] + b"\xff" * 30,
    "empty": b"",
}


@pytest.mark.parametrize("topic", ["to-lz4", "to-none", "compacted"])
@pytest.mark.parametrize("body", LIES_INSIDE.values(), ids=list(LIES_INSIDE))
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_a_batch_that_must_be_opened_and_cannot_be(client: RawClient, topic: str, codec: Codec, body: bytes) -> None:
    error, _ = client.produce(topic, with_body(body, codec))
    assert Error(error) in (CORRUPT, INVALID)


INSIDE = {
    "counts more": (SOUND[BODY_AT:], 5),
    "counts fewer": (SOUND[BODY_AT:], 2),
    "bytes behind the last record": (SOUND[BODY_AT:] + b"xx", 3),
    "a record of negative length": (b"\x01" + SOUND[BODY_AT + 1 :], 3),
}


@pytest.mark.parametrize("topic", ["to-lz4", "to-none", "compacted"])
@pytest.mark.parametrize(("area", "count"), INSIDE.values(), ids=list(INSIDE))
def test_lies_inside_a_compressed_batch_that_is_opened(client: RawClient, topic: str, area: bytes, count: int) -> None:
    error, _ = client.produce(topic, with_body(compress(Codec.GZIP, area), Codec.GZIP, count))
    assert Error(error) is INVALID


def message_set(
    magic: int, at: int | None = None, layout: str = ">i", value: int = 0, crc: bool = False, codec: Codec = Codec.NONE
) -> bytes:
    """Old messages, with one field of the first changed."""
    messages = bytearray(legacy.write_messages(RECORDS, magic, codec=codec))
    if at is not None:
        struct.pack_into(layout, messages, at, value)
    if crc:
        size = struct.unpack_from(">i", messages, LENGTH_AT)[0]
        struct.pack_into(">I", messages, 12, zlib.crc32(bytes(messages[16 : 12 + size])))
    return bytes(messages)


KEY_AT = {0: 18, 1: 26}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda magic: message_set(magic, 12, ">I", 12345),
        lambda magic: message_set(magic, LENGTH_AT, ">i", 2**31 - 1),
        lambda magic: message_set(magic, LENGTH_AT, ">i", -1),
        lambda magic: message_set(magic, LENGTH_AT, ">i", 3),
        lambda magic: message_set(magic, KEY_AT[magic], ">i", 2**31 - 1, crc=True),
        lambda magic: message_set(magic, KEY_AT[magic], ">i", -2, crc=True),
        lambda magic: message_set(magic, KEY_AT[magic], ">i", 1000, crc=True),
        lambda magic: message_set(magic, 17, ">b", 7, crc=True),
        lambda magic: message_set(magic, 17, ">b", 1, crc=True),  # says gzip, is not
        lambda magic: message_set(magic)[:20],
        lambda magic: message_set(magic, codec=Codec.GZIP)[:-9],
    ],
    ids=[
        "crc",
        "2 GB",
        "negative",
        "tiny",
        "huge key",
        "key of -2",
        "key beyond",
        "unknown codec",
        "not gzip",
        "cut",
        "cut gzip",
    ],
)
def test_a_lying_message_set_is_refused(topics: Patient, client: RawClient, magic: int, spoil: Callable[[int], bytes]) -> None:
    before = end_offset(client, "plain")
    version = 1 if magic == 0 else 2
    with topics.unharmed(grows_mb=6):
        error, _ = client.produce("plain", spoil(magic), version)
        assert Error(error) in (CORRUPT, INVALID, Error.MESSAGE_TOO_LARGE, Error.UNSUPPORTED_COMPRESSION_TYPE)
    assert end_offset(client, "plain") == before
    error, base = client.produce("plain", message_set(magic), version)
    assert (error, base) == (0, before), "a sound one is taken"


def packed_zeros(codec: Codec, size: int) -> bytes:
    """`size` bytes of zero, compressed without ever being there."""
    chunk = bytes(1 << 20)
    if codec is Codec.GZIP:
        gzip = zlib.compressobj(9, wbits=31)
        return b"".join(gzip.compress(chunk) for _ in range(size >> 20)) + gzip.flush()
    if codec is Codec.LZ4:
        with lz4.frame.LZ4FrameCompressor(block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB) as lz4_frame:
            return bytes(lz4_frame.begin() + b"".join(lz4_frame.compress(chunk) for _ in range(size >> 20)) + lz4_frame.flush())
    return bytes(cramjam.zstd.compress(bytes(size)))


@pytest.mark.parametrize("topic", ["to-none", "compacted"])
@pytest.mark.parametrize(
    ("codec", "size"), [(Codec.GZIP, 256 << 20), (Codec.LZ4, 192 << 20), (Codec.ZSTD, 1 << 30)], ids=["gzip", "lz4", "zstd"]
)
def test_a_bomb_is_refused_and_its_memory_given_back(
    topics: Patient, client: RawClient, topic: str, codec: Codec, size: int
) -> None:
    packed = packed_zeros(codec, size)
    assert len(packed) < 1_040_000
    with topics.unharmed(grows_mb=12):
        begun = time.monotonic()
        error, _ = client.produce(topic, with_body(packed, codec, count=1))
        took = time.monotonic() - begun
        assert Error(error) in (CORRUPT, INVALID, Error.MESSAGE_TOO_LARGE, Error.RECORD_LIST_TOO_LARGE)
        assert took < 2, f"the broker was held up for {took:.1f} s"


def test_a_bomb_in_an_old_message(topics: Patient, client: RawClient) -> None:
    packed = packed_zeros(Codec.GZIP, 256 << 20)
    body = struct.pack(">bbq", 1, Codec.GZIP, NOW) + struct.pack(">ii", -1, len(packed)) + packed
    message = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    with topics.unharmed(grows_mb=12):
        error, _ = client.produce("plain", message, 2)
        assert Error(error) in (CORRUPT, INVALID, Error.MESSAGE_TOO_LARGE)


def test_what_was_refused_with_acks_0_closes_with_one_line(topics: Patient) -> None:
    topics.new_lines()
    with topics.connect() as client:
        from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData  # noqa: PLC0415
        from ottla.wire.frame import encode_request  # noqa: PLC0415

        data = TopicProduceData(name="plain", partition_data=[PartitionProduceData(index=0, records=flipped(SOUND, CRC_AT))])
        client.send(
            encode_request(ProduceRequest(acks=0, transactional_id=None, timeout_ms=1000, topic_data=[data]), 9, 1, None)
        )
        assert client.closed()
        topics.check_lines([client.port])
