"""What the console and its reader process say to each other: frames of a kind and a JSON value, over a socket for each job.

Guards: whoever writes faster than the other side reads waits for it, so nothing gathers; a side that is gone is noticed at the
next word.
"""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

ANSWER, ACCEPTED, END, PROBLEM = "answer", "accepted", "end", "problem"
"""Kinds that all jobs have: an answer is all there is to say; what was accepted goes on until `END` or `PROBLEM`."""
SIZE_BYTES = 4


class Frame(NamedTuple):
    """One word of a job. `text` is JSON: often it only passes through."""

    kind: str
    text: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.text)


def encode(kind: str, value: object) -> bytes:
    """A frame as it goes over the socket."""
    body = kind.encode() + b"\n" + json.dumps(value, separators=(",", ":")).encode()
    return len(body).to_bytes(SIZE_BYTES, "big") + body


def decode(body: bytes) -> Frame:
    """A frame without its size."""
    kind, _, text = body.partition(b"\n")
    return Frame(kind.decode(), text)


def receive(sock: socket.socket) -> Frame | None:
    """Wait for the next frame; None when the other side has ended."""
    size = _exactly(sock, SIZE_BYTES)
    body = None if size is None else _exactly(sock, int.from_bytes(size, "big"))
    return None if body is None else decode(body)


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = sock.recv(size - len(found))
        if not part:
            return None
        found += part
    return bytes(found)
