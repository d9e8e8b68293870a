"""The process that reads and writes messages for the console: Arrow lives there, not in the console.

Guards: the console stays small, and answers others, whatever is searched for; so many searches run at once and no more; the
process is there while there is work and for a while after that, and ends with the console, also where that was killed. Where it
dies, its jobs say so in one line, and the next one gets a new process.

A job has a socket pair of its own: one end goes to the process, what it says comes out of the other, and to close that one
ends the job. Lives on the console's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any

from ottla.console import frames
from ottla.console.asking import BadRequest
from ottla.console.frames import END, PROBLEM, SIZE_BYTES, Frame

log = logging.getLogger("ottla.console")

_AT_ONCE = 8
_IDLE_S = 30.0
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
"""Allocators that keep little back: memory matters more than the last bit of speed here."""
_DIED = "The process that reads messages for the console ended unexpectedly: try again."


class Job:
    """Something that the process does, as long as somebody wants to hear of it."""

    def __init__(self, sock: socket.socket, ended: Callable[[], None], died: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._ended = ended
        self._died = died
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._over = False

    async def begin(self, kind: str, fields: Mapping[str, Any]) -> Frame:
        """Say what to do. The first word of the answer; a refusal is raised."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)
        self._writer.write(frames.encode(kind, fields))
        first = await _read(self._reader)
        if first is None:
            self._died()
            raise BadRequest(_DIED, HTTPStatus.BAD_GATEWAY)
        if first.kind == PROBLEM:
            problem = first.value
            raise BadRequest(problem["error"], HTTPStatus(problem["status"]))
        return first

    async def words(self) -> AsyncIterator[Frame]:
        """All that is said after the first word, up to and with the last."""
        assert self._reader is not None
        while True:
            frame = await _read(self._reader)
            if frame is None:
                self._died()
            yield frame if frame is not None else Frame(PROBLEM, b'{"error":"%s"}' % _DIED.encode())
            if frame is None or frame.kind in (END, PROBLEM):
                return

    def end(self) -> None:
        """Whether or not it is done: the process notices."""
        if not self._over:
            self._over = True
            _end(self._writer or self._sock, self._ended)

    def __del__(self) -> None:
        """Of a page that went away before the first word was sent to it. The collector may come in any thread."""
        if not self._over:
            with contextlib.suppress(RuntimeError):  # the loop is over, and with it the process
                self._loop.call_soon_threadsafe(_end, self._writer or self._sock, self._ended)


def _end(end: asyncio.StreamWriter | socket.socket, ended: Callable[[], None]) -> None:
    end.close()
    ended()


class ReaderProcess:
    """The process, from the console's side."""

    def __init__(self, settings: Mapping[str, object], idle_s: float = _IDLE_S) -> None:
        self._settings = settings
        self._idle_s = idle_s
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._starting = asyncio.Lock()
        self._jobs = 0
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._control is not None and self._process is not None else None

    async def ask(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        """Have something done that has one answer: as JSON, which may be large."""
        job = await self._new_job()
        try:
            return (await job.begin(kind, fields)).text
        finally:
            job.end()

    async def follow(self, kind: str, fields: Mapping[str, Any]) -> Job:
        """Begin something that goes on. Whoever gets it ends it."""
        if self._jobs >= _AT_ONCE:
            why = f"{_AT_ONCE} searches and tails are running already: stop one of them."
            raise BadRequest(why, HTTPStatus.TOO_MANY_REQUESTS)
        job = await self._new_job()
        try:
            await job.begin(kind, fields)
        except BaseException:
            job.end()
            raise
        return job

    def close(self) -> None:
        """End the process; what it does is dropped."""
        if self._idle is not None:
            self._idle.cancel()
        if self._control is not None:
            self._control.close()
            self._control = None

    # ---- the process -----------------------------------------------------------------------------------------------------

    async def _new_job(self) -> Job:
        self._jobs += 1
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    await self._hand_over(theirs)
                except BaseException:
                    ours.close()
                    raise
        except BaseException:
            self._job_ended()
            raise
        control = self._control
        return Job(ours, self._job_ended, lambda: self._died(control))

    def _died(self, control: socket.socket | None) -> None:
        """The process behind `control` is gone, or about to be: it gets no more jobs."""
        if self._control is control:
            self.close()

    def _job_ended(self) -> None:
        self._jobs -= 1
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if not self._jobs:
            self.close()

    async def _hand_over(self, sock: socket.socket) -> None:
        async with self._starting:
            if self._control is not None:
                with contextlib.suppress(OSError):
                    socket.send_fds(self._control, [b"\0"], [sock.fileno()])
                    return
                log.warning("The process that reads messages died; starting another")
                self.close()
            self._control = await self._start()
            socket.send_fds(self._control, [b"\0"], [sock.fileno()])

    async def _start(self) -> socket.socket:
        if find_spec("pyarrow") is None:
            raise BadRequest('Messages need pyarrow: pip install "ottla[console]"', HTTPStatus.NOT_IMPLEMENTED)
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own: Ctrl-C in a terminal is for the console, and this process ends with that.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "ottla.console.worker",
                stdin=theirs.fileno(), env={**os.environ, **_ENVIRONMENT}, start_new_session=True,
            )  # fmt: skip
        ours.sendall(frames.encode("settings", dict(self._settings)))
        return ours


async def _read(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None when the process has ended."""
    try:
        size = await reader.readexactly(SIZE_BYTES)
        return frames.decode(await reader.readexactly(int.from_bytes(size, "big")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
