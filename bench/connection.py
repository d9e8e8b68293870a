"""A client at the level of the wire, made of `ottla.wire`: what a load uses where librdkafka would measure itself.

librdkafka waits before it tries again and spends more CPU on a transaction or a commit than the broker does, so that a rate
would be its own. This client sends a frame, usually one that was encoded beforehand, and waits for the answer. It is the same
for every broker. Guards: one request at a time per connection; an error is raised under Kafka's name for it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TypeVar

from bench.load import LoadError
from ottla.model import Error
from ottla.wire.apis.groups import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.frame import decode_response, encode_request
from ottla.wire.schema import Request, Response

R = TypeVar("R", bound=Response)

GROUP, TRANSACTION = 0, 1
"""What a coordinator is looked for: FindCoordinator's key types."""

NOT_YET = frozenset({Error.COORDINATOR_LOAD_IN_PROGRESS, Error.COORDINATOR_NOT_AVAILABLE, Error.NOT_COORDINATOR})
"""What a coordinator says that will speak soon."""

_CORRELATION_ID = 1
_CLIENT_ID = "bench"
_PATIENCE_S = 60.0


def frame(request: Request, version: int) -> bytes:
    """A request as it goes over the wire."""
    return encode_request(request, version, _CORRELATION_ID, _CLIENT_ID)


def ask(port: int, request: Request, kind: type[R], version: int, timeout: float = 5.0) -> R:
    """One question over a connection of its own, without asyncio; raises OSError and Malformed."""
    with socket.create_connection(("127.0.0.1", port), timeout) as sock, sock.makefile("rb") as answer:
        sock.sendall(frame(request, version))
        size = int.from_bytes(answer.read(4), "big")
        return _read(kind, answer.read(size), version)


def _read(kind: type[R], answer: bytes, version: int) -> R:
    response = decode_response(kind, answer, version)[1]
    assert isinstance(response, kind)
    return response


class Pace:
    """When one of several workers, who share a rate, does its next piece of work. Without a rate: at once."""

    __slots__ = ("_due", "_interval")

    def __init__(self, rate: float | None, workers: int, number: int) -> None:
        self._interval = workers / rate if rate else 0.0
        self._due = asyncio.get_running_loop().time() + self._interval * number / workers

    async def __call__(self) -> None:
        if self._interval:
            await asyncio.sleep(self._due - asyncio.get_running_loop().time())
            self._due += self._interval


class Connection(asyncio.Protocol):
    """One connection, with one request under way at a time."""

    __slots__ = ("_buffer", "_transport", "_waiting")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, bootstrap: str) -> Connection:
        host, _, port = bootstrap.partition(":")
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return connection

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < 4:
            return
        end = 4 + int.from_bytes(self._buffer[:4], "big")
        if len(self._buffer) < end:
            return
        answer = bytes(memoryview(self._buffer)[4:end])
        del self._buffer[:end]
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(LoadError(f"the broker closed a connection: {exc or 'no reason given'}"))

    # What a load calls

    def exchange(self, request: bytes | bytearray) -> asyncio.Future[bytes]:
        """Send a frame; its answer, without the length, when it comes."""
        assert self._transport is not None
        assert self._waiting is None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._waiting

    async def ask(self, request: Request, kind: type[R], version: int) -> R:
        """A question and its answer."""
        return _read(kind, await self.exchange(frame(request, version)), version)

    async def until(
        self, request: Request, kind: type[R], version: int, error_of: Callable[[R], int], passing: frozenset[Error] = NOT_YET
    ) -> R:
        """Ask until the answer is no longer one of the errors that pass; any other error is the load's end."""
        end = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            answer = await self.ask(request, kind, version)
            error = error_of(answer)
            if error == Error.NONE:
                return answer
            if error not in passing or asyncio.get_running_loop().time() > end:
                raise LoadError(f"{type(request).__name__}: {Error(error).name}")
            await asyncio.sleep(0.02)

    async def find_coordinator(self, key: str, key_type: int) -> None:
        """Have the broker make the internal topic, if there is none, and wait until it coordinates."""
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        await self.until(request, FindCoordinatorResponse, 2, lambda answer: answer.error_code)
