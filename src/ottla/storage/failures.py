"""When is an I/O error the end of a data directory? Pure, but for a look whether a directory is still there.

Guards: a disk that fails, is full or read-only takes its directory out of service at once, before more is written to it that
may be lost; an error that will pass (no descriptor free, no memory) fails one request and nothing else.
"""

from __future__ import annotations

import errno
import os
from typing import Final

_OF_THE_DISK: Final = frozenset(
    {
        errno.EIO,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.ENODEV,
        errno.ENXIO,
        errno.ESTALE,
        errno.ENOTDIR,
        errno.EUCLEAN,
    }
)


def ends_directory(error: OSError, path: str) -> bool:
    """Whether an error on a file below `path`, a partition's or a data directory, means that the disk cannot be trusted."""
    if error.errno == errno.ENOENT:
        return not os.path.isdir(path)  # a single file may have been deleted under a reader; a directory has not
    return error.errno in _OF_THE_DISK
