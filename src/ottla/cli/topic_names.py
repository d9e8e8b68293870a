"""Topics as people name them to Apache Kafka's tools: a regular expression, or several between commas."""

from __future__ import annotations

import re
from collections.abc import Callable

from ottla.cli.tool import Failure

Match = Callable[[str], object]


def matching(text: str | None, option: str = "--topic") -> Match:
    """Whether a name is meant; without a text all are. Commas separate alternatives, spaces and outer quotes do not count."""
    if text is None:
        return lambda _: True
    alternatives = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        return re.compile(alternatives).fullmatch
    except re.error as problem:
        raise Failure(f"{option} {text} is not a regular expression: {problem}") from None


def has_collision(name: str) -> bool:
    """Whether a name has characters that become the same in names of metrics."""
    return "." in name or "_" in name
