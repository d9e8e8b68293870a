"""Java properties text to a dict: the format of server.properties, escapes and continued lines included."""

from __future__ import annotations

import re

from ottla.config.types import ConfigError

_LINE_END = re.compile(r"\r\n|\r|\n")
_CODE_UNIT = re.compile(r"[0-9a-fA-F]{4}\Z")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of a properties file; a later key replaces an earlier one."""
    result: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        result[_unescape(key)] = _unescape(value)
    return result


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    pending = ""
    for raw in _LINE_END.split(text):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
        else:
            lines.append(pending + line)
            pending = ""
    if pending:
        lines.append(pending)
    return lines


def _split(line: str) -> tuple[str, str]:
    """The key ends at the first unescaped separator: =, : or white space."""
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return key, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\" or at + 1 == len(text):
            out.append(text[at])
            at += 1
        elif text[at + 1] == "u":
            if not _CODE_UNIT.match(text[at + 2 : at + 6]):
                raise ConfigError(
                    f"{text[at : at + 6]} in a properties file is not valid: allowed is \\u and four hexadecimal digits"
                )
            out.append(chr(int(text[at + 2 : at + 6], 16)))
            at += 6
        else:
            out.append(_ESCAPES.get(text[at + 1], text[at + 1]))
            at += 2
    return "".join(out)
