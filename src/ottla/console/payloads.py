"""Keys, values and headers as JSON: text where they are text, base64 where they are not, and no more than is looked at."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ottla.console.asking import BadRequest, Body

PREVIEW = 600
"""Bytes of a key or a value in a list; all of it comes when somebody opens the message."""


def shown(data: bytes | None, limit: int | None = None) -> dict[str, Any] | None:
    """Bytes for the page. A cut within a character is not held against it."""
    if data is None:
        return None
    part = data if limit is None else data[:limit]
    found: dict[str, Any] = {"size": len(data)}
    if len(part) < len(data):
        found["cut"] = True
    try:
        found["text"] = part.decode("utf-8", "strict" if len(part) == len(data) else "ignore")
    except UnicodeDecodeError:
        found["base64"] = base64.b64encode(part).decode()
    else:
        if len(part) < len(data) and len(found["text"].encode()) < len(part) - 3:
            del found["text"]  # not a character cut in two, but bytes that never were one
            found["base64"] = base64.b64encode(part).decode()
    return found


def row(record: Mapping[str, Any], limit: int | None = PREVIEW) -> dict[str, Any]:
    """A record as `reading` gives it, with the time in milliseconds."""
    return {
        "partition": record["partition"],
        "offset": record["offset"],
        "time": record["time"],
        "timeType": record["timestampType"],
        "key": shown(record["key"], limit),
        "value": shown(record["value"], limit),
        "headers": [[one["key"], shown(one["value"], limit)] for one in record["headers"] or ()],
    }


def given(part: Body | None, what: str) -> bytes | None:
    """Bytes that the page sent: {"text": ...}, {"hex": ...} or {"base64": ...}; nothing is null."""
    if part is None:
        return None
    if part.has("text"):
        return part.text("text").encode()
    try:
        if part.has("hex"):
            return bytes.fromhex(part.text("hex"))
        return base64.b64decode(part.text("base64"), validate=True)
    except ValueError:
        raise BadRequest(f"The {what} is not valid: allowed is text, or bytes in hexadecimal digits.") from None
