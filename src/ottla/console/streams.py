"""Server-sent events out of work that blocks: a thread works, the page listens, and each ends with the other.

Guards: work that runs ahead of its listener waits for it, so nothing gathers; when the listener goes away, the next word of the
work raises `NobodyListens`; only so many threads read at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response, StreamingResponse

from ottla.console.answers import BadRequest
from ottla.model import KafkaError

log = logging.getLogger("ottla.console")

_AHEAD = 8
_AT_ONCE = 8
_places = threading.BoundedSemaphore(_AT_ONCE)


class NobodyListens(Exception):
    """The page is gone, or has had enough."""


def event(kind: str, data: Mapping[str, Any]) -> bytes:
    """One event as it goes over the wire. JSON holds no line ends of its own."""
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def respond(chunks: AsyncIterator[bytes]) -> Response:
    """A stream that nothing in between keeps back."""
    return StreamingResponse(chunks, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


Say = Callable[[str, Mapping[str, Any]], None]


class Conversation:
    """Between one thread that tells and one page that listens."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)
        self._over = threading.Event()

    def say(self, kind: str, data: Mapping[str, Any]) -> None:
        """From the thread: tell the page, and wait while it has not taken what came before."""
        self._put(event(kind, data))

    def _put(self, chunk: bytes | None) -> None:
        if self._over.is_set():
            raise NobodyListens
        placed = asyncio.run_coroutine_threadsafe(self._queue.put(chunk), self._loop)
        while True:
            try:
                placed.result(0.25)
                return
            except TimeoutError:
                if self._over.is_set():
                    placed.cancel()
                    raise NobodyListens from None

    def _run(self, work: Callable[[Say], None]) -> None:
        try:
            try:
                work(self.say)
            except (BadRequest, KafkaError) as problem:
                self.say("problem", {"error": str(problem)})
            except NobodyListens:
                raise
            except Exception:
                log.exception("A stream failed")
                self.say("problem", {"error": "The console failed at this; its log says where."})
            self._put(None)
        except (NobodyListens, RuntimeError):
            pass  # the page is gone, or the loop is
        finally:
            _places.release()

    async def listen(self, work: Callable[[Say], None]) -> AsyncIterator[bytes]:
        if not _places.acquire(blocking=False):
            yield event("problem", {"error": f"{_AT_ONCE} searches and tails are running already: stop one of them."})
            return
        threading.Thread(target=self._run, args=(work,), name="ottla-stream", daemon=True).start()
        try:
            while (chunk := await self._queue.get()) is not None:
                yield chunk
        finally:
            self._over.set()


def stream(work: Callable[[Say], None]) -> Response:
    """Have `work` done in a thread, and all it says sent to the page. Its last event is `end`, or `problem`."""

    def whole(say: Say) -> None:
        work(say)
        say("end", {})

    return respond(Conversation().listen(whole))
