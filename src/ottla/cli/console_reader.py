"""Lines to records, as the line reader of Apache Kafka's console producer takes them apart: `headers\\tkey\\tvalue`.

Guards: a line that does not have the announced parts is refused with its number, or taken whole where ignore.error says so.
Pure: text in, records out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.cli.tool import Failure

Headers = list[tuple[str, str | bytes | None]]


class Outgoing(NamedTuple):
    """A record to be produced."""

    key: bytes | None
    value: bytes | None
    headers: Headers


def _flag(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "false").strip().lower() == "true"


@dataclass(frozen=True, slots=True)
class LineReader:
    """What --property says about lines."""

    parse_key: bool = False
    parse_headers: bool = False
    ignore_error: bool = False
    key_separator: str = "\t"
    headers_delimiter: str = "\t"
    headers_separator: str = ","
    headers_key_separator: str = ":"
    null_marker: str | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> LineReader:
        """The reader that the properties describe; separators that could not be told apart are refused."""
        reader = cls(
            _flag(properties, "parse.key"),
            _flag(properties, "parse.headers"),
            _flag(properties, "ignore.error"),
            properties.get("key.separator", "\t"),
            properties.get("headers.delimiter", "\t"),
            properties.get("headers.separator", ","),
            properties.get("headers.key.separator", ":"),
            properties.get("null.marker"),
        )
        signs = {
            "headers.delimiter": reader.headers_delimiter,
            "headers.separator": reader.headers_separator,
            "headers.key.separator": reader.headers_key_separator,
        }
        marks = [("null.marker", reader.null_marker, "key.separator", reader.key_separator)]
        marks += [("null.marker", reader.null_marker, name, sign) for name, sign in signs.items()]
        names = list(signs)
        marks += [(a, signs[a], b, signs[b]) for at, a in enumerate(names) for b in names[at + 1 :]]
        for first, one, second, other in marks:
            if one == other:
                raise Failure(f"{first} and {second} may not be equal")
        try:
            re.compile(reader.headers_separator)
        except re.error as problem:
            raise Failure(f"headers.separator={reader.headers_separator} is not a regular expression: {problem}") from None
        return reader

    @property
    def plain(self) -> bool:
        """Whether a line is a value as it stands."""
        return not self.parse_key and not self.parse_headers and self.null_marker is None

    def record(self, line: str, number: int) -> Outgoing:
        """The record that a line is."""
        headers, at = self._part(line, 0, self.parse_headers, self.headers_delimiter, "headers delimiter", number)
        key, at = self._part(line, at, self.parse_key, self.key_separator, "key separator", number)
        parsed = self._split_headers(headers, number) if headers is not None and headers != self.null_marker else []
        return Outgoing(self._bytes(key), self._bytes(line[at:]), parsed)

    def _part(self, line: str, start: int, wanted: bool, sign: str, name: str, number: int) -> tuple[str | None, int]:
        """A part that ends with a sign, and where the rest begins."""
        if not wanted:
            return None, start
        end = line.find(sign, start)
        if end >= 0:
            return line[start:end], end + len(sign)
        if self.ignore_error:
            return None, start
        raise Failure(f"No {name} found on line number {number}: '{line}'")

    def _bytes(self, text: str | None) -> bytes | None:
        return None if text is None or text == self.null_marker else text.encode()

    def _split_headers(self, text: str, number: int) -> Headers:
        headers: Headers = []
        for pair in re.split(self.headers_separator, text):
            key, sign, value = pair.partition(self.headers_key_separator)
            if not sign and not self.ignore_error:
                raise Failure(f"No header key separator found in pair '{pair}' on line number {number}")
            if key == self.null_marker:
                raise Failure(f"Header keys should not be equal to the null marker '{key}' as they can't be null")
            headers.append((key, self._bytes(value) if sign else None))
        return headers
