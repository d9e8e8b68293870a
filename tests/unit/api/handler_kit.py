"""Handlers behind a registry, over services that a test makes up: a request in some version in, its answer out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import ottla.api
from ottla.api.faults import Faults
from ottla.api.registry import Registry
from ottla.wire.frame import decode_response, encode_request
from ottla.wire.schema import Request, Response

assert ottla.api  # its import declares the handlers


class FakePeer:
    """A connection that keeps what is answered."""

    host, port, listener = "10.1.1.1", 4711, "PLAINTEXT"

    def __init__(self) -> None:
        self.waiter = None
        self.answering = None
        self.last_active = 0.0
        self.closed = False
        self.settled = asyncio.Event()
        self.answers: list[bytes] = []
        self.unanswered = 0

    def answer(self, parts: Sequence[Any]) -> None:
        self.answers.append(b"".join(bytes(part) for part in parts)[4:])
        self.settled.set()

    def owe(self) -> FakePeer:
        return self

    def no_answer(self) -> None:
        self.unanswered += 1
        self.settled.set()

    def close(self) -> None:
        self.closed = True
        self.settled.set()


class Calls:
    """Something whose coroutines are asked: it keeps what it was asked, and answers or raises what a test says."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        if name not in self._answers:
            raise AttributeError(name)
        answer = self._answers[name]

        async def call(*args: Any, **more: Any) -> Any:
            self.asked.append((name, *args, *more.values()))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


async def ask_in_loop(services: SimpleNamespace, request: Request, response: type[Response], version: int) -> Any:
    peer = FakePeer()
    made_up: Any = services
    registry = Registry(made_up, Faults())
    registry(peer, memoryview(encode_request(request, version, 7, "test"))[4:])
    async with asyncio.timeout(10):
        await peer.settled.wait()
    assert peer.answers, "the connection was closed"
    correlation, message = decode_response(response, peer.answers[-1], version)
    assert correlation == 7
    return message


def ask(services: SimpleNamespace, request: Request, response: type[Response], version: int) -> Any:
    return asyncio.run(ask_in_loop(services, request, response, version))
