"""Bringing a log to the disk without stopping its loop: what is to be synced is captured on the loop, and synced in a
thread.

Guards: the recovery point moves only after everything below it is on the disk. A sync that failed may have lost what it
was to save, and the kernel says so only once: a later sync that succeeds proves nothing. So the log is told (`failed`)
before anybody can ask again. The job holds the files themselves, so that a segment that is rolled or deleted while it
runs does no harm. The active segment's indexes are not synced: recovery rebuilds them in any case.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from typing import Final

from ottla.storage.checkpoints import sync_file
from ottla.storage.epochs import LeaderEpochs
from ottla.storage.segment import LOG_SUFFIX, Segment
from ottla.storage.slices import SegmentFile

_NOTHING_LOST: Final = (errno.EMFILE, errno.ENFILE)  # the file could not even be opened: it can be synced later


class FlushJob:
    """Everything of a log below `up_to` that may not be on the disk yet. OSError if its files cannot be opened now."""

    __slots__ = ("_directories", "_epochs", "_failed", "_files", "_indexes", "up_to")

    def __init__(
        self,
        segments: Sequence[Segment],
        epochs: LeaderEpochs,
        recovery_point: int,
        up_to: int,
        failed: Callable[[str, OSError], None],
    ) -> None:
        """`failed` is called with the file's path, in the thread that runs the job."""
        self.up_to = up_to
        self._epochs = epochs
        self._failed = failed
        self._files: list[tuple[str, SegmentFile]] = [(segment.path(LOG_SUFFIX), segment.file) for segment in segments]
        self._indexes: list[str] = []
        self._directories: list[str] = []
        epochs.write()
        for segment in segments:
            segment.offset_index.try_write()
            segment.time_index.try_write()
            if not segment.active:
                self._indexes += [segment.offset_index.path, segment.time_index.path, segment.aborted.path]
        if segments and segments[-1].base_offset >= recovery_point:  # never flushed: its name may not be on the disk either
            self._directories.append(segments[0].directory)
            if segments[0].base_offset >= recovery_point:  # nor may the partition's own
                self._directories.append(os.path.dirname(segments[0].directory))

    def run(self) -> None:
        """Sync. Blocks: safe in a thread. OSError if something could not be synced; the log knows then."""
        path = ""
        try:
            for log_path, file in self._files:
                path = log_path
                os.fdatasync(file.fd)
            for path in (*self._indexes, *self._directories):
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, or a segment without aborted transactions
                    sync_file(path)
            path = self._epochs.path
            with contextlib.suppress(FileNotFoundError):
                self._epochs.sync()
        except OSError as error:
            if error.errno not in _NOTHING_LOST:
                self._failed(error.filename or path, error)
            raise
