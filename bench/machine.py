"""What the machine says: the CPU time and memory of a process, the page cache of a file, and what all this runs on.

Linux only. Nothing here starts or changes anything, except `drop_page_cache`, which is what its name says.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_CPUCLOCK_SCHED = 2


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, living and ended, to the nanosecond.

    This is the process CPU clock of another process (clock_getcpuclockid(3)); /proc/PID/stat counts in steps of 10 ms, which is
    too coarse for a broker that needs 100 ms for the whole round.
    """
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def rss_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    return _status(pid, "VmRSS") / 1024


def family_cpu_seconds(pid: int) -> float:
    """The CPU time of a process and of all that it started, whether they live or have ended."""
    return sum(cpu_seconds(one) + _reaped_cpu_seconds(one) for one in _family(pid))


def forget_family_peak(pid: int) -> None:
    """From now on `family_peak_mb` counts anew."""
    for one in _family(pid):
        Path(f"/proc/{one}/clear_refs").write_text("5\n")


def family_peak_mb(pid: int) -> float:
    """The most resident memory that a process and its living children had: their own peaks, added up, in MB.

    They need not have been at the same time, and what they share counts for each: never too little.
    """
    return sum(_status(one, "VmHWM") for one in _family(pid)) / 1024


def _family(pid: int) -> list[int]:
    """A process and its living descendants."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):  # that thread has just ended
                found += map(int, children.read_text().split())
    return found


def _reaped_cpu_seconds(pid: int) -> float:
    """The CPU time of ended children, in the steps of /proc/PID/stat."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[13]) + int(after_name[14])) / os.sysconf("SC_CLK_TCK")


def disk_read_mb(pid: int) -> float:
    """What a process made the disk read so far, in MB."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1]) / 1e6
    return 0.0


def _status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


# ---- memory ---------------------------------------------------------------------------------------------------------------


def make_memory_real(at_most_mb: int = 4096) -> float:
    """Touch much of the free memory once and give it back; how many seconds that took.

    A virtual machine gets a page from its host when it first touches it. That costs up to 4 s/GB and counts as the broker's CPU
    time: the first 400 MB written after a start took 0.99 s/GB, those after them 0.19. Whoever comes first would pay for all.
    Where the host takes free pages back (free page reporting), it does so two seconds after they were freed: so this is asked
    for again before each load that fills new pages.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    size = min(at_most_mb, free // 2) << 20
    began = time.perf_counter()
    if size:
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            with suppress(OSError):  # no large pages: it takes longer
                memory.madvise(mmap.MADV_HUGEPAGE)  # as the host has them too
            for at in range(0, size, mmap.PAGESIZE):
                memory[at] = 1
    return time.perf_counter() - began


# ---- the page cache ------------------------------------------------------------------------------------------------------


def drop_page_cache(files: Iterable[Path]) -> float:
    """Write the files to the disk and forget their pages; returns the share that is still resident (0 is best, 1 worst)."""
    paths = [path for path in files if path.stat().st_size]
    for path in paths:
        fd = os.open(path, os.O_RDWR)
        try:
            os.fsync(fd)  # a dirty page cannot be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    with suppress(OSError):  # root alone may; without it the advice above has done the work
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    return resident_share(paths)


def resident_share(files: Iterable[Path]) -> float:
    """How much of the files lies in the page cache, 0 to 1, by mincore: a probe that reads would bring pages in."""
    resident = total = 0
    libc = ctypes.CDLL(None, use_errno=True)
    for path in files:
        size = path.stat().st_size
        if not size:
            continue
        pages = -(-size // mmap.PAGESIZE)
        answer = (ctypes.c_ubyte * pages)()
        with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            start = ctypes.c_char.from_buffer(mapped)
            failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), answer)
            del start  # the map cannot be closed while something points into it
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore on {path} failed")
        resident += sum(byte & 1 for byte in bytes(answer))
        total += pages
    return resident / total if total else 0.0


# ---- what all this runs on -----------------------------------------------------------------------------------------------


def describe() -> dict[str, str]:
    """The machine and the versions, for the head of the report."""
    import confluent_kafka  # noqa: PLC0415 - an Apache Kafka without clients can still be timed

    import ottla  # noqa: PLC0415
    from ottla import compiled  # noqa: PLC0415

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "cores": f"{len(os.sched_getaffinity(0))}, {_cpu_model()}",
        "memory": f"{memory:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Java": _java_version(),
        "librdkafka": str(confluent_kafka.libversion()[0]),
        "Ottla": f"{ottla.__version__}, {compiled.PLAIN_BECAUSE or 'compiled'}",
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _java_version() -> str:
    try:
        told = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return told.splitlines()[0].replace('"', "")
