"""Files on their way out: renamed at once, so that no new file meets them, and unlinked after file.delete.delay.ms.

The loop asks `due` and hands what it gets to a thread: unlinking a gigabyte can take a while. A reader that still holds
a slice of one of them reads on: the descriptor keeps the bytes alive. Guards: no core is held for long by it either. To unlink
64 MB that are in the page cache keeps one busy for 10 ms in the kernel, and a request that comes to that core waits for it.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import shutil
from collections.abc import Iterable
from typing import Final

from ottla.clock import Clock
from ottla.storage import page_cache

_LARGE: Final = 4 << 20


class DeletionQueue:
    """What is to be removed, and when."""

    __slots__ = ("_clock", "_heap", "_serial")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, str]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, paths: Iterable[str], delay_ms: int) -> None:
        """Remove these files or directories once `delay_ms` have passed."""
        deadline = self._clock.monotonic() + delay_ms / 1000
        for path in paths:
            self._serial += 1
            heapq.heappush(self._heap, (deadline, self._serial, path))

    def forget(self, path: str) -> None:
        """Keep something that was to be removed."""
        self._heap = [entry for entry in self._heap if entry[2] != path]
        heapq.heapify(self._heap)

    def moved(self, old: str, new: str) -> None:
        """A directory has a new name: what waits in it goes with it."""
        prefix = old + os.sep
        if any(path.startswith(prefix) for _, _, path in self._heap):
            self._heap = [(due, n, new + path[len(old) :] if path.startswith(prefix) else path) for due, n, path in self._heap]

    def due(self) -> list[str]:
        """Take what may be removed now."""
        now = self._clock.monotonic()
        paths: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            paths.append(heapq.heappop(self._heap)[2])
        return paths


def remove(paths: Iterable[str]) -> None:
    """Unlink files and whole directories. Blocks: safe in a thread. What is gone already is fine."""
    for path in paths:
        if os.path.isdir(path):
            with contextlib.suppress(OSError):
                for name in os.listdir(path):
                    _leave_page_cache(os.path.join(path, name))
            shutil.rmtree(path, ignore_errors=True)
        else:
            _leave_page_cache(path)
            with contextlib.suppress(OSError):
                os.unlink(path)


def _leave_page_cache(path: str) -> None:
    """Most of the work of unlinking a large file, a little at a time."""
    with contextlib.suppress(OSError):
        if os.stat(path).st_size < _LARGE:
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for position in range(0, os.fstat(fd).st_size, page_cache.FORGET_STEP):
                page_cache.forget(fd, position, page_cache.FORGET_STEP)
        finally:
            os.close(fd)
