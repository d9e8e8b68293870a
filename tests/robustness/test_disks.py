"""A disk that fills up and a directory that is taken away: their partitions go offline, the others are served."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.adapters import BY_NAME, Out, read
from ottla.model import Error
from ottla.records.batch import Record, build
from ottla.wire.apis.log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.wire.apis.metadata import MetadataRequest
from ottla.wire.apis.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState
from robustness.raw import RawClient
from support.server import ServerProcess
from support.waiting import wait_for

CONFLUENT = BY_NAME["confluent"]
PARTITIONS = 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[str]:
    """A file system of 3 MB."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(path)], capture_output=True, check=False)
    if mounted.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"a small file system cannot be mounted here: {mounted.stderr.decode()}")
        pytest.skip("a small file system can be mounted by root only")
    yield str(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


def over(tmp_path: Path, second: str) -> ServerProcess:
    """A broker with two directories."""
    first = str(tmp_path / "first")
    return ServerProcess(first, {"log.dirs": f"{first},{second}", "log.segment.bytes": 1 << 20, "num.partitions": PARTITIONS})


def ask(server: ServerProcess, request: object, version: int) -> object:
    with RawClient(server.port) as client:
        return client.ask(request, version)  # type: ignore[arg-type]


def create(server: ServerProcess, topic: str) -> None:
    answer = ask(
        server,
        CreateTopicsRequest(
            topics=[CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1)], timeout_ms=5000
        ),
        5,
    )
    assert [one.error_code for one in answer.topics] == [Error.NONE]  # type: ignore[attr-defined]


def where(server: ServerProcess) -> dict[str, tuple[int, set[tuple[str, int]]]]:
    """Directory -> its error, and what lies in it."""
    answer = ask(server, DescribeLogDirsRequest(topics=None), 4)
    assert isinstance(answer, DescribeLogDirsResponse)
    return {
        one.log_dir: (one.error_code, {(topic.name, part.partition_index) for topic in one.topics for part in topic.partitions})
        for one in answer.results
    }


def produce(server: ServerProcess, topic: str, partition: int, size: int = 100) -> int:
    with RawClient(server.port) as client:
        error, _ = client.produce(topic, build([Record(0, 1_700_000_000_000, b"k", b"x" * size)]), partition=partition)
    return error


def split_up(server: ServerProcess, topic: str, bad: str) -> tuple[list[int], list[int]]:
    """The partitions of a topic that lie elsewhere, and those in the bad directory."""
    lost = {number for name, number in where(server)[os.path.realpath(bad)][1] if name == topic}
    assert lost, "nothing lies in the directory that is to fail"
    return sorted(set(range(PARTITIONS)) - lost), sorted(lost)


def check_offline(server: ServerProcess, topic: str, good: list[int], lost: list[int], bad: str) -> None:
    """What a failed directory looks like from outside."""
    wait_for(lambda: where(server)[os.path.realpath(bad)] == (Error.KAFKA_STORAGE_ERROR, set()), "the directory is offline")
    assert {produce(server, topic, number) for number in lost} == {Error.KAFKA_STORAGE_ERROR}
    assert {produce(server, topic, number) for number in good} == {Error.NONE}
    create(server, "later")
    assert {produce(server, "later", number) for number in range(PARTITIONS)} == {Error.NONE}, (
        "new partitions avoid the directory"
    )


def test_a_full_disk_takes_its_partitions_offline_and_no_others(tmp_path: Path, small_disk: str) -> None:
    with over(tmp_path, small_disk) as server:
        create(server, "t")
        good, lost = split_up(server, "t", small_disk)
        acknowledged = 0
        for _ in range(100):
            error = produce(server, "t", lost[0], 100_000)
            if error:
                break
            acknowledged += 1
        assert error == Error.KAFKA_STORAGE_ERROR
        assert 10 < acknowledged < 40
        check_offline(server, "t", good, lost, small_disk)
        assert "Traceback" not in server.log()
        assert server.log().count("partitions are offline until") == 1
        server.stop()
        # There is room again: the next start serves all that was acknowledged.
        subprocess.run(["mount", "-o", "remount,size=30m", small_disk], check=True)
        server.start()
        assert where(server)[os.path.realpath(small_disk)][0] == Error.NONE
        with CONFLUENT.reader(server.bootstrap_servers, [("t", lost[0])]) as reader:
            assert len(read(reader, acknowledged)) == acknowledged


def test_a_directory_that_is_taken_away(tmp_path: Path) -> None:
    second = str(tmp_path / "second")
    with over(tmp_path, second) as server:
        create(server, "t")
        good, lost = split_up(server, "t", second)
        assert {produce(server, "t", number) for number in range(PARTITIONS)} == {Error.NONE}
        shutil.rmtree(second)
        check_offline(server, "t", good, lost, second)
        assert "Traceback" not in server.log()
        with CONFLUENT.reader(server.bootstrap_servers, [("t", number) for number in good]) as reader:
            assert len(read(reader, 2 * len(good))) == 2 * len(good)
        assert server.stop() == 0


def test_the_broker_stops_when_no_directory_is_left(tmp_path: Path) -> None:
    second = str(tmp_path / "second")
    with over(tmp_path, second) as server:
        create(server, "t")
        shutil.rmtree(second)
        shutil.rmtree(server.directory)
        assert server.process is not None
        assert server.process.wait(20) == 1
        assert "every log directory has failed" in server.log()
        assert "Traceback" not in server.log()


def test_a_directory_that_is_unusable_at_start_does_not_keep_the_others_from_being_served(tmp_path: Path) -> None:
    second = str(tmp_path / "second")
    with over(tmp_path, second) as server:
        create(server, "t")
        good, lost = split_up(server, "t", second)
        CONFLUENT.produce(server.bootstrap_servers, "t", [Out(b"kept", partition=number) for number in range(PARTITIONS)])
        server.stop()
        shutil.move(second, second + "-away")
        Path(second).write_text("not a directory")
        server.start()
        check_offline(server, "t", good, lost, second)
        gone = ask(server, DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], topic_names=["t"], timeout_ms=5000), 5)
        assert [one.error_code for one in gone.responses] == [Error.NONE]  # type: ignore[attr-defined]
        known = ask(server, MetadataRequest(topics=None), 9)
        assert "t" not in {topic.name for topic in known.topics}, "it is not served any more"  # type: ignore[attr-defined]
        server.stop()
        Path(second).unlink()
        shutil.move(second + "-away", second)
        server.start()
        # "t" was to be deleted while a part of it was out of reach: it is now.
        wait_for(lambda: all(name != "t" for _, found in where(server).values() for name, _ in found), "the topic is deleted")
