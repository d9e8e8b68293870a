"""A few pages over HTTP, on a connection that turned out not to speak Kafka's protocol: GET, one request, then the end.

Guards: a page is sent piece by piece, and everybody else has a turn in between; a client that sends no request, or does not
read, is hung up on after a while; only a few are served at a time, and the oldest makes room. What is no page gets 404, what is
no GET never gets here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import NamedTuple

log = logging.getLogger("ottla.network")

_MOST_AT_ONCE = 8
_LARGEST_HEAD = 8 << 10
_HEAD_PATIENCE = 2.0
_PATIENCE = 15.0
_SEND_FROM = 16 << 10
_END_OF_HEAD = b"\r\n\r\n"


class Page(NamedTuple):
    """What is shown; pieces may be empty, and take at most a fraction of a millisecond to make."""

    status: HTTPStatus
    content_type: str
    pieces: Iterator[str]


PageOf = Callable[[str], Page | None]
"""The page at a path, or None."""


class HttpPages:
    """Answers GET requests with the pages that it was given."""

    def __init__(self, page_of: PageOf) -> None:
        self._page_of = page_of
        self._tasks: dict[asyncio.Task[None], None] = {}
        """Oldest first."""

    def take_over(self, sock: socket.socket, received: bytes) -> None:
        """Answer the client at the other end of `sock`, of whose request the beginning was received."""
        if len(self._tasks) >= _MOST_AT_ONCE:  # a probe of health must not be shut out by others who hold on to their places
            next(iter(self._tasks)).cancel()
        task = asyncio.ensure_future(self._serve(sock, received))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def close(self) -> None:
        """Hang up on everybody."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, sock: socket.socket, received: bytes) -> None:
        try:
            async with asyncio.timeout(_HEAD_PATIENCE):
                path = await self._path(sock, received)
            if path is not None:
                async with asyncio.timeout(_PATIENCE):
                    await self._send(sock, self._page_of(path) or _missing(path))
        except (OSError, TimeoutError):
            pass  # it went away, or never came to the point
        except Exception:
            log.exception("A page could not be made")
        finally:
            sock.close()

    async def _path(self, sock: socket.socket, received: bytes) -> str | None:
        """What is asked for, without its query; None where it cannot be told."""
        loop = asyncio.get_running_loop()
        while _END_OF_HEAD not in received:
            more = await loop.sock_recv(sock, _LARGEST_HEAD)
            received += more
            if not more or len(received) > _LARGEST_HEAD:
                return None
        words = received.partition(b"\r\n")[0].decode("latin-1").split(" ")
        return words[1].partition("?")[0] if len(words) == 3 else None

    async def _send(self, sock: socket.socket, page: Page) -> None:
        loop = asyncio.get_running_loop()
        head = (
            f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\nContent-Type: {page.content_type}\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
            "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        out = bytearray(head.encode())
        gathered: list[str] = []
        size = 0
        for piece in page.pieces:
            gathered.append(piece)
            size += len(piece)
            if size >= _SEND_FROM:
                out += _chunk("".join(gathered))
                await loop.sock_sendall(sock, out)
                out.clear()
                gathered.clear()
                size = 0
            await asyncio.sleep(0)
        out += _chunk("".join(gathered)) + b"0\r\n\r\n"
        await loop.sock_sendall(sock, out)


def _chunk(text: str) -> bytes:
    data = text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _missing(path: str) -> Page:
    return Page(
        HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", iter([f"There is no {path} here: /metrics and /healthz are.\n"])
    )
