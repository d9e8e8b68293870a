"""A way to another broker: request frames go out, answers come back in the same order.

Guards: answers are matched to requests by their order and correlation ids; a connection that breaks, or on which an answer is
overdue, is closed and fails all that wait on it. The memory of one link is bounded by the largest answer that was ever asked
for. Life: made by `dial`, used until it closes; whoever needs the broker again dials again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from ottla.model import BrokerUnavailable

_SIZE = struct.Struct(">i")
_FIRST_BUFFER = 16 << 10
_LARGEST_ANSWER = 256 << 20


class Link(Protocol):
    """What a way to a broker offers. The simulator has one without sockets."""

    closed: bool

    async def exchange(self, frame: bytes, timeout: float) -> memoryview:
        """Send a request; its answer without the length in front. Valid until the next answer comes.

        Raises BrokerUnavailable."""
        ...

    def close(self) -> None: ...


Dial = Callable[[str, int, float], Awaitable[Link]]
"""Host, port and the seconds that may take; raises BrokerUnavailable."""


async def dial(host: str, port: int, timeout: float) -> Link:
    """Connect to a broker over TCP."""
    return SocketLink(await connect(host, port, timeout), asyncio.get_running_loop(), f"{host}:{port}")


async def connect(host: str, port: int, timeout: float) -> socket.socket:
    """A socket that is connected to a broker. Raises BrokerUnavailable."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            family, kind, protocol, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
            except BaseException:
                sock.close()
                raise
    except TimeoutError:
        raise BrokerUnavailable(f"{host}:{port} does not answer within {timeout:g} s") from None
    except OSError as problem:
        refused = isinstance(problem, ConnectionRefusedError)
        raise BrokerUnavailable(f"{host}:{port}: {problem.strerror or problem}", refused=refused) from None
    return sock


Waiting = tuple[Future[memoryview], float, float]
"""Who waits for an answer, until when, and how long that was at first."""


class SocketLink:
    """A link over a socket, on the broker's loop."""

    __slots__ = (
        "_buffer", "_filled", "_loop", "_name", "_out", "_sock", "_view", "_waiting", "_watch", "_writing", "closed",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, loop: AbstractEventLoop, name: str) -> None:
        self._sock = sock
        self._loop = loop
        self._name = name
        self._buffer = bytearray(_FIRST_BUFFER)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._out = bytearray()
        self._writing = False
        self._waiting: deque[Waiting] = deque()
        self._watch: TimerHandle | None = None
        self.closed = False
        loop.add_reader(sock.fileno(), self._readable)

    async def exchange(self, frame: bytes, timeout: float) -> memoryview:
        if self.closed:
            raise BrokerUnavailable(f"the connection to {self._name} is closed")
        answer: Future[memoryview] = self._loop.create_future()
        due = self._loop.time() + timeout
        self._waiting.append((answer, due, timeout))
        if self._watch is None or due < self._watch.when():
            self._watch_until(due)
        self._send(frame)
        try:
            return await answer
        except asyncio.CancelledError:
            self._fail("nobody waits for the answer any more")  # the ones behind it could not be told apart
            raise

    def _watch_until(self, due: float) -> None:
        """One timer for all that waits: it is set anew when it rings, not for each request."""
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        """Is an answer overdue?"""
        self._watch = None
        if not self._waiting:
            return
        due, timeout = min((due, timeout) for _, due, timeout in self._waiting)
        if due <= self._loop.time():
            self._fail(f"{self._name} does not answer within {timeout:g} s")
        else:
            self._watch_until(due)

    def close(self) -> None:
        self._fail(f"the connection to {self._name} was closed")

    def _send(self, frame: bytes) -> None:
        if not self._writing:
            try:
                sent = self._sock.send(frame)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as problem:
                self._loop.call_soon(self._fail, f"{self._name}: {problem.strerror or problem}")
                return
            if sent == len(frame):
                return
            frame = frame[sent:]
            self._writing = True
            self._loop.add_writer(self._sock.fileno(), self._writable)
        self._out += frame

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._out)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._fail(f"{self._name}: {problem.strerror or problem}")
            return
        del self._out[:sent]
        if not self._out:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            got = self._sock.recv_into(self._view[self._filled :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._fail(f"{self._name}: {problem.strerror or problem}")
            return
        if not got:
            self._fail(f"{self._name} closed the connection")
            return
        self._filled += got
        while self._filled >= _SIZE.size:
            size: int = _SIZE.unpack_from(self._buffer, 0)[0]
            if not _SIZE.size <= size <= _LARGEST_ANSWER or not self._waiting:
                self._fail(f"{self._name} sent what is no answer")
                return
            end = _SIZE.size + size
            if end > len(self._buffer):
                self._grow(end)
            if self._filled < end:
                return
            answered = self._view[_SIZE.size : end]
            if self._filled > end:  # answers to requests that were sent together: the rest moves to a buffer of its own
                rest = bytes(self._view[end : self._filled])
                self._buffer = bytearray(max(_FIRST_BUFFER, len(rest)))
                self._view = memoryview(self._buffer)
                self._buffer[: len(rest)] = rest
                self._filled = len(rest)
            else:
                self._filled = 0
            waiting, _, _ = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(answered)

    def _grow(self, size: int) -> None:
        larger = bytearray(size)
        larger[: self._filled] = self._view[: self._filled]
        self._buffer, self._view = larger, memoryview(larger)

    def _fail(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        with contextlib.suppress(OSError):
            self._sock.close()
        if self._watch is not None:
            self._watch.cancel()
        for waiting, _, _ in self._waiting:
            if not waiting.done():
                waiting.set_exception(BrokerUnavailable(reason))
        self._waiting.clear()
