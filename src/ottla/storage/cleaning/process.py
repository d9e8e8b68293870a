"""A worker process as the broker sees it: started when it is needed, given one job at a time, gone when the broker is.

Guards: nothing here waits on the loop; a worker that dies ends its job with `WorkerDied` and nothing else; it runs only while
nobody else wants to, from its first moment: to load its modules takes as long as a hundred requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from typing import Any, Final

from ottla.storage.cleaning import job
from ottla.storage.cleaning.job import Job

_NICENESS: Final = 10
_PATIENCE_S: Final = 5.0
_LONGEST_LINE: Final = 1 << 20


class WorkerDied(Exception):
    """The process ended, by itself or by a signal, in the middle of a job."""


class WorkerProcess:
    """One worker. Lives on the loop."""

    __slots__ = ("_process",)

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> WorkerProcess:
        """Start one. OSError if the machine has no room for it."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "ottla.storage.cleaning.worker", stdin=pipe, stdout=pipe, limit=_LONGEST_LINE
        )
        _have_it_give_way(process.pid)
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def clean(self, task: Job) -> AsyncGenerator[dict[str, Any], None]:
        """Give it a job; what it says, up to and with its last word. `WorkerDied` if that does not come."""
        assert self._process.stdout is not None
        self._say(task.encode())
        while True:
            line = await self._process.stdout.readline()
            if not line.endswith(b"\n"):
                code = await self._process.wait()
                raise WorkerDied(f"process {self.pid} ended with {code}")
            message = job.decode(line)
            yield message
            if job.WRITTEN not in message:
                return

    def cancel(self) -> None:
        """Its job is of no use any more: it says so and waits for the next one."""
        self._say(job.encode({"cancel": True}))

    def set_speed(self, bytes_per_second: float) -> None:
        """Change the speed of the job in hand."""
        self._say(job.encode({"bytes_per_second": bytes_per_second}))

    def _say(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it died: whoever reads from it finds out
            self._process.stdin.write(line)

    async def stop(self) -> None:
        """End it: the end of its input does that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def _have_it_give_way(pid: int) -> None:
    """Whoever wakes up for a request has the core at once, and not after the worker's turn."""
    with contextlib.suppress(AttributeError, OSError):  # not on this system, not allowed here, or it has ended
        os.setpriority(os.PRIO_PROCESS, pid, _NICENESS)
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
