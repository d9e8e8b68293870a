"""A peer whose link has no socket: what is sent is kept, decoded, and answered as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ottla.metadata.image import Endpoint
from ottla.model import BrokerUnavailable
from ottla.network.link import Link
from ottla.network.peer import Peer
from ottla.wire.apis import REQUESTS
from ottla.wire.frame import encode_response, read_request_header
from ottla.wire.schema import Request, Response

Answer = Callable[[Any], Response | Exception]


class RecordingLink:
    """Keeps the requests; a test may hold the answers back."""

    def __init__(self, answer: Answer) -> None:
        self.closed = False
        self.sent: list[tuple[int, Any]] = []
        """Version and request."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._answer = answer

    async def exchange(self, frame: bytes, timeout: float) -> memoryview:
        body = memoryview(frame)[4:]
        header, at = read_request_header(body)
        request: Request = REQUESTS[header.api_key].decoder(header.api_version)(bytes(body), at)[0]
        self.sent.append((header.api_version, request))
        await self.may_answer.wait()
        answer = self._answer(request)
        if isinstance(answer, Exception):
            raise answer
        parts = encode_response(header.correlation_id, answer, header.api_version)
        return memoryview(b"".join(bytes(part) for part in parts))[4:]

    def close(self) -> None:
        self.closed = True


def peer_over(link: RecordingLink, broker_id: int = 2) -> Peer:
    async def dial(host: str, port: int, timeout: float) -> Link:
        if link.closed:
            raise BrokerUnavailable("closed")
        return link

    return Peer(broker_id, lambda _broker: Endpoint("h", 9092), dial, "1")
