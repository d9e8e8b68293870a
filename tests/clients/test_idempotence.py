"""Idempotent producers: sequences over many batches, and a broker that goes away under them. Nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from clients.adapters import BY_NAME, Client, Confluent, Out, read
from clients.conftest import Topics
from clients.stored import batches
from support.server import ServerProcess
from support.waiting import wait_for

COUNT = 3000


def _settings(client: Client) -> dict[str, Any]:
    """Small batches, so that there are many sequences; a client that is to retry for longer than a restart takes."""
    if isinstance(client, Confluent):
        return {"enable.idempotence": True, "batch.num.messages": 20, "linger.ms": 1, "log_level": 0}
    size = "max.batch.size" if client.name == "aiokafka" else "batch.size"
    return {"enable.idempotence": True, size: 400, "linger.ms": 1}


def _numbered() -> list[Out]:
    return [Out(b"%06d" % number, partition=0) for number in range(COUNT)]


def _check(server: ServerProcess, topic: str) -> None:
    with BY_NAME["confluent"].reader(server.bootstrap_servers, [(topic, 0)], {"log_level": 0}) as reader:
        records = read(reader, COUNT)
        assert reader.poll(0.2) == []
    assert [record.value for record in records] == [one.value for one in _numbered()]
    assert [record.offset for record in records] == list(range(COUNT))


def test_many_batches_in_sequence(server: ServerProcess, topics: Topics, topic: str, client: Client) -> None:
    topics.create(topic)
    assert client.produce(server.bootstrap_servers, topic, _numbered(), _settings(client)) == list(range(COUNT))
    _check(server, topic)
    stored = batches(server, topic)
    assert len(stored) > 20
    assert len({batch.producer_id for batch in stored}) == 1
    assert stored[0].producer_id >= 0


def _stop_and_start(server: ServerProcess) -> None:
    assert server.stop() == 0
    server.start()


def _kill_and_start(server: ServerProcess) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("restart", [_stop_and_start, _kill_and_start], ids=["SIGTERM", "kill -9"])
def test_the_broker_is_restarted_in_the_middle(
    tmp_path: Path, topic: str, client: Client, restart: Callable[[ServerProcess], None]
) -> None:
    """Three restarts under a producer that goes on: it retries what was not answered, the broker knows what it has already."""
    with ServerProcess(str(tmp_path / "data")) as server:

        def records() -> Iterator[Out]:
            for number, record in enumerate(_numbered()):
                yield record
                if number in (800, 1600, 2400):
                    before = len(batches(server, topic)) if number > 800 else 0
                    if client.name != "aiokafka":  # its sender shares a thread with this loop, and cannot get on while we wait
                        wait_for(lambda before=before: len(batches(server, topic)) > before, "something of it is on the disk")
                    restart(server)

        client.produce(server.bootstrap_servers, topic, records(), _settings(client))
        _check(server, topic)
        assert {batch.producer_id >= 0 for batch in batches(server, topic)} == {True}
        restart(server)
        _check(server, topic)


def _is_empty(server: ServerProcess, group: str) -> bool:
    """A client that closes does not always wait for the answer to its last word."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
    described = admin.describe_consumer_groups([group])[group].result(20)
    return bool(described.state == confluent_kafka.ConsumerGroupState.EMPTY)


def test_committed_offsets_outlive_a_kill(tmp_path: Path, topic: str, client: Client) -> None:
    with ServerProcess(str(tmp_path / "data")) as server:
        client.produce(server.bootstrap_servers, topic, [Out(b"%d" % number) for number in range(10)])
        with client.member(server.bootstrap_servers, [topic], "group") as member:
            read(member, 10)
            member.commit()
        wait_for(lambda: _is_empty(server, "group"), "the broker has heard that the member left")
        _kill_and_start(server)
        client.produce(server.bootstrap_servers, topic, [Out(b"after")])
        with client.member(server.bootstrap_servers, [topic], "group") as member:
            assert [(record.offset, record.value) for record in read(member, 1)] == [(10, b"after")]
