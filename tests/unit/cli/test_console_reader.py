from __future__ import annotations

import pytest

from ottla.cli.console_reader import LineReader
from ottla.cli.tool import Failure

BOTH = {"parse.key": "true", "parse.headers": "TRUE "}


@pytest.mark.parametrize(("properties", "line", "expected"), [
    ({}, "a\tb", (None, b"a\tb", [])),
    ({"parse.key": "true"}, "k\tv\tw", (b"k", b"v\tw", [])),
    ({"parse.key": "true", "key.separator": "::"}, "k::v", (b"k", b"v", [])),
    (BOTH, "a:1,b:\tk\tv", (b"k", b"v", [("a", b"1"), ("b", b"")])),
    ({**BOTH, "headers.separator": "[;|]"}, "a:1;b:2|c:3\tk\t", (b"k", b"", [("a", b"1"), ("b", b"2"), ("c", b"3")])),
    ({**BOTH, "null.marker": "N"}, "N\tN\tN", (None, None, [])),
    ({**BOTH, "null.marker": "N"}, "a:N\tk\tv", (b"k", b"v", [("a", None)])),
    ({**BOTH, "ignore.error": "true"}, "no parts", (None, b"no parts", [])),
    ({**BOTH, "ignore.error": "true"}, "lonely\tk\tv", (b"k", b"v", [("lonely", None)])),
])  # fmt: skip
def test_parts_of_a_line(properties: dict[str, str], line: str, expected: tuple[object, ...]) -> None:
    assert tuple(LineReader.of(properties).record(line, 1)) == expected


@pytest.mark.parametrize(("properties", "line", "words"), [
    ({"parse.key": "true"}, "v", "No key separator found on line number 7: 'v'"),
    ({"parse.headers": "true"}, "v", "No headers delimiter found on line number 7: 'v'"),
    ({"parse.headers": "true"}, "h\tv", "No header key separator found in pair 'h' on line number 7"),
    ({"parse.headers": "true", "null.marker": "h"}, "h:1\tv", "Header keys should not be equal to the null marker 'h'"),
])  # fmt: skip
def test_a_line_without_its_parts(properties: dict[str, str], line: str, words: str) -> None:
    with pytest.raises(Failure) as refused:
        LineReader.of(properties).record(line, 7)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize("properties", [{"headers.separator": ":"}, {"null.marker": "\t"}, {"headers.separator": "["}])
def test_separators_that_cannot_be_meant(properties: dict[str, str]) -> None:
    with pytest.raises(Failure):
        LineReader.of(properties)
