"""Who may ask the console for something, and from where. Every request passes `Guard` before anything else looks at it.

Guards: a page of another site can neither read nor act, whatever a browser that is logged in here is made to send. A name
that points at us but is not ours is refused (DNS rebinding); where a token is set nothing but the empty shell is served
without it; an action needs a word that only our own pages can have read, and comes from our own origin; read-only refuses
all of them. What is served may load nothing from elsewhere and run no script that did not come as a file of ours.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSRF_HEADER = "x-ottla-csrf"
LOGIN = "/api/login"
MAX_BODY = 16 << 20
_SAFE = ("GET", "HEAD")
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Refusal(NamedTuple):
    """Why a request is not looked at."""

    status: HTTPStatus
    why: str


@dataclass(frozen=True, slots=True)
class Rules:
    """What this console demands. The two secrets are made anew for each process."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    read_only: bool = False
    names: tuple[str, ...] = ()
    """Names under which it may be called, besides those that follow from `host`."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def cookie(self) -> str:
        """Cookies know no ports: two consoles on one machine must not log each other out."""
        return f"ottla-console-{self.port}"

    def knows(self, token: str) -> bool:
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())


def is_local(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refusal(rules: Rules, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
    """Why this request must not be carried out; None if it may. Names of headers are in lower case."""
    if not _is_ours(rules, headers.get("host", "")):
        return Refusal(HTTPStatus.MISDIRECTED_REQUEST, "This console is not known by that name: see --allow-host.")
    if not path.startswith("/api/"):
        if method in _SAFE:
            return None
        return Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "Only what is under /api/ takes orders.")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return Refusal(HTTPStatus.FORBIDDEN, "Another site asked for this.")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        return Refusal(HTTPStatus.FORBIDDEN, "Another site asked for this.")
    if method not in _SAFE:
        length = headers.get("content-length", "")
        # What comes in chunks has the length that it has, whatever else it says.
        if not length.isdigit() or int(length) > MAX_BODY or "transfer-encoding" in headers:
            return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A request has at most {MAX_BODY >> 20} MiB, and says so.")
        if headers.get("content-type", "").partition(";")[0] != "application/json":
            return Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Orders come as application/json.")
    if path == LOGIN:
        return None
    if rules.token is not None and not _logged_in(rules, headers):
        return Refusal(HTTPStatus.UNAUTHORIZED, "A token is needed: the one that the console was started with.")
    if method in _SAFE:
        return None
    if not hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), rules.csrf.encode()):
        return Refusal(HTTPStatus.FORBIDDEN, "This page is of an earlier console: load it again.")
    if rules.read_only:
        return Refusal(HTTPStatus.FORBIDDEN, "This console is read-only.")
    return None


def _is_ours(rules: Rules, host: str) -> bool:
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdigit():
        name = host
    name = name.strip("[]").lower().rstrip(".")
    if name in rules.names or name == rules.host.lower():
        return True
    if is_local(rules.host):
        return name in _LOCAL_NAMES
    try:  # an address is nobody's trick: rebinding needs a name
        ipaddress.ip_address(name)
    except ValueError:
        return name in (*_LOCAL_NAMES, socket.gethostname().lower())
    return True


def _logged_in(rules: Rules, headers: Mapping[str, str]) -> bool:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return rules.knows(given.strip())
    for pair in headers.get("cookie", "").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == rules.cookie:
            return hmac.compare_digest(value.encode(), rules.session.encode())
    return False


class Guard:
    """The rules around an application."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store" if scope["path"].startswith("/api/") else "no-cache")
            await send(message)

        problem = refusal(self._rules, scope["method"], scope["path"], Headers(scope=scope))
        app = self._app if problem is None else JSONResponse({"error": problem.why}, problem.status)
        await app(scope, receive, sealed)
