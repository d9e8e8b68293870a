"""The bytes that a reader has under way, and the buffers they lie in.

Guards: what was fetched and is not yet decoded, together with what was asked for, stays within the budget; a buffer is used
again only when every partition of the answer in it was decoded.
"""

from __future__ import annotations

import threading
from collections import deque

_SPARE_BUFFERS = 4
_LARGE = 4 << 20  # bytes: what is larger is not rounded up


class Budget:
    """How many bytes may be under way. One request is let through even if it asks for more than there is."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._closed = False
        self._changed = threading.Condition()
        self.peak = 0

    def take(self, size: int) -> bool:
        """Wait for room; false when the reader has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._used or self._used + size <= self._size)
            if not self._closed:
                self._add(size)
            return not self._closed

    def change(self, size: int) -> None:
        """Give room back, or take what has already come."""
        with self._changed:
            self._add(size)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add(self, size: int) -> None:
        self._used += size
        self.peak = max(self.peak, self._used)


class Buffers:
    """Receive buffers that are used again: fresh memory costs more than filling it."""

    def __init__(self) -> None:
        self._spare: deque[bytearray] = deque(maxlen=_SPARE_BUFFERS)
        self._lock = threading.Lock()

    def get(self, size: int) -> bytearray:
        with self._lock:
            for number, buffer in enumerate(self._spare):
                if size <= len(buffer) <= max(4 * size, _LARGE * 2):
                    del self._spare[number]
                    return buffer
        return bytearray(size if size > _LARGE else 1 << max(size - 1, 1023).bit_length())

    def put(self, buffer: bytearray) -> None:
        with self._lock:
            self._spare.append(buffer)


class Lease:
    """An answer's bytes: counted until every partition in it was decoded, then used for another answer."""

    def __init__(self, budget: Budget, buffers: Buffers, size: int) -> None:
        self.buffer: bytearray | None = None
        self._budget = budget
        self._buffers = buffers
        self._size = size
        self._users = 1
        self._lock = threading.Lock()

    def room(self, size: int) -> memoryview:
        """Where the answer goes; from now on its real size counts."""
        self._budget.change(size - self._size)
        self._size = size
        self.buffer = self._buffers.get(size)
        return memoryview(self.buffer)[:size]

    def share(self) -> None:
        with self._lock:
            self._users += 1

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._budget.change(-self._size)
            if self.buffer is not None:
                self._buffers.put(self.buffer)
