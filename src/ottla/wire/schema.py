"""The vocabulary in which messages are declared: once, as a class whose attributes are fields with version ranges.

One object stands for all versions of its message; a field that a version lacks has its default. Nothing happens at declaration
except that the fields become slots: constructors and codecs are generated when they are first used, per version,
so that a broker that starts pays only for what it speaks.

To a type checker a specifier has the type of the value (`string()` is a `str`): that is what an object's attribute holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar, cast, overload

from ottla.wire.native import decoder_of, encoder_of, parts_encoder_of
from ottla.wire.primitives import Buffer, Malformed

__all__ = [
    "Data",
    "Malformed",
    "Message",
    "Request",
    "Response",
    "Struct",
    "array",
    "boolean",
    "bytes_",
    "decode_versioned",
    "encode_versioned",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "peek_version",
    "records",
    "string",
    "struct",
    "uint16",
    "uint32",
    "uuid",
]

Decode = Callable[[Buffer, int], tuple[Any, int]]
Encode = Callable[[Any], bytes]
Parts = Callable[[Any], list[Any]]

NEVER = 0x7FFF  # as a first version: none; as a last version: no end
ZERO_UUID = bytes(16)


class Field:
    """One field of a struct: its type, its place among the versions, its default."""

    __slots__ = ("default", "element", "kind", "name", "nullable_since", "since", "struct", "tag", "until")

    name: str
    element: Field  # of an array
    struct: type[Struct]  # of a struct

    def __init__(self, kind: str, default: Any, since: int, until: int, *, nullable: bool | int, tag: int | None) -> None:
        self.kind = kind
        self.default = default
        self.since = since
        self.until = until
        self.nullable_since = NEVER if nullable is False else 0 if nullable is True else nullable
        self.tag = tag

    @property
    def makes_default(self) -> bool:
        """A plain struct that may not be null: every object that is built without one gets its own."""
        return self.kind == "struct" and self.tag is None and self.nullable_since == NEVER

    @property
    def absent_is_empty(self) -> bool:
        """Not sent means an empty struct. A tagged struct is None then, unless null is a value of its own that is sent."""
        return self.makes_default or (self.kind == "struct" and self.tag is not None and self.nullable_since != NEVER)


def _number(kind: str, default: Any, since: int, until: int, tag: int | None) -> Any:
    return Field(kind, default, since, until, nullable=False, tag=tag)


def boolean(*, since: int = 0, until: int = NEVER, default: bool = False, tag: int | None = None) -> bool:
    return cast(bool, _number("boolean", default, since, until, tag))


def int8(*, since: int = 0, until: int = NEVER, default: int = 0, tag: int | None = None) -> int:
    return cast(int, _number("int8", default, since, until, tag))


def int16(*, since: int = 0, until: int = NEVER, default: int = 0, tag: int | None = None) -> int:
    return cast(int, _number("int16", default, since, until, tag))


def uint16(*, since: int = 0, until: int = NEVER, default: int = 0, tag: int | None = None) -> int:
    return cast(int, _number("uint16", default, since, until, tag))


def int32(*, since: int = 0, until: int = NEVER, default: int = 0, tag: int | None = None) -> int:
    return cast(int, _number("int32", default, since, until, tag))


def uint32(*, since: int = 0, until: int = NEVER, default: int = 0, tag: int | None = None) -> int:
    return cast(int, _number("uint32", default, since, until, tag))


def int64(*, since: int = 0, until: int = NEVER, default: int = 0, tag: int | None = None) -> int:
    return cast(int, _number("int64", default, since, until, tag))


def float64(*, since: int = 0, until: int = NEVER, default: float = 0.0, tag: int | None = None) -> float:
    return cast(float, _number("float64", default, since, until, tag))


def uuid(*, since: int = 0, until: int = NEVER, default: bytes = ZERO_UUID, tag: int | None = None) -> bytes:
    """Sixteen bytes; all zero stands for none."""
    return cast(bytes, _number("uuid", default, since, until, tag))


@overload
def string(*, since: int = 0, until: int = NEVER, default: str = "", tag: int | None = None) -> str: ...
@overload
def string(
    *, since: int = 0, until: int = NEVER, nullable: int, default: str | None = "", tag: int | None = None
) -> str | None: ...
def string(
    *, since: int = 0, until: int = NEVER, nullable: bool | int = False, default: str | None = "", tag: int | None = None
) -> Any:
    """Text in UTF-8. `nullable` is True, or the first version that allows null."""
    return Field("string", default, since, until, nullable=nullable, tag=tag)


@overload
def bytes_(*, since: int = 0, until: int = NEVER, default: bytes = b"", tag: int | None = None) -> bytes: ...
@overload
def bytes_(
    *, since: int = 0, until: int = NEVER, nullable: int, default: bytes | None = b"", tag: int | None = None
) -> bytes | None: ...
def bytes_(
    *, since: int = 0, until: int = NEVER, nullable: bool | int = False, default: bytes | None = b"", tag: int | None = None
) -> Any:
    """Opaque bytes, copied out of the buffer."""
    return Field("bytes", default, since, until, nullable=nullable, tag=tag)


def records(*, since: int = 0, until: int = NEVER) -> memoryview | None:
    """Record batches. Decoded: a view of the buffer, not a copy. Encoded: a buffer or anything with a length, see `encoder`."""
    return cast("memoryview | None", Field("records", None, since, until, nullable=True, tag=None))


S = TypeVar("S", bound="Struct")
V = TypeVar("V", int, str, bytes)


@overload
def array(element: type[S], *, since: int = 0, until: int = NEVER, tag: int | None = None) -> Sequence[S]: ...
@overload
def array(
    element: type[S], *, since: int = 0, until: int = NEVER, nullable: int, default: Any = (), tag: int | None = None
) -> Sequence[S] | None: ...
@overload
def array(element: V, *, since: int = 0, until: int = NEVER, tag: int | None = None) -> Sequence[V]: ...
@overload
def array(
    element: V, *, since: int = 0, until: int = NEVER, nullable: int, default: Any = (), tag: int | None = None
) -> Sequence[V] | None: ...
def array(
    element: Any,
    *,
    since: int = 0,
    until: int = NEVER,
    nullable: bool | int = False,
    default: Any = (),
    tag: int | None = None,
) -> Any:
    """Many of one kind: of a struct class, or of what another specifier says, as in `array(int32())`."""
    field = Field("array", default, since, until, nullable=nullable, tag=tag)
    field.element = element if isinstance(element, Field) else cast(Field, struct(element))
    field.element.name = "element"
    return field


@overload
def struct(cls: type[S], *, since: int = 0, until: int = NEVER) -> S: ...
@overload
def struct(cls: type[S], *, since: int = 0, until: int = NEVER, nullable: int, tag: int | None = None) -> S | None: ...
@overload
def struct(cls: type[S], *, since: int = 0, until: int = NEVER, tag: int) -> S | None: ...
def struct(cls: type[S], *, since: int = 0, until: int = NEVER, nullable: bool | int = False, tag: int | None = None) -> Any:
    """A struct in a struct. A tagged one is None where it was not sent."""
    field = Field("struct", None, since, until, nullable=nullable, tag=tag)
    field.struct = cls
    return field


class StructType(type):
    """Turns the fields of a class body into slots."""

    __fields__: tuple[Field, ...]

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], **options: Any) -> StructType:
        fields = {key: value for key, value in body.items() if isinstance(value, Field)}
        for key, field in fields.items():
            field.name = key
            del body[key]
        body["__slots__"] = tuple(fields)
        body["__fields__"] = tuple(fields.values())
        return super().__new__(mcs, name, bases, body, **options)


class Struct(metaclass=StructType):
    """A group of fields inside a message. Built with keywords; what is not given has its default."""

    __hash__ = None  # type: ignore[assignment]  # values change

    def __init__(self, **values: Any) -> None:
        # The first object of a class replaces this by a constructor made for it.
        setattr(type(self), "__init__", _constructor(type(self)))  # noqa: B010  # a class attribute, not typed as one
        type(self).__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_comparable(getattr(self, f.name)) == _comparable(getattr(other, f.name)) for f in type(self).__fields__)

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in type(self).__fields__)
        return f"{type(self).__name__}({values})"


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _constructor(cls: type[Struct]) -> Callable[..., None]:
    """A keyword constructor for one class, as one would write it by hand."""
    namespace: dict[str, Any] = {}
    arguments, body = [], ["    pass"]
    for field in cls.__fields__:
        arguments.append(f"{field.name}={field.default!r}")
        value = field.name
        if field.makes_default:
            namespace[f"_{field.name}"] = field.struct
            value = f"_{field.name}() if {field.name} is None else {field.name}"
        body.append(f"    self.{field.name} = {value}")
    star = "*, " if arguments else ""
    exec(f"def __init__(self, {star}{', '.join(arguments)}):\n" + "\n".join(body), namespace)
    made: Callable[..., None] = namespace["__init__"]
    return made


class _Codecs(dict[int, Callable[..., Any]]):
    """The codecs of one message in one direction, by version, compiled when first asked for."""

    __slots__ = ("_compile", "_message")

    def __init__(self, message: type[Message], compile_: Callable[[type[Struct], int, bool], Callable[..., Any]]) -> None:
        super().__init__()
        self._message = message
        self._compile = compile_

    def __missing__(self, version: int) -> Callable[..., Any]:
        message = self._message
        if not message.min_version <= version <= message.max_version:
            raise ValueError(f"{message.name} has versions {message.min_version}-{message.max_version}, not {version}")
        made = self[version] = self._compile(message, version, version >= message.flexible)
        return made


class Message(Struct):
    """A struct that travels or is stored on its own, in versions."""

    name: ClassVar[str]
    min_version: ClassVar[int]
    max_version: ClassVar[int]
    flexible: ClassVar[int]  # the first version with compact lengths and tagged fields
    decoders: ClassVar[_Codecs]
    encoders: ClassVar[_Codecs]
    parts_encoders: ClassVar[_Codecs]

    @classmethod
    def _declare(cls, versions: str, flexible: int) -> None:
        first, _, last = versions.partition("-")
        cls.name = cls.__name__
        cls.min_version, cls.max_version = int(first), int(last or first)
        cls.flexible = flexible
        cls.decoders = _Codecs(cls, decoder_of)
        cls.encoders = _Codecs(cls, encoder_of)
        cls.parts_encoders = _Codecs(cls, parts_encoder_of)

    @classmethod
    def decoder(cls, version: int) -> Callable[[Buffer, int], tuple[Self, int]]:
        """`(buffer, position) -> (message, position after it)`; raises `Malformed`."""
        return cls.decoders[version]

    @classmethod
    def encoder(cls, version: int) -> Callable[[Self], bytes]:
        """`message -> bytes`."""
        return cls.encoders[version]

    @classmethod
    def parts_encoder(cls, version: int) -> Callable[[Self], list[Any]]:
        """`message -> [bytes, pass-through records, bytes, ...]`; the first part is bytes."""
        return cls.parts_encoders[version]


class Request(Message):
    """What a client or a peer asks."""

    api_key: ClassVar[int]
    response: ClassVar[type[Response]]

    def __init_subclass__(cls, *, key: int, versions: str, flexible: int = NEVER) -> None:
        cls.api_key = key
        cls._declare(versions, flexible)


class Response(Message):
    """What it is told. Versions and key are those of the request that it answers."""

    api_key: ClassVar[int]

    def __init_subclass__(cls, *, answers: type[Request]) -> None:
        cls.api_key = answers.api_key
        cls._declare(f"{answers.min_version}-{answers.max_version}", answers.flexible)
        answers.response = cls


class Data(Message):
    """The key or value of a record in one of Kafka's internal topics, stored behind its version."""

    def __init_subclass__(cls, *, versions: str, flexible: int = NEVER) -> None:
        cls._declare(versions, flexible)


D = TypeVar("D", bound=Data)


def encode_versioned(data: Data, version: int) -> bytes:
    """The stored form: the version as int16, then the fields."""
    return version.to_bytes(2, "big", signed=True) + data.encoder(version)(data)


def peek_version(buf: Buffer) -> int:
    """The version in front of stored data; of a key, it also tells which kind of key follows."""
    if len(buf) < 2:
        raise Malformed("stored data begins with a version of two bytes")
    return int.from_bytes(buf[:2], "big", signed=True)


def decode_versioned(cls: type[D], buf: Buffer) -> D:
    """Read stored data of a known kind. Bytes that follow it are ignored, as Kafka does."""
    version = peek_version(buf)
    if not cls.min_version <= version <= cls.max_version:
        raise Malformed(f"{cls.name} is known in versions {cls.min_version}-{cls.max_version}, not {version}")
    return cls.decoder(version)(buf, 2)[0]
