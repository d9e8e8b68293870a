"""Spark's Python workers, as our tasks find them: a process that serves one task after the other, over one socket.

Guards: a small batch is not slower than with a source that is inside Spark. Connections stay from one task to the next. And two
habits of Spark took longer than reading such a batch:

- Between two tasks a worker looks through all its objects for garbage, while the next task waits. With Arrow, pandas and
  ourselves loaded that takes 80 ms. What a process has loaded by the end of its first task stays for its life, so it is taken
  out of that search.
- Spark sends a task in two pieces, and its kernel keeps the second back until the first is acknowledged (Nagle), which a
  worker's kernel does 40 ms later because it takes the exchange for a conversation and waits for something to send along. It is
  told not to wait, between two tasks. (Spark's `spark.python.unix.domain.socket.enabled` avoids this too, and is off.)

Where Spark limits a worker's memory (spark.executor.pyspark.memory) it limits its address space, most of which is taken, and
never touched, before we are called; of 512 MB there are 56 left. Every new thread would take 72 of them for a stack and a heap
of its own: with a limit they get less, and a task fetches less ahead. Arrow's pool has reserved 128 MB by then: its batches go
there and nowhere else.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from ottla.client import Cluster

_PAUSES = (0.001, 0.004, 0.015)
"""Seconds; the task's last bytes go out a moment after we are done, and make the kernel wait for more to send again."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # glibc's numbers for them
_LARGE = 256 << 10
"""Bytes from which a block of memory comes from the system, and goes back to it."""
_STACK = 1 << 20

_MOST_AHEAD, _LEAST_AHEAD = 32 << 20, 2 << 20
_SHARE_OF_ROOM = 8
"""What was fetched is there up to four times: as it came, unpacked, as a batch, and on its way to Spark. The other half is for
what is loaded with the first task, and for the batches of Arrow that its own reserve does not hold."""

_settled = False
_ahead = 0
_clusters: dict[tuple[tuple[str, str], ...], Cluster] = {}
_FEW_CLUSTERS = 4


@contextmanager
def lasting_cluster(settings: Mapping[str, str]) -> Iterator[Cluster]:
    """A cluster whose connections the next task of this process finds open."""
    key = tuple(sorted(settings.items()))
    cluster = _clusters.pop(key, None) or Cluster(settings)
    try:
        yield cluster
    finally:
        if key in _clusters:
            cluster.close()
        else:
            _clusters[key] = cluster
        if len(_clusters) > _FEW_CLUSTERS:
            _clusters.pop(next(iter(_clusters))).close()


def fit_in() -> int:
    """To be called before a task does anything: threads take no room that is not there, and so many bytes are fetched ahead."""
    global _ahead
    if not _ahead:  # once in a process: what its first task took for itself, the next ones find there
        _ahead = _MOST_AHEAD
        if _is_limited():
            set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
            if set_option is not None:
                set_option(_ARENA_MAX, 1)
                set_option(_MMAP_THRESHOLD, _LARGE)
                set_option(_TRIM_THRESHOLD, _LARGE)
            threading.stack_size(_STACK)
            _ahead = min(max(_room() // _SHARE_OF_ROOM, _LEAST_AHEAD), _MOST_AHEAD)
    return _ahead


def _is_limited() -> bool:
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _room() -> int:
    """Bytes of address space that are left below the limit; where the system does not tell, the least there may be."""
    try:
        with open("/proc/self/statm", encoding="ascii") as pages:
            taken = int(pages.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0
    return max(resource.getrlimit(resource.RLIMIT_AS)[0] - taken, 0)


def settle() -> None:
    """To be called at the end of what a task, or a plan, has to do."""
    global _settled
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()
    if hasattr(socket, "TCP_QUICKACK") and not _is_limited():  # else there is no room for one more thread
        threading.Thread(target=_acknowledge_at_once, name="ottla-quick-ack", daemon=True).start()


def _acknowledge_at_once() -> None:
    for pause in _PAUSES:
        time.sleep(pause)
        for one in connections():
            with suppress(OSError):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def connections() -> Iterator[socket.socket]:
    """The TCP connections of this process, of which Spark's is one: it is nowhere to be had by name."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.stat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                        yield one
