"""Java's properties format, as server.properties uses it."""

from __future__ import annotations

import pytest

from ottla.config import ConfigError, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t=\t1", {"a": "1"}),
        ("  a=1  ", {"a": "1  "}),  # white space behind a value belongs to it; settings strip it
        ("a=", {"a": ""}),
        ("a", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=PLAINTEXT://h:9092,B://h:9093", {"a": "PLAINTEXT://h:9092,B://h:9093"}),
        ("# comment\n! another\n\n   # third\na=1", {"a": "1"}),
        ("# a comment does not go on \\\na=1", {"a": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1,\\\n   2,\\\n   3", {"a": "1,2,3"}),
        ("a=one\\\n# not a comment", {"a": "one# not a comment"}),
        ("a=ends in a backslash\\\\\nb=2", {"a": "ends in a backslash\\", "b": "2"}),
        ("a=cut\\", {"a": "cut"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\:b:c", {"a:b": "c"}),
        ("a\\ b c", {"a b": "c"}),
        ("a=C:\\\\data\\tx", {"a": "C:\\data\tx"}),
        ("a=\\u00e9\\u20AC", {"a": "é€"}),
        ("a=\\q", {"a": "q"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=x\u2028y\x0bz", {"a": "x\u2028y\x0bz"}),  # ends of lines for Python, not for Java
        ("\fa=1", {"a": "1"}),
        ("", {}),
    ],
)
def test_properties(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=\\uzzzz", "a=\\u12", "a=\\u 123", "a=\\u+123"])
def test_an_escape_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        parse_properties(text)
