"""Many small questions to one broker, in few requests: one request is under way, and what comes meanwhile goes into the next.

Guards: every question gets its answer, or the error that befell its request. No two questions of one key travel together: their
answers could not be told apart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from ottla.model import Error, KafkaError

log = logging.getLogger("ottla.network")

Q = TypeVar("Q")
A = TypeVar("A")


class Batching(Generic[Q, A]):
    """The questions to one broker for one purpose."""

    def __init__(self, ask: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], key: Callable[[Q], Hashable]) -> None:
        """`ask` sends one request and gives the answers in the order of the questions; it may raise KafkaError."""
        self._ask = ask
        self._key = key
        self._queue: list[tuple[Q, asyncio.Future[A]]] = []
        self._sending: asyncio.Task[None] | None = None

    def put(self, question: Q) -> asyncio.Future[A]:
        """The answer, when it is there."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._queue.append((question, answer))
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send_all())
        return answer

    def close(self) -> None:
        """Ask nothing more; whoever waits is called off."""
        if self._sending is not None:
            self._sending.cancel()
        for _, answer in self._queue:
            answer.cancel()
        self._queue.clear()

    async def _send_all(self) -> None:
        try:
            while self._queue:
                batch = self._take()
                try:
                    answers = await self._ask([question for question, _ in batch])
                except KafkaError as problem:
                    _fail(batch, problem)
                except Exception:
                    log.exception("A question to another broker failed")
                    _fail(batch, KafkaError(Error.UNKNOWN_SERVER_ERROR, "the broker failed; its log says why"))
                except asyncio.CancelledError:
                    for _, answer in batch:
                        answer.cancel()
                    raise
                else:
                    for (_, answer), told in zip(batch, answers, strict=True):
                        if not answer.done():
                            answer.set_result(told)
        finally:
            self._sending = None

    def _take(self) -> list[tuple[Q, asyncio.Future[A]]]:
        """All that is queued, up to the first question of a key that goes already."""
        keys: set[Hashable] = set()
        for question, _ in self._queue:
            key = self._key(question)
            if key in keys:
                break
            keys.add(key)
        batch, self._queue = self._queue[: len(keys)], self._queue[len(keys) :]
        return batch


def _fail(batch: Sequence[tuple[Q, asyncio.Future[A]]], problem: KafkaError) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(problem)
