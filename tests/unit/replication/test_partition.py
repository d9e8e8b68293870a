"""One partition: who may write, how far may be read, and what a change of role does to those who wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.clock import ManualClock
from ottla.metadata.image import PartitionState
from ottla.model import Error, KafkaError, TopicPartition
from ottla.records.batch import Record, build
from ottla.replication.partition import ACKS_ALL, READ_COMMITTED, Partition
from ottla.storage.log_config import LogConfig
from ottla.storage.manager import LogManager

TP = TopicPartition("t", 0)
NOW = 1_700_000_000_000


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    manager = LogManager([str(tmp_path)], ManualClock(NOW), broker_id=1, cluster_id="c")
    manager.load()
    yield manager
    manager.abandon()


def leads(epoch: int = 0, isr: tuple[int, ...] = (1,)) -> PartitionState:
    return PartitionState(1, epoch, isr, isr)


def follows(epoch: int) -> PartitionState:
    return PartitionState(2, epoch, (1, 2), (1, 2))


def batch(count: int = 1) -> memoryview:
    return memoryview(bytearray(build([Record(offset, NOW, b"k", b"v", ()) for offset in range(count)])))


def refused(error: Error, partition: Partition, acks: int = ACKS_ALL) -> None:
    with pytest.raises(KafkaError) as refusal:
        partition.append(batch(), acks, 9)
    assert refusal.value.error is error


@pytest.fixture
def partition(logs: LogManager) -> Partition:
    return Partition(1, TP, logs.create(TP), leads())


class Watcher:
    def __init__(self) -> None:
        self.told: list[object] = []

    def arrived(self, size: int) -> None:
        self.told.append(size)

    def changed(self) -> None:
        self.told.append("changed")


def test_a_leader_alone_commits_what_it_writes(partition: Partition) -> None:
    info = partition.append(batch(3), ACKS_ALL, 9)
    assert (info.first_offset, info.last_offset) == (0, 2)
    assert partition.committed(2)
    assert not partition.committed(3)
    assert partition.append(batch(), 1, 9).first_offset == 3
    region = partition.read(0, 1 << 20, 0, -1, min_one=True)
    assert region is not None
    assert len(region) == len(batch(3)) + len(batch())
    assert partition.is_recent(region)


def test_only_the_leader_writes_and_is_read_from(partition: Partition) -> None:
    partition.append(batch(), ACKS_ALL, 9)
    partition.become(follows(1))
    refused(Error.NOT_LEADER_OR_FOLLOWER, partition)
    with pytest.raises(KafkaError) as refusal:
        partition.read(0, 100, 0, -1, min_one=True)
    assert refusal.value.error is Error.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError):
        partition.delete_records_before(1)
    partition.become(leads(2))
    assert partition.append(batch(), ACKS_ALL, 9).first_offset == 1
    assert partition.log.leader_epochs.latest == 2


@pytest.mark.parametrize(
    ("expected_epoch", "error"), [(-1, None), (5, None), (4, Error.FENCED_LEADER_EPOCH), (6, Error.UNKNOWN_LEADER_EPOCH)]
)
def test_epochs_that_clients_know(logs: LogManager, expected_epoch: int, error: Error | None) -> None:
    partition = Partition(1, TP, logs.create(TP), leads(epoch=5))
    if error is None:
        partition.check_leader(expected_epoch)
        return
    with pytest.raises(KafkaError) as refusal:
        partition.check_leader(expected_epoch)
    assert refusal.value.error is error


def test_too_few_in_sync(logs: LogManager) -> None:
    partition = Partition(1, TP, logs.create(TP, LogConfig(min_insync_replicas=2)), PartitionState(1, 0, (1,), (1, 2)))
    refused(Error.NOT_ENOUGH_REPLICAS, partition)
    assert partition.append(batch(), 1, 9).first_offset == 0, "only acks=all asks for it"
    assert not partition.committed(0), "and nothing is committed meanwhile"
    partition.become(leads(1, isr=(1, 2)))
    partition.append(batch(), ACKS_ALL, 9)


def test_more_in_sync_than_there_are_replicas_means_all(logs: LogManager) -> None:
    partition = Partition(1, TP, logs.create(TP, LogConfig(min_insync_replicas=2)), leads(isr=(1,)))
    assert partition.append(batch(), ACKS_ALL, 9).first_offset == 0
    assert partition.committed(0)


def test_a_read_ends_at_the_high_watermark(partition: Partition) -> None:
    partition.append(batch(2), ACKS_ALL, 9)
    for offset in (2,):
        assert partition.read(offset, 100, 0, -1, min_one=True) is None
    for offset in (3, -1, 100):
        with pytest.raises(KafkaError) as refusal:
            partition.read(offset, 100, 0, -1, min_one=True)
        assert refusal.value.error is Error.OFFSET_OUT_OF_RANGE
    partition.log.high_watermark = 0  # as if a follower had not fetched yet
    assert partition.read(0, 100, 0, -1, min_one=True) is None
    assert partition.read(0, 100, READ_COMMITTED, -1, min_one=True) is None


def test_waiters_are_told_once_what_came_between(partition: Partition) -> None:
    watcher = Watcher()
    partition.watchers.add(watcher)
    first, second = partition.append(batch(), 1, 9), partition.append(batch(2), 1, 9)
    assert watcher.told == []
    partition.wake()
    partition.wake()
    assert watcher.told == [first.size + second.size]


def test_who_waits_is_told_when_the_role_is_gone(partition: Partition) -> None:
    watcher = Watcher()
    partition.watchers.add(watcher)
    partition.become(follows(1))
    assert watcher.told == ["changed"]
    partition.stop()
    assert watcher.told == ["changed", "changed"]
    refused(Error.NOT_LEADER_OR_FOLLOWER, partition)


@pytest.mark.parametrize(("offset", "start"), [(0, 0), (2, 2), (3, 3), (-1, 3)])
def test_delete_records(partition: Partition, offset: int, start: int) -> None:
    for _ in range(3):
        partition.append(batch(), ACKS_ALL, 9)
    assert partition.delete_records_before(offset) == start
    assert partition.delete_records_before(0) == start, "a log start never moves back"


@pytest.mark.parametrize("offset", [4, 1 << 40, -2])
def test_delete_records_beyond_the_end(partition: Partition, offset: int) -> None:
    for _ in range(3):
        partition.append(batch(), ACKS_ALL, 9)
    with pytest.raises(KafkaError) as refusal:
        partition.delete_records_before(offset)
    assert refusal.value.error is Error.OFFSET_OUT_OF_RANGE
