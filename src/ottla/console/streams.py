"""Server-sent events: how what goes on reaches the page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response, StreamingResponse


def event(kind: str, data: Mapping[str, Any]) -> bytes:
    """One event as it goes over the wire. JSON holds no line ends of its own."""
    return encoded(kind, json.dumps(data, separators=(",", ":")).encode())


def encoded(kind: str, text: bytes) -> bytes:
    """The same of what is JSON already."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), text)


def respond(chunks: AsyncIterator[bytes]) -> Response:
    """A stream that nothing in between keeps back."""
    return StreamingResponse(chunks, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
