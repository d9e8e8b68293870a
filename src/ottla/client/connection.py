"""One connection to a broker: TLS and SASL at its beginning, then requests, answered in order.

Guards: a request goes out in the highest version that both sides know, and only in one that can carry what it says; answers
come in the order of the requests, so several may be under way (`send`, then `receive`); whatever goes wrong is a `ClientError`
in one line, and leaves the connection closed, because nobody knows what the next bytes would mean. Blocking; one thread at a
time.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ottla import __version__
from ottla.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientError,
    UnsupportedByBroker,
    describe,
)
from ottla.client.sasl import exchange
from ottla.client.settings import Address, Settings
from ottla.model import Error
from ottla.wire.apis.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ottla.wire.apis.versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.frame import decode_response, encode_request
from ottla.wire.schema import Malformed, Request, Response

_LARGEST_ANSWER = 1 << 30  # a length beyond this was not written by a Kafka broker
_ASKED_FIRST = 3  # the version of ApiVersions that is tried; a broker that does not know it says which it knows
_RECEIVE_BUFFER = 4 << 20
_PIECE = 1 << 20
_ERROR_CODE = struct.Struct(">h")

Room = Callable[[int], memoryview]
"""Gives a writable view of so many bytes: where an answer is received into."""


class Pending(NamedTuple):
    """A request that is under way."""

    correlation_id: int
    request: type[Request]
    version: int
    deadline: float


def new_room(size: int) -> memoryview:
    """Room of its own for one answer."""
    return memoryview(bytearray(size))


class Connection:
    """A broker that has said which requests it serves, and knows who we are."""

    def __init__(
        self, address: Address, settings: Settings, *, limits: Mapping[int, int] | None = None, broker: int | None = None
    ) -> None:
        """`limits` holds versions below what both sides know, by API key: to speak as an older client does.

        With `broker` the address was not given to us but is what that broker is said to listen at.
        """
        self.address = address
        self._settings = settings
        self._limits = limits or {}
        self._last_id = 0
        self._pending: deque[Pending] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self.closed = False
        deadline = time.monotonic() + settings.request_timeout_ms / 1000
        self._sock = self._open(broker)
        try:
            self._versions = self._negotiate(deadline)
            if settings.sasl:
                self._authenticate(deadline)
        except BaseException:
            self.close()
            raise

    def _open(self, broker: int | None) -> socket.socket:
        try:
            sock = socket.create_connection(self.address, self._settings.connect_timeout_ms / 1000)
        except OSError as problem:
            check = "does it run, and is the address right?"
            if broker is not None:
                check = f"does broker {broker} run, and can its advertised.listeners be reached from here?"
            raise BrokerUnreachable(f"Cannot connect to the broker at {self.address}{_reason(problem)}: {check}") from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        if not self._settings.tls:
            return sock
        try:
            return self._settings.ssl_context().wrap_socket(sock, server_hostname=self.address.host)
        except ssl.SSLCertVerificationError as problem:
            sock.close()
            raise AuthenticationFailed(
                f"The broker at {self.address} is not trusted: {problem.verify_message}. Check ssl.ca.location."
            ) from None
        except (OSError, ssl.SSLError) as problem:
            sock.close()
            raise BrokerUnreachable(
                f"No TLS with the broker at {self.address}{_reason(problem)}: check security.protocol and the listener."
            ) from None
        except ClientError:
            sock.close()
            raise

    # ---- requests --------------------------------------------------------------------------------------------------------

    def version_of(self, request: type[Request], at_least: int = 0, at_most: int = 0x7FFF) -> int:
        """The version in which a request goes to this broker; raises where there is none."""
        first, last = self._versions.get(request.api_key, (0, -1))
        limit = self._limits.get(request.api_key, at_most)
        version = min(last, request.max_version, at_most, limit)
        if version < max(first, request.min_version, at_least):
            theirs = f"versions {first} to {last}" if first <= last else "none"
            raise UnsupportedByBroker(
                f"The broker at {self.address} cannot do this: {request.name} is needed in version"
                f" {max(at_least, request.min_version)} to {min(at_most, request.max_version)}, it serves {theirs}."
            )
        return version

    def ask(self, request: Request, *, at_least: int = 0, at_most: int = 0x7FFF, timeout: float | None = None) -> Any:
        """Send and wait. The answer's type follows from the request's."""
        self.send(request, at_least=at_least, at_most=at_most, timeout=timeout)
        return self.receive()

    def send(
        self,
        request: Request,
        *,
        at_least: int = 0,
        at_most: int = 0x7FFF,
        timeout: float | None = None,
        answered: bool = True,
    ) -> int:
        """Send a request, whose answer is to be received later; the version that it went out in."""
        version = self.version_of(type(request), at_least, at_most)
        seconds = self._settings.request_timeout_ms / 1000 if timeout is None else timeout
        deadline = time.monotonic() + seconds
        with self._told_in_words():
            self._transmit(request, version, deadline)
            if answered:
                self._pending.append(Pending(self._last_id, type(request), version, deadline))
        return version

    @property
    def under_way(self) -> int:
        """How many answers are awaited."""
        return len(self._pending)

    def receive(self, room: Room = new_room) -> Response:
        """The answer to the oldest request that is under way."""
        pending = self._pending.popleft()
        with self._told_in_words():
            frame = self._frame(pending.correlation_id, pending.deadline, room)
            return decode_response(pending.request.response, frame, pending.version)[1]

    def close(self) -> None:
        """Close; what is under way is lost. From another thread it also wakes the one that waits for an answer."""
        self.closed = True
        sock = getattr(self, "_sock", None)
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()

    # ---- the beginning ---------------------------------------------------------------------------------------------------

    def _negotiate(self, deadline: float) -> dict[int, tuple[int, int]]:
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        with self._told_in_words():
            version = _ASKED_FIRST
            frame = self._exchange(request, version, deadline)
            # A broker that does not know the version answers in the oldest. The error comes first in all of them.
            if _ERROR_CODE.unpack_from(frame, 4)[0] == Error.UNSUPPORTED_VERSION:
                version = 0
                frame = self._exchange(request, version, deadline)
            answer = decode_response(ApiVersionsResponse, frame, version)[1]
        assert isinstance(answer, ApiVersionsResponse)
        if answer.error_code != Error.NONE:
            raise UnsupportedByBroker(
                f"The broker at {self.address} does not say what it serves: {describe(answer.error_code)}"
            )
        return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}

    def _authenticate(self, deadline: float) -> None:
        """Version 1 of the handshake: every token travels in a SaslAuthenticate request."""
        settings = self._settings
        seconds = max(deadline - time.monotonic(), 0.001)
        mechanism = settings.sasl_mechanism
        agreed: SaslHandshakeResponse = self.ask(SaslHandshakeRequest(mechanism=mechanism), at_least=1, timeout=seconds)
        if agreed.error_code != Error.NONE:
            offered = ", ".join(agreed.mechanisms) or "none"
            raise AuthenticationFailed(
                f"The broker at {self.address} does not know sasl.mechanism {mechanism}: it offers {offered}."
            )
        steps = exchange(mechanism, settings.sasl_username or "", settings.sasl_password or "")
        token = next(steps)
        while True:
            answer: SaslAuthenticateResponse = self.ask(SaslAuthenticateRequest(auth_bytes=token), timeout=seconds)
            if answer.error_code != Error.NONE:
                why = answer.error_message or describe(answer.error_code)
                raise AuthenticationFailed(f"The broker at {self.address} refuses user {settings.sasl_username}: {why}")
            try:
                token = steps.send(answer.auth_bytes)
            except StopIteration:
                return

    # ---- bytes -----------------------------------------------------------------------------------------------------------

    def _exchange(self, request: Request, version: int, deadline: float) -> memoryview:
        self._transmit(request, version, deadline)
        return self._frame(self._last_id, deadline, new_room)

    def _transmit(self, request: Request, version: int, deadline: float) -> None:
        self._last_id = self._last_id + 1 & 0x7FFFFFFF
        try:
            data = encode_request(request, version, self._last_id, self._settings.client_id)
        except (ValueError, OverflowError, struct.error) as problem:  # text that is no text, numbers and names out of range
            raise UnsupportedByBroker(f"{request.name} cannot carry these values: {problem}") from None
        self._wait_until(deadline)
        self._sock.sendall(data)

    def _frame(self, correlation_id: int, deadline: float, room: Room) -> memoryview:
        """An answer's frame, without its length."""
        size = int.from_bytes(self._read(new_room(4), deadline), "big")
        if not 4 <= size <= _LARGEST_ANSWER:
            raise Malformed(f"an answer of {size} bytes")
        frame = self._read(room(size), deadline)
        if int.from_bytes(frame[:4], "big") != correlation_id:
            raise Malformed("an answer to another request")
        return frame

    def _read(self, view: memoryview, deadline: float) -> memoryview:
        at, size = 0, len(view)
        while at < size:
            self._wait_until(deadline)
            got = self._sock.recv_into(view[at:], min(size - at, _PIECE))
            if not got:
                raise EOFError
            at += got
        return view

    def _wait_until(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)

    @contextmanager
    def _told_in_words(self) -> Iterator[None]:
        """Whatever a socket or a stranger's bytes do, as a `ClientError`; the connection is of no use after it."""
        try:
            yield
        except TimeoutError:
            self.close()
            raise BrokerUnreachable(f"The broker at {self.address} does not answer: is it overloaded or stopped?") from None
        except (OSError, EOFError) as problem:
            self.close()
            raise BrokerUnreachable(f"The broker at {self.address} closed the connection{_reason(problem)}.") from None
        except (Malformed, struct.error):
            self.close()
            raise UnsupportedByBroker(
                f"What listens at {self.address} does not speak Kafka's protocol"
                f" {'in TLS' if self._settings.tls else 'in plaintext'}: check the port and security.protocol."
            ) from None
        except ClientError:
            raise
        except BaseException:  # half an answer may lie in it: who used it next would take that for theirs
            self.close()
            raise


def _reason(problem: BaseException) -> str:
    words = getattr(problem, "strerror", None) or getattr(problem, "reason", None)
    if isinstance(problem, TimeoutError) and not words:
        words = "no answer"
    return f" ({words})" if words else ""
