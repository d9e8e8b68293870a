"""A reader's trouble is the reader's alone: whoever wakes it, a timer or another client's append, does not feel it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.records.batch import Record, build
from ottla.testing import Broker
from ottla.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.frame import encode_request
from robustness.raw import RawClient, wait_until


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t")
        yield running


def connect(broker: Broker) -> RawClient:
    return RawClient(int(broker.bootstrap_servers.rpartition(":")[2]))


def long_poll(wait_ms: int) -> bytes:
    asked = FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)])
    return encode_request(
        FetchRequest(replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, max_bytes=1000, topics=[asked]), 4, 1, None
    )


def spoil_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any, **_more: Any) -> None:
        raise OSError("the disk is on fire")

    monkeypatch.setattr("ottla.api.reading.PartitionData", broken)


def waiting(broker: Broker) -> bool:
    return broker.run_on_loop(lambda real: bool(real.services.replicas.get("t", 0).watchers))


def test_a_read_that_fails_when_an_append_wakes_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(broker) as reader, connect(broker) as writer:
        reader.send(long_poll(60_000))
        wait_until(lambda: waiting(broker))
        spoil_reads(monkeypatch)
        assert writer.produce("t", build([Record(0, 0, None, b"v", ())]))[0] == 0, (
            "the record was written and its writer is told so"
        )
        assert reader.closed()
        assert not waiting(broker)
    assert "the disk is on fire" in caplog.text


def test_a_reader_that_resets_its_connection_while_it_waits(broker: Broker) -> None:
    with connect(broker) as reader, connect(broker) as writer:
        reader.send(long_poll(60_000))
        wait_until(lambda: waiting(broker))
        reader.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        reader.close()
        wait_until(lambda: not waiting(broker))
        assert writer.produce("t", build([Record(0, 0, None, b"v", ())]))[0] == 0
