"""Clients that do not read what they asked for, and clients that ask for too much: nobody else feels them."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from pathlib import Path

import pytest

from ottla.model import Error
from ottla.records.batch import Record, build
from ottla.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.apis.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.wire.apis.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)
from ottla.wire.frame import encode_request
from robustness.health import Patient
from robustness.raw import RawClient, fence, wait_until
from support.server import ServerProcess

NOW = 1_700_000_000_000


def create(client: RawClient, name: str, partitions: int) -> int:
    wanted = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)]
    response = client.ask(CreateTopicsRequest(topics=wanted, timeout_ms=5000), 5)
    assert isinstance(response, CreateTopicsResponse)
    return response.topics[0].error_code


@pytest.fixture(scope="module")
def big(patient: Patient) -> str:
    """A topic with 20 MB in it."""
    with patient.connect() as client:
        assert create(client, "big", 1) == 0
        batch = build([Record(0, NOW, None, bytes(900_000), ())])
        for _ in range(22):
            assert client.produce("big", batch)[0] == 0
    return "big"


def fetches(topic: str, count: int, wait_ms: int = 0, offset: int = 0) -> bytes:
    asked = FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=4 << 20)])
    request = FetchRequest(replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, max_bytes=50 << 20, topics=[asked])
    return b"".join(encode_request(request, 4, number, "greedy") for number in range(count))


def test_a_client_that_asks_for_gigabytes_and_never_reads(patient: Patient, big: str) -> None:
    """2,000 fetches of 4 MB, pipelined, from 10 connections that read nothing: answers stay in the kernel and in the files."""
    clients = []
    with patient.unharmed(grows_mb=16):
        for _ in range(10):
            client = patient.connect(receive_buffer=4096)
            client.sock.setblocking(False)
            data = fetches(big, 200)
            while data:
                try:
                    data = data[client.sock.send(data) :]
                except BlockingIOError:
                    break  # the broker stopped reading from us: that is the point
            clients.append(client)
        slowest = max(_round_trip(patient) for _ in range(50))
        assert slowest < 0.5, f"another client waited {slowest:.3f} s"
        clients[0].sock.settimeout(10)
        assert clients[0].read_frame() is not None, "one that begins to read after all is served"
        for client in clients:
            client.close()
        patient.check_lines([])


def _round_trip(patient: Patient) -> float:
    with patient.connect() as client:
        begun = time.monotonic()
        client.send(fence())
        assert client.read_frame() is not None
        return time.monotonic() - begun


def test_clients_that_vanish_while_they_wait(patient: Patient, big: str) -> None:
    """Long polls whose client hangs up leave nothing behind: no waiter, no timer, no session."""

    def vanish(count: int) -> None:
        for _ in range(count):
            with patient.connect() as client:
                client.send(fence() + fetches(big, 1, wait_ms=600_000, offset=22))
                assert client.read_frame() is not None

    vanish(200)
    with patient.unharmed(grows_mb=3):
        vanish(1000)
    with patient.connect() as waiting, patient.connect() as producer:
        waiting.send(fetches(big, 1, wait_ms=60_000, offset=22))
        assert producer.produce(big, build([Record(0, NOW, None, b"news", ())]))[0] == 0
        assert waiting.read_frame() is not None, "who is still there is told"


@pytest.mark.parametrize("partitions", [2**31 - 1, 10_001])
def test_more_partitions_than_a_request_may_ask_for(patient: Patient, partitions: int) -> None:
    with patient.unharmed(grows_mb=4), patient.connect() as client:
        assert create(client, "many", partitions) == Error.POLICY_VIOLATION
        assert create(client, "few", 1) in (Error.NONE, Error.TOPIC_ALREADY_EXISTS)
        grow = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="few", count=partitions + 1 & 0x7FFFFFFF or 99_999)], timeout_ms=5000
        )
        grown = client.ask(grow, 1)
        assert isinstance(grown, CreatePartitionsResponse)
        assert grown.results[0].error_code == Error.POLICY_VIOLATION


def test_more_partitions_than_a_request_may_ask_for_in_many_topics(patient: Patient) -> None:
    wanted = [CreatableTopic(name=f"part-{n}", num_partitions=4000, replication_factor=1) for n in range(50)]
    with patient.connect() as client:
        response = client.ask(CreateTopicsRequest(topics=wanted, timeout_ms=5000, validate_only=True), 5)
    assert isinstance(response, CreateTopicsResponse)
    assert [one.error_code for one in response.topics] == [0, 0] + [Error.POLICY_VIOLATION] * 48


def test_names_from_clients_do_not_break_the_log(patient: Patient) -> None:
    """One message is one line, even where a name holds a line end and what looks like another message."""
    patient.new_lines()
    evil = "x\n[2026-01-01 00:00:00,000] WARNING Closing 127.0.0.1:1: forged\x1b[31m"
    with patient.connect() as client:
        response = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=evil)]), 4)
        assert isinstance(response, MetadataResponse)
        assert response.topics[0].error_code == Error.INVALID_TOPIC_EXCEPTION
    lines = patient.new_lines()
    assert len(lines) == 1
    assert "\\x0a" in lines[0]
    assert "\x1b" not in lines[0]


def test_limits_on_connections(tmp_path: Path) -> None:
    with ServerProcess(str(tmp_path / "data"), {"max.connections": 5}) as server:
        clients = [RawClient(server.port) for _ in range(5)]
        for client in clients:
            client.send(fence())
            assert client.read_frame() is not None
        with RawClient(server.port) as refused:
            refused.send(fence())
            assert refused.closed()
        assert server.log().count("max.connections=5") == 1
        clients.pop().close()

        def served() -> bool:
            with RawClient(server.port) as another:
                another.send(fence())
                return another.read_frame() is not None

        wait_until(served)
        for client in clients:
            client.close()


def test_idle_connections_are_closed_and_waiting_ones_are_not(tmp_path: Path) -> None:
    with ServerProcess(str(tmp_path / "data"), {"connections.max.idle.ms": 600}) as server:
        with RawClient(server.port) as client:
            assert create(client, "quiet", 1) == 0
            assert create(client, "loud", 1) == 0
            for _ in range(8):
                assert client.produce("loud", build([Record(0, NOW, None, bytes(900_000), ())]))[0] == 0
        with (
            RawClient(server.port) as idle,
            RawClient(server.port) as waiting,
            RawClient(server.port, receive_buffer=4096) as deaf,
        ):
            idle.send(fence())
            waiting.send(fetches("quiet", 1, wait_ms=1500))
            deaf.send(fetches("loud", 3))
            assert idle.read_frame() is not None
            assert idle.closed(), "nothing was asked for longer than connections.max.idle.ms"
            assert waiting.read_frame() is not None, "a long poll may be longer"
            frames = 0
            while deaf.read_frame() is not None:
                frames += 1
            assert frames < 3, "it took nothing of its answer for longer than that"


def test_out_of_file_descriptors(tmp_path: Path) -> None:
    """More clients than the system allows: those who are there are served, the others wait, and all goes on afterwards."""
    with ServerProcess(str(tmp_path / "data")) as server:
        used = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 10, used + 10))
        first = RawClient(server.port)
        first.send(fence())
        assert first.read_frame() is not None
        crowd = [RawClient(server.port) for _ in range(40)]
        wait_until(lambda: "Cannot accept" in server.log())
        first.send(fence())
        assert first.read_frame() is not None
        time.sleep(0.3)
        assert server.log().count("Cannot accept") < 5, "it is said now and then, not for ever and ever"
        for client in crowd:
            client.close()
        with RawClient(server.port) as late:
            late.send(fence())
            assert late.read_frame() is not None
        first.close()
        assert "Traceback" not in server.log()


def test_a_thousand_partitions_made_and_deleted_hold_nobody_up(patient: Patient) -> None:
    with patient.connect(timeout=60) as greedy:
        for number, request in enumerate(
            (
                CreateTopicsRequest(
                    topics=[CreatableTopic(name="wide", num_partitions=1500, replication_factor=1)], timeout_ms=9000
                ),
                DeleteTopicsRequest(topic_names=["wide"], timeout_ms=9000),
            )
        ):
            greedy.send(encode_request(request, 4, number, None))
            greedy.sock.setblocking(False)
            longest = asked = 0.0
            while True:
                longest = max(longest, _round_trip(patient))
                asked += 1
                with contextlib.suppress(BlockingIOError):
                    assert greedy.sock.recv(1, socket.MSG_PEEK), "closed"
                    break
            greedy.sock.settimeout(10)
            assert greedy.read_frame() is not None
            assert asked > 3, "it takes a while: others are served meanwhile"
            assert longest < 0.5, f"another client waited {longest:.3f} s"
