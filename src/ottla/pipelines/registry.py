"""A schema registry: its framing of values, and the schemas behind the ids. Runs in Spark's workers and in checks.

Guards: a schema is asked for once by each process and then kept; ids never change their meaning. That a registry cannot be
asked is no fault of a record: it ends the query (`RegistryFailed`), after some attempts, and no record is called bad for it.
Passwords are in no message.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import lru_cache
from typing import Any, NamedTuple

from ottla.pipelines.undecodable import Undecodable

_MAGIC = 0
_HEAD = 5
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5
_TIMEOUT_SECONDS = 10
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_NOT_FOUND = 404
_AGAIN = (429, 500, 502, 503, 504)


class RegistryFailed(Exception):
    """The registry cannot be asked; the text says why in one line."""


class NotRegistered(Exception):
    """The registry has no such schema; the text names it."""


class Registered(NamedTuple):
    """A schema with those that it refers to, in an order in which each knows the ones before it."""

    kind: str
    texts: tuple[tuple[str, str], ...]
    """Names and texts, its own last."""


def unframed(value: bytes) -> tuple[int, bytes]:
    """The id that a value begins with, and what follows; raises `Undecodable`."""
    if len(value) < _HEAD or value[0] != _MAGIC:
        raise Undecodable("the value has no schema id: a registry's framing begins with byte 0 and four bytes of id")
    return int.from_bytes(value[1:_HEAD], "big"), value[_HEAD:]


def unindexed(value: bytes) -> tuple[tuple[int, ...], bytes]:
    """The message that a framed Protobuf value is of, as indexes into its schema, and what follows."""
    count, at = _varint(value, 0)
    if not 0 <= count <= len(value):
        raise Undecodable("the value has no message indexes behind its schema id")
    indexes = []
    for _ in range(count):
        index, at = _varint(value, at)
        indexes.append(index)
    return tuple(indexes) or (0,), value[at:]


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(value) and shift < 64:
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise Undecodable("the value has no message indexes behind its schema id")


@lru_cache(maxsize=16)
def registry(url: str) -> Registry:
    """The registry of this process at an address."""
    return Registry(url)


class Registry:
    """The schemas of one registry, as they are asked for. USER:PASSWORD@ in its address is basic authentication."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.address = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": _ACCEPT}
        if parts.username is not None:
            both = ":".join(urllib.parse.unquote(one or "") for one in (parts.username, parts.password))
            self._headers["Authorization"] = "Basic " + base64.b64encode(both.encode()).decode()
        self._by_id: dict[int, Registered] = {}

    def by_id(self, number: int) -> Registered:
        """The schema of an id; raises `NotRegistered`."""
        found = self._by_id.get(number)
        if found is None:
            # Protobuf is asked for in its serialized form; for other kinds the registry passes over that wish.
            answer = self._get(f"/schemas/ids/{number}?format=serialized", f"schema id {number}")
            found = self._by_id[number] = self._whole(answer, f"schema-{number}")
        return found

    def newest(self, subject: str) -> Registered:
        """The last version of a subject; raises `NotRegistered`."""
        return self._whole(self._version(subject, "latest"), subject)

    def _version(self, subject: str, version: object) -> Any:
        quoted = urllib.parse.quote(subject, safe="")
        return self._get(f"/subjects/{quoted}/versions/{version}?format=serialized", f"subject {subject}")

    def _whole(self, answer: Any, name: str) -> Registered:
        texts: dict[str, str] = {}
        for one in answer.get("references") or ():
            inner = self._whole(self._version(one["subject"], one["version"]), one["name"])
            texts |= {known: text for known, text in inner.texts if known not in texts}
        texts[name] = answer["schema"]
        return Registered(answer.get("schemaType") or "AVRO", tuple(texts.items()))

    def _get(self, path: str, what: str) -> Any:
        request = urllib.request.Request(self.address + path, headers=self._headers)
        for attempt in range(_ATTEMPTS):
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as problem:
                if problem.code == _NOT_FOUND and _is_registrys(problem):
                    raise NotRegistered(f"the schema registry {self.address} has no {what}") from None
                if problem.code not in _AGAIN or attempt + 1 == _ATTEMPTS:
                    words = f"{problem.code} {problem.reason}"
                    raise RegistryFailed(f"The schema registry {self.address} refuses {what}: {words}") from None
            except (OSError, ValueError) as problem:
                if attempt + 1 == _ATTEMPTS:
                    words = str(getattr(problem, "reason", problem))
                    raise RegistryFailed(f"The schema registry {self.address} does not answer: {words}") from None
            time.sleep(_PAUSE_SECONDS * (attempt + 1))
        raise AssertionError("the last attempt returns or raises")


def _is_registrys(answer: urllib.error.HTTPError) -> bool:
    """Whether a registry itself says that it has no such thing: a wrong path, or a proxy, says 404 too, and of all records."""
    try:
        return str(json.load(answer).get("error_code", "")).startswith(str(_NOT_FOUND))
    except (OSError, ValueError, AttributeError):
        return False
