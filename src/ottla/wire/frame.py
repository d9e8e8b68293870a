"""Frames: a message with its header and, in front of both, the length of what follows.

Which header a message has follows from its key and version alone. The rules and their two exceptions are written once, here:
ControlledShutdown v0 has no client id, and an ApiVersions answer always has the oldest header, because a client that asks for a
version the broker does not know must still be able to read it.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from ottla.wire.apis import REQUESTS, ApiKey
from ottla.wire.native import plain_header
from ottla.wire.primitives import Buffer, Malformed, read_tags, read_uvarint
from ottla.wire.schema import Request, Response

_FIXED: Final = struct.Struct(">hhi")  # key, version, correlation id: the header that all versions begin with
_WITH_CLIENT: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")
_PLAIN: Final = struct.Struct(">ii").pack  # a response's length and correlation id
_TAGGED: Final = struct.Struct(">iix").pack  # the same, and no tagged fields

_NO_TAGS: frozenset[int] = frozenset()
_CONTROLLED_SHUTDOWN: Final = int(ApiKey.CONTROLLED_SHUTDOWN)
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)


class RequestHeader:
    """Who asks what, in which version, and under which number the answer is awaited."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id")

    def __init__(self, api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def __repr__(self) -> str:
        name = ApiKey(self.api_key).name if self.api_key in REQUESTS else f"key {self.api_key}"
        return f"RequestHeader({name} v{self.api_version}, correlation {self.correlation_id}, client {self.client_id!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RequestHeader):
            return NotImplemented
        mine = (self.api_key, self.api_version, self.correlation_id, self.client_id)
        return mine == (other.api_key, other.api_version, other.correlation_id, other.client_id)

    __hash__ = None  # type: ignore[assignment]


_NO_VERSIONS: Final = (1, 0)


class _TaggedVersions(dict[int, tuple[int, int]]):
    """API key -> the first and the last version whose request header has tagged fields."""

    def __missing__(self, key: int) -> tuple[int, int]:
        if key not in REQUESTS:
            return _NO_VERSIONS  # and not kept: what strangers send must not fill the table
        versions = self[key] = (REQUESTS[key].flexible, REQUESTS[key].max_version)
        return versions


_tagged_versions: Final = _TaggedVersions()


def read_request_header(buf: Buffer) -> tuple[RequestHeader, int]:
    """The header of a request, and where its body begins. Raises `Malformed`.

    Of a key or version that we do not know only the part that is the same in all is read: its sender still has to be told.
    """
    plain = plain_header(buf, _tagged_versions)
    if plain is not None:
        key, version, correlation, client, pos = plain
        if key != _CONTROLLED_SHUTDOWN:
            return RequestHeader(key, version, correlation, client), pos
    return _read_thoroughly(buf)


def _read_thoroughly(buf: Buffer) -> tuple[RequestHeader, int]:
    """A header of any form, or one with which something is wrong."""
    try:
        key, version, correlation, length = _WITH_CLIENT.unpack_from(buf, 0)
    except struct.error:
        return _short_header(buf)
    if key == _CONTROLLED_SHUTDOWN and version == 0:
        return RequestHeader(key, version, correlation, None), 8
    pos = 10
    client = None
    if length >= 0:
        pos += length
        if pos > len(buf):
            raise Malformed(f"a client id of {length} bytes in a frame of {len(buf)}")
        try:
            client = str(buf[10:pos], "utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"client id: {error}") from error
    elif length != -1:
        raise Malformed(f"a client id of {length} bytes")
    first, last = _tagged_versions[key]
    if first <= version <= last:
        try:
            tags = buf[pos]
            pos += 1
            if tags:
                tags, pos = read_uvarint(buf, pos - 1)
                pos = read_tags(buf, pos, len(buf), tags, _NO_TAGS)[1]
        except IndexError as error:
            raise Malformed("the request header is cut short") from error
    return RequestHeader(key, version, correlation, client), pos


def _short_header(buf: Buffer) -> tuple[RequestHeader, int]:
    """Eight bytes are a whole header only for ControlledShutdown v0."""
    if len(buf) >= _FIXED.size:
        key, version, correlation = _FIXED.unpack_from(buf, 0)
        if key == _CONTROLLED_SHUTDOWN and version == 0:
            return RequestHeader(key, version, correlation, None), _FIXED.size
    raise Malformed(f"a request header in a frame of {len(buf)} bytes")


def encode_response(correlation_id: int, response: Response, version: int) -> list[Any]:
    """The whole frame as parts: bytes, and the records that pass through untouched. Their lengths are counted in."""
    cls = response.__class__
    parts: list[Any] = cls.parts_encoders[version](response)
    size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
    if version >= cls.flexible and cls.api_key != _API_VERSIONS:
        parts[0] = _TAGGED(size + 5, correlation_id) + parts[0]
    else:
        parts[0] = _PLAIN(size + 4, correlation_id) + parts[0]
    return parts


def frame_body(correlation_id: int, body: bytes, tagged: bool) -> bytes:
    """The whole frame of an answer whose body is made already; `tagged` where its header has tagged fields."""
    if tagged:
        return _TAGGED(len(body) + 5, correlation_id) + body
    return _PLAIN(len(body) + 4, correlation_id) + body


def encode_request(request: Request, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The whole frame of a request that we send."""
    cls = request.__class__
    header = _FIXED.pack(cls.api_key, version, correlation_id)
    if cls.api_key != _CONTROLLED_SHUTDOWN or version > 0:
        client = None if client_id is None else client_id.encode()
        header += b"\xff\xff" if client is None else len(client).to_bytes(2, "big") + client
        if version >= cls.flexible:
            header += b"\0"
    body: bytes = cls.encoders[version](request)
    return _CORRELATION.pack(len(header) + len(body)) + header + body


def decode_response(cls: type[Response], buf: Buffer, version: int) -> tuple[int, Response]:
    """Correlation id and message of an answer, from a frame without its length. Raises `Malformed`."""
    correlation_id, pos = read_correlation_id(buf), 4
    if version >= cls.flexible and cls.api_key != _API_VERSIONS:
        try:
            tags, pos = read_uvarint(buf, pos)
            pos = read_tags(buf, pos, len(buf), tags, _NO_TAGS)[1]
        except IndexError as error:
            raise Malformed("the response header is cut short") from error
    return correlation_id, cls.decoders[version](buf, pos)[0]


def read_correlation_id(buf: Buffer) -> int:
    """Which request a frame without its length answers: what is needed to know how to read the rest."""
    if len(buf) < _CORRELATION.size:
        raise Malformed(f"an answer of {len(buf)} bytes")
    correlation_id: int = _CORRELATION.unpack_from(buf, 0)[0]
    return correlation_id
