"""Headers and lengths: what stands in front of every message."""

from __future__ import annotations

import io
import random
import struct

import kio_oracle as oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_writer

from ottla.wire.apis import REQUESTS, RESPONSES, ApiKey
from ottla.wire.apis.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.wire.apis.groups import HeartbeatRequest, HeartbeatResponse
from ottla.wire.apis.versions import ApiVersionsResponse
from ottla.wire.frame import (
    RequestHeader,
    _read_thoroughly,
    decode_response,
    encode_request,
    encode_response,
    read_correlation_id,
    read_request_header,
)
from ottla.wire.schema import Malformed, Request


def every_request() -> list[tuple[type[Request], int]]:
    return [(cls, version) for cls in REQUESTS.values() for version in range(cls.max_version + 1)]


@pytest.mark.parametrize("client", [None, "", "rdkafka", "kläng"])
def test_request_headers_are_those_of_kio(client: str | None) -> None:
    for cls, version in every_request():
        frame = encode_request(cls(), version, 77, client)
        assert len(frame) == 4 + struct.unpack_from(">i", frame)[0]
        if (cls.api_key, version) == (ApiKey.CONTROLLED_SHUTDOWN, 0):
            expected, read_back = struct.pack(">hhi", 7, 0, 77), None
        else:
            kind = HeaderV2 if version >= cls.flexible else HeaderV1
            out = io.BytesIO()
            header = kind(request_api_key=cls.api_key, request_api_version=version, correlation_id=77, client_id=client)
            entity_writer(kind)(out, header)
            expected, read_back = out.getvalue(), client
        assert frame[4 : 4 + len(expected)] == expected
        for buffer in (frame[4:], bytearray(frame[4:]), memoryview(frame)[4:]):
            header = RequestHeader(cls.api_key, version, 77, read_back)
            assert read_request_header(buffer) == (header, len(expected))
        assert cls.decoder(version)(frame, 4 + len(expected))[0] == cls()


def test_tagged_fields_in_a_request_header_are_skipped() -> None:
    header = struct.pack(">hhih", 12, 4, 1, 1) + b"c" + b"\x01\x05\x02ab"
    assert read_request_header(header + b"body") == (RequestHeader(12, 4, 1, "c"), len(header))


@pytest.mark.parametrize(("key", "version"), [(999, 0), (999, 5), (-1, 0), (18, 99), (0, 12), (12, -3)])
def test_unknown_requests_still_have_a_header(key: int, version: int) -> None:
    """Their sender has to be told: only what all headers share is read."""
    header = struct.pack(">hhih", key, version, 5, 1) + b"c"
    for rest in (b"", b"\xff\xff\xff\xff\xff\xff"):
        assert read_request_header(header + rest) == (RequestHeader(key, version, 5, "c"), len(header))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x0c\x00\x00\x00\x00\x00",
        struct.pack(">hhi", 12, 0, 1),  # no client id
        struct.pack(">hhih", 12, 0, 1, 5) + b"four",
        struct.pack(">hhih", 12, 0, 1, -2),
        struct.pack(">hhih", 12, 0, 1, 2) + b"\xc3\x28",
        struct.pack(">hhih", 12, 4, 1, -1),  # no tag section
        struct.pack(">hhih", 12, 4, 1, -1) + b"\x01\x00",
        struct.pack(">hhih", 12, 4, 1, -1) + b"\x7f" * 20,
        struct.pack(">hhih", 12, 4, 1, -1) + b"\xff" * 20,
    ],
)
def test_malformed_request_headers(frame: bytes) -> None:
    with pytest.raises(Malformed):
        read_request_header(frame)


@given(st.binary(max_size=40))
def test_any_bytes_as_a_header(frame: bytes) -> None:
    try:
        _, pos = read_request_header(frame)
    except Malformed:
        return
    assert 8 <= pos <= len(frame)


@given(st.binary(max_size=40) | st.builds(
    lambda key, version, size, rest: struct.pack(">hhih", key, version, 9, size) + rest,
    st.integers(-1, 80), st.integers(-1, 14), st.integers(-2, 12), st.binary(max_size=14) | st.text(max_size=8).map(str.encode),
))  # fmt: skip
def test_the_quick_way_is_never_another(frame: bytes) -> None:
    outcomes: list[object] = []
    for read in (read_request_header, _read_thoroughly):
        try:
            outcomes.append(read(memoryview(frame)))
        except Malformed as problem:
            outcomes.append(str(problem))
    assert outcomes[0] == outcomes[1]


def test_responses_come_back() -> None:
    for key, cls in RESPONSES.items():
        for version in range(cls.max_version + 1):
            if (cls.name, version) in oracle.UNKNOWN:
                continue
            entity = oracle.random_entity(load_response_schema(key, version), random.Random(f"{key} {version}"))
            (frame,) = encode_response(-5, oracle.as_ours(cls, entity), version)
            assert len(frame) == 4 + struct.unpack_from(">i", frame)[0]
            tagged = version >= cls.flexible and key != ApiKey.API_VERSIONS
            assert frame[4:] == struct.pack(">i", -5) + b"\x00" * tagged + oracle.encode(entity)
            assert read_correlation_id(frame[4:]) == -5
            assert decode_response(cls, frame[4:], version) == (-5, oracle.as_ours(cls, entity))


def test_an_api_versions_answer_has_the_oldest_header() -> None:
    (frame,) = encode_response(9, ApiVersionsResponse(error_code=35), 3)
    assert frame[4:10] == struct.pack(">ih", 9, 35)


def test_tagged_fields_in_a_response_header_are_skipped() -> None:
    body = HeartbeatResponse.encoder(4)(HeartbeatResponse(error_code=27))
    frame = struct.pack(">i", 3) + b"\x01\x07\x01x" + body
    assert decode_response(HeartbeatResponse, frame, 4) == (3, HeartbeatResponse(error_code=27))


@pytest.mark.parametrize(
    "frame", [b"", b"\x00\x00\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01\x01", b"\x00\x00\x00\x01\x00\x00"]
)
def test_malformed_responses(frame: bytes) -> None:
    with pytest.raises(Malformed):
        decode_response(HeartbeatResponse, frame, 4)


class FileSlice:
    def __len__(self) -> int:
        return 1000


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_the_length_counts_what_passes_through(version: int) -> None:
    partitions = [PartitionData(records=FileSlice()), PartitionData(records=FileSlice())]
    parts = encode_response(1, FetchResponse(responses=[FetchableTopicResponse(partitions=partitions)]), version)
    assert [type(part) for part in parts] == [bytes, FileSlice, bytes, FileSlice][: len(parts)] + [bytes] * (len(parts) - 4)
    assert struct.unpack_from(">i", parts[0])[0] == sum(map(len, parts)) - 4


def test_a_header_says_who_asks() -> None:
    frame = encode_request(HeartbeatRequest(), 3, 8, "me")
    assert repr(read_request_header(frame[4:])[0]) == "RequestHeader(HEARTBEAT v3, correlation 8, client 'me')"
    assert repr(RequestHeader(999, 1, 2, None)) == "RequestHeader(key 999 v1, correlation 2, client None)"
