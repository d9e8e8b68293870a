"""Who we are, proved: PLAIN, and SCRAM with SHA-256 or SHA-512 (RFC 5802), as a row of messages without I/O.

Guards: with SCRAM the password never leaves us, and a server that cannot prove that it knows it is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator

from ottla.client.errors import AuthenticationFailed

_LEAST_ITERATIONS = 4096
_MOST_ITERATIONS = 1_000_000  # a server that asks for more wants our time

Exchange = Generator[bytes, bytes, None]
"""Yields what is to be sent, and is sent what the server answered."""


def exchange(mechanism: str, username: str, password: str) -> Exchange:
    """The client's side of a mechanism."""
    if mechanism == "PLAIN":
        return _plain(username, password)
    return _scram(mechanism.removeprefix("SCRAM-").replace("-", "").lower(), username, password)


def _plain(username: str, password: str) -> Exchange:
    yield f"\0{username}\0{password}".encode()


def _scram(algorithm: str, username: str, password: str, nonce: str | None = None) -> Exchange:
    nonce = nonce or secrets.token_urlsafe(24)
    first = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    challenge = yield f"n,,{first}".encode()
    try:
        said = dict(part.split("=", 1) for part in challenge.decode().split(","))
        salt, iterations = base64.b64decode(said["s"]), int(said["i"])
        theirs = said["r"]
    except (ValueError, KeyError):
        raise AuthenticationFailed("The broker's SCRAM challenge cannot be read.") from None
    if not theirs.startswith(nonce) or not _LEAST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
        raise AuthenticationFailed("The broker's SCRAM challenge is not an answer to ours.")
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    without_proof = f"c=biws,r={theirs}"
    everything = ",".join((first, challenge.decode(), without_proof)).encode()
    signature = hmac.digest(hashlib.new(algorithm, client_key).digest(), everything, algorithm)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    final = yield f"{without_proof},p={proof}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), everything, algorithm)
    if not hmac.compare_digest(b"v=" + base64.b64encode(expected), final.split(b",")[0]):
        raise AuthenticationFailed("The broker could not prove that it knows the password: is it the right broker?")
