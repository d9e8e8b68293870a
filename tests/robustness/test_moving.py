"""A partition moves between log directories while it is written and read: nothing is lost, nothing comes twice."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer

from clients.adapters import BY_NAME, read
from ottla.model import Error
from ottla.wire.apis.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.wire.apis.topics import CreatableTopic, CreateTopicsRequest
from robustness.raw import RawClient
from support.server import ServerProcess
from support.waiting import wait_for


class Dirs:
    """A broker over two directories, and where partition 0 of topic t lies."""

    def __init__(self, tmp_path: Path) -> None:
        self.paths = [str(tmp_path / "first"), str(tmp_path / "second")]
        self.server = ServerProcess(self.paths[0], {"log.dirs": ",".join(self.paths), "log.segment.bytes": 1 << 20})

    def create(self) -> None:
        with RawClient(self.server.port) as client:
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 5)

    def move(self, path: str, topic: str = "t") -> int:
        with RawClient(self.server.port) as client:
            wanted = AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[0])])
            answer = client.ask(AlterReplicaLogDirsRequest(dirs=[wanted]), 2)
        assert isinstance(answer, AlterReplicaLogDirsResponse)
        return int(answer.results[0].partitions[0].error_code)

    def replicas(self) -> list[tuple[str, bool]]:
        """Directory, and whether it is a copy that is not finished."""
        with RawClient(self.server.port) as client:
            answer = client.ask(DescribeLogDirsRequest(topics=None), 4)
        assert isinstance(answer, DescribeLogDirsResponse)
        return [
            (one.log_dir, part.is_future_key)
            for one in answer.results
            for topic in one.topics
            for part in topic.partitions
            if topic.name == "t"
        ]

    def home(self) -> str:
        return next(path for path, future in self.replicas() if not future)

    def other(self) -> str:
        return next(path for path in self.paths if path != self.home())

    def wait_until_in(self, path: str) -> None:
        wait_for(lambda: self.replicas() == [(path, False)], f"the partition is in {path} and nowhere else")


class Writer:
    """An idempotent producer that writes numbers until it is told to stop."""

    def __init__(self, servers: str) -> None:
        self.acknowledged: list[bytes] = []
        self.problems: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "log_level": 0,
                "reconnect.backoff.max.ms": 100,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            if len(self._producer) < 1000:
                self._producer.produce("t", b"%d" % number + b"." * 500, partition=0, on_delivery=self._delivered)
                number += 1
            self._producer.poll(0 if number % 20 else 0.005)
        self._producer.flush(30)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.problems.append(str(error))
        else:
            self.acknowledged.append(message.value())  # type: ignore[attr-defined]

    def stop(self) -> list[bytes]:
        self._stop.set()
        self._thread.join()
        assert self.problems == []
        return self.acknowledged


@pytest.fixture
def dirs(tmp_path: Path) -> Dirs:
    return Dirs(tmp_path)


def stored(server: ServerProcess, count: int) -> list[bytes]:
    with BY_NAME["confluent"].reader(server.bootstrap_servers, [("t", 0)]) as reader:
        return [record.value or b"" for record in read(reader, count)]


def test_a_partition_moves_there_and_back_while_it_is_written(dirs: Dirs) -> None:
    with dirs.server as server:
        dirs.create()
        writer = Writer(server.bootstrap_servers)
        wait_for(lambda: len(writer.acknowledged) > 3000, "some segments are written")
        for _ in range(4):
            before, target = len(writer.acknowledged), dirs.other()
            assert dirs.move(target) == Error.NONE
            dirs.wait_until_in(target)
            wait_for(lambda before=before: len(writer.acknowledged) > before + 200, "it is still written")  # type: ignore[misc]
        acknowledged = writer.stop()
        assert stored(server, len(acknowledged)) == acknowledged
        assert server.stop() == 0
        assert "Traceback" not in server.log()
        left = [name for path in dirs.paths for name in os.listdir(path) if name.startswith("t-0") and "delete" not in name]
        assert left == ["t-0"]
        server.start()
        assert stored(server, len(acknowledged)) == acknowledged


def test_a_kill_during_the_move_loses_nothing_and_the_move_goes_on(dirs: Dirs) -> None:
    with dirs.server as server:
        dirs.create()
        target = dirs.other()
        writer = Writer(server.bootstrap_servers)
        wait_for(lambda: len(writer.acknowledged) > 20_000, "there is something to move", 60)
        assert dirs.move(target) == Error.NONE
        server.kill()
        server.start()
        dirs.wait_until_in(target)
        acknowledged = writer.stop()
        found = stored(server, len(acknowledged))
        assert found == acknowledged


@pytest.mark.parametrize(
    ("path", "topic", "error"),
    [
        ("/nowhere", "t", Error.LOG_DIR_NOT_FOUND),
        ("first", "t", Error.LOG_DIR_NOT_FOUND),  # not absolute
        ("/first\0", "t", Error.LOG_DIR_NOT_FOUND),  # no path at all
        (None, "unknown", Error.UNKNOWN_TOPIC_OR_PARTITION),
        (None, "t", Error.NONE),
    ],
)
def test_where_a_partition_cannot_go(dirs: Dirs, path: str | None, topic: str, error: Error) -> None:
    with dirs.server:
        dirs.create()
        assert dirs.move(path or dirs.home(), topic) == error
        assert len(dirs.replicas()) == 1
