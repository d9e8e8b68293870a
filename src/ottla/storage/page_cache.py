"""Whether a range of a file is in the page cache, asked without touching it; and how one leaves it.

Guards: the answer starts no I/O. Reading with RWF_NOWAIT would tell too, but where a page is missing the kernel begins to
fetch it on the spot, at the cost of whoever asks: here the broker's loop. `cachestat` (Linux 6.5) only counts; without it,
the ends of the range and each 128 KiB are probed.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

PROBE_STEP: Final = 128 * 1024
FORGET_STEP: Final = 2 << 20  # the kernel keeps or drops whole folios, and they are as large as that
_PAGE: Final = os.sysconf("SC_PAGESIZE")
_CACHESTAT: Final = 451  # the number of the system call, the same on all architectures
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_PROBE: Final = [bytearray(1)]

_Range: Final = ctypes.c_uint64 * 2  # offset, length
_Counts: Final = ctypes.c_uint64 * 5  # pages cached, dirty, in writeback, evicted, recently evicted
_DIRTY: Final = 1
_range: Final = _Range()  # those of the loop, which asks often
_counts: Final = _Counts()
_libc: Final = ctypes.CDLL(None, use_errno=True)


def is_cached(fd: int, position: int, length: int) -> bool:
    """Whether the whole range lies in the page cache. True where nobody can say."""
    _range[0], _range[1] = position, length
    if _libc.syscall(_CACHESTAT, fd, _range, _counts, 0) == 0:
        wanted = (position + length - 1) // _PAGE - position // _PAGE + 1
        return bool(_counts[0] >= wanted)
    return _probed(fd, position, length)


def _probed(fd: int, position: int, length: int) -> bool:
    end = position + length - 1
    return all(_page_is_cached(fd, probe) for probe in (*range(position, end, PROBE_STEP), end))


def _page_is_cached(fd: int, position: int) -> bool:
    if not _NOWAIT:
        return True
    try:
        os.preadv(fd, _PROBE, position, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # a file system that does not know RWF_NOWAIT: nothing to be learned here
        return True
    return True


def forget(fd: int, position: int, length: int) -> None:
    """Drop a range, and let others have the core. Not what is still to be written: the kernel would begin to write it. Safe in
    a thread."""
    counts = _Counts()
    if _libc.syscall(_CACHESTAT, fd, _Range(position, length), counts, 0) == 0 and counts[_DIRTY]:
        return
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)
        os.sched_yield()
