"""Somebody who listens and is no broker, or one that knows very little."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ottla.model import Error
from ottla.wire.apis.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from ottla.wire.apis.versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.frame import encode_response, read_request_header
from ottla.wire.schema import Response


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def peer(behaviour: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of somebody who behaves like this towards one connection, and then hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve_one() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as sock:
                behaviour(sock)

        thread = threading.Thread(target=serve_one, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def serve(
    versions: Mapping[int, tuple[int, int]], seen: list[tuple[int, int]] | None = None
) -> Callable[[socket.socket], None]:
    """A broker of these versions; it knows what it serves and that it is broker 1, and hangs up on all else."""

    def answer(key: int, version: int) -> tuple[Response, int] | None:
        if key == ApiVersionsRequest.api_key:
            known = version <= versions[key][1]
            keys = [ApiVersion(api_key=one, min_version=low, max_version=high) for one, (low, high) in versions.items()]
            code = Error.NONE if known else Error.UNSUPPORTED_VERSION
            return ApiVersionsResponse(error_code=code, api_keys=keys), version if known else 0
        if key == MetadataRequest.api_key:
            return MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=1)]), version
        return None

    def behave(sock: socket.socket) -> None:
        stream: Any = sock.makefile("rb")
        while len(length := stream.read(4)) == 4:
            header, _ = read_request_header(stream.read(int.from_bytes(length, "big")))
            if seen is not None:
                seen.append((header.api_key, header.api_version))
            answered = answer(header.api_key, header.api_version)
            if answered is None:
                return
            sock.sendall(b"".join(encode_response(header.correlation_id, *answered)))

    return behave
