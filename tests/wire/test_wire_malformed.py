"""Whatever the bytes, reading them gives a message or `Malformed`, and takes no more memory than the bytes justify."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import kio_oracle as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema

from ottla.wire.apis import REQUESTS, RESPONSES
from ottla.wire.apis.fetch import FetchRequest
from ottla.wire.apis.groups import JoinGroupRequest
from ottla.wire.apis.metadata import MetadataRequest, MetadataResponse
from ottla.wire.apis.produce import ProduceRequest
from ottla.wire.apis.topics import CreateTopicsRequest
from ottla.wire.apis.versions import ApiVersionsRequest
from ottla.wire.primitives import read_uvarint, uvarint
from ottla.wire.schema import Malformed, Message

CASES = [
    (cls, version, load)
    for tables, load in ((REQUESTS, load_request_schema), (RESPONSES, load_response_schema))
    for cls in tables.values()
    for version in range(cls.min_version, cls.max_version + 1)
    if (cls.name, version) not in oracle.UNKNOWN
]


def valid_bytes(case: Any, seed: object) -> bytes:
    cls, version, load = case
    return oracle.encode(oracle.random_entity(load(cls.api_key, version), random.Random(f"{cls.name} {version} {seed}")))


def only_malformed(cls: type[Message], version: int, buffer: bytes) -> None:
    """Decode; a message that comes out must lie within the buffer."""
    try:
        message, end = cls.decoder(version)(buffer, 0)
    except Malformed:
        return
    assert type(message) is cls
    assert 0 <= end <= len(buffer)
    cls.encoder(version)(message)  # what we accepted we can also say


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-v{case[1]}")
def test_every_truncation_is_malformed(case: Any) -> None:
    cls, version, _ = case
    for seed in range(3):
        whole = valid_bytes(case, seed)
        steps = range(len(whole)) if len(whole) < 300 else sorted(random.Random(seed).sample(range(len(whole)), 300))
        for length in steps:
            with pytest.raises(Malformed):
                cls.decoder(version)(whole[:length], 0)


@settings(max_examples=1500, deadline=None)
@given(
    case=st.sampled_from(CASES),
    seed=st.integers(0, 20),
    changes=st.lists(
        st.tuples(st.integers(0, 2000), st.sampled_from((0, 1, 0x7F, 0x80, 0xFE, 0xFF)) | st.integers(0, 255)), max_size=6
    ),
)
def test_mutated_messages(case: Any, seed: int, changes: list[tuple[int, int]]) -> None:
    cls, version, _ = case
    buffer = bytearray(valid_bytes(case, seed))
    for position, value in changes:
        if buffer:
            buffer[position % len(buffer)] = value
    only_malformed(cls, version, bytes(buffer))


@settings(max_examples=1500, deadline=None)
@given(case=st.sampled_from(CASES), buffer=st.binary(max_size=200))
def test_random_bytes(case: Any, buffer: bytes) -> None:
    only_malformed(case[0], case[1], buffer)


@pytest.mark.parametrize("filler", [b"\xff", b"\x7f", b"\x00", b"\x01", b"\x80"])
def test_long_runs_of_one_byte_take_little_memory(filler: bytes) -> None:
    """Counts of two billion, nested: refused before anything is allocated for them."""
    buffer = b"\x7f\xff\xff\xff" + filler * 2000
    for cls, version, _ in CASES:
        cls.decoder(version)  # compiling is not what is measured
    tracemalloc.start()
    try:
        for cls, version, _ in CASES:
            only_malformed(cls, version, buffer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize(
    ("cls", "version", "buffer"),
    [
        (MetadataRequest, 1, struct.pack(">i", 2**31 - 1)),  # strings
        (MetadataRequest, 9, uvarint(2**31 - 1) + bytes(10)),  # structs, compact
        (CreateTopicsRequest, 0, struct.pack(">i", 2**31 - 1) + bytes(100)),
        (FetchRequest, 4, struct.pack(">iiiibi", -1, 0, 0, 0, 0, 2**31 - 1) + bytes(20)),
        (MetadataResponse, 0, struct.pack(">iihhihiii", 0, 1, 0, 0, 1, 0, 0, 0, 2**31 - 1)),  # numbers
        (ProduceRequest, 9, b"\x00" + struct.pack(">hi", 1, 1) + b"\x02\x02t\x02" + bytes(4) + uvarint(2**31 - 1)),  # records
        (ApiVersionsRequest, 3, b"\x01\x01" + uvarint(2**31 - 1)),  # tagged fields
        (ApiVersionsRequest, 3, b"\x01\x01\x01\x00" + uvarint(2**31 - 1)),  # one tagged field
    ],
)
def test_huge_counts_allocate_nothing(cls: type[Message], version: int, buffer: bytes) -> None:
    decode = cls.decoder(version)
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            decode(buffer, 0)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


JOIN_V0 = JoinGroupRequest(group_id="g", session_timeout_ms=1, member_id="m", protocol_type="consumer")


@pytest.mark.parametrize(
    ("cls", "version", "buffer", "says"),
    [
        (JoinGroupRequest, 0, b"\xff\xff" + JoinGroupRequest.encoder(0)(JOIN_V0)[3:], "group_id may not be null"),
        (JoinGroupRequest, 6, b"\x00" + JoinGroupRequest.encoder(6)(JOIN_V0)[2:], "group_id may not be null"),
        (JoinGroupRequest, 0, b"\xff\xfe" + bytes(40), "negative length"),
        (ProduceRequest, 3, b"\xff\xfe" + bytes(40), "negative length"),  # nullable, but -2 is not null
        (MetadataRequest, 1, b"\xff\xff\xff\xfe", "negative length"),
        (MetadataRequest, 0, b"\xff\xff\xff\xff", "topics may not be null"),
        (MetadataRequest, 1, b"\x00\x00\x00\x01\x00\x02\xc3\x28", "utf-8"),
        (MetadataRequest, 9, b"\xff\xff\xff\xff\xff\xff", "does not end"),
        (MetadataRequest, 9, b"\xff\xff\xff\xff\x0f", "31 bits"),
        (ApiVersionsRequest, 3, uvarint(32769) + b"a" * 32768 + b"\x01\x00", "at most 32767"),
        (ApiVersionsRequest, 3, b"\x01\x01\x02\x05\x00\x05\x00", "tag 5 comes twice"),
        (ApiVersionsRequest, 3, b"\x01\x01\x01\x05\x09\x00", "tag 5 claims 9 bytes"),
    ],
)
def test_what_is_wrong_is_said(cls: type[Message], version: int, buffer: bytes, says: str) -> None:
    with pytest.raises(Malformed, match=f"{cls.name} v{version}: .*{says}"):
        cls.decoder(version)(buffer, 0)


@given(st.integers(0, 2**31 - 1))
def test_varints_come_back(value: int) -> None:
    assert read_uvarint(b"x" + uvarint(value) + b"x", 1) == (value, 1 + len(uvarint(value)))
