"""A Spark worker with a limit on its address space: its threads take little of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, threading
from ottla.spark.workers import fit_in

def taken():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmSize"))

if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
fit_in()
before, done = taken(), threading.Event()
began = threading.Barrier(9)

def work():
    kept = bytearray(100_000)
    began.wait()
    done.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
began.wait()
print(taken() - before)
done.set()
"""


def taken_by_threads(how: str) -> int:
    """Megabytes of address space that eight threads take."""
    told = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=60, check=True)
    return int(told.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_with_a_limit_threads_take_little() -> None:
    assert taken_by_threads("limited") < 30
    assert taken_by_threads("free") > 60, "or there is nothing to be saved"
