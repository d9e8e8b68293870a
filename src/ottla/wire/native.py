"""Plans for the native codec: what a declaration says, as the tables that `_codec` follows.

`NATIVE` is false where the codec was not built: then the generated Python of `decoder` and `encoder` does the same, slower.
Both give the same objects and the same bytes, and refuse the same; the tests hold them against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.wire import decoder, encoder

if TYPE_CHECKING:
    from ottla.wire.primitives import Buffer
    from ottla.wire.schema import Decode, Encode, Field, Parts, Struct

try:
    from ottla.wire._codec import KINDS, Plan, plain_header

    NATIVE = True
except ImportError:
    NATIVE = False

    def plain_header(buf: Buffer, versions: Mapping[int, tuple[int, int]]) -> tuple[int, int, int, str, int] | None:
        """Here every header of a request is looked at in the thorough way (`frame`)."""
        return None


__all__ = ["NATIVE", "decoder_of", "encoder_of", "parts_encoder_of", "plain_header"]

_NOTHING = object()


def decoder_of(cls: type[Struct], version: int, flexible: bool) -> Decode:
    """`(buffer, position) -> (message, position after it)` for one version."""
    return _plan(cls, version, flexible).decode if NATIVE else decoder.compile_decoder(cls, version, flexible)


def encoder_of(cls: type[Struct], version: int, flexible: bool) -> Encode:
    """`message -> bytes` for one version."""
    return _plan(cls, version, flexible).encode if NATIVE else encoder.compile_encoder(cls, version, flexible)


def parts_encoder_of(cls: type[Struct], version: int, flexible: bool) -> Parts:
    """`message -> [bytes, pass-through object, bytes, ...]` for one version. The first part is always bytes."""
    return _plan(cls, version, flexible).parts if NATIVE else encoder.compile_parts_encoder(cls, version, flexible)


def _plan(cls: type[Struct], version: int, flexible: bool) -> Plan:
    """How a struct is laid out in one version."""
    reads = decoder.DecodeEmitter(version, flexible, decoder.NAMESPACE)
    writes = encoder.EncodeEmitter(version, flexible, encoder.NAMESPACE)
    plain, tagged = reads.fields(cls)
    children: list[Plan] = []
    ops = [_op(reads, field, children) for field in plain]
    others = [field for field in cls.__fields__ if field not in plain]
    return Plan(
        cls,
        f"{cls.__name__} v{version}",
        flexible,
        ops,
        children,
        [(field.name, field.default) for field in others if not field.absent_is_empty],
        [(field.name, field.struct) for field in others if field.absent_is_empty],
        [(field.tag, field.name, reads.payload(field)) for field in tagged],
        [(field.tag, field.name, *_written(field, version), writes.payload(field)) for field in tagged],
    )


def _op(reads: decoder.DecodeEmitter, field: Field, children: list[Plan]) -> tuple[str, int, bool, int, int]:
    """One field: its name, kind, whether it may be null, its child, and how small an element of it can be."""
    smallest = 1
    child = len(children)
    if field.kind == "struct":
        children.append(_plan(field.struct, reads.version, reads.flexible))
    elif field.kind == "array":
        element = field.element
        smallest = max(1, reads.smallest(element))
        if element.kind == "struct" and element.nullable_since > reads.version:
            children.append(_plan(element.struct, reads.version, reads.flexible))
        else:
            inner: list[Plan] = []
            op = _op(reads, element, inner)
            children.append(Plan(None, f"an element of {field.name}", reads.flexible, [op], inner, [], [], [], []))
    return field.name, KINDS[field.kind], field.nullable_since <= reads.version, child, smallest


def _written(field: Field, version: int) -> tuple[Any, Callable[[Any], bool]]:
    """A value with which a tagged field is surely left out, and whether it is written with any other."""
    differs = _differs(field, version)
    return _NOTHING if differs(field.default) else field.default, differs


def _differs(field: Field, version: int) -> Callable[[Any], bool]:
    """Whether a tagged field has to be written: see `EncodeEmitter.tagged`."""
    if field.kind == "struct":
        empty = field.struct()
        if field.absent_is_empty:
            return lambda value: value is None or value != empty
        return lambda value: value is not None and value != empty
    if field.kind == "array":
        if field.nullable_since <= version:
            return lambda value: value is None or len(value) > 0
        return lambda value: len(value) > 0
    if field.default is None:
        return lambda value: value is not None
    return lambda value: bool(value != field.default)
