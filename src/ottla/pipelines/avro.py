"""Avro: a schema as columns, and values as rows, with the writer's schema resolved to the reader's. Knows no Spark.

Guards: bytes that are not what the schema says are an error (`Undecodable`), with nothing left over behind the record. Logical
types are those of the reader: they are taken off before fastavro sees a schema, and where the writer means another one
(milliseconds for microseconds, another scale), its records are refused instead of being off by a factor.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from fastavro import parse_schema, schemaless_reader
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from ottla.pipelines import kinds
from ottla.pipelines.kinds import Kind, NotMapped
from ottla.pipelines.undecodable import Undecodable

_PLAIN = {
    "boolean": kinds.BOOLEAN,
    "int": kinds.INT,
    "long": kinds.BIGINT,
    "float": kinds.FLOAT,
    "double": kinds.DOUBLE,
    "string": kinds.STRING,
}
_INSTANTS = {
    "timestamp-millis": kinds.TIMESTAMP.through(lambda number: number * 1000),
    "timestamp-micros": kinds.TIMESTAMP,
    "local-timestamp-millis": kinds.TIMESTAMP_NTZ.through(lambda number: number * 1000),
    "local-timestamp-micros": kinds.TIMESTAMP_NTZ,
}
_UUID_BYTES = 16
Parsed = Any
"""A schema as fastavro has it."""


class AvroDecoder:
    """Values as rows of one reader schema. `texts` ends with that schema; before it stand those that it refers to."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._logical = _logical_types(parse(texts))
        self.row = columns_of(texts)
        self._reader = _bare(texts)

    def writer(self, texts: Sequence[str]) -> Parsed:
        """A writer's schema, ready for `decode`; raises `Undecodable` where it cannot be read as ours at all."""
        theirs = _logical_types(parse(texts))
        for path, meant in theirs.items():
            ours = self._logical.get(path, meant)
            if ours != meant:
                raise Undecodable(f"{path or 'it'} is {meant} to the writer and {ours} to the reader")
        return _bare(texts)

    def decode(self, value: bytes, writer: Parsed = None) -> dict[str, Any]:
        """The row in a value."""
        if not value:
            raise Undecodable("the value is empty")
        stream = io.BytesIO(value)
        try:
            row: Any = schemaless_reader(stream, self._reader if writer is None else writer, self._reader)
        except SchemaResolutionError as problem:
            raise Undecodable(f"the writer's schema does not resolve to the reader's: {_first_line(problem)}") from None
        except EOFError:
            raise Undecodable("the value is not Avro of this schema: it ends too early") from None
        except UnicodeDecodeError:
            raise Undecodable("the value is not Avro of this schema: its text is not UTF-8") from None
        except IndexError:
            raise Undecodable("the value is not Avro of this schema: a union or an enum has no such branch") from None
        except Exception as problem:  # whatever bytes make of a decoder
            raise Undecodable(f"the value is not Avro of this schema: {_first_line(problem)}") from None
        rest = len(value) - stream.tell()
        if rest:
            raise Undecodable(f"the value is not Avro of this schema: {rest} bytes are left over")
        return row  # type: ignore[no-any-return]


def parse(texts: Sequence[str]) -> Parsed:
    """The last schema, knowing the names of those before it; raises `NotMapped` where one is none."""
    return _parsed([_read(text) for text in texts])


def columns_of(texts: Sequence[str]) -> Kind:
    """What the records of a schema are in Spark; raises `NotMapped`."""
    schema = parse(texts)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise NotMapped("a record is expected: only its fields can be columns")
    names = schema.get("__named_schemas", {})
    return _kind(schema, names, "", ())


# ---- types ---------------------------------------------------------------------------------------------------------------


def _kind(schema: Parsed, names: dict[str, Parsed], path: str, inside: tuple[str, ...]) -> Kind:
    what = path or "the record"
    try:
        if isinstance(schema, str) and schema in names:
            schema = names[schema]
        if isinstance(schema, list):
            return _kind(_only(schema), names, path, inside)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return _kind(kind, names, path, inside)
        if kind in ("record", "error"):
            if schema["name"] in inside:
                raise NotMapped(f"{schema['name']} contains itself, and a column has an end")
            within = (*inside, schema["name"])
            return kinds.struct(
                {one["name"]: _kind(one["type"], names, _dotted(path, one["name"]), within) for one in schema["fields"]}
            )
        if kind == "array":
            return kinds.array(_kind(schema["items"], names, f"{path}[]", inside))
        if kind == "map":
            return kinds.mapping(kinds.STRING, _kind(schema["values"], names, f"{path}{{}}", inside))
        if kind == "enum":
            return kinds.STRING
        return _leaf(kind, schema if isinstance(schema, dict) else {})
    except NotMapped as problem:
        words = str(problem)
        raise NotMapped(words if words.startswith("field ") or not path else f"field {what}: {words}") from None


def _leaf(kind: str, schema: dict[str, Any]) -> Kind:
    logical = schema.get("logicalType")
    if kind == "int" and logical == "date":
        return kinds.DATE
    if kind == "long" and logical in _INSTANTS:
        return _INSTANTS[logical]
    if kind in ("bytes", "fixed"):
        if logical == "decimal":
            scale = int(schema.get("scale", 0))
            return kinds.decimal(int(schema["precision"]), scale).through(lambda value: _number(_bytes(value), scale))
        if logical == "uuid" and schema.get("size") == _UUID_BYTES:
            return kinds.STRING.through(lambda value: str(UUID(bytes=_bytes(value))))
        return kinds.BINARY.through(_bytes)
    found = _PLAIN.get(kind)
    if found is None:
        raise NotMapped(f"{kind} has no type of Spark's")
    return found


def _only(union: list[Parsed]) -> Parsed:
    some = [one for one in union if one != "null"]
    if len(some) == 1:
        return some[0]
    told = " and ".join(str(one.get("name", one["type"])) if isinstance(one, dict) else str(one) for one in some)
    raise NotMapped(f"a union of {told or 'null alone'} is no column: one type, with null or without, is")


def _bytes(value: bytes | str) -> bytes:
    """Defaults of bytes are text in a schema, a character for each byte."""
    return value if isinstance(value, bytes) else value.encode("latin-1")


def _number(value: bytes, scale: int) -> Decimal:
    whole = int.from_bytes(value, "big", signed=True)
    return Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -scale))


def _logical_types(schema: Parsed) -> dict[str, str]:
    """The logical types in a schema that change what a number or bytes mean, by where they stand."""
    names = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    return dict(_walked(schema, names, "", ()))


def _walked(schema: Parsed, names: dict[str, Parsed], path: str, inside: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        for one in schema:
            yield from _walked(one, names, path, inside)
        return
    if not isinstance(schema, dict) or schema.get("name") in inside:
        return
    if "fields" in schema:
        for one in schema["fields"]:
            yield from _walked(one["type"], names, _dotted(path, one["name"]), (*inside, schema["name"]))
    yield from _walked(schema.get("items"), names, f"{path}[]", inside)
    yield from _walked(schema.get("values"), names, f"{path}{{}}", inside)
    logical = schema.get("logicalType")
    if logical == "decimal":
        yield path, f"decimal({schema.get('precision')}, {schema.get('scale', 0)})"
    elif logical in _INSTANTS or logical == "date":
        yield path, str(logical)


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# ---- schemas as fastavro wants them --------------------------------------------------------------------------------------


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as problem:
        raise NotMapped(f"it is not JSON: {problem}") from None


def _parsed(schemas: Sequence[Any]) -> Parsed:
    names: dict[str, Any] = {}
    parsed: Parsed = None
    try:
        for one in schemas:
            parsed = parse_schema(one, names)
    except UnknownType as problem:
        raise NotMapped(f"it names {problem.name}, which is no type and not defined before") from None
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError) as problem:
        raise NotMapped(f"it is no Avro schema: {_first_line(problem)}") from None
    return parsed


def _bare(texts: Sequence[str]) -> Parsed:
    """For reading bytes: without logical types."""
    return _parsed([_without_logical(_read(text)) for text in texts])


def _without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: one if key == "default" else _without_logical(one) for key, one in schema.items() if key != "logicalType"}


def _first_line(problem: BaseException) -> str:
    return (str(problem).partition("\n")[0] or type(problem).__name__).rstrip(".")
