"""The process that compacts: a job comes in on standard input, cleaned segments and a last word go out on standard output.

Guards: it dies with the broker that started it, because that ends its input, and never writes a file under a name that a
reader looks for. One job at a time; a thread listens meanwhile for its cancellation, for another speed and for the end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import Any, Final

from ottla.clock import Clock, SystemClock
from ottla.records.errors import CorruptRecords
from ottla.records.offset_map import OffsetMap
from ottla.storage.cleaning import faults, job
from ottla.storage.cleaning.job import Job
from ottla.storage.cleaning.rewrite import Pass

_SPAN_S: Final = 0.3
_SHORTEST_WAIT_S: Final = 0.01
_LONGEST_WAIT_S: Final = 0.1


class Cancelled(Exception):
    """The broker wants no more of this job."""


class Pace:
    """How fast the disk is read and written: `spend` waits where log.cleaner.io.max.bytes.per.second asks for it."""

    __slots__ = ("_clock", "_since", "_spent", "bytes_per_second", "cancelled")

    def __init__(self, clock: Clock) -> None:
        self.bytes_per_second = float("inf")
        self.cancelled = threading.Event()
        self._clock = clock
        self._since = clock.monotonic()
        self._spent = 0

    def spend(self, count: int) -> None:
        """`count` bytes more; raises `Cancelled` if nobody waits for the result."""
        self._spent += count
        while True:
            elapsed = self._clock.monotonic() - self._since
            wait = self._spent / self.bytes_per_second - elapsed
            if self.cancelled.is_set():
                raise Cancelled
            if wait < _SHORTEST_WAIT_S:
                break
            self.cancelled.wait(min(wait, _LONGEST_WAIT_S))  # another speed may come meanwhile
        if elapsed > _SPAN_S:  # what was not used long ago is not saved up
            self._since, self._spent = self._clock.monotonic(), 0


class Worker:
    """One worker process."""

    __slots__ = ("_jobs", "_out", "_pace")

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._pace = Pace(SystemClock())
        self._out = sys.stdout.buffer

    def listen(self) -> None:
        """Read what the broker says, until it ends: then so do we, at once and whatever is in hand."""
        try:
            for line in iter(sys.stdin.buffer.readline, b""):
                message = job.decode(line)
                if "bytes_per_second" in message:
                    self._pace.bytes_per_second = message["bytes_per_second"]
                if "cancel" in message:
                    self._pace.cancelled.set()
                if "job" in message:
                    task = Job.decode(message["job"])
                    self._pace.bytes_per_second = task.bytes_per_second
                    self._pace.cancelled.clear()
                    self._jobs.put(task)
        finally:  # also after a line that is cut: the broker died in the middle of it
            os._exit(0)

    def work(self) -> None:
        """Carry out one job after the other."""
        while True:
            self._tell(self._carry_out(self._jobs.get()))

    def _carry_out(self, task: Job) -> dict[str, Any]:
        try:
            offset_map = OffsetMap(task.map_bytes, task.load_factor, os.urandom(16))
            running = Pass(task, self._pace.spend, offset_map)
            for written in running.run():
                self._tell({job.WRITTEN: written._asdict()})
        except Cancelled:
            return {job.CANCELLED: True}
        except CorruptRecords as error:
            return {job.CORRUPT: str(error)}
        except (OSError, MemoryError) as error:
            return {job.FAILED: {"errno": getattr(error, "errno", None) or 0, "words": str(error) or type(error).__name__}}
        except Exception as error:  # to die of it would be to die of it again at the next attempt
            where = traceback.extract_tb(error.__traceback__)[-1]
            return {job.STUCK: f"{type(error).__name__}: {error} (at {where.filename}:{where.lineno})"}
        faults.reach("pass-ended")
        return {
            job.DONE: {
                "end": running.end,
                "read": running.read,
                "written": running.written,
                "keys": running.keys,
                "memory": running.memory,
            }
        }

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._out.write(job.encode(message))
            self._out.flush()
        except OSError:  # the broker is gone
            os._exit(0)


def main() -> None:
    """Run until the broker ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the broker, which tells us in its own way
    worker = Worker()
    threading.Thread(target=worker.listen, name="listener", daemon=True).start()
    worker.work()


if __name__ == "__main__":
    main()
