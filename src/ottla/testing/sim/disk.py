"""What a power cut leaves on a broker's disk.

Brokers of the simulation write real files; a process that is killed leaves them as they are, as the page cache does. When its
machine loses power, only what was brought to the disk (fsync) is sure to be there: of a segment everything behind that may be
missing, from any byte on, or be zeros; a small file may be what it was when it was last synced, or not be there at all. While a
`Disk` is installed, it takes the place of `os.fsync` and `os.fdatasync`, and sees what is truncated.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from ottla.storage.directory import LOCK_FILE

_KEPT = 0.4  # the chance that a file that was not synced is there all the same
_ZEROS = 0.15  # the chance that the end of a segment is there, but its bytes are not
_LOG = ".log"


class Disk:
    """The disks of all brokers of a run."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sizes: dict[int, int] = {}
        self._contents: dict[str, bytes] = {}
        self._by_inode: dict[int, bytes] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """See every sync of this process."""
        real = os.fsync, os.fdatasync, os.truncate, os.ftruncate

        def truncate(file: int | str, length: int) -> None:
            inode = os.stat(file).st_ino
            if inode in self._sizes:
                self._sizes[inode] = min(self._sizes[inode], length)
            real[2](file, length)

        os.fsync = os.fdatasync = self.synced  # type: ignore[assignment]
        os.truncate = os.ftruncate = truncate  # type: ignore[assignment]
        try:
            yield
        finally:
            os.fsync, os.fdatasync, os.truncate, os.ftruncate = real

    def synced(self, file: int) -> None:
        """In place of fsync: what this file holds now is safe."""
        found = os.fstat(file)
        path = os.readlink(f"/proc/self/fd/{file}")
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(path) as entries:
                for entry in entries:
                    content = self._by_inode.get(entry.inode())
                    if content is not None:
                        self._contents[entry.path] = content
        elif path.endswith(_LOG):
            self._sizes[found.st_ino] = found.st_size
        else:
            with open(path, "rb") as content_now:
                self._by_inode[found.st_ino] = self._contents[path] = content_now.read()

    def power_cut(self, directory: str) -> list[str]:
        """Take away what a power cut may take away below `directory`; what was lost, in words."""
        lost: list[str] = []
        for parent, _, files in sorted(os.walk(directory)):
            for name in sorted(files):
                path = os.path.join(parent, name)
                words = self._cut(path) if name.endswith(_LOG) else self._set_back(path)
                if words:
                    lost.append(f"{os.path.relpath(path, directory)}: {words}")
        return lost

    def _cut(self, path: str) -> str | None:
        """A segment loses its end."""
        found = os.stat(path)
        safe = min(self._sizes.get(found.st_ino, 0), found.st_size)
        random = self._random
        if found.st_size == safe or random.random() < _KEPT:
            return None
        at = random.randint(safe, found.st_size)
        os.truncate(path, at)
        if random.random() < _ZEROS:
            os.truncate(path, found.st_size)
            return f"zeros from {at} on of {found.st_size} bytes ({safe} were synced)"
        return f"cut at {at} of {found.st_size} bytes ({safe} were synced)"

    def _set_back(self, path: str) -> str | None:
        """A small file is what it was when it was synced."""
        if os.path.basename(path) == LOCK_FILE:
            return None
        with open(path, "rb") as file:
            present = file.read()
        safe = self._contents.get(path)
        if present == safe or self._random.random() < _KEPT:
            return None
        if safe is None:
            os.unlink(path)
            return "gone"
        with open(path, "wb") as file:
            file.write(safe)
        return "as it was when it was synced"
