"""Written pages on their way to the disk early, a few at a time, by somebody who is going to wait for all of them in the end.

A file that is synced at its end has the file system write all of it at once, and on ext4 others who write meanwhile wait for
that: a producer's append next to a clean took milliseconds. Guards: nothing depends on it; what must be on the disk is synced.
"""

from __future__ import annotations

import ctypes
from typing import Final

STEP: Final = 1 << 20  # to begin with more holds the core for a millisecond
_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE: begin, and wait for nothing

_range: Final = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _range is not None:
    _range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def begin(fd: int, start: int, end: int) -> None:
    """Have the kernel begin to write these bytes of a file, if it knows how."""
    if _range is not None:
        _range(fd, start, end - start, _WRITE)
