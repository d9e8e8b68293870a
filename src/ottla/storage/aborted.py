"""The aborted transactions of a segment (`.txnindex`): what a read_committed consumer must step over.

One 34-byte entry for each, in the order of their markers. Most segments have none, and then no file either. What
cannot be written fails no append: it waits in memory, and recovery can rebuild it from the log.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from struct import Struct
from typing import Final, NamedTuple

log: Final = logging.getLogger("ottla.storage")

_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """A producer's aborted records from `first_offset` to `last_offset` (its marker), and the last stable offset then."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """A segment's aborted transactions, read on first use."""

    __slots__ = ("_entries", "_written", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._entries: list[AbortedTransaction] | None = None
        self._written = 0

    @property
    def entries(self) -> list[AbortedTransaction]:
        if self._entries is None:
            self.load()
        assert self._entries is not None
        return self._entries

    def load(self) -> None:
        """Read the file. ValueError if it is not whole or of another version."""
        entries: list[AbortedTransaction] = []
        try:
            with open(self.path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            content = b""
        if len(content) % _ENTRY.size:
            raise ValueError(f"{self.path}: {len(content)} bytes are not a multiple of {_ENTRY.size}")
        for version, *fields in _ENTRY.iter_unpack(content):
            if version != _VERSION:
                raise ValueError(f"{self.path}: an entry of version {version}")
            entries.append(AbortedTransaction(*fields))
        self._entries = entries
        self._written = len(entries)

    def append(self, transaction: AbortedTransaction) -> None:
        """Add one. If the file cannot be written, the entry waits for the next write."""
        self.entries.append(transaction)
        try:
            self.write()
        except OSError as error:
            log.warning("%s: cannot be written, its entries wait in memory: %s", self.path, error.strerror or error)

    def write(self) -> None:
        """Bring the entries that wait in memory into the file. OSError leaves them waiting."""
        if self._entries is None or self._written == len(self._entries):
            return
        content = b"".join(_ENTRY.pack(_VERSION, *transaction) for transaction in self._entries[self._written :])
        start, written = self._written * _ENTRY.size, 0
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while written < len(content):
                written += os.pwrite(fd, content[written:], start + written)
        finally:
            os.close(fd)
        self._written = len(self._entries)

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions that ended at or after `offset`."""
        kept = [transaction for transaction in self.entries if transaction.last_offset < offset]
        if len(kept) < self._written:
            os.truncate(self.path, len(kept) * _ENTRY.size)
            self._written = len(kept)
        self._entries = kept

    def reset(self) -> None:
        """Drop everything."""
        self._entries = []
        self._written = 0
        if os.path.exists(self.path):
            os.truncate(self.path, 0)

    def collect(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Those that touch start..end (exclusive), and whether later segments cannot add any."""
        found: list[AbortedTransaction] = []
        entries = self.entries  # in the order of their markers
        for at in range(bisect_left(entries, start, key=_marker_offset), len(entries)):
            transaction = entries[at]
            if transaction.first_offset < end:
                found.append(transaction)
            if transaction.last_stable_offset >= end:
                return found, True
        return found, False


def _marker_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset
