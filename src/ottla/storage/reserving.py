"""Room on the disk ahead of a segment's end, taken in large steps.

A file system that finds a place for each write as it comes (ext4, and others with delayed allocation) does much of its work for
every page; where the place is there already, a write costs a quarter less CPU. Guards: the size of a file never changes by it,
so neither readers nor a recovery see anything; a small segment takes none, a large one at most a quarter of its size and 8 MiB;
where the system refuses, writes go on as without.
"""

from __future__ import annotations

import ctypes
from typing import Final

FROM: Final = 1 << 20
"""Segments smaller than this have no room reserved: a broker may have thousands of them."""
_MOST: Final = 8 << 20
_NEVER: Final = 1 << 62
_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE

_libc: Final = ctypes.CDLL(None, use_errno=True)
_fallocate: Final = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def reserve(fd: int, end: int) -> int:
    """Reserve room behind `end`, which is how far the file is written now; up to where nothing is to be reserved again."""
    step = min(end // 4, _MOST)
    if _fallocate is None or _fallocate(fd, _KEEP_SIZE, end, step) != 0:
        return _NEVER
    return end + step
