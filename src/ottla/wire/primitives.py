"""The pieces of Kafka's encoding that generated code calls when a value does not fit its fast path.

Guards: what is read here never allocates by a length that the sender only claims, and every complaint about the sender's
bytes is `Malformed`. Everything else (fixed-width integers, short lengths) is inlined by `decoder` and `encoder`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

# A byte buffer that can be read by position and sliced.
Buffer = bytes | bytearray | memoryview

MAX_STRING = 0x7FFF  # both encodings of a string are bound by the old one's int16 length
MAX_INT32 = 0x7FFF_FFFF

# Kafka's fixed-width types, and their struct codes (all big-endian). A uuid is 16 opaque bytes.
FIXED = {
    "boolean": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}


class Malformed(ValueError):  # says what the bytes are
    """The bytes are not the message they are said to be. Nothing else is raised for what a sender wrote."""


def width(codes: str) -> int:
    """Bytes taken by a run of fixed-width values."""
    return struct.calcsize(">" + codes)


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned varint of at most 31 bits: lengths and counts are int32 in Kafka, however they are written."""
    value = shift = 0
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise Malformed("a varint does not end after 5 bytes")
    if value > MAX_INT32:
        raise Malformed(f"a varint of {value} does not fit in 31 bits")
    return value, pos


def read_string_length(buf: Buffer, pos: int) -> tuple[int, int]:
    """A compact string's length plus one, when it takes more than one byte."""
    length, pos = read_uvarint(buf, pos)
    if length > MAX_STRING + 1:
        raise Malformed(f"a string of {length - 1} bytes, at most {MAX_STRING} are allowed")
    return length, pos


def uvarint(value: int) -> bytes:
    """The unsigned varint that says `value`."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Every varint of one byte, ready made.
SHORT_VARINTS = [bytes((value,)) for value in range(0x80)]


def read_tags(buf: Buffer, pos: int, end: int, count: int, known: frozenset[int]) -> tuple[dict[int, Buffer], int]:
    """A tag section of `count` fields: the payloads of those that are `known`. The others are skipped, as Kafka demands."""
    if count * 2 > end - pos:
        raise Malformed(f"{count} tagged fields in {end - pos} bytes")
    payloads: dict[int, Buffer] = {}
    seen: set[int] = set()
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        if tag in seen:
            raise Malformed(f"tag {tag} comes twice")
        if size > end - pos:
            raise Malformed(f"tag {tag} claims {size} bytes, {end - pos} are left")
        seen.add(tag)
        if tag in known:
            payloads[tag] = buf[pos : pos + size]
        pos += size
    return payloads, pos


def tag_section(fields: list[tuple[int, bytes]]) -> bytes:
    """The tag section that holds these fields, given in the order of their tags."""
    out = [uvarint(len(fields))]
    for tag, payload in fields:
        out += (uvarint(tag), uvarint(len(payload)), payload)
    return b"".join(out)


class ArrayStructs(dict[int, Callable[..., Any]]):
    """Packs or unpacks n values of one fixed type at once: count -> the bound method of a `struct.Struct`.

    Small counts are kept, because a partition's replicas are a few numbers, over and over. The decoder checks a count
    against the bytes that are left before it asks here.
    """

    KEPT = 256

    def __init__(self, code: str, method: str, lead: str = "") -> None:
        super().__init__()
        self._code, self._method, self._lead = code, method, lead

    def __missing__(self, count: int) -> Callable[..., Any]:
        bound: Callable[..., Any] = getattr(struct.Struct(f">{self._lead}{count}{self._code}"), self._method)
        if count < self.KEPT:
            self[count] = bound
        return bound
