"""Bytes that are no requests: the broker closes that one connection with one line, and serves the others."""

from __future__ import annotations

import os
import random
import socket
import struct

import pytest

from ottla.model import Error
from ottla.wire.apis.versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.frame import decode_response, encode_request
from robustness.health import Patient
from robustness.raw import FENCE, fence, frame, header, wait_until

MAX_REQUEST = 100 << 20

LENGTHS = {
    "two gigabytes": struct.pack(">i", 2**31 - 1),
    "minus one": struct.pack(">i", -1),
    "most negative": struct.pack(">i", -(2**31)),
    "zero": struct.pack(">i", 0),
    "shorter than a header": struct.pack(">i", 7) + bytes(7),
    "one over the limit": struct.pack(">i", MAX_REQUEST + 1),
    "TLS client hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "HTTP": b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
}
HEADERS = {
    "unknown API": frame(header(999, 0)),
    "negative API": frame(header(-1, 0)),
    "known API that is not served": frame(header(4, 0)),  # LeaderAndIsr: a cluster's business
    "version that does not exist": frame(header(3, 99)),
    "negative version": frame(header(3, -1)),
    "client id of -2 bytes": frame(struct.pack(">hhih", 3, 0, 1, -2) + bytes(8)),
    "client id beyond the frame": frame(struct.pack(">hhih", 3, 0, 1, 500) + b"short"),
    "client id is not UTF-8": frame(header(3, 1, client=b"\xff\xfe\xc0")),
    "header cut short": frame(struct.pack(">hhi", 3, 0, 1)),
    "header without its tagged fields": frame(header(3, 9)),
    "tagged field beyond the frame": frame(header(3, 9) + b"\x01\x05\x7f"),
}
BODIES = {
    "no body": frame(header(0, 3)),
    "two billion topics": frame(header(3, 1) + struct.pack(">i", 2**31 - 1)),
    "minus five topics": frame(header(3, 1) + struct.pack(">i", -5)),
    "topic name beyond the frame": frame(header(3, 1) + struct.pack(">ih", 1, 30000) + b"x"),
    "topic name of -7 bytes": frame(header(3, 1) + struct.pack(">ih", 1, -7)),
    "topic name is not UTF-8": frame(header(3, 1) + struct.pack(">ih", 1, 2) + b"\xc3\x28"),
    "compact array of two billion": frame(header(3, 9) + b"\x00" + b"\xff\xff\xff\xff\x07"),
    "varint without an end": frame(header(3, 9) + b"\x00" + b"\xff" * 12),
    "records beyond the frame": frame(
        header(0, 3) + struct.pack(">hhiihs", -1, -1, 1000, 1, 1, b"t") + struct.pack(">iii", 1, 0, 1 << 30)
    ),
}


@pytest.mark.parametrize("data", [*LENGTHS.values(), *HEADERS.values(), *BODIES.values()], ids=[*LENGTHS, *HEADERS, *BODIES])
def test_nonsense_closes_its_connection_with_one_line(patient: Patient, data: bytes) -> None:
    with patient.unharmed(grows_mb=4), patient.connect() as client:
        client.send(data)
        assert client.closed()
        patient.check_lines([client.port])


@pytest.mark.parametrize("data", [*HEADERS.values(), *BODIES.values()], ids=[*HEADERS, *BODIES])
def test_what_was_asked_before_the_nonsense_is_still_answered(patient: Patient, data: bytes) -> None:
    with patient.connect() as client:
        client.send(fence() + data + fence())
        answer = client.read_frame()
        assert answer is not None
        assert struct.unpack_from(">i", answer)[0] == FENCE
        assert client.closed()
    patient.new_lines()


def test_random_bytes(patient: Patient) -> None:
    rng = random.Random(20)
    blobs = [rng.randbytes(rng.choice((1, 3, 4, 5, 12, 100, 4000, 70_000))) for _ in range(300)]
    # A length that could be one, and nonsense behind it.
    blobs += [frame(rng.randbytes(rng.randrange(8, 300))) for _ in range(300)]
    closed = []
    with patient.unharmed(grows_mb=4):
        for blob in blobs:
            with patient.connect() as client:
                client.send(blob)
                client.finish()  # a frame that is not whole ends here
                while client.read_frame() is not None:
                    pass
                if len(blob) >= 4:
                    size = struct.unpack_from(">i", blob)[0]
                    if size < 8 or size > MAX_REQUEST:
                        closed.append(client.port)
                    elif size == len(blob) - 4:
                        key, version = struct.unpack_from(">hh", blob, 4)
                        if key != 18:
                            assert (key, version) not in ((0, 0), (1, 0)), "choose another seed: this one is a request"
                            closed.append(client.port)
        patient.check_lines(closed)


@pytest.mark.parametrize("version", [5, 9, 127, 32767, -1, -32768])
def test_api_versions_of_an_unknown_version_is_told_ours(patient: Patient, version: int) -> None:
    """Error 35 in the layout of version 0, whatever header the client sent: so it can try again with one that we know."""
    with patient.connect() as client:
        client.send(frame(header(18, version, 77) + b"\x00\x05junk"))
        answer = client.read_frame()
        assert answer is not None
        correlation, response = decode_response(ApiVersionsResponse, answer, 0)
        assert correlation == 77
        assert isinstance(response, ApiVersionsResponse)
        assert response.error_code == Error.UNSUPPORTED_VERSION
        assert any(api.api_key == 18 for api in response.api_keys)
        client.send(encode_request(ApiVersionsRequest(), 0, 78, None))
        assert client.read_frame() is not None, "and the connection goes on"


def test_a_large_frame_that_is_announced_and_never_sent_takes_no_memory(patient: Patient) -> None:
    clients = []
    with patient.unharmed(grows_mb=30):
        for _ in range(100):
            client = patient.connect()
            client.send(struct.pack(">i", MAX_REQUEST) + header(3, 1) + bytes(66_000))
            clients.append(client)
        patient.check()  # 10 GB are announced now
    for client in clients:
        client.close()


def test_a_frame_cut_anywhere_is_only_a_closed_connection(patient: Patient) -> None:
    whole = encode_request(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 3, 5, "cut")
    with patient.unharmed(grows_mb=4):
        for length in range(len(whole)):
            with patient.connect() as client:
                client.send(whole[:length])
                client.finish()
                assert client.closed()
        patient.check_lines([])  # a client that goes away is no news


def test_half_open_connections_cost_next_to_nothing(patient: Patient) -> None:
    with patient.unharmed(grows_mb=20):
        clients = [patient.connect() for _ in range(300)]
        for client in clients:
            client.send(b"\x00\x00\x00")
        patient.check()
        for client in clients[:150]:  # vanish without a goodbye
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        patient.check()
        for client in clients[150:]:
            client.send(b"\x0c" + header(18, 0, 9, client=b"ok"))
            assert client.read_frame() is not None, "and the rest of the frame may come late"
            client.close()


def test_one_connection_after_the_other(patient: Patient) -> None:
    """Connections leave nothing behind."""

    def storm(count: int) -> None:
        for _ in range(count):
            with patient.connect() as client:
                client.send(fence())
                assert client.read_frame() is not None

    storm(200)
    with patient.unharmed(grows_mb=2):
        storm(2000)


def test_the_descriptors_of_closed_connections_are_given_back(patient: Patient) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{patient.pid}/fd"))

    before = descriptors()
    for data in LENGTHS.values():
        with patient.connect() as client:
            client.send(data)
            assert client.closed()
    wait_until(lambda: descriptors() <= before)
