"""The leader epochs of one log: which leader wrote from which offset on. It is how replicas find where their logs part.

Guards: epochs and their first offsets both rise from entry to entry. The file follows every change at once (atomically,
but without waiting for the disk: `sync` does that before the recovery point may pass what the file says; recovery finds
the rest in the batches). A file that cannot be written fails no append: `write` tries again before the next flush.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from typing import Final

from ottla.model import UNKNOWN_EPOCH, UNKNOWN_OFFSET
from ottla.storage.checkpoints import LEADER_EPOCHS, MalformedCheckpoint, read_epochs, sync_directory, sync_file, write_epochs

log: Final = logging.getLogger("ottla.storage")


class LeaderEpochs:
    """The cache over a partition's `leader-epoch-checkpoint`. `latest` is read on every append."""

    __slots__ = ("_entries", "_unsynced", "_unwritten", "latest", "path")

    def __init__(self, directory: str, *, fresh: bool = False) -> None:
        """`fresh`: the directory was made just now."""
        self.path = os.path.join(directory, LEADER_EPOCHS)
        try:
            self._entries = [] if fresh else read_epochs(self.path)
        except MalformedCheckpoint as error:
            log.warning("%s; the leader epochs start anew", error)
            self._entries = []
        self._unsynced = False
        self._unwritten = False
        self.latest = self._entries[-1][0] if self._entries else UNKNOWN_EPOCH

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset), oldest first."""
        return tuple(self._entries)

    def moved(self, directory: str) -> None:
        """The partition's directory has a new name."""
        self.path = os.path.join(directory, LEADER_EPOCHS)

    @property
    def unwritten(self) -> bool:
        """Whether the file does not say yet what we know."""
        return self._unwritten

    def assign(self, epoch: int, start_offset: int, *, write: bool = True) -> None:
        """`epoch` begins at `start_offset`. Nothing happens if that is known; entries it contradicts give way.

        Without `write` the file follows when `write` is called: an epoch under which nothing was written yet may be lost in
        a crash, for the next one begins at the same place.
        """
        entries = self._entries
        if epoch < 0:
            return
        if entries and entries[-1][0] == epoch and start_offset >= entries[-1][1]:
            return
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start_offset):
            entries.pop()
        entries.append((epoch, start_offset))
        if write:
            self._write()
        else:
            self._mark_changed()

    def epoch_for(self, offset: int) -> int:
        """The epoch under which `offset` was written; UNKNOWN_EPOCH if it lies before all that is known."""
        at = bisect_right(self._entries, offset, key=_start) - 1
        return self._entries[at][0] if at >= 0 else UNKNOWN_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest epoch at or below `epoch`, where it ends), as OffsetForLeaderEpoch answers; (-1, -1) if unknown."""
        entries = self._entries
        if epoch == UNKNOWN_EPOCH or not entries:
            return UNKNOWN_EPOCH, UNKNOWN_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right(entries, epoch, key=_epoch)
        if above == len(entries):  # a leader that this log has not heard of
            return UNKNOWN_EPOCH, UNKNOWN_OFFSET
        return (entries[above - 1][0] if above else epoch), entries[above][1]

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that begin at or after `end_offset`."""
        entries = self._entries
        if entries and entries[-1][1] >= end_offset:
            while entries and entries[-1][1] >= end_offset:
                entries.pop()
            self._write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget what lies before `start_offset`; the epoch that covers it begins there from now on."""
        entries = self._entries
        if not entries or entries[0][1] >= start_offset:
            return
        at = bisect_right(entries, start_offset, key=_start) - 1
        entries[: at + 1] = [(entries[at][0], start_offset)]
        self._write()

    def clear(self) -> None:
        """Forget everything: the log starts anew."""
        if self._entries:
            self._entries.clear()
            self._write()

    def sync(self) -> None:
        """Bring the file to the disk if it is not there. Blocks: safe in a thread, as it writes nothing."""
        if self._unsynced:
            self._unsynced = False
            try:
                sync_file(self.path)
                sync_directory(os.path.dirname(self.path))
            except OSError:
                self._unsynced = True
                raise

    def write(self) -> None:
        """Bring the file up to date if an earlier write failed."""
        if self._unwritten:
            write_epochs(self.path, self._entries)
            self._unwritten = False

    def _mark_changed(self) -> None:
        self.latest = self._entries[-1][0] if self._entries else UNKNOWN_EPOCH
        self._unsynced = self._unwritten = True

    def _write(self) -> None:
        self._mark_changed()
        self.write_or_warn()

    def write_or_warn(self) -> None:
        """Bring the file up to date; if that fails, the next flush tries again."""
        try:
            self.write()
        except OSError as error:
            log.warning("%s: cannot be written, the next flush tries again: %s", self.path, error.strerror or error)


def _epoch(entry: tuple[int, int]) -> int:
    return entry[0]


def _start(entry: tuple[int, int]) -> int:
    return entry[1]
