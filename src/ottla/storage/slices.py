"""Regions of segment files, as they travel from the log to a socket: never bytes, always (file, position, length).

Guards: a region stays readable for as long as somebody holds it. A `SegmentFile` owns one descriptor and closes it when the
last reference to it is gone, so a segment that is rolled, renamed or unlinked while its bytes are on their way to a
consumer is felt by nobody. Closed segments keep no descriptor of their own: `open_for_reading` remembers the ones used last.
A range that is not in the page cache is warmed in a thread and not on the broker's loop (`page_cache`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final

# The core is held until the kernel has found room for a chunk, and copied it. 256 KB would take a fifth less CPU, but raise
# the p99 of a hot topic by a fifth: with 64 KB it stays below twice of what it is without.
_WARM_CHUNK: Final = 64 * 1024
_WARM_AHEAD: Final = 256 * 1024  # so far ahead of what is copied the disk is asked
# Where warmed bytes go that nobody looks at; all threads share it. Memory of one's own would be cleared under the GIL.
_SCRATCH: Final = memoryview(mmap.mmap(-1, _WARM_CHUNK))
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_REMEMBERED_FILES: Final = 256


class SegmentFile:
    """One open descriptor. Whoever can see this object can use the descriptor; nobody closes it by hand."""

    __slots__ = ("fd",)

    def __init__(self, path: str, flags: int = os.O_RDONLY) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
        # No readahead by the kernel: it would begin on the broker's loop and be waited for there. `warm` reads what is needed.
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if self.fd >= 0:
            try:
                os.close(self.fd)
            except AttributeError:  # the interpreter ends, and `os` is gone: the process takes its descriptors along
                pass


class OpenFiles:
    """The closed segments' files that were read last, so that a consumer of old data opens each segment once."""

    __slots__ = ("_capacity", "_files", "_lock")

    def __init__(self, capacity: int = _REMEMBERED_FILES) -> None:
        self._files: OrderedDict[str, SegmentFile] = OrderedDict()
        self._capacity = capacity
        self._lock = Lock()  # recovery runs in threads

    def get(self, path: str) -> SegmentFile:
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = SegmentFile(path)
                if len(self._files) > self._capacity:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return file

    def forget(self, path: str) -> None:
        """The file at `path` goes away: a later file of the same name must not be mistaken for it."""
        with self._lock:
            self._files.pop(path, None)


OPEN_FILES: Final = OpenFiles()


class FileSlice:
    """`length` bytes of a segment file from `position` on."""

    __slots__ = ("file", "length", "old", "position")

    def __init__(self, file: SegmentFile, position: int, length: int, old: bool = False) -> None:
        self.file = file
        self.position = position
        self.length = length
        self.old = old
        """Whether only the disk had it: who reads such data has much to read, and can wait for those who read what is new."""

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"FileSlice(fd={self.file.fd}, position={self.position}, length={self.length})"

    def rest(self, sent: int) -> FileSlice:
        """What is left of it when its first bytes have been sent."""
        return FileSlice(self.file, self.position + sent, self.length - sent, self.old)

    def cached(self) -> bool:
        """Whether the range lies in the page cache. True where nobody can say."""
        from ottla.storage.page_cache import is_cached  # noqa: PLC0415 - a broker that serves only the tail never needs it

        return is_cached(self.file.fd, self.position, self.length)

    def warm(self) -> None:
        """Read the range through once, so that it is in the page cache. Blocks: call it in a thread."""
        fd, position, end = self.file.fd, self.position, self.position + self.length
        asked = position if hasattr(os, "posix_fadvise") else end
        while position < end:
            while asked < min(position + _WARM_AHEAD, end):  # the disk has something to do while a chunk is copied
                os.posix_fadvise(fd, asked, min(end - asked, _WARM_CHUNK), os.POSIX_FADV_WILLNEED)
                asked += _WARM_CHUNK
            count = os.preadv(fd, [_SCRATCH[: min(end - position, _WARM_CHUNK)]], position)
            if count == 0:
                return
            position += count

    def read(self) -> bytes:
        """The bytes themselves, for what must look into them. Blocks if they are not cached."""
        chunks: list[bytes] = []
        position, left = self.position, self.length
        while left:
            chunk = os.pread(self.file.fd, left, position)
            if not chunk:
                break
            if len(chunk) == self.length:
                return chunk
            chunks.append(chunk)
            position += len(chunk)
            left -= len(chunk)
        return b"".join(chunks)


class NotCached(Exception):
    """A lookup met a cold page and was told not to wait. Call `warm` in a thread, then look up again."""

    def __init__(self, lookup: Callable[[], object]) -> None:
        super().__init__("not in the page cache")
        self._lookup = lookup

    def warm(self) -> None:
        """Bring what the lookup needs into the page cache. Blocks: safe in a thread, as its answer is not used."""
        with contextlib.suppress(Exception):
            self._lookup()


def pread(fd: int, length: int, position: int, nowait: bool = False) -> bytes:
    """`os.pread`, which with `nowait` raises BlockingIOError instead of waiting for a disk."""
    if not nowait or not _NOWAIT:
        return os.pread(fd, length, position)
    buffer = bytearray(length)
    try:
        count = os.preadv(fd, [buffer], position, _NOWAIT)
    except BlockingIOError:
        raise
    except OSError:
        return os.pread(fd, length, position)
    return bytes(buffer) if count == length else bytes(memoryview(buffer)[:count])
