"""The broker's side of compaction: which log is next, its job, and the swap of what a worker wrote.

Guards: only what a worker has brought to the disk is swapped in, only into a log that is still what it was when the job
began, and the cleaner point moves only after all of it is swapped in and the names are on the disk too. A log that cannot be
read is set aside and named once; the others go on. Lives on the broker's loop: a swap is a few renames; everything that waits
for a disk runs in a thread or in the worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

from ottla.clock import Clock
from ottla.config import BrokerConfig
from ottla.model import TopicPartition
from ottla.storage.checkpoints import sync_directory
from ottla.storage.cleaning import faults, job, policy
from ottla.storage.cleaning.job import Job
from ottla.storage.cleaning.policy import Section, Source
from ottla.storage.cleaning.process import WorkerDied, WorkerProcess
from ottla.storage.log import Log
from ottla.storage.manager import LogManager
from ottla.storage.segment import CLEANED_SUFFIX, SEGMENT_SUFFIXES, file_name

log: Final = logging.getLogger("ottla.cleaner")


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """The settings log.cleaner.*, as they are at the moment."""

    threads: int
    dedupe_buffer_bytes: int
    load_factor: float
    io_buffer_bytes: int
    io_bytes_per_second: float
    backoff_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> CleanerSettings:
        """What the broker is set to now."""
        return cls(
            threads=config.integer("log.cleaner.threads"),
            dedupe_buffer_bytes=config.integer("log.cleaner.dedupe.buffer.size"),
            load_factor=_number(config, "log.cleaner.io.buffer.load.factor"),
            io_buffer_bytes=config.integer("log.cleaner.io.buffer.size"),
            io_bytes_per_second=_number(config, "log.cleaner.io.max.bytes.per.second"),
            backoff_ms=config.integer("log.cleaner.backoff.ms"),
        )


class _Running:
    """A clean under way."""

    __slots__ = ("busy", "cancelled", "log", "removals", "section", "worker")

    def __init__(self, one: Log, section: Section) -> None:
        self.log = one
        self.section = section
        self.removals = one.removals
        self.worker: WorkerProcess | None = None
        self.busy = False  # its worker has the job, and has not said its last word
        self.cancelled = False


class Cleaner:
    """Compacts the logs of a manager, `log.cleaner.threads` at a time."""

    def __init__(
        self,
        logs: LogManager,
        clock: Clock,
        settings: Callable[[], CleanerSettings],
        run_blocking: Callable[..., Awaitable[Any]],
        may_clean: Callable[[TopicPartition], bool] = lambda _tp: True,
    ) -> None:
        self.may_clean = may_clean
        """Asked before a clean begins. Whoever changes the answer to no calls off, with `cancel`, the one under way."""
        self.uncleanable: dict[Log, str] = {}
        """Logs that cannot be cleaned until the next start, and why."""
        self.cleans = 0
        self.bytes_gained = 0
        self.longest_clean = 0.0
        """Of all that were finished since the start."""
        self._logs = logs
        self._clock = clock
        self._settings = settings
        self._run_blocking = run_blocking
        self._running: dict[TopicPartition, _Running] = {}
        self._failures: dict[TopicPartition, tuple[int, float]] = {}  # how many in a row, and not before when
        self._idle: list[WorkerProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._speed = 0.0

    def start(self) -> None:
        """Begin: from now on logs are looked at every log.cleaner.backoff.ms."""
        self._spawn(self._watch())

    async def stop(self) -> None:
        """End; what is in hand is given up, as nothing of it is in a log yet."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._idle))
        self._idle.clear()

    @property
    def cleaning(self) -> set[TopicPartition]:
        """The logs in hand. One that was called off is among them until its worker has let go of it."""
        return set(self._running)

    def cancel(self, tp: TopicPartition) -> None:
        """Call off the clean of a log, if one is under way: from now on nothing of it is swapped in."""
        running = self._running.get(tp)
        if running is not None and not running.cancelled:
            self._cancel(running)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        while True:
            settings = self._settings()
            try:
                self._follow_changes(settings)
                while len(self._running) < settings.threads and (chosen := self._choose()) is not None:
                    running = self._running[chosen[0].topic_partition] = _Running(*chosen)
                    self._spawn(self._clean(running, settings))
            except Exception:
                log.exception("Looking for logs to clean failed; it will be tried again")
            while len(self._idle) > max(settings.threads - len(self._running), 0):
                await self._idle.pop().stop()
            self._wake.clear()
            with suppress(TimeoutError):  # not wait_for: in 3.11 it can swallow a cancellation
                async with asyncio.timeout(settings.backoff_ms / 1000):
                    await self._wake.wait()

    def _follow_changes(self, settings: CleanerSettings) -> None:
        """Cleans under way take a new speed, and end if their log is not what it was."""
        speed = settings.io_bytes_per_second / max(settings.threads, 1)
        for running in self._running.values():
            if running.worker is not None and not running.cancelled:
                if speed != self._speed:
                    running.worker.set_speed(speed)
                if not self._still_the_same(running):
                    self._cancel(running)
        self._speed = speed
        for gone in [one for one in self.uncleanable if self._logs.logs.get(one.topic_partition) is not one]:
            del self.uncleanable[gone]

    # Choosing

    def _choose(self) -> tuple[Log, Section] | None:
        now_ms, now = self._clock.now_ms(), self._clock.monotonic()
        candidates: list[tuple[Log, Section, int]] = []
        for tp, one in self._logs.logs.items():
            if not one.config.compact or tp in self._running or one in self.uncleanable or not self.may_clean(tp):
                continue
            failures, not_before = self._failures.get(tp, (0, 0.0))
            if now < not_before:
                continue
            try:
                self._roll_if_overdue(one, now_ms)
                section = _section(one, now_ms)
            except OSError as error:
                self._logs.io_failed(one, error)
                continue
            if section.misplaced and one.cleaned_to is not None:
                if not one.config.delete:
                    words = "%s: the cleaner point %d lies outside the log (%d to %d); compaction starts anew at %d"
                    place = (one.log_start_offset, one.log_end_offset, section.first_dirty)
                    log.warning(words, tp, one.cleaned_to, *place)
                one.cleaned_to = section.first_dirty
            if policy.worth_cleaning(section, one.config):
                candidates.append((one, section, failures))
        return policy.filthiest(candidates)

    def _roll_if_overdue(self, one: Log, now_ms: int) -> None:
        if policy.must_roll(one.segments[-1], one.config, now_ms):
            one.roll()

    # One clean

    async def _clean(self, running: _Running, settings: CleanerSettings) -> None:
        one, tp = running.log, running.log.topic_partition
        before, started = one.size, self._clock.monotonic()
        leftover: Job | None = None
        try:
            leftover = task = make_job(one, running.section, settings, self._clock.now_ms())
            running.worker = await self._worker()
            last = await self._carry_out(running, task)
            done = last.get(job.DONE)
            if done is not None and not running.cancelled and self._still_the_same(running):
                leftover = None
                await self._finish(one, done["end"])
                took = self._clock.monotonic() - started
                log.info(
                    "%s: cleaned from %d to %d: %d bytes before, %d after, %d keys, %.2f s",
                    tp, running.section.first_dirty, done["end"], before, one.size, done["keys"], took,
                )  # fmt: skip
                self._failures.pop(tp, None)
                self.cleans += 1
                self.bytes_gained += max(before - one.size, 0)
                self.longest_clean = max(self.longest_clean, took)
            else:
                self._came_to_nothing(running, last, settings)
        except (WorkerDied, OSError) as problem:
            log.error("%s: cannot be cleaned now, it will be tried again: %s", tp, problem)
            self._try_later(tp, settings)
        except Exception:
            log.exception("%s: cleaning it failed; it will be tried again", tp)
            self._try_later(tp, settings)
        finally:
            await self._put_away(running, leftover)

    async def _put_away(self, running: _Running, leftover: Job | None) -> None:
        """A clean is over: its worker rests, or ends if it is still at it; only then are its files taken away."""
        worker = running.worker
        try:
            if worker is not None and running.busy:
                await worker.stop()
            if leftover is not None:
                await self._run_blocking(_remove_cleaned, leftover)
        finally:
            del self._running[running.log.topic_partition]
            if worker is not None and worker.alive:
                self._idle.append(worker)
            self._wake.set()

    async def _worker(self) -> WorkerProcess:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
        return await WorkerProcess.start()

    async def _carry_out(self, running: _Running, task: Job) -> dict[str, Any]:
        """Lead a job to its end, and swap in what comes; the worker's last word."""
        assert running.worker is not None
        message: dict[str, Any] = {}
        if running.cancelled:  # before there was a worker to tell
            return {job.CANCELLED: True}
        running.busy = True
        async with aclosing(running.worker.clean(task)) as messages:
            async for message in messages:
                if job.WRITTEN in message and not running.cancelled:
                    if not self._still_the_same(running):
                        self._cancel(running)
                    elif self._swapped_in(running, message[job.WRITTEN]):
                        await self._sync_names(running.log)
        running.busy = False
        return message

    def _swapped_in(self, running: _Running, written: dict[str, Any]) -> bool:
        faults.reach("before-swap")
        try:
            running.log.swap_in(**written)
        except (OSError, ValueError) as error:
            self._cancel(running)
            self._set_aside(running.log, f"a cleaned segment could not be swapped in: {error}")
            if isinstance(error, OSError):
                self._logs.io_failed(running.log, error)
            return False
        return True

    async def _sync_names(self, one: Log) -> None:
        """After each swap: the names are to be on the disk before the old files go, whatever becomes of the rest."""
        try:
            await self._run_blocking(sync_directory, one.dir)
        except OSError as error:
            self._logs.io_failed(one, error)
            raise
        faults.reach("directory-synced")

    def _still_the_same(self, running: _Running) -> bool:
        one = running.log
        return self._logs.logs.get(one.topic_partition) is one and one.removals == running.removals and one.config.compact

    def _cancel(self, running: _Running) -> None:
        running.cancelled = True
        if running.worker is not None:
            running.worker.cancel()

    async def _finish(self, one: Log, end: int) -> None:
        """All is swapped in, and the names are on the disk: move the cleaner point."""
        one.cleaned_to = end
        faults.reach("before-checkpoint")
        for write in self._logs.cleaner_point_writes():
            await self._run_blocking(write)
        faults.reach("checkpointed")

    def _came_to_nothing(self, running: _Running, last: dict[str, Any], settings: CleanerSettings) -> None:
        one, tp = running.log, running.log.topic_partition
        if not self._still_the_same(running):
            log.info("%s: the clean was given up: the log changed under it", tp)
        elif running.cancelled:
            if one not in self.uncleanable:  # else that was said
                log.info("%s: the clean was called off", tp)
        elif job.CORRUPT in last or job.STUCK in last:
            self._set_aside(one, last.get(job.CORRUPT) or last[job.STUCK])
        elif job.FAILED in last:
            words = last[job.FAILED]["words"]
            log.error("%s: cannot be cleaned now, it will be tried again: %s", tp, words)
            self._logs.io_failed(one, OSError(last[job.FAILED]["errno"], words))
            self._try_later(tp, settings)

    def _try_later(self, tp: TopicPartition, settings: CleanerSettings) -> None:
        failures, _ = self._failures.get(tp, (0, 0.0))
        self._failures[tp] = (failures + 1, self._clock.monotonic() + settings.backoff_ms / 1000)

    def _set_aside(self, one: Log, why: str) -> None:
        if one not in self.uncleanable:
            self.uncleanable[one] = why
            log.error("%s: cannot be cleaned and is left as it is until the next start: %s", one.topic_partition, why)


def _number(config: BrokerConfig, name: str) -> float:
    value = config[name]
    assert isinstance(value, float)
    return value


def _section(one: Log, now_ms: int) -> Section:
    return policy.cleanable(
        one.segments,
        one.config,
        cleaned_to=one.cleaned_to,
        log_start_offset=one.log_start_offset,
        log_end_offset=one.log_end_offset,
        last_stable_offset=one.last_stable_offset,
        now_ms=now_ms,
    )


def make_job(one: Log, section: Section, settings: CleanerSettings, now_ms: int) -> Job:
    """Everything that a worker must know to clean `section` of a log."""
    sources = tuple(
        Source(segment.base_offset, segment.size, segment.offset_index.size, segment.time_index.size)
        for segment in one.segments
        if segment.base_offset < section.end
    )
    first = sources[0].base_offset if sources else section.first_dirty
    active = one.producers.by_id.values()
    lasts = sorted(producer.batches[-1].last_offset for producer in active if producer.batches)
    return Job(
        directory=one.dir,
        sources=sources,
        first_dirty=section.first_dirty,
        end=section.end,
        aborted=tuple(one.aborted_transactions(first, section.end)),
        last_offsets=tuple(offset for offset in lasts if offset < section.end),
        marker_epochs=tuple((producer.producer_id, producer.epoch) for producer in active if not producer.batches),
        now_ms=now_ms,
        delete_retention_ms=one.config.delete_retention_ms,
        segment_bytes=one.config.segment_bytes,
        index_bytes=one.config.segment_index_bytes,
        index_interval_bytes=one.config.index_interval_bytes,
        map_bytes=settings.dedupe_buffer_bytes // max(settings.threads, 1),
        load_factor=settings.load_factor,
        buffer_bytes=settings.io_buffer_bytes // max(settings.threads, 1),
        bytes_per_second=settings.io_bytes_per_second / max(settings.threads, 1),
    )


def _remove_cleaned(task: Job) -> None:
    """Take away what a job that came to nothing left behind. Blocks."""
    for source in task.sources:
        for suffix in SEGMENT_SUFFIXES:
            with suppress(OSError):
                os.unlink(os.path.join(task.directory, file_name(source.base_offset, suffix) + CLEANED_SUFFIX))
