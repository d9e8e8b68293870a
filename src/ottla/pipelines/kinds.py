"""Types on three sides: what a decoder hands out, what Arrow holds, what Spark's SQL calls it. Pure.

Guards: a value that a column cannot hold is an error (`pyarrow` raises), never null; a type that no column can hold is refused
(`NotMapped`) before anything runs. `convert` turns what a decoder hands out into what Arrow takes; None: they are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

_MOST_DIGITS = 38
Convert = Callable[[Any], Any]


class NotMapped(ValueError):
    """A type that no column can hold; the text says which, and why."""


class Kind(NamedTuple):
    """One type."""

    sql: str
    arrow: pa.DataType
    convert: Convert | None = None

    def through(self, convert: Convert) -> Kind:
        """The same, for values that have to be converted first."""
        return Kind(self.sql, self.arrow, convert)


BOOLEAN = Kind("BOOLEAN", pa.bool_())
INT = Kind("INT", pa.int32())
BIGINT = Kind("BIGINT", pa.int64())
FLOAT = Kind("FLOAT", pa.float32())
DOUBLE = Kind("DOUBLE", pa.float64())
STRING = Kind("STRING", pa.string())
BINARY = Kind("BINARY", pa.binary())
DATE = Kind("DATE", pa.date32())
TIMESTAMP = Kind("TIMESTAMP", pa.timestamp("us", tz="UTC"))
"""Microseconds since 1970, as numbers."""
TIMESTAMP_NTZ = Kind("TIMESTAMP_NTZ", pa.timestamp("us"))


def decimal(digits: int, scale: int) -> Kind:
    """Numbers with a fixed number of digits behind the point."""
    if not 0 <= scale <= digits <= _MOST_DIGITS or digits < 1:
        raise NotMapped(f"a decimal of {digits} digits, {scale} of them behind the point, does not fit: {_MOST_DIGITS} is most")
    return Kind(f"DECIMAL({digits}, {scale})", pa.decimal128(digits, scale))


def array(of: Kind) -> Kind:
    """A list."""
    inner = of.convert
    made = Kind(f"ARRAY<{of.sql}>", pa.list_(pa.field("element", of.arrow)))
    if inner is None:
        return made
    return made.through(lambda values: [None if one is None else inner(one) for one in values])


def mapping(key: Kind, of: Kind) -> Kind:
    """Keys with a value each; they arrive as a dict, and Arrow wants pairs."""
    inner = of.convert

    def pairs(values: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        if inner is None:
            return list(values.items())
        return [(key, None if one is None else inner(one)) for key, one in values.items()]

    return Kind(f"MAP<{key.sql}, {of.sql}>", pa.map_(key.arrow, of.arrow), pairs)


def struct(fields: Mapping[str, Kind]) -> Kind:
    """Names with a type each; rows arrive as dicts."""
    if not fields:
        raise NotMapped("it has no fields")
    seen: dict[str, str] = {}
    for name in fields:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise NotMapped(f"{other} and {name} are one name to Spark, which does not tell capitals apart")
    sql = ", ".join(f"`{name}`: {kind.sql}" for name, kind in fields.items())
    made = Kind(f"STRUCT<{sql}>", pa.struct([(name, kind.arrow) for name, kind in fields.items()]))
    inner = {name: kind.convert for name, kind in fields.items() if kind.convert is not None}
    if not inner:
        return made

    def converted(row: Mapping[str, Any]) -> dict[str, Any]:
        new = dict(row)
        for name, convert in inner.items():
            if new[name] is not None:
                new[name] = convert(new[name])
        return new

    return made.through(converted)


def columns(row: Kind) -> list[str]:
    """The names in a struct."""
    return [row.arrow.field(number).name for number in range(row.arrow.num_fields)]
