"""Every log of this broker, over all its data directories: opened, created, deleted, checkpointed, closed.

Guards: a directory is used only while it is locked and belongs to this broker; a checkpoint never says more than is on
the disk; the mark of a clean stop is written last. The broker's loop owns the manager and calls its housekeeping steps
by its own schedule. A step that would block hands back what a thread is to run: jobs (`flush_jobs`), writers of
checkpoints, paths (`due_deletions`). A deletion is complete once a thread has run `sync_directories` and
`checkpoint_writes`: before that, a crash may bring the partition's name or its checkpointed offsets back.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from ottla.clock import Clock
from ottla.model import Error, KafkaError, TopicPartition
from ottla.storage.checkpoints import (
    MalformedCheckpoint,
    encode_uuid,
    read_topic_id,
)
from ottla.storage.deletion import DeletionQueue, remove
from ottla.storage.directories import LogDirectories
from ottla.storage.directory import DataDirectory, StorageStartError
from ottla.storage.failures import ends_directory
from ottla.storage.flushing import FlushJob
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.segments import DELETE_DIR_SUFFIX, deletion_path

__all__ = ["LogManager", "StorageStartError"]

log: Final = logging.getLogger("ottla.storage")

FUTURE_DIR_SUFFIX: Final = "-future"
_PARTITION_DIR: Final = re.compile(r"(.+)-(\d+)")
_FUTURE_DIR: Final = re.compile(rf"(.+)-(\d+)\.[0-9a-f]+{FUTURE_DIR_SUFFIX}")
_SLOW_START_S: Final = 2.0
_FLUSH_THREADS: Final = 8


class LogManager(LogDirectories):
    """The logs of one broker. Lives on the loop; what blocks says so."""

    def __init__(
        self,
        dirs: Sequence[str],
        clock: Clock,
        *,
        broker_id: int,
        cluster_id: str | None,
        default_config: LogConfig | None = None,
        recovery_threads: int = 1,
        producer_expiration_ms: int = 86_400_000,
        jitter: Callable[[int], int] = lambda _bound: 0,
    ) -> None:
        """Lock the directories and check whose they are. Without `cluster_id`, call `claim` once it is known."""
        super().__init__(dirs, clock, broker_id)
        self.interrupted_moves: dict[TopicPartition, str] = {}
        """Partitions that were on their way to another directory at the last stop, and where to."""
        self.default_config = default_config or LogConfig()
        self.producer_expiration_ms = producer_expiration_ms
        self._threads = recovery_threads
        self._jitter = jitter
        self._trash = DeletionQueue(clock)
        if cluster_id is not None:
            try:
                self.claim(cluster_id)
            except BaseException:
                self._unlock()
                raise

    # Opening

    def load(
        self, config_for: Callable[[str], LogConfig] | None = None, expected_ids: Mapping[str, bytes] | None = None
    ) -> None:
        """Open every log, after an unclean stop with recovery. `config_for` gives a topic's settings. Blocks.

        `expected_ids` are the topics' ids: a directory that has another one is of a topic that was deleted, and is deleted
        too. If a log cannot be opened, the directories are given back: nothing was started.
        """
        try:
            self._load(config_for, expected_ids or {})
        except OSError as error:
            self.abandon()
            raise StorageStartError(f"cannot open the data directories: {error}") from error
        except BaseException:
            self.abandon()
            raise

    def _load(self, config_for: Callable[[str], LogConfig] | None, expected_ids: Mapping[str, bytes]) -> None:
        started = self._clock.monotonic()
        total = 0
        gone = False
        for directory in list(self._directories.values()):
            with self._tolerating(directory.path):
                clean = directory.take_clean_shutdown()
                partitions = self._partitions_in(directory, expected_ids)
                self._set_strangers_aside(directory, partitions, expected_ids)
                if partitions and not clean:
                    log.info("%s: the last stop was not clean; recovering %d logs", directory.path, len(partitions))
                gone |= self._load_directory(directory, partitions, config_for)
                total += len(partitions)
                directory.sync_names()
        if gone:  # a topic that is created now must not meet what was checkpointed of an earlier one
            for path, write in zip(self.dirs * 3, self.checkpoint_writes(), strict=True):
                with self._tolerating(path):
                    write()
        took = self._clock.monotonic() - started
        if took > _SLOW_START_S:
            log.info("opened %d logs in %.1f s", total, took)

    def _finish_or_undo_move(
        self, tp: TopicPartition, directory: DataDirectory, copy: str, expected_ids: Mapping[str, bytes]
    ) -> str | None:
        """A partition was on its way here at the last stop. If its log elsewhere had given its name up already, the copy is
        the log, and its path is returned; else the copy goes, and the move begins anew later."""
        if self.offline_dirs:  # its log may be where we cannot look: another start will tell
            return None
        elsewhere = any(os.path.isdir(os.path.join(path, str(tp))) for path in self._directories)
        expected = expected_ids.get(tp.topic)
        if not elsewhere and expected is not None and read_topic_id(copy) == expected:
            path = os.path.join(directory.path, str(tp))
            os.rename(copy, path)
            directory.names_changed = True
            log.info("%s: its move to %s was all but done at the last stop; finished now", tp, directory.path)
            return path
        if elsewhere:
            self.interrupted_moves[tp] = directory.path
        self._trash.add([copy], 0)
        return None

    def _partitions_in(self, directory: DataDirectory, expected_ids: Mapping[str, bytes]) -> dict[TopicPartition, str]:
        found: dict[TopicPartition, str] = {}
        with os.scandir(directory.path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):  # in an order that does not hang on the file system
                if not entry.is_dir():
                    continue
                if entry.name.endswith(DELETE_DIR_SUFFIX):
                    self._trash.add([entry.path], self.default_config.file_delete_delay_ms)
                elif match := _FUTURE_DIR.fullmatch(entry.name):
                    tp = TopicPartition(match[1], int(match[2]))
                    path = self._finish_or_undo_move(tp, directory, entry.path, expected_ids)
                    if path is not None:
                        found[tp] = path
                elif match := _PARTITION_DIR.fullmatch(entry.name):
                    found[TopicPartition(match[1], int(match[2]))] = entry.path
                else:
                    log.warning("%s is not the directory of a partition; leaving it alone", entry.path)
        return found

    def _set_strangers_aside(
        self, directory: DataDirectory, partitions: dict[TopicPartition, str], expected_ids: Mapping[str, bytes]
    ) -> None:
        for tp, path in list(partitions.items()):
            expected = expected_ids.get(tp.topic)
            if expected is None:
                continue
            try:
                found = read_topic_id(path)
            except (OSError, MalformedCheckpoint):
                continue  # opening it says what is wrong
            if found is not None and found != expected:
                words = "%s is of topic id %s, but topic %s has the id %s now; deleting it"
                log.warning(words, path, encode_uuid(found), tp.topic, encode_uuid(expected))
                aside = deletion_path(path, tp)
                os.rename(path, aside)
                directory.names_changed = True
                self._trash.add([aside], self.default_config.file_delete_delay_ms)
                del partitions[tp]

    def _load_directory(
        self,
        directory: DataDirectory,
        partitions: Mapping[TopicPartition, str],
        config_for: Callable[[str], LogConfig] | None,
    ) -> bool:
        """Open a directory's logs; whether its checkpoints speak of partitions that are gone."""
        points, starts, cleaned = directory.recovery_points(), directory.log_start_offsets(), directory.cleaner_points()

        def open_one(tp: TopicPartition, path: str) -> Log:
            config = config_for(tp.topic) if config_for is not None else self.default_config
            point, start = points.get(tp, 0), starts.get(tp, 0)
            return self._open(tp, path, config, point=point, start=start, clean=directory.clean_shutdown)

        with ThreadPoolExecutor(max(self._threads, 1), thread_name_prefix="ottla-recovery") as pool:
            opening: dict[TopicPartition, Future[Log]] = {
                tp: pool.submit(open_one, tp, path) for tp, path in partitions.items()
            }
        for tp, future in opening.items():
            try:
                opened = future.result()
            except (OSError, MalformedCheckpoint) as error:
                if isinstance(error, OSError) and ends_directory(error, directory.path):
                    raise
                raise StorageStartError(
                    f"cannot open {partitions[tp]}: {error}; repair it, or move the directory away"
                ) from error
            if tp in self.logs:
                raise StorageStartError(f"{tp} is in {self.logs[tp].dir} and in {opened.dir}; move one of them away")
            if tp in cleaned:  # recovery may have cut the log: what comes in its place is not clean
                opened.cleaned_to = min(cleaned[tp], opened.log_end_offset)
            self.logs[tp] = opened
            self._counts[directory.path] += 1
        return not (points.keys() | starts.keys() | cleaned.keys()) <= partitions.keys()

    def _open(
        self, tp: TopicPartition, path: str, config: LogConfig, *, point: int = 0, start: int = 0, clean: bool = True
    ) -> Log:
        return Log.open(
            path,
            tp,
            config,
            self._clock,
            recovery_point=point,
            log_start_offset=start,
            clean_shutdown=clean,
            producer_expiration_ms=self.producer_expiration_ms,
            trash=self._trash,
            jitter=self._jitter,
            on_io_error=self.io_failed,
        )

    # Partitions come and go

    def create(self, tp: TopicPartition, config: LogConfig | None = None, topic_id: bytes | None = None) -> Log:
        """The log of a partition, in the directory with the fewest if it is new."""
        existing = self.logs.get(tp)
        if existing is None:
            parent = min(self._counts, key=self._counts.__getitem__)
            try:
                existing = self._open(tp, os.path.join(parent, str(tp)), config or self.default_config)
            except OSError as error:
                raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"cannot create {parent}/{tp}: {error.strerror}") from error
            self.logs[tp] = existing
            self._counts[parent] += 1
        if topic_id is not None:
            existing.write_topic_id(topic_id)
        return existing

    def open_future(self, source: Log, parent: str, start: int) -> Log:
        """An empty log beside all others, for the copy of one that is to live in another directory. Blocks."""
        path = os.path.join(parent, f"{source.topic_partition}.{uuid.uuid4().hex}{FUTURE_DIR_SUFFIX}")
        future = self._open(source.topic_partition, path, source.config, start=start)
        if source.topic_id is not None:
            future.write_topic_id(source.topic_id, sync=True)
        return future

    def replace(self, future: Log) -> None:
        """The copy has all that the log has: it takes its place; the old files go as those of a deleted partition do.

        The old log gives its name up first: a start that finds a copy and no other log of that name finishes the move. OSError
        or KafkaError leaves all as it was.
        """
        tp = future.topic_partition
        source = self.logs[tp]
        old_path, new_parent = source.dir, os.path.dirname(future.dir)
        directory = self._directories.get(new_parent)
        if directory is None:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"{new_parent} has failed")
        self.delete(tp)
        try:
            future.rename(os.path.join(new_parent, str(tp)))
        except OSError:
            self._trash.forget(source.dir)
            source.rename(old_path)
            self.logs[tp] = source
            self._counts[os.path.dirname(old_path)] += 1
            raise
        self.logs[tp] = future
        self._counts[new_parent] += 1
        directory.names_changed = True
        log.info("%s: moved from %s to %s", tp, os.path.dirname(old_path), new_parent)

    def delete(self, tp: TopicPartition) -> None:
        """Take a partition's log away: renamed now, removed after file.delete.delay.ms. Readers in flight do not feel it.

        Then a thread is to run `sync_directories` and `checkpoint_writes`.
        """
        gone = self.logs.get(tp)
        if gone is None:
            return
        parent = os.path.dirname(gone.dir)
        path = gone.rename_for_deletion()
        del self.logs[tp]
        self._counts[parent] -= 1
        self._directories[parent].names_changed = True
        log.info("%s: deleted; its files are removed in %d ms", tp, gone.config.file_delete_delay_ms)
        self._trash.add([path], gone.config.file_delete_delay_ms)

    # Housekeeping, each called by the broker's schedule

    def check_retention(self, busy: Collection[TopicPartition] = ()) -> int:
        """Delete the segments that are too old or too many; how many. Those of `busy` logs, which are being cleaned, wait."""
        now = self._clock.now_ms()
        return sum(one.apply_retention(now) for tp, one in self.logs.items() if tp not in busy)

    def expire_producers(self) -> int:
        """Forget producers that were silent too long; how many."""
        return sum(one.expire_producers() for one in self.logs.values())

    def flush_jobs(self) -> list[tuple[Log, FlushJob]]:
        """What flush.messages, flush.ms and rolled segments want on the disk: run it in a thread, then `log.flushed(job)`."""
        jobs: list[tuple[Log, FlushJob]] = []
        for one in self.logs.values():
            try:
                if one.needs_flush and (job := one.flush_job(one.flush_target)) is not None:
                    jobs.append((one, job))
            except OSError as error:
                log.warning("%s: cannot be flushed now, the next round tries again: %s", one.topic_partition, error)
        return jobs

    def due_deletions(self) -> list[str]:
        """Files and directories whose delay is over: give them to `deletion.remove` in a thread."""
        return self._trash.due()

    # The end

    def shutdown(self, high_watermarks: Mapping[TopicPartition, int] | None = None, broker_epoch: int = -1) -> None:
        """Flush and close every log, write the checkpoints, then the clean marks; unlock. Blocks.

        A directory with a log that could not be closed gets no mark: its next start recovers.
        """
        failed: set[str] = set()
        self._flush_all()
        for one in self.logs.values():
            try:
                one.close()
            except OSError as error:
                log.error("%s: could not be closed, the next start recovers it: %s", one.topic_partition, error)
                failed.add(os.path.dirname(one.dir))
        for write in self.checkpoint_writes() + self.high_watermark_writes(high_watermarks):
            try:
                write()
            except OSError as error:
                log.error("a checkpoint could not be written: %s", error)
                failed.update(self._directories)
        remove(self._trash.due())
        for path, directory in self._directories.items():
            if path not in failed:
                directory.mark_clean_shutdown(broker_epoch)
        self._unlock()
        self.logs.clear()

    def _flush_all(self) -> None:
        """Flush every log, several at a time: a disk that syncs one file in 4 ms syncs eight in hardly more."""
        jobs: list[tuple[Log, FlushJob]] = []
        for one in self.logs.values():
            with suppress(OSError):  # `close` tries again, and says what is wrong
                if (job := one.flush_job()) is not None:
                    jobs.append((one, job))
        with ThreadPoolExecutor(_FLUSH_THREADS, thread_name_prefix="ottla-flush") as pool:
            running = [(one, job, pool.submit(job.run)) for one, job in jobs]
        for one, job, future in running:
            if future.exception() is None:
                one.flushed(job)

    def abandon(self) -> None:
        """Let everything go as a crash would: no flush, no mark."""
        self._unlock()
        self.logs.clear()
