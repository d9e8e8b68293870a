"""Protobuf schemas for tests, made without protoc, and classes to write messages with."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

_TYPES = {name.removeprefix("TYPE_").lower(): number for name, number in Field.Type.items()}
KNOWN = (timestamp_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR)


def file(name: str, package: str = "shop", syntax: str = "proto3", imports: tuple[str, ...] = ()) -> Any:
    """An empty file."""
    known = tuple(one.name for one in KNOWN)
    return descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax=syntax, dependency=[*known, *imports])


def add(message: Any, name: str, number: int, kind: str, label: str = "optional", **more: Any) -> Any:
    """A field of a plain type, or (a name with a dot before it) of a message; `enum:.a.B` is an enum."""
    enum, _, named = kind.rpartition("enum:")
    if kind.startswith("."):
        more |= {"type": Field.TYPE_MESSAGE, "type_name": kind}
    elif "enum:" in kind:
        more |= {"type": Field.TYPE_ENUM, "type_name": enum + named}
    else:
        more["type"] = _TYPES[kind]
    return message.field.add(name=name, number=number, label=Field.Label.Value(f"LABEL_{label.upper()}"), **more)


def add_map(message: Any, name: str, number: int, full_name: str, key: str, value: str) -> None:
    """A map, which is a list of entries to Protobuf."""
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    add(entry, "key", 1, key)
    add(entry, "value", 2, value)
    add(message, name, number, f"{full_name}.{entry.name}", "repeated")


def file_set(*files: Any) -> bytes:
    """What protoc writes."""
    made = descriptor_pb2.FileDescriptorSet(file=files)
    return made.SerializeToString()


def classes(*files: Any) -> Any:
    """Find the class of a message by its name."""
    pool = descriptor_pool.DescriptorPool()
    for one in KNOWN:
        pool.AddSerializedFile(one.serialized_pb)
    for one in files:
        pool.Add(one)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
