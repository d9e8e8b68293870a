"""The four codecs of Kafka's record formats, and a bound on what each may unpack to.

Guards: `decompress` never hands out more than `limit` bytes and never commits memory much beyond it, whatever the input
claims, so a bomb costs its sender a refusal and the broker nothing. Whatever a codec library raises comes out as
`CorruptRecords`.

What is written is what the Java client reads: snappy in xerial's framing with 32 KiB blocks, lz4 as a frame of independent
64 KiB blocks. What is read is what clients send: snappy with or without that framing, and lz4 frames whose header checksum
is wrong in the way the 0.8 and 0.9 clients had it wrong (KAFKA-3160), where the caller allows it.
"""

from __future__ import annotations

import mmap
import threading
import zlib
from enum import IntEnum
from struct import Struct
from typing import TypeAlias

import cramjam
import lz4.frame

from ottla.records.errors import CorruptRecords

Buffer: TypeAlias = bytes | bytearray | memoryview


class Codec(IntEnum):
    """A codec by its id in the attributes; `label` is its name in `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """The name in `compression.type`."""
        return self.name.lower()

    @classmethod
    def named(cls, label: str) -> Codec:
        """The codec that `compression.type` calls `label`; `KeyError` if there is none."""
        return BY_NAME[label]


BY_NAME = {codec.label: codec for codec in Codec}

_XERIAL_HEADER = b"\x82SNAPPY\x00" + Struct(">ii").pack(1, 1)
_XERIAL_MAGIC = _XERIAL_HEADER[:8]
_XERIAL_BLOCK = 32 * 1024
_LENGTH = Struct(">i")

_GZIP_WBITS = 31  # a gzip header and trailer around deflate
_LZ4_DEFAULT_LEVEL = 9  # Kafka's name for "the fast compressor"; every other level is the slow one's
_ZSTD_DEFAULT_LEVEL = 3
_FIRST_GUESS = 64 * 1024
_SCRATCH_BYTES = 2 << 20  # twice what Kafka's producers put into a batch at most, unless they are told otherwise
_kept = threading.local()


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data`; `level` as in `compression.<codec>.level`, where the codec has levels."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            return _snappy_compress(data)
        case Codec.LZ4:
            speed = 0 if level is None or level == _LZ4_DEFAULT_LEVEL else level
            # Independent blocks: the Java client refuses linked ones. No content size: it writes none.
            return bytes(lz4.frame.compress(data, compression_level=speed, block_linked=False, store_size=False))
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, _ZSTD_DEFAULT_LEVEL if level is None else level))


def decompress(codec: Codec, data: Buffer, limit: int, *, broken_lz4_header: bool = False) -> bytes:
    """Unpack `data` to at most `limit` bytes, or raise `CorruptRecords`.

    `broken_lz4_header`: do not look at the lz4 frame's header checksum, which message sets of the old formats may have wrong.
    """
    if limit < 0:  # a budget that is used up; zlib would take it for "without bound"
        raise _too_large(codec, 0)
    match codec:
        case Codec.NONE:
            if len(data) > limit:
                raise _too_large(codec, limit)
            return bytes(data)
        case Codec.GZIP:
            return _gzip_decompress(data, limit)
        case Codec.SNAPPY:
            return _snappy_decompress(data, limit)
        case Codec.LZ4:
            return _lz4_decompress(with_lz4_header_checksum(data) if broken_lz4_header else data, limit)
        case Codec.ZSTD:
            return _zstd_decompress(data, limit)


def _too_large(codec: Codec, limit: int) -> CorruptRecords:
    return CorruptRecords(f"{codec.label} data unpacks to more than {limit} bytes")


def _broken(codec: Codec, why: object) -> CorruptRecords:
    return CorruptRecords(f"{codec.label} data cannot be unpacked: {why}")


def _gzip_decompress(data: Buffer, limit: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP_WBITS)
    try:
        out = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        raise _broken(Codec.GZIP, error) from None
    if len(out) > limit:
        raise _too_large(Codec.GZIP, limit)
    if not unpacker.eof:
        raise _broken(Codec.GZIP, "it ends too early")
    if unpacker.unused_data:
        raise _broken(Codec.GZIP, "bytes follow its end")  # a second member too: no client writes one
    return out


def _snappy_compress(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _snappy_decompress(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(view, limit, limit)
    pos, end = len(_XERIAL_HEADER), len(view)
    if end < pos:
        raise _broken(Codec.SNAPPY, "its header is cut")
    parts: list[bytes] = []
    left = limit
    while pos < end:
        if end - pos < _LENGTH.size:
            raise _broken(Codec.SNAPPY, "a block length is cut")
        (size,) = _LENGTH.unpack_from(view, pos)
        pos += _LENGTH.size
        if not 0 < size <= end - pos:
            raise _broken(Codec.SNAPPY, f"a block of {size} bytes where {end - pos} are left")
        block = _snappy_block(view[pos : pos + size], left, limit)
        left -= len(block)
        pos += size
        parts.append(block)
    return b"".join(parts)


def _snappy_block(block: memoryview, left: int, limit: int) -> bytes:
    """One raw block: it says its size up front, so the bound is checked before anything is allocated."""
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > left:
            raise _too_large(Codec.SNAPPY, limit)
        # Three bytes of snappy make at most 64: a block that claims more is lying, and gets no memory for it.
        if size > 64 * len(block):
            raise _broken(Codec.SNAPPY, f"{len(block)} bytes cannot hold {size}")
        out = bytearray(size)
        cramjam.snappy.decompress_raw_into(block, out)
    except (cramjam.DecompressionError, OSError) as error:
        raise _broken(Codec.SNAPPY, error) from None
    return bytes(out)


def _lz4_decompress(data: Buffer, limit: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    parts: list[bytes] = []
    left = limit + 1
    piece: Buffer = data
    step = max(_FIRST_GUESS, 4 * len(data))
    try:
        # The library allocates what it is asked for, so it is asked in steps that grow with what really came out.
        while left and not unpacker.eof and (piece or not unpacker.needs_input):
            part = unpacker.decompress(piece, max_length=min(left, step))
            left -= len(part)
            step *= 2
            piece = b""
            parts.append(part)
    except RuntimeError as error:
        raise _broken(Codec.LZ4, error) from None
    if not left:
        raise _too_large(Codec.LZ4, limit)
    if not unpacker.eof:
        raise _broken(Codec.LZ4, "it ends too early")
    if unpacker.unused_data:
        raise _broken(Codec.LZ4, "bytes follow its end")
    return b"".join(parts)


def _scratch() -> memoryview:
    """This thread's room to unpack into."""
    room: memoryview | None = getattr(_kept, "room", None)
    if room is None:
        room = _kept.room = memoryview(bytearray(_SCRATCH_BYTES))
    return room


def _zstd_decompress(data: Buffer, limit: int) -> bytes:
    # A guess that is too small costs all the work once more, and fresh memory as much as the work: most fits into what is kept.
    guess = min(limit, max(_SCRATCH_BYTES, 8 * len(data)))
    out = _scratch() if guess <= _SCRATCH_BYTES else memoryview(bytearray(guess))
    try:
        size = cramjam.zstd.decompress_into(data, out[:guess])
    except (cramjam.DecompressionError, OSError) as error:
        if guess == limit:
            raise _broken(Codec.ZSTD, error) from None
    else:
        return bytes(out[:size])
    del out
    # Either broken or larger than the guess. Anonymous pages are committed as they are written, but the room grows in steps
    # all the same: a process whose address space is bounded, such as a worker of Spark, has no room for the whole limit.
    while True:
        guess = min(limit, 8 * guess)
        with mmap.mmap(-1, guess) as room:
            try:
                size = cramjam.zstd.decompress_into(data, room)
            except (cramjam.DecompressionError, OSError) as error:
                if guess == limit:
                    raise CorruptRecords(f"zstd data cannot be unpacked within {limit} bytes: {error}") from None
            else:
                return room[:size]


def with_lz4_header_checksum(frame: Buffer, *, broken: bool = False) -> bytes:
    """The same lz4 frame with its header checksum set: right, or (`broken`) as the first Kafka clients had it.

    Those hashed the frame's magic number too; the format v0 keeps that mistake for ever, because its readers check it.
    """
    fixed = bytearray(frame)
    if len(fixed) < 7:
        raise _broken(Codec.LZ4, "its header is cut")
    flags = fixed[4]
    end = 6 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)  # content size, dictionary id
    if len(fixed) <= end:
        raise _broken(Codec.LZ4, "its header is cut")
    fixed[end] = _xxh32_short(bytes(fixed[0 if broken else 4 : end])) >> 8 & 0xFF
    return bytes(fixed)


_PRIME1, _PRIME2, _PRIME3, _PRIME4, _PRIME5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_MASK = 0xFFFFFFFF


def _xxh32_short(data: bytes) -> int:
    """XXH32 with seed 0 of less than 16 bytes, or of the 18 that a broken header may span, which takes the stripe first."""
    pos, size = 0, len(data)
    if size >= 16:
        lanes = [(_PRIME1 + _PRIME2) & _MASK, _PRIME2, 0, -_PRIME1 & _MASK]
        for lane in range(4):
            word = int.from_bytes(data[pos : pos + 4], "little")
            lanes[lane] = _rotl(lanes[lane] + word * _PRIME2, 13) * _PRIME1 & _MASK
            pos += 4
        state = _rotl(lanes[0], 1) + _rotl(lanes[1], 7) + _rotl(lanes[2], 12) + _rotl(lanes[3], 18) + size
    else:
        state = _PRIME5 + size
    while pos + 4 <= size:
        state = _rotl(state + int.from_bytes(data[pos : pos + 4], "little") * _PRIME3, 17) * _PRIME4
        pos += 4
    for byte in data[pos:]:
        state = _rotl(state + byte * _PRIME5, 11) * _PRIME1
    state &= _MASK
    state = (state ^ state >> 15) * _PRIME2 & _MASK
    state = (state ^ state >> 13) * _PRIME3 & _MASK
    return state ^ state >> 16


def _rotl(value: int, bits: int) -> int:
    value &= _MASK
    return value << bits | value >> 32 - bits
