"""Requests of every kind, by seed: whole ones with random fields, made from our own tables, and the same ones spoilt."""

from __future__ import annotations

import random
import struct
from typing import Any

from ottla.api.registry import HANDLERS
from ottla.records.batch import Record, build
from ottla.records.codecs import Codec
from ottla.wire.frame import encode_request
from ottla.wire.schema import Field, Request, Struct

NAMES = (
    "fuzz",
    "fuzz",
    "fuzz",
    "lz4",
    "old",
    "a",
    "b.c",
    "b_c",
    "",
    "x" * 250,
    "..",
    "no/such",
    "ä√",
    "__consumer_offsets",
    "1001",
    "retention.ms",
    "cleanup.policy",
    "compression.type",
    "segment.bytes",
    "60000",
    "delete",
    "range",
    "consumer",
    "\n\x00",
)
NUMBERS = (-1, 0, 0, 1, 1, 2, 3, 5, 100, -2, -3, 1001, 6000, 10_000)
RANGES = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63}
# Values that lead far into the broker, and none that would keep it busy for long without telling us anything new.
LIKELY = {
    "acks": (-1, 0, 1, 1, 7),
    "partition": (0, 0, 1, 2, 3, 9),
    "partition_index": (0, 0, 1, 2, 3, 9),
    "index": (0, 0, 1, 2, 3, 9),
    "fetch_offset": (0, 0, 1, 3, 1000),
    "max_wait_ms": (0, 10, 60_000),
    "min_bytes": (0, 1, 1_000_000_000),
    "max_bytes": (0, 1000, 1 << 20),
    "partition_max_bytes": (0, 1000, 1 << 20),
    "session_id": (0, 0, 0, 5),
    "session_epoch": (-1, 0, 1),
    "current_leader_epoch": (-1, -1, 0, 3),
    "timeout_ms": (-1, 0, 1),
    "num_partitions": (-1, 0, 1, 2, 3),
    "replication_factor": (-1, 1, 1, 2),
    "count": (-1, 0, 5, 6),
}


def served() -> list[tuple[type[Request], int]]:
    """Every API that has a handler, in every version."""
    import ottla.api  # noqa: F401, PLC0415 - declares the handlers

    return [
        (request, version)
        for _, (request, _) in sorted(HANDLERS.items())
        for version in range(request.min_version, request.max_version + 1)
    ]


def message(cls: type[Struct], version: int, rng: random.Random) -> Any:
    """An object with random values in all the fields that the version has."""
    made = cls()
    for field in cls.__fields__:
        if field.since <= version <= field.until and not (field.tag is not None and rng.random() < 0.5):
            setattr(made, field.name, _value(field, version, rng))
    return made


def _value(field: Field, version: int, rng: random.Random) -> Any:
    kind = field.kind
    often_null = 0.8 if field.name == "transactional_id" else 0.15
    if field.nullable_since <= version and field.tag is None and rng.random() < often_null:
        return None
    if kind == "array":
        return [_value(field.element, version, rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
    if kind == "struct":
        return message(field.struct, version, rng)
    if kind == "string":
        return rng.choice(NAMES[:5] if field.name in ("topic", "name") and rng.random() < 0.7 else NAMES)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.random()
    if kind == "uuid":
        return rng.choice((bytes(16), rng.randbytes(16)))
    if kind == "bytes":
        return rng.randbytes(rng.randrange(40))
    if kind == "records":
        return records(rng)
    return _number(field.name, kind, rng)


def _number(name: str, kind: str, rng: random.Random) -> int:
    bits = RANGES[kind]
    low = 0 if kind.startswith("u") else -(2**bits)
    if name in LIKELY and rng.random() < 0.9:
        return rng.choice(LIKELY[name])
    if name == "num_partitions":
        return rng.choice((0, 2**31 - 1))
    if rng.random() < 0.1:
        return rng.choice((low, 2**bits - 1, rng.randrange(low, 2**bits)))
    return min(max(rng.choice(NUMBERS), low), 2**bits - 1)


def records(rng: random.Random) -> bytes:
    """A batch, mostly sound; sometimes with a flipped byte."""
    rows = [
        Record(offset, rng.choice((0, 1_700_000_000_000)), rng.choice((None, b"k")), rng.randbytes(20), ())
        for offset in range(3)
    ]
    batch = bytearray(
        build(rows, codec=rng.choice(tuple(Codec)), producer_id=rng.choice((-1, -1, 7)), producer_epoch=0, base_sequence=0)
    )
    if rng.random() < 0.4:
        batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
    return bytes(batch)


def spoil(frame: bytes, rng: random.Random) -> bytes:
    """The same frame with something wrong in it, under a length that fits: it must reach the decoders."""
    body = bytearray(frame[4:])
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not body:
            break
        at = rng.randrange(4, len(body)) if len(body) > 4 else 0
        how = rng.randrange(5)
        if how == 0:
            body[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            body[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif how == 2:
            del body[at : at + rng.randrange(1, 6)]
        elif how == 3:
            body[at:at] = rng.randbytes(rng.randrange(1, 6))
        else:
            body[at : at + 4] = struct.pack(">i", rng.choice((-1, -2, 2**31 - 1, -(2**31), 1 << 20, len(body))))
    if len(body) < 8:
        body += bytes(8 - len(body))
    return struct.pack(">i", len(body)) + bytes(body)


def request(case: tuple[type[Request], int], correlation: int, rng: random.Random) -> bytes:
    """One fuzzed frame: a third of them sound."""
    cls, version = case
    frame = encode_request(message(cls, version, rng), version, correlation, rng.choice((None, "fuzz", "")))
    return frame if rng.random() < 0.33 else spoil(frame, rng)
