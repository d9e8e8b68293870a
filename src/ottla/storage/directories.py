"""The data directories of this broker with the logs in them: whose they are, what they checkpoint, what happens when one fails.

Guards: a directory is used only while it is locked and belongs to this broker; a checkpoint never says more than is on the
disk; a directory whose disk fails is given up with all its logs (`fail`), and the others go on. `manager.LogManager` adds how
logs come and go.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from ottla.clock import Clock
from ottla.model import TopicPartition
from ottla.storage.checkpoints import CLEANER_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from ottla.storage.directory import DataDirectory, StorageStartError, UnusableDirectory
from ottla.storage.failures import ends_directory
from ottla.storage.log import Log

log: Final = logging.getLogger("ottla.storage")

Write = Callable[[], None]


class LogDirectories:
    """Locked directories. Lives on the loop; what blocks says so."""

    def __init__(self, dirs: Sequence[str], clock: Clock, broker_id: int) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.broker_id = broker_id
        self.home = os.path.realpath(dirs[0])
        """The first directory: where the embedded metadata lie."""
        self.offline_dirs: set[str] = set()
        """Directories that failed: nothing in them is touched before the next start."""
        self.directory_failed: Callable[[str, OSError], None] = lambda _path, _error: None
        """Told, in any thread, of an error after which a directory cannot be trusted: the loop is to call `fail` then."""
        self._clock = clock
        self._directories: dict[str, DataDirectory] = {}
        self._counts: dict[str, int] = {}
        try:
            self._lock(dirs)
        except BaseException:
            self._unlock()
            raise

    def _lock(self, dirs: Sequence[str]) -> None:
        unusable: UnusableDirectory | None = None
        for path in dirs:
            try:
                directory = DataDirectory(path)
            except UnusableDirectory as problem:
                unusable = problem
                self.offline_dirs.add(os.path.realpath(path))
                continue
            self._directories[directory.path] = directory
            self._counts[directory.path] = 0
        if unusable is not None:
            if not self._directories:
                raise unusable
            log.error("%s; its partitions are offline, the other directories are served", unusable)

    @property
    def dirs(self) -> list[str]:
        """The directories that work."""
        return list(self._directories)

    def stored_cluster_id(self) -> str | None:
        """The cluster that the directories say they belong to; None if all are fresh."""
        for directory in self._directories.values():
            meta = directory.meta_properties()
            if meta is not None:
                return meta.cluster_id
        return None

    def claim(self, cluster_id: str) -> None:
        """Check that every directory belongs to this broker of this cluster; fresh ones do from now on. Blocks."""
        for directory in list(self._directories.values()):
            with self._tolerating(directory.path):
                directory.check_owner(self.broker_id, cluster_id, self._clock.now_ms())

    @contextmanager
    def _tolerating(self, path: str) -> Iterator[None]:
        """While the broker starts: a disk that fails is given up, unless it is the last."""
        try:
            yield
        except OSError as error:
            if not ends_directory(error, path) or self.dirs == [path]:
                raise StorageStartError(f"cannot use the data directory {path}: {error}") from error
            self.fail(path, error)

    def _unlock(self) -> None:
        for directory in self._directories.values():
            directory.unlock()

    def sync_directories(self) -> None:
        """Bring the names that `delete` gave to the disk. Blocks: safe in a thread."""
        for directory in self._directories.values():
            directory.sync_names()

    def logs_in(self, path: str) -> list[Log]:
        """The logs of one data directory."""
        prefix = path + os.sep
        return [one for one in self.logs.values() if one.dir.startswith(prefix)]

    # Disks fail

    def io_failed(self, failed: Log, error: OSError) -> None:
        """A log met an I/O error: whoever met it calls this, in any thread."""
        parent = os.path.dirname(failed.dir)
        # A copy that was called off may lose its directory while a thread still writes to it.
        served = self.logs.get(failed.topic_partition) is failed
        if ends_directory(error, failed.dir if served else parent):
            self.directory_failed(parent, error)

    def look_after_directories(self) -> None:
        """Notice a directory that was taken away under us: files that are open would still take what nobody can find again.
        Blocks: safe in a thread."""
        for path in self.dirs:
            if not os.path.isdir(path):
                self.directory_failed(path, FileNotFoundError(errno.ENOENT, "the directory is gone", path))

    def fail(self, path: str, error: OSError) -> list[TopicPartition]:
        """Give a directory up, with all its logs, until the next start; the partitions that were in it."""
        directory = self._directories.pop(path, None)
        if directory is None:
            return []
        gone = [one.topic_partition for one in self.logs.values() if one.dir.startswith(path + os.sep)]
        for tp in gone:
            del self.logs[tp]
        del self._counts[path]
        self.offline_dirs.add(path)
        directory.unlock()
        log.error(
            "%s failed (%s): its %d partitions are offline until the broker is started again; %s",
            path, error.strerror or error, len(gone),
            f"still served: {', '.join(self.dirs)}" if self.dirs else "no directory is left",
        )  # fmt: skip
        return gone

    # Checkpoints

    def checkpoint_writes(self) -> list[Write]:
        """Everything that a recovery goes by, captured: after a deletion, so that no later partition of that name meets it."""
        return self.recovery_point_writes() + self.log_start_writes() + self.cleaner_point_writes()

    def recovery_point_writes(self) -> list[Write]:
        """The recovery points, captured; each call writes a directory's. That blocks: safe in a thread."""
        return self._writes(RECOVERY_POINTS, lambda one: one.recovery_point)

    def log_start_writes(self) -> list[Write]:
        """The log start offsets that do not follow from the first segment, captured like the recovery points."""
        return self._writes(LOG_START_OFFSETS, lambda one: one.log_start_offset if one.starts_within_segment else None)

    def cleaner_point_writes(self) -> list[Write]:
        """Up to where the logs were compacted, captured like the recovery points."""
        return self._writes(CLEANER_POINTS, lambda one: one.cleaned_to)

    def high_watermark_writes(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> list[Write]:
        """The high watermarks, captured like the recovery points; by default those that the logs know."""
        marks = high_watermarks
        return self._writes(
            HIGH_WATERMARKS, lambda one: marks.get(one.topic_partition) if marks is not None else one.high_watermark
        )

    def _writes(self, name: str, offset_of: Callable[[Log], int | None]) -> list[Write]:
        writes: list[Write] = []
        for path, directory in self._directories.items():
            offsets = {one.topic_partition: offset for one in self.logs_in(path) if (offset := offset_of(one)) is not None}
            writes.append(partial(self._write, path, directory.checkpoint(name, offsets)))
        return writes

    def _write(self, path: str, checkpoint: Write) -> None:
        try:
            checkpoint()
        except OSError as error:
            if ends_directory(error, path):
                self.directory_failed(path, error)
            raise

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """What was checkpointed before this start."""
        found: dict[TopicPartition, int] = {}
        for directory in self._directories.values():
            found.update(directory.high_watermarks())
        return found
