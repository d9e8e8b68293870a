"""The broker's side of compaction: choosing, swapping, giving up, and workers that die; with real ones, and with one that
says what a test wants."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cleaning_kit import compacted, everything, section_of
from storage_kit import NOW, append, batch

from ottla.clock import ManualClock
from ottla.config import BrokerConfig
from ottla.model import TopicPartition
from ottla.storage.aborted import AbortedTransaction
from ottla.storage.checkpoints import read_offsets
from ottla.storage.cleaning import cleaner as cleaner_module
from ottla.storage.cleaning import job
from ottla.storage.cleaning import worker as worker_module
from ottla.storage.cleaning.cleaner import Cleaner, CleanerSettings, make_job
from ottla.storage.cleaning.job import Job
from ottla.storage.cleaning.process import WorkerProcess
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.manager import LogManager

SETTINGS = CleanerSettings(1, 1 << 20, 0.9, 1 << 20, 1e300, 20)


class House:
    """A manager of logs with a cleaner, and settings that may change."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock(NOW)
        self.directory = directory
        self.logs = LogManager([str(directory)], self.clock, broker_id=1, cluster_id="c")
        self.logs.load()
        self.settings = SETTINGS
        self.cleaner = Cleaner(self.logs, self.clock, lambda: self.settings, self._run_blocking)

    async def _run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, function, *args)

    def dirty(self, topic: str, batches: int = 30, config: LogConfig | None = None, size: int = 10) -> Log:
        """A log in which every record has the same key, in several segments; the last record is in the active one."""
        one = self.logs.create(TopicPartition(topic, 0), config or compacted())
        for number in range(batches):
            append(one, batch(1, size=size))
            if number % 10 == 9:
                one.roll()
        append(one, batch(1))
        one.high_watermark = one.log_end_offset
        return one

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - what is waited for is files and other processes
                await asyncio.sleep(0.01)


@asynccontextmanager
async def house(directory: Path) -> AsyncIterator[House]:
    made = House(directory)
    made.cleaner.start()
    try:
        yield made
    finally:
        await made.cleaner.stop()
        made.logs.abandon()


def damage(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(75)
        file.write(b"\xff")


def points(directory: Path) -> dict[TopicPartition, int]:
    return read_offsets(str(directory / "cleaner-offset-checkpoint"))


def test_dirty_logs_are_cleaned_and_the_point_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def story() -> None:
        async with house(tmp_path) as home:
            one, other = home.dirty("one"), home.dirty("other")
            plain = home.dirty("plain", config=LogConfig())
            await home.until(lambda: len(points(tmp_path)) == 2 if (tmp_path / "cleaner-offset-checkpoint").exists() else False)
            await home.until(lambda: not home.cleaner.cleaning)
            for cleaned in (one, other):
                assert [record.offset for record in everything(cleaned)] == [29, 30]
                assert cleaned.cleaned_to == 30
            assert len(everything(plain)) == 31
            assert points(tmp_path) == {TopicPartition("one", 0): 30, TopicPartition("other", 0): 30}
            home.logs.delete(TopicPartition("one", 0))
            for write in home.logs.checkpoint_writes():
                write()
            assert TopicPartition("one", 0) not in points(tmp_path), "a topic of the same name starts anew"
        again = LogManager([str(tmp_path)], home.clock, broker_id=1, cluster_id="c")
        again.load()
        assert again.logs[TopicPartition("other", 0)].cleaned_to == 30
        again.abandon()

    asyncio.run(story())
    assert "other-0: cleaned from 0 to 30" in caplog.text


def test_a_corrupt_log_is_set_aside_once_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with house(tmp_path) as home:
            bad = home.dirty("bad")
            path = bad.segments[0].path(".log")
            damage(path)
            good = home.dirty("good", batches=20)
            await home.until(lambda: good.cleaned_to == 20 and bad in home.cleaner.uncleanable)
            home.dirty("good")
            await home.until(lambda: good.cleaned_to == 51)
            assert bad.cleaned_to is None
            assert path in home.cleaner.uncleanable[bad]
            assert not [name for name in os.listdir(bad.dir) if name.endswith((".cleaned", ".swap"))]

    asyncio.run(story())
    assert caplog.text.count("bad-0: cannot be cleaned and is left as it is") == 1


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with house(tmp_path) as home:
            home.settings = replace(SETTINGS, io_bytes_per_second=2000)
            one = home.dirty("one", size=1000)
            await home.until(lambda: any(run.worker is not None for run in home.cleaner._running.values()))
            victim = next(iter(home.cleaner._running.values())).worker
            assert victim is not None
            os.kill(victim.pid, signal.SIGKILL)
            home.settings = SETTINGS
            await home.until(lambda: "ended with -9" in caplog.text)
            home.clock.advance_ms(1000)
            await home.until(lambda: one.cleaned_to == 30)
            assert [record.offset for record in everything(one)] == [29, 30]

    asyncio.run(story())
    assert caplog.text.count("cannot be cleaned now") == 1


@pytest.mark.parametrize("change", ["delete", "retention", "policy"])
def test_a_log_that_changes_under_a_clean_ends_it(tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str) -> None:
    caplog.set_level(logging.INFO)

    async def story() -> None:
        async with house(tmp_path) as home:
            home.settings = replace(SETTINGS, io_bytes_per_second=2000)
            one = home.dirty("one", size=1000)
            before = one.size
            await home.until(lambda: any(run.worker is not None for run in home.cleaner._running.values()))
            if change == "delete":
                home.logs.delete(one.topic_partition)
            elif change == "retention":
                one.delete_records_before(12)
                one.config = replace(one.config, min_cleanable_dirty_ratio=1.0)
            else:
                one.config = LogConfig()
            await home.until(lambda: not home.cleaner._running)
            assert one.cleaned_to in (None, 12)
            assert one.size in (before, sum(segment.size for segment in one.segments))
            assert not [name for name in os.listdir(one.dir) if name.endswith((".cleaned", ".swap"))]

    asyncio.run(story())
    assert "given up" in caplog.text


def test_a_new_speed_is_taken_by_the_clean_in_hand(tmp_path: Path) -> None:
    """At the first speed it would take hours."""

    async def story() -> None:
        async with house(tmp_path) as home:
            home.settings = replace(SETTINGS, io_bytes_per_second=1)
            one = home.dirty("one")
            await home.until(lambda: any(run.worker is not None for run in home.cleaner._running.values()))
            home.settings = SETTINGS
            await home.until(lambda: one.cleaned_to == 30)

    asyncio.run(story())


def test_workers_end_with_the_cleaner(tmp_path: Path) -> None:
    async def story() -> int:
        async with house(tmp_path) as home:
            home.dirty("one")
            await home.until(lambda: bool(home.cleaner._idle))
            return home.cleaner._idle[0].pid

    pid = asyncio.run(story())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system knows no idle class")
def test_a_worker_gives_way_from_its_first_moment() -> None:
    async def story() -> tuple[int, int]:
        worker = await WorkerProcess.start()
        try:
            return os.sched_getscheduler(worker.pid), os.getpriority(os.PRIO_PROCESS, worker.pid)
        finally:
            await worker.stop()

    policy, niceness = asyncio.run(story())
    assert policy == os.SCHED_IDLE
    assert niceness > os.getpriority(os.PRIO_PROCESS, 0)


def test_as_many_workers_as_threads(tmp_path: Path) -> None:
    async def story() -> None:
        async with house(tmp_path) as home:
            home.settings = replace(SETTINGS, threads=2, io_bytes_per_second=1)
            for name in ("a", "b", "c"):
                home.dirty(name)
            await home.until(lambda: len(home.cleaner._running) == 2)
            home.settings = replace(SETTINGS, threads=1)
            await home.until(lambda: all(one.cleaned_to == 30 for one in home.logs.logs.values()))
            await home.until(lambda: len(home.cleaner._idle) <= 1)

    asyncio.run(story())


def test_max_compaction_lag_rolls_and_cleans_a_quiet_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with house(tmp_path) as home:
            config = compacted(max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0)
            one = home.dirty("one", batches=9, config=config)
            assert len(one.segments) == 1
            home.clock.advance_ms(2000)
            await home.until(lambda: one.cleaned_to == 10)
            assert [record.offset for record in everything(one)] == [9]

    asyncio.run(story())


def test_the_settings_are_the_brokers() -> None:
    config = BrokerConfig({"log.cleaner.threads": "3", "log.cleaner.io.max.bytes.per.second": "1000"})
    config.set_dynamic({"log.cleaner.backoff.ms": "7"}, {"log.cleaner.dedupe.buffer.size": "4000"})
    assert CleanerSettings.of(config) == CleanerSettings(3, 4000, 0.9, 512 << 10, 1000.0, 7)


# A worker that says what a test wants


def leave_behind(task: Job) -> None:
    with open(os.path.join(task.directory, f"{0:020d}.log.cleaned"), "wb"):
        pass


class Actor:
    """In the place of a worker process: it leaves a cleaned file behind and says its lines, cancelled or not."""

    pid = 0

    def __init__(self, *lines: dict[str, Any] | BaseException) -> None:
        self.lines = lines
        self.alive = True
        self.said: list[str] = []
        self.said_before_the_end: list[str] = []
        self.at_line: Callable[[int], None] = lambda number: None

    async def clean(self, task: Job) -> AsyncGenerator[dict[str, Any], None]:
        self.said.append("job")
        leave_behind(task)
        for number, line in enumerate(self.lines):
            self.at_line(number)
            if isinstance(line, BaseException):
                raise line
            yield line

    def cancel(self) -> None:
        self.said.append("cancel")

    def set_speed(self, bytes_per_second: float) -> None: ...

    async def stop(self) -> None:
        self.said.append("stop")
        self.alive = False


WRITTEN = {job.WRITTEN: {"bases": [0], "size": 1}}
DONE = {job.DONE: {"end": 30, "read": 0, "written": 0, "keys": 1, "memory": 0}}


def cleaned_files(one: Log) -> list[str]:
    return [name for name in os.listdir(one.dir) if name.endswith(".cleaned")]


def played(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    actor: Actor,
    swap: Callable[..., None] = lambda *_, **__: None,
    arrange: Callable[[House], None] = lambda _home: None,
) -> tuple[House, Log]:
    """One clean of a dirty log by the actor."""

    async def start(_cls: type[WorkerProcess]) -> Actor:
        return actor

    monkeypatch.setattr(WorkerProcess, "start", classmethod(start))
    monkeypatch.setattr(Log, "swap_in", swap)

    async def story() -> tuple[House, Log]:
        async with house(tmp_path) as home:
            arrange(home)
            one = home.dirty("one")
            await home.until(lambda: "job" in actor.said)
            await home.until(lambda: not home.cleaner.cleaning)
            home.cleaner.may_clean = lambda _tp: False
            actor.said_before_the_end = list(actor.said)
            return home, one

    return asyncio.run(story())


@pytest.mark.parametrize("error", [ValueError("not what was cleaned"), OSError(errno.EACCES, "no")])
def test_the_point_does_not_move_if_a_swap_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Else a tombstone goes at the next pass, and the older value of its key, which lay in that segment, comes back."""

    def swap(*_args: object, **_fields: object) -> None:
        raise error

    actor = Actor(WRITTEN, DONE)  # the cancellation comes too late for it
    home, one = played(tmp_path, monkeypatch, actor, swap)
    assert one.cleaned_to is None
    assert one in home.cleaner.uncleanable
    assert not cleaned_files(one)
    assert "cancel" in actor.said
    assert caplog.text.count("one-0") == 1


def test_a_clean_that_is_called_off_changes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tp, swaps, seen = TopicPartition("one", 0), [], []
    actor = Actor(WRITTEN, WRITTEN, DONE)

    def arrange(home: House) -> None:
        def at_line(number: int) -> None:
            if number == 1:
                seen.append(home.cleaner.cleaning)
                home.cleaner.cancel(tp)
                home.cleaner.cancel(tp)
                home.cleaner.may_clean = lambda asked: asked != tp

        actor.at_line = at_line
        home.cleaner.cancel(tp)  # none is under way

    _, one = played(tmp_path, monkeypatch, actor, lambda *_, **fields: swaps.append(fields), arrange)
    assert (len(swaps), one.cleaned_to, seen) == (1, None, [{tp}])
    assert actor.said.count("cancel") == 1
    assert actor.said.count("job") == 1
    assert not cleaned_files(one)
    assert "one-0: the clean was called off" in caplog.text


def test_a_clean_that_is_called_off_before_it_has_a_worker_sends_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        actor, gate = Actor(DONE), asyncio.Event()

        async def start(_cls: type[WorkerProcess]) -> Actor:
            await gate.wait()
            return actor

        monkeypatch.setattr(WorkerProcess, "start", classmethod(start))
        async with house(tmp_path) as home:
            one = home.dirty("one")
            await home.until(lambda: home.cleaner.cleaning == {one.topic_partition})
            home.cleaner.cancel(one.topic_partition)
            home.cleaner.may_clean = lambda _tp: False
            gate.set()
            await home.until(lambda: not home.cleaner.cleaning)
            assert (actor.said, one.cleaned_to) == ([], None)

    asyncio.run(story())


def test_a_log_that_may_not_be_cleaned_waits(tmp_path: Path) -> None:
    async def story() -> None:
        async with house(tmp_path) as home:
            held = TopicPartition("held", 0)
            home.cleaner.may_clean = lambda tp: tp != held
            waiting, other = home.dirty("held"), home.dirty("other")
            await home.until(lambda: other.cleaned_to == 30 and not home.cleaner.cleaning)
            assert waiting.cleaned_to is None
            home.cleaner.may_clean = lambda _tp: True
            await home.until(lambda: waiting.cleaned_to == 30)

    asyncio.run(story())


@pytest.mark.parametrize("lines", [(WRITTEN, DONE), (WRITTEN, {job.CANCELLED: True})])
def test_the_names_are_on_the_disk_after_each_swap_and_before_the_point_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[dict[str, Any], ...]
) -> None:
    story: list[str] = []
    monkeypatch.setattr(cleaner_module, "sync_directory", lambda path: story.append(os.path.basename(path)))
    actor = Actor(WRITTEN, *lines)
    actor.at_line = lambda number: story.append(f"line {number}")
    played(tmp_path, monkeypatch, actor, lambda *_, **__: story.append("swap"))
    assert story[:7] == ["line 0", "swap", "one-0", "line 1", "swap", "one-0", "line 2"]


def test_names_that_do_not_come_to_the_disk_are_a_failure_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[tuple[str, int | None]] = []

    def sync(_path: str) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    def arrange(home: House) -> None:
        monkeypatch.setattr(home.logs, "io_failed", lambda one, error: failures.append((str(one.topic_partition), error.errno)))

    monkeypatch.setattr(cleaner_module, "sync_directory", sync)
    actor = Actor(WRITTEN, DONE)
    _, one = played(tmp_path, monkeypatch, actor, arrange=arrange)
    assert failures == [("one-0", errno.EIO)]
    assert one.cleaned_to is None
    assert actor.said_before_the_end == ["job", "stop"], "it was in the middle of its job"
    assert "it will be tried again" in caplog.text


def test_a_worker_does_not_rest_in_the_middle_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of the old job would be taken for the next one's."""
    actor = Actor({"written": "nonsense"}, DONE)
    home, one = played(tmp_path, monkeypatch, actor)
    assert actor.said_before_the_end == ["job", "stop"]
    assert not cleaned_files(one)
    assert home.cleaner._failures[one.topic_partition][0] == 1


def test_a_log_on_which_the_worker_fails_for_no_known_reason_is_set_aside_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home, one = played(tmp_path, monkeypatch, Actor({job.STUCK: "OverflowError: too large"}))
    assert home.cleaner.uncleanable == {one: "OverflowError: too large"}
    assert caplog.text.count("one-0") == 1
    assert len(caplog.records) == 1


# The worker


def task_of(one: Log) -> Job:
    return make_job(one, section_of(one, NOW), SETTINGS, NOW)


def test_an_error_that_nobody_thought_of_is_a_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise OverflowError("too large")

    home = House(tmp_path)
    task = task_of(home.dirty("one"))
    monkeypatch.setattr(worker_module, "OffsetMap", fail)
    answer = worker_module.Worker()._carry_out(task)
    assert list(answer) == [job.STUCK]
    assert "OverflowError: too large (at " in answer[job.STUCK]
    home.logs.abandon()


def test_a_job_arrives_as_it_was_sent(tmp_path: Path) -> None:
    home = House(tmp_path)
    task = replace(
        task_of(home.dirty("one")),
        aborted=(AbortedTransaction(7, 1, 2, 3),),
        last_offsets=(4, 5),
        marker_epochs=((8, 0), (9, 1)),
    )
    assert Job.decode(job.decode(task.encode())["job"]) == task
    home.logs.abandon()


@pytest.mark.parametrize("cut", [b"", b'{"job": {"directory": "/no', b'{"job": {}}\n', b"\xff\n"])
def test_a_worker_ends_with_its_input_even_in_the_middle_of_a_line(cut: bytes) -> None:
    """A broker that is killed may have written half a job."""
    command = [sys.executable, "-m", "ottla.storage.cleaning.worker"]
    assert subprocess.run(command, input=cut, timeout=30, check=False).returncode == 0
