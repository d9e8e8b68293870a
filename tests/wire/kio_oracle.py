"""kio as the oracle: random messages of its making, and the same messages as ours.

Nothing here looks at our tables to build a message; the walk goes along kio's dataclasses, so that a field that we forgot,
misnamed or put into the wrong versions shows.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import types
import typing
import uuid
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from ottla.wire.schema import Struct

UNKNOWN = {("ConsumerGroupHeartbeatRequest", 1), ("ConsumerGroupHeartbeatResponse", 1)}
"""Of Apache Kafka 4.0, which kio does not know: `test_a_version_that_kio_does_not_know` spells them out."""

EPOCH = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
LETTERS = "abcxyz019-_.äß√𝛑"


def encode(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def random_entity(cls: Any, rng: random.Random) -> Any:
    return cls(**{field.name: _random_field(field, rng) for field in dataclasses.fields(cls)})


def shape(field: Any) -> tuple[Any, bool, bool]:
    """Of a dataclass field: its innermost type, is it an array, may it be null."""
    kind, nullable, is_array = field.type, False, False
    if isinstance(kind, types.UnionType):
        nullable = True
        (kind,) = (arg for arg in typing.get_args(kind) if arg is not type(None))
    if typing.get_origin(kind) is tuple:
        is_array = True
        kind = typing.get_args(kind)[0]
        if isinstance(kind, types.UnionType):
            (kind,) = (arg for arg in typing.get_args(kind) if arg is not type(None))
    return kind, is_array, nullable


def _random_field(field: Any, rng: random.Random) -> Any:
    kind, is_array, nullable = shape(field)
    if "tag" in field.metadata and rng.random() < 0.4:
        return field.default if field.default is not dataclasses.MISSING else random_entity_default(field)
    may_be_null = nullable and "tag" not in field.metadata
    if may_be_null and rng.random() < 0.2:
        return None
    if is_array:
        count = rng.choice((0, 1, 1, 2, 3, rng.choice((5, 126, 127, 128, 300)) if not dataclasses.is_dataclass(kind) else 4))
        return tuple(_random_value(kind, field, rng) for _ in range(count))
    return _random_value(kind, field, rng)


def random_entity_default(field: Any) -> Any:
    """kio leaves some tagged fields without a default; Kafka's is zero."""
    return {"uuid": None, "int32": 0, "int64": 0, "string": "", "bool": False}[field.metadata["kafka_type"]]


def _random_value(kind: Any, field: Any, rng: random.Random) -> Any:
    if dataclasses.is_dataclass(kind):
        return random_entity(kind, rng)
    match field.metadata["kafka_type"]:
        case "bool":
            return rng.random() < 0.5
        case "int8" | "int16" | "int32" | "int64" as name:
            bits = int(name[3:]) - 1
            return rng.choice((0, -1, 1, -(2**bits), 2**bits - 1, rng.randrange(-(2**bits), 2**bits)))
        case "uint16":
            return rng.randrange(2**16)
        case "float64":
            return rng.choice((0.0, -1.5, rng.uniform(-1e9, 1e9)))
        case "string":
            length = rng.choice((0, 1, 5, 20, rng.choice((126, 127, 128, 1000))))
            return "".join(rng.choice(LETTERS) for _ in range(length))
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 10, 126, 127, 128, 20_000)))
        case "uuid":
            return rng.choice((None, uuid.UUID(bytes=rng.randbytes(16))))
        case "error_code":
            return rng.choice(list(ErrorCode))
        case "timedelta_i32":
            return rng.choice((0, 1, -1, rng.randrange(2**31))) * MILLISECOND
        case "timedelta_i64":
            return rng.choice((0, 1, -1, rng.randrange(2**40))) * MILLISECOND
        case "datetime_i64":
            return EPOCH + rng.randrange(2**41) * MILLISECOND
        case other:
            raise AssertionError(f"kio has a type that this file does not know: {other}")


def on_the_wire(value: Any, field: Any) -> Any:
    """A value of kio's rich types as the plain value that is sent."""
    if field.metadata.get("kafka_type") == "uuid" and not isinstance(value, tuple):
        return bytes(16) if value is None else value.bytes
    if field.metadata.get("kafka_type") == "datetime_i64":
        return -1 if value is None else (value - EPOCH) // MILLISECOND
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, ErrorCode):
        return value.value
    if isinstance(value, tuple):
        return [on_the_wire(item, field) for item in value]
    return value


def our_name(cls: type[Struct], field: Any) -> str:
    """kio drops the unit from the names of times, because its types carry it, and keeps clear of Python's builtins."""
    names = {known.name for known in cls.__fields__}
    for name in (field.name, f"{field.name}_ms", field.name.removesuffix("_"), field.name.replace("k_raft", "kraft")):
        if name in names:
            return name
    raise AssertionError(f"{cls.__name__} has no field {field.name}")


def our_field(cls: type[Struct], field: Any) -> Any:
    name = our_name(cls, field)
    return next(known for known in cls.__fields__ if known.name == name)


def as_ours(cls: type[Struct], entity: Any) -> Any:
    """The same message, built with our constructor from what kio's has."""
    values = {}
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        known = our_field(cls, field)
        kind, is_array, _ = shape(field)
        if dataclasses.is_dataclass(kind) and value is not None:
            if is_array:
                value = [as_ours(known.element.struct, item) for item in value]
            elif known.tag is not None and value == field.default:
                value = None
            else:
                value = as_ours(known.struct, value)
        else:
            value = on_the_wire(value, field)
        values[known.name] = value
    return cls(**values)
