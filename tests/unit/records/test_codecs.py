"""The codecs: what goes in comes out, others read it, and nothing unpacks beyond its bound."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
import zlib

import aiokafka.codec
import cramjam
import kafka.codec
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.model import Error
from ottla.records.codecs import BY_NAME, Codec, compress, decompress, with_lz4_header_checksum
from ottla.records.errors import CorruptRecords

MB = 1024 * 1024
PACKING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
SAMPLES = [b"", b"a", b"abc" * 1000, os.urandom(5000), b"\0" * 300_000, os.urandom(40_000) + b"x" * 100_000]


def test_names_are_those_of_compression_type() -> None:
    assert {name: int(codec) for name, codec in BY_NAME.items()} == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", SAMPLES, ids=len)
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_round_trip(codec: Codec, data: bytes, wrap: type) -> None:
    packed = compress(codec, wrap(data))
    assert decompress(codec, wrap(packed), len(data)) == data


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(Codec)), st.binary(max_size=3000), st.integers(1, 100))
def test_round_trip_of_anything(codec: Codec, data: bytes, times: int) -> None:
    assert decompress(codec, compress(codec, data * times), 10 * MB) == data * times


@pytest.mark.parametrize(("codec", "levels"), [(Codec.GZIP, [1, 9]), (Codec.LZ4, [1, 9, 12]), (Codec.ZSTD, [1, 10, -5])])
def test_levels_are_taken(codec: Codec, levels: list[int]) -> None:
    data = b"".join(b"%d," % i for i in range(20_000))
    packed = {level: compress(codec, data, level) for level in levels}
    assert all(decompress(codec, p, len(data)) == data for p in packed.values())
    assert len({len(p) for p in packed.values()}) > 1


@pytest.mark.parametrize("data", SAMPLES[1:], ids=len)
def test_other_clients_read_what_we_write(data: bytes) -> None:
    assert gzip.decompress(compress(Codec.GZIP, data)) == data
    assert bytes(aiokafka.codec.snappy_decode(compress(Codec.SNAPPY, data))) == data
    assert bytes(kafka.codec.lz4_decode(compress(Codec.LZ4, data))) == data
    assert bytes(aiokafka.codec.zstd_decode(compress(Codec.ZSTD, data))) == data


@pytest.mark.parametrize("data", SAMPLES[1:], ids=len)
def test_we_read_what_other_clients_write(data: bytes) -> None:
    size = len(data)
    assert decompress(Codec.GZIP, gzip.compress(data), size) == data
    assert decompress(Codec.SNAPPY, bytes(aiokafka.codec.snappy_encode(data)), size) == data
    assert decompress(Codec.SNAPPY, bytes(aiokafka.codec.snappy_encode(data, xerial_compatible=False)), size) == data
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), size) == data
    assert decompress(Codec.LZ4, bytes(aiokafka.codec.lz4_encode(data)), size) == data
    assert (
        decompress(Codec.LZ4, lz4.frame.compress(data, block_linked=True, content_checksum=True, store_size=True), size) == data
    )
    assert decompress(Codec.ZSTD, bytes(aiokafka.codec.zstd_encode(data)), size) == data


def test_lz4_is_written_as_the_java_client_wants_it() -> None:
    flags = compress(Codec.LZ4, b"a" * 200_000)[4]
    assert flags >> 6 == 1, "version 1"
    assert flags & 0x20, "independent blocks"
    assert not flags & 0x0D, "no content size, no content checksum, no dictionary"


def test_snappy_is_written_in_xerial_framing() -> None:
    packed = compress(Codec.SNAPPY, os.urandom(70_000))
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    sizes, pos = [], 16
    while pos < len(packed):
        (length,) = struct.unpack_from(">i", packed, pos)
        sizes.append(cramjam.snappy.decompress_raw_len(packed[pos + 4 : pos + 4 + length]))
        pos += 4 + length
    assert sizes == [32768, 32768, 70_000 - 65536]


@pytest.mark.parametrize("store_size", [False, True])
def test_broken_lz4_header_checksum(store_size: bool) -> None:
    good = lz4.frame.compress(b"abc" * 5000, block_linked=False, store_size=store_size)
    assert with_lz4_header_checksum(good) == good, "a right checksum stays"
    broken = with_lz4_header_checksum(good, broken=True)
    assert broken != good
    assert decompress(Codec.LZ4, broken, 15000, broken_lz4_header=True) == b"abc" * 5000
    with pytest.raises(CorruptRecords):
        decompress(Codec.LZ4, broken, 15000)


def test_broken_lz4_header_checksum_is_the_one_that_old_clients_write() -> None:
    # Flags 60, block size 40; 82 is XXH32 of those two bytes, 1a that of the magic number and them, as Java's v0 writer has it.
    frame = compress(Codec.LZ4, b"abc" * 5000)
    assert frame[:7].hex() == "04224d18604082"
    assert with_lz4_header_checksum(frame, broken=True)[:7].hex() == "04224d1860401a"


@pytest.mark.parametrize("codec", Codec)
def test_the_limit_is_exact(codec: Codec) -> None:
    data = b"a" * 200_000
    packed = compress(codec, data)
    assert decompress(codec, packed, 200_000) == data
    for limit in (199_999, 1000, 1, 0, -1, -2):
        with pytest.raises(CorruptRecords) as caught:
            decompress(codec, packed, limit)
        assert caught.value.error is Error.CORRUPT_MESSAGE


def bomb(codec: Codec) -> bytes:
    """Half a gigabyte of zeros; snappy, which cannot pack that well, claims four gigabytes instead."""
    if codec is Codec.GZIP:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join(packer.compress(bytes(MB)) for _ in range(512)) + packer.flush()
    if codec is Codec.LZ4:
        packer = lz4.frame.LZ4FrameCompressor(block_linked=False)
        return packer.begin() + b"".join(packer.compress(bytes(MB)) for _ in range(512)) + packer.flush()
    if codec is Codec.ZSTD:
        return bytes(cramjam.zstd.compress(bytes(64 * MB))) * 8
    return b"\xff\xff\xff\xff\x0f" + b"\xfe\x01\x00" * 100


CHILD = """
import sys
from ottla.records.codecs import Codec, decompress
from ottla.records.errors import CorruptRecords

def peak():  # of this program alone: getrusage would begin with the peak of its parent
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

data = sys.stdin.buffer.read()
before = peak()
try:
    decompress(Codec(int(sys.argv[1])), data, int(sys.argv[2]))
    print("unpacked", peak() - before)
except CorruptRecords:
    print("refused", peak() - before)
"""


def unpack_elsewhere(codec: Codec, limit: int) -> tuple[str, int]:
    """What a program of its own says to the bomb, and by how many KiB its memory grew."""
    command = [sys.executable, "-c", CHILD, str(int(codec)), str(limit)]
    done = subprocess.run(command, input=bomb(codec), capture_output=True, check=True)
    verdict, grown = done.stdout.split()
    return verdict.decode(), int(grown)


@pytest.mark.skipif(sys.platform != "linux", reason="reads its own memory from /proc")
@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_costs_no_memory(codec: Codec) -> None:
    verdict, grown = unpack_elsewhere(codec, 16 * MB)
    assert verdict == "refused"
    assert grown < 48 * 1024, "the limit, once more where it is copied, and the library's own window"


@pytest.mark.skipif(sys.platform != "linux", reason="reads its own memory from /proc")
def test_the_bomb_is_one() -> None:
    verdict, grown = unpack_elsewhere(Codec.ZSTD, 600 * MB)
    assert verdict == "unpacked"
    assert grown > 400 * 1024


@pytest.mark.parametrize("codec", PACKING)
def test_broken_input_is_a_clean_refusal(codec: Codec) -> None:
    packed = compress(codec, os.urandom(3000) + b"abc" * 1000)
    broken = [b"", packed[:1], packed[:10], packed[: len(packed) // 2], packed[:-1], packed + b"\x01", b"\xff" * 50]
    for data in broken:
        with pytest.raises(CorruptRecords):
            decompress(codec, data, MB)


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(PACKING), st.binary(max_size=400), st.data())
def test_mutated_input_never_escapes(codec: Codec, data: bytes, draw: st.DataObject) -> None:
    packed = bytearray(compress(codec, data))
    for _ in range(draw.draw(st.integers(1, 4))):
        packed[draw.draw(st.integers(0, len(packed) - 1))] = draw.draw(st.integers(0, 255))
    for lenient in (False, True):
        try:
            assert len(decompress(codec, packed, 100_000, broken_lz4_header=lenient)) <= 100_000
        except CorruptRecords:
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="bounds its own address space")
@pytest.mark.parametrize("codec", PACKING)
def test_a_large_limit_needs_no_room(codec: Codec) -> None:
    """A worker of Spark may have little address space (`spark.executor.pyspark.memory`): what is small fits into it."""
    bounded = """
import resource, sys
from ottla.records.codecs import Codec, decompress

data = sys.stdin.buffer.read()
size = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (size + (32 << 20), size + (32 << 20)))
print(len(decompress(Codec(int(sys.argv[1])), data, 128 << 20)))
"""
    packed = compress(codec, bytes(MB))
    done = subprocess.run([sys.executable, "-c", bounded, str(int(codec))], input=packed, capture_output=True, check=False)
    assert done.stdout.strip() == str(MB).encode(), done.stderr.decode()
