"""A client that follows no rules: any bytes over a real socket, and what came back."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from types import TracebackType
from typing import Self

from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.frame import decode_response, encode_request
from ottla.wire.schema import Request, Response

FENCE = 0x0FE7CE00


class Hung(AssertionError):
    """The broker neither answered nor closed."""


class RawClient:
    """One connection. `port` is ours: the broker's log names it."""

    def __init__(self, broker_port: int, timeout: float = 10.0, receive_buffer: int = 0) -> None:
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(timeout)
        self.sock.connect(("127.0.0.1", broker_port))
        self.port: int = self.sock.getsockname()[1]
        self._correlation = 0

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the broker closed while we were sending: `closed` tells

    def finish(self) -> None:
        """Send no more, and say so; answers may still come."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def read_frame(self) -> bytes | None:
        """The next answer without its length; None if the broker closed the connection."""
        try:
            head = self._read(4)
            return None if head is None else self._read(struct.unpack(">i", head)[0])
        except TimeoutError:
            raise Hung("neither an answer nor a close") from None

    def _read(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                part = self.sock.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not part:
                return None
            data += part
        return bytes(data)

    def closed(self) -> bool:
        """Whether the broker closes the connection without a word."""
        return self.read_frame() is None

    def ask(self, request: Request, version: int) -> Response:
        """A well-behaved request."""
        self._correlation += 1
        self.send(encode_request(request, version, self._correlation, "raw"))
        frame = self.read_frame()
        assert frame is not None, f"the broker closed on {request.name} v{version}"
        correlation, response = decode_response(request.response, frame, version)
        assert correlation == self._correlation
        return response

    def produce(self, topic: str, records: bytes, version: int = 9, acks: int = -1, partition: int = 0) -> tuple[int, int]:
        """Error code and base offset of one produce request."""
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=records)])
        request = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=5000, topic_data=[data])
        response = self.ask(request, version)
        assert isinstance(response, ProduceResponse)
        result = response.responses[0].partition_responses[0]
        return result.error_code, result.base_offset

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(key: int, version: int, correlation: int = 1, client: bytes | None = b"raw") -> bytes:
    """A request header without tagged fields."""
    tail = b"\xff\xff" if client is None else struct.pack(">h", len(client)) + client
    return struct.pack(">hhi", key, version, correlation) + tail


def fence() -> bytes:
    """A request that is always answered: whatever was asked before it is done when its answer comes."""
    return frame(header(18, 0, FENCE))


def wait_until(condition: object, timeout: float = 10.0) -> None:
    """Wait until `condition()` holds."""
    assert callable(condition)
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not true within {timeout} s: {condition}"
        time.sleep(0.01)
