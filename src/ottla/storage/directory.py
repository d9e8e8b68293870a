"""One data directory (an entry of `log.dirs`): its lock, its owner, its checkpoints.

Guards: two brokers never use one directory. The lock is a POSIX record lock on `.lock`, as Java's FileLock takes it, so
Apache Kafka and this broker exclude each other too; within one process, where such a lock does not bind, a table of
names does.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final

from ottla.model import TopicPartition
from ottla.storage import checkpoints
from ottla.storage.checkpoints import (
    CLEANER_POINTS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    MalformedCheckpoint,
    MetaProperties,
)

log: Final = logging.getLogger("ottla.storage")

LOCK_FILE: Final = ".lock"

_locked_here: set[str] = set()


class StorageStartError(Exception):
    """Why the broker cannot start over its data: one clear line, with what to do."""


class UnusableDirectory(StorageStartError):
    """One data directory cannot be used; others may be."""


class DataDirectory:
    """A locked data directory. `unlock` gives it back."""

    __slots__ = ("_captures", "_lock_fd", "_writing", "_written", "clean_shutdown", "names_changed", "path")

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        try:
            os.makedirs(self.path, exist_ok=True)
            fd = os.open(os.path.join(self.path, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UnusableDirectory(
                f"cannot use the data directory {self.path}: {error.strerror}; make it writable or choose another in log.dirs"
            ) from error
        try:
            if self.path in _locked_here:
                raise OSError
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise StorageStartError(
                f"the data directory {self.path} is locked by another broker; stop that one, or choose another in log.dirs"
            ) from None
        _locked_here.add(self.path)
        self._lock_fd = fd
        self._writing = Lock()
        self._captures = 0
        self._written: dict[str, tuple[int, bytes | None]] = {}  # of each checkpoint: its capture and what it says
        self.clean_shutdown = False
        self.names_changed = False  # a partition was renamed, and that may not be on the disk yet

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            _locked_here.discard(self.path)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def meta_properties(self) -> MetaProperties | None:
        """Whose the directory is; None if it is fresh."""
        try:
            return checkpoints.read_meta_properties(self.path)
        except MalformedCheckpoint as error:
            raise StorageStartError(f"{error}; repair the file, or remove it if this directory is really yours") from error

    def check_owner(self, broker_id: int, cluster_id: str, now_ms: int) -> None:
        """Make sure that the directory belongs to this broker of this cluster; a fresh one does from now on. Blocks."""
        meta_path = os.path.join(self.path, META_PROPERTIES)
        meta = self.meta_properties()
        if meta is None:
            checkpoints.write_meta_properties(self.path, MetaProperties(broker_id, cluster_id), now_ms)
            return
        if meta.cluster_id != cluster_id:
            raise StorageStartError(
                f"{meta_path} is of cluster {meta.cluster_id}, but this broker is in cluster {cluster_id}; "
                "point log.dirs or the metadata at the right place, or remove meta.properties to take the directory over"
            )
        if meta.broker_id != broker_id:
            raise StorageStartError(
                f"{meta_path} is of broker {meta.broker_id}, but broker.id is {broker_id}; "
                f"set broker.id={meta.broker_id} or choose another directory in log.dirs"
            )

    # Checkpoints

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offsets(os.path.join(self.path, name))
        except MalformedCheckpoint as error:
            raise StorageStartError(f"{error}; remove the file to recover every log from its start") from error

    def recovery_points(self) -> dict[TopicPartition, int]:
        return self._read(RECOVERY_POINTS)

    def log_start_offsets(self) -> dict[TopicPartition, int]:
        return self._read(LOG_START_OFFSETS)

    def cleaner_points(self) -> dict[TopicPartition, int]:
        """Up to where each log was compacted. What cannot be read is cleaned again: nothing is lost by that."""
        try:
            return checkpoints.read_offsets(os.path.join(self.path, CLEANER_POINTS))
        except MalformedCheckpoint as error:
            log.warning("%s; compaction starts anew in this directory", error)
            return {}

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return self._read(HIGH_WATERMARKS)

    def checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> Callable[[], None]:
        """Capture a checkpoint; call what is returned to write it, if it says anything new. Blocks: safe in a thread.

        Threads may come in any order: what was captured earlier never replaces what was captured later, so a partition
        that was deleted in between does not come back.
        """
        path, content = os.path.join(self.path, name), checkpoints.offsets_table(offsets)
        self._captures += 1
        capture = self._captures

        def write() -> None:
            with self._writing:
                latest, written = self._written.get(name, (0, None))
                if capture < latest:
                    return
                if written != content:  # an idle broker lets the disk sleep
                    self._written[name] = latest, None
                    checkpoints.write_atomically(path, content)
                self._written[name] = capture, content

        return write

    def sync_names(self) -> None:
        """Bring the names of the partitions to the disk if one was changed. Blocks: safe in a thread."""
        with self._writing:  # whoever comes second waits until it is done
            if self.names_changed:
                self.names_changed = False
                try:
                    checkpoints.sync_directory(self.path)
                except OSError:
                    self.names_changed = True
                    raise

    def take_clean_shutdown(self) -> bool:
        """Whether the last stop left nothing to recover."""
        self.clean_shutdown = checkpoints.take_clean_shutdown(self.path)
        return self.clean_shutdown

    def mark_clean_shutdown(self, broker_epoch: int = -1) -> None:
        """Blocks."""
        checkpoints.write_clean_shutdown(self.path, broker_epoch)
