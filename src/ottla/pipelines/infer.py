"""The schema of JSON records, from the first of them. Pure; the result is written down, so that a restart does not guess again.

Guards: a field that is whole in some records and broken in others becomes DOUBLE, one that has two kinds becomes STRING (Spark
then keeps its JSON text): what was seen fits. Text stays text, also where it looks like a time: name a schema to have times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

SAMPLE = 1000
"""How many records are looked at."""

Shape: TypeAlias = str | dict[str, Any] | list[Any] | None
"""None: only nulls so far; text: Spark's name of a plain type; a dict: a struct; a list of one: an array."""

_WHOLE = range(-(1 << 63), 1 << 63)


def infer(values: Iterable[bytes | None]) -> str | None:
    """The schema of those values that are JSON objects, as in CREATE TABLE; None where there are none."""
    found: Shape = None
    for value in values:
        try:
            record = json.loads(value) if value is not None else None
        except ValueError:
            continue  # one that does not decode is told when it is read
        if isinstance(record, dict):
            found = _merged(found, _shape(record))
    if not isinstance(found, dict) or not found:
        return None
    return ", ".join(f"`{name}` {_type(shape)}" for name, shape in found.items())


def _shape(value: Any) -> Shape:
    if isinstance(value, dict):
        return {name: _shape(one) for name, one in value.items() if "`" not in name}
    if isinstance(value, list):
        inner: Shape = None
        for one in value:
            inner = _merged(inner, _shape(one))
        return [inner]
    if value is None:
        return None
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if value in _WHOLE else "DOUBLE"
    return "DOUBLE" if isinstance(value, float) else "STRING"


def _merged(one: Shape, other: Shape) -> Shape:
    if one is None or one == other:
        return other
    if other is None:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    return "DOUBLE" if {str(one), str(other)} == {"BIGINT", "DOUBLE"} else "STRING"


def _type(shape: Shape) -> str:
    if isinstance(shape, dict):
        inner = ", ".join(f"`{name}`: {_type(one)}" for name, one in shape.items())
        return f"STRUCT<{inner}>" if shape else "STRING"
    if isinstance(shape, list):
        return f"ARRAY<{_type(shape[0])}>"
    return shape or "STRING"
