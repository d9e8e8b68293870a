"""Moves between directories, step by step, with everything that can go wrong on the way."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.clock import ManualClock
from ottla.controller.channels import Stamp
from ottla.metadata.cache import MetadataCache
from ottla.metadata.image import PartitionState, TopicImage
from ottla.model import KafkaError, TopicPartition
from ottla.replication import moving
from ottla.replication.moving import Mover
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.storage.manager import LogManager
from unit.storage.storage_kit import NOW, append, batch, records

TP = TopicPartition("t", 0)
TOPIC_ID = bytes(range(16))


class House:
    """Two directories, one partition, and threads that the test can hold up."""

    def __init__(self, root: Path) -> None:
        self.paths = [str(root / "a"), str(root / "b")]
        self.hold: Callable[[str], Coroutine[Any, Any, None]] | None = None
        self.failed: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.open()

    def open(self) -> None:
        self.logs = LogManager(self.paths, ManualClock(NOW), broker_id=1, cluster_id="c")
        self.logs.load(expected_ids={"t": TOPIC_ID})
        self.logs.directory_failed = lambda path, error: self.failed.append(path)
        self.replicas = Replicas(1, self.logs, MetadataCache(), lambda _topic: self.logs.default_config, self.run_blocking)
        log = self.logs.create(TP, topic_id=TOPIC_ID)
        self.partition = Partition(1, TP, log, PartitionState(1, 0, (1,), (1,)))
        self.replicas.partitions[TP] = self.partition
        self.mover = Mover(self.replicas, self.logs, self.run_blocking, self.spawn)

    async def run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.hold is not None:
            await self.hold(getattr(function, "__name__", ""))
        return function(*args)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task

    def write(self, count: int) -> None:
        for _ in range(count):
            append(self.partition.log, batch(1, size=1000))
        self.partition.log.high_watermark = self.partition.log.log_end_offset

    @property
    def home(self) -> str:
        return os.path.dirname(self.partition.log.dir)

    @property
    def other(self) -> str:
        return next(os.path.realpath(path) for path in self.paths if os.path.realpath(path) != self.home)

    async def finish(self) -> None:
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def crash(self) -> None:
        self.logs.abandon()
        self.open()


def story(test: Callable[[House], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A test that is a coroutine over a house of its own."""

    def run(tmp_path: Path) -> None:
        async def live() -> None:
            house = House(tmp_path)
            try:
                await test(house)
            finally:
                house.logs.abandon()

        asyncio.run(live())

    run.__doc__, run.__name__ = test.__doc__, test.__name__
    return run


@story
async def test_a_move(house: House) -> None:
    house.write(500)
    house.logs.logs[TP].delete_records_before(7)
    target = house.other
    await house.mover.move(TP, target)
    house.partition.log.config = replace(house.partition.log.config, retention_ms=1234)
    await house.finish()
    log = house.partition.log
    assert (house.home, house.logs.logs[TP]) == (target, log)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (7, 500, 500)
    assert log.config.retention_ms == 1234, "settings that were changed meanwhile count"
    assert len(records(log)) == 493
    house.write(1)
    house.crash()
    assert house.home == target
    assert house.partition.log.log_end_offset == 501


@story
async def test_a_target_that_fails_meanwhile(house: House) -> None:
    """Also where the copy itself met no error."""
    house.write(500)
    home, target = house.home, house.other

    async def fail(_name: str) -> None:
        house.logs.fail(target, OSError(errno.EIO, "gone"))

    await house.mover.move(TP, target)
    house.hold = fail
    await house.finish()
    assert (house.home, house.logs.logs[TP]) == (home, house.partition.log)
    assert house.mover.moves == {}
    house.write(1)
    assert len(records(house.partition.log)) == 501


@pytest.mark.parametrize("stuck", ["source", "copy"])
def test_a_switch_that_the_disk_refuses_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    async def live() -> None:
        house = House(tmp_path)
        house.write(10)
        home, rename = house.home, os.rename

        def refuse(old: str, new: str) -> None:
            if old.endswith("-future") if stuck == "copy" else new.endswith("-delete"):
                raise OSError(errno.EROFS, "read-only")
            rename(old, new)

        await house.mover.move(TP, house.other)
        monkeypatch.setattr(os, "rename", refuse)
        await house.finish()
        monkeypatch.undo()
        assert (house.home, house.logs.logs[TP]) == (home, house.partition.log)
        house.write(1)
        house.crash()
        assert (house.home, house.partition.log.log_end_offset) == (home, 11)
        house.logs.abandon()

    asyncio.run(live())


@story
async def test_calling_off_waits_for_the_thread(house: House) -> None:
    house.write(500)
    gate = asyncio.Event()
    begun = asyncio.Event()

    async def hold(name: str) -> None:
        if name == "_append":
            begun.set()
            await gate.wait()

    house.hold = hold
    home, target = house.home, house.other
    await house.mover.move(TP, target)
    await begun.wait()
    await house.mover.move(TP, home)  # stay
    for _ in range(5):
        await asyncio.sleep(0)
    assert any(name.endswith("-future") for name in os.listdir(target)), "the thread still writes to it"
    gate.set()
    await house.finish()
    assert not any(name.endswith("-future") for name in os.listdir(target))
    assert (house.home, house.failed) == (home, [])


@story
async def test_a_move_that_cannot_begin_is_forgotten(house: House) -> None:
    house.write(10)

    async def broken(_name: str) -> None:
        raise KafkaError(moving.Error.CORRUPT_MESSAGE, "damaged")

    house.hold = broken
    for _ in range(2):
        with pytest.raises(KafkaError):
            await house.mover.move(TP, house.other)
        assert house.mover.moves == {}


@story
async def test_a_stop_before_the_switch_begins_anew(house: House) -> None:
    house.write(500)
    home, target = house.home, house.other
    house.hold = lambda name: asyncio.sleep(3600 if name == "_append" else 0)
    await house.mover.move(TP, target)
    for task in house.tasks:
        task.cancel()
    house.hold = None
    await asyncio.sleep(0)
    house.crash()
    assert (house.home, house.logs.interrupted_moves) == (home, {TP: target})
    await house.mover.resume()
    await house.finish()
    assert (house.home, house.partition.log.log_end_offset) == (target, 500)


@story
async def test_an_interrupted_move_waits_until_the_partition_is_given_to_us_again(house: House) -> None:
    """In a cluster that is when the controller's word comes, some time after the start."""
    house.write(5)
    target = house.other
    house.hold = lambda name: asyncio.sleep(3600 if name == "_append" else 0)
    await house.mover.move(TP, target)
    for task in house.tasks:
        task.cancel()
    house.hold = None
    await asyncio.sleep(0)
    house.crash()
    del house.replicas.partitions[TP]
    await house.mover.resume()
    assert house.logs.interrupted_moves == {TP: target}
    resumed: list[asyncio.Task[None]] = []
    house.replicas.roles_taken = lambda: resumed.append(asyncio.ensure_future(house.mover.resume()))
    state = PartitionState(1, 0, (1,), (1,))
    await house.replicas.leader_and_isr(Stamp(1, 1), [TopicImage("t", TOPIC_ID, {0: state})], {1}, ())
    await asyncio.gather(*resumed)
    await house.finish()
    log = house.replicas.partitions[TP].log
    assert (os.path.dirname(log.dir), log.log_end_offset, house.logs.interrupted_moves) == (target, 5, {})


@story
async def test_a_stop_within_the_switch_is_finished_by_the_next_start(house: House) -> None:
    """The old log has given its name up, and the copy has not taken it yet."""
    house.write(500)
    target = house.other
    killed = asyncio.Event()

    def replace_and_die(future: Any) -> None:
        house.logs.delete(TP)
        killed.set()
        raise OSError(errno.EIO, "the process is gone")

    house.logs.replace = replace_and_die  # type: ignore[method-assign]
    house.hold = lambda name: asyncio.sleep(3600 if name == "remove" else 0)  # a dead process clears nothing up
    await house.mover.move(TP, target)
    await killed.wait()
    for task in house.tasks:
        task.cancel()
    house.hold = None
    house.crash()
    assert (house.home, house.partition.log.log_end_offset) == (target, 500)
    assert len(records(house.partition.log)) == 500


@story
async def test_a_log_that_is_cleaned_meanwhile_is_copied_anew(house: House) -> None:
    """The copy may have the value of a deleted key, and would never see its tombstone."""
    house.write(500)
    target = house.other
    begun = asyncio.Event()
    gate = asyncio.Event()
    copied: list[int] = []

    async def hold(name: str) -> None:
        if name == "_append":
            begun.set()
            await gate.wait()
            future = house.mover.moves[TP].future
            copied.append(future.log_end_offset if future is not None else -1)

    house.hold = hold
    await house.mover.move(TP, target)
    await begun.wait()
    house.partition.log.swaps += 1
    house.partition.log.cleaned_to = 300
    gate.set()
    await house.finish()
    assert copied.count(0) == 2, "from the start, twice"
    assert (house.home, house.partition.log.log_end_offset, house.partition.log.cleaned_to) == (target, 500, 300)


@story
async def test_many_small_segments_are_not_copied_on_the_loop(house: House) -> None:
    """Hardly anything missing of this segment is not hardly anything missing."""
    log = house.partition.log
    for _ in range(20):
        append(log, batch(1, size=200_000))
        log.roll()
    log.high_watermark = log.log_end_offset
    in_threads = 0

    async def count(name: str) -> None:
        nonlocal in_threads
        in_threads += name == "_append"

    house.hold = count
    await house.mover.move(TP, house.other)
    await house.finish()
    assert in_threads >= 18
    assert house.partition.log.log_end_offset == 20


def take_away(path: str) -> None:
    """Nothing can be done with the directory any more."""
    os.rename(path, path + "-away")
    Path(path).write_text("not a directory")


def bring_back(path: str) -> None:
    os.unlink(path)
    os.rename(path + "-away", path)


@story
async def test_a_half_made_copy_is_not_served_while_its_log_is_out_of_reach(house: House) -> None:
    house.write(500)
    home, target = house.home, house.other
    house.hold = lambda name: asyncio.sleep(3600 if name == "_append" else 0)
    await house.mover.move(TP, target)
    for task in house.tasks:
        task.cancel()
    await asyncio.sleep(0)
    house.logs.abandon()
    take_away(home)
    paths = [target, home]
    logs = LogManager(paths, ManualClock(NOW), broker_id=1, cluster_id="c")
    logs.load(expected_ids={"t": TOPIC_ID})
    assert logs.logs == {}
    assert any(name.endswith("-future") for name in os.listdir(target))
    logs.abandon()
    bring_back(home)
    house.open()
    assert (house.home, house.partition.log.log_end_offset) == (home, 500)
