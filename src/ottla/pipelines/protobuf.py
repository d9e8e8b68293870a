"""Protobuf: a message of a FileDescriptorSet as columns, and values as rows. Knows no Spark.

Guards: bytes that are no message, lack a field that is required, or hold not one field of the message are an error
(`Undecodable`): Protobuf takes almost any bytes for fields that it does not know, and would make defaults of them. What is not
set is null where Protobuf can tell (messages, `optional`, `oneof`), else the default, as Protobuf means it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ottla.pipelines import kinds
from ottla.pipelines.kinds import Kind, NotMapped
from ottla.pipelines.undecodable import Undecodable

_UINT64 = kinds.decimal(20, 0).through(Decimal)
_SCALARS = {
    FieldDescriptor.TYPE_BOOL: kinds.BOOLEAN,
    FieldDescriptor.TYPE_INT32: kinds.INT,
    FieldDescriptor.TYPE_SINT32: kinds.INT,
    FieldDescriptor.TYPE_SFIXED32: kinds.INT,
    FieldDescriptor.TYPE_UINT32: kinds.BIGINT,
    FieldDescriptor.TYPE_FIXED32: kinds.BIGINT,
    FieldDescriptor.TYPE_INT64: kinds.BIGINT,
    FieldDescriptor.TYPE_SINT64: kinds.BIGINT,
    FieldDescriptor.TYPE_SFIXED64: kinds.BIGINT,
    FieldDescriptor.TYPE_UINT64: _UINT64,
    FieldDescriptor.TYPE_FIXED64: _UINT64,
    FieldDescriptor.TYPE_FLOAT: kinds.FLOAT,
    FieldDescriptor.TYPE_DOUBLE: kinds.DOUBLE,
    FieldDescriptor.TYPE_STRING: kinds.STRING,
    FieldDescriptor.TYPE_BYTES: kinds.BINARY,
}
_MESSAGES = (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP)
_INSTANT = "google.protobuf.Timestamp"
_WRAPPERS = "google/protobuf/wrappers.proto"


class ProtobufDecoder:
    """Values as rows of one message."""

    def __init__(self, files: bytes, message: str) -> None:
        descriptor = message_of(files, message)
        self.message: str = descriptor.full_name
        self.row = _message(descriptor, "", ())
        self._class: Any = message_factory.GetMessageClass(descriptor)

    def decode(self, value: bytes, *, is_ours: bool = False) -> Any:
        """The message in a value; the row's `convert` makes a row of it. `is_ours`: it is known to be this message."""
        try:
            found = self._class.FromString(value)
        except DecodeError as problem:
            words = str(problem).rpartition(": ")[2]
            raise Undecodable(f"the value is no {self.message}: {words}") from None
        if not found.IsInitialized():
            raise Undecodable(f"field {found.FindInitializationErrors()[0]} is missing")
        if not is_ours and not found.ListFields() and len(UnknownFieldSet(found)):
            raise Undecodable(f"the value is no {self.message}: it has none of its fields")
        return found


def message_of(files: bytes, message: str) -> Any:
    """The message of this name, or (an empty one) the first; raises `NotMapped`."""
    return _found(_read(files), message)


def message_at(files: bytes, indexes: Sequence[int]) -> str:
    """The name of the message that a list of indexes means: into the messages of the last file, then into those inside."""
    file = _read(files).file[-1]
    inside, name = file.message_type, str(file.package)
    for index in indexes:
        if not 0 <= index < len(inside):
            raise Undecodable(f"its schema has no message {list(indexes)}")
        name = f"{name}.{inside[index].name}" if name else str(inside[index].name)
        inside = inside[index].nested_type
    return name


def file_set(files: Sequence[tuple[str, bytes]]) -> bytes:
    """A FileDescriptorSet of files with their names, the one that matters last."""
    made = descriptor_pb2.FileDescriptorSet()
    for name, content in files:
        try:
            made.file.add().ParseFromString(content)
        except DecodeError:
            raise NotMapped(f"{name} is no serialized FileDescriptorProto") from None
        made.file[-1].name = name
    serialized: bytes = made.SerializeToString()
    return serialized


def _read(files: bytes) -> Any:
    found = descriptor_pb2.FileDescriptorSet()
    try:
        found.ParseFromString(files)
    except DecodeError:
        found.Clear()
    if not found.file:
        raise NotMapped("it is no FileDescriptorSet: make it with protoc --include_imports --descriptor_set_out=FILE")
    return found


def _found(files: Any, message: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    given = {one.name: one for one in files.file}
    added: set[str] = set()
    for one in files.file:
        _add(pool, one, given, added)
    names = [f"{one.package}.{inner.name}".lstrip(".") for one in files.file for inner in one.message_type]
    if not message:
        last = files.file[-1]
        if not last.message_type:
            raise NotMapped("it has no message")
        message = f"{last.package}.{last.message_type[0].name}".lstrip(".")
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise NotMapped(f"it has no message {message}: there are {', '.join(sorted(names)) or 'none'}") from None


def _add(pool: Any, file: Any, given: Mapping[str, Any], added: set[str]) -> None:
    """Put a file into a pool, after those that it imports; Protobuf's own need not be given."""
    if file.name in added:
        return
    added.add(file.name)
    for name in file.dependency:
        _add(pool, given.get(name) or _own(name, file.name), given, added)
    try:
        pool.Add(file)
    except TypeError as problem:
        raise NotMapped(f"{file.name} is not consistent: {str(problem).partition(': ')[2] or problem}") from None


def _own(name: str, importer: str) -> Any:
    if name.startswith("google/"):
        try:
            module = importlib.import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
        except ImportError:
            pass
        else:
            own = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(own)
            return own
    raise NotMapped(f"{importer} imports {name}, which is not in it: give protoc the option --include_imports")


# ---- types ---------------------------------------------------------------------------------------------------------------


def _message(descriptor: Any, path: str, inside: tuple[str, ...]) -> Kind:
    if descriptor.full_name == _INSTANT:
        return kinds.TIMESTAMP.through(lambda one: one.seconds * 1_000_000 + one.nanos // 1000)
    if descriptor.file.name == _WRAPPERS:
        kind = _value(descriptor.fields_by_name["value"], path, inside)
        convert = kind.convert
        return kind.through(lambda one: one.value if convert is None else convert(one.value))
    try:
        if descriptor.full_name in inside:
            raise NotMapped(f"{descriptor.full_name} contains itself, and a column has an end")
        within = (*inside, descriptor.full_name)
        fields = {one.name: _field(one, f"{path}.{one.name}" if path else one.name, within) for one in descriptor.fields}
        made = kinds.struct({name: kind for name, (kind, _) in fields.items()})
    except NotMapped as problem:
        words = str(problem)
        raise NotMapped(words if words.startswith("field ") or not path else f"field {path}: {words}") from None
    getters = {name: get for name, (_, get) in fields.items()}
    return made.through(lambda one: {name: get(one) for name, get in getters.items()})


def _field(field: Any, path: str, inside: tuple[str, ...]) -> tuple[Kind, Callable[[Any], Any]]:
    """The type of a field, and how it is taken from a message."""
    name = field.name
    if field.is_repeated and field.type in _MESSAGES and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        key, of = _value(entry["key"], path, inside), _value(entry["value"], path, inside)
        as_key, as_value = key.convert or _same, of.convert or _same
        return kinds.mapping(key, of), lambda one: [(as_key(k), as_value(v)) for k, v in getattr(one, name).items()]
    kind = _value(field, path, inside)
    convert = kind.convert or _same
    if field.is_repeated:
        return kinds.array(kind), lambda one: [convert(each) for each in getattr(one, name)]
    if field.has_presence and not field.has_default_value:
        return kind, lambda one: convert(getattr(one, name)) if one.HasField(name) else None
    return kind, lambda one: convert(getattr(one, name))


def _value(field: Any, path: str, inside: tuple[str, ...]) -> Kind:
    if field.type in _MESSAGES:
        return _message(field.message_type, path, inside)
    if field.type == FieldDescriptor.TYPE_ENUM:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        # A number that this schema does not know yet stays a number: it was written by a newer one.
        return kinds.STRING.through(lambda number: names.get(number, str(number)))
    return _SCALARS[field.type]


def _same(value: Any) -> Any:
    return value
