"""Compiles the functions that write one message in one version.

Two forms of the same text: `encode` gives one `bytes`, `parts` gives a short list in which an object that stands for records
(anything with a length that is not a byte buffer: a region of a file) is passed through untouched for `sendfile`.
A field that the version lacks is left out; a tagged field is written when it differs from its default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.wire.emitter import Emitter
from ottla.wire.primitives import FIXED, SHORT_VARINTS, ArrayStructs, tag_section, uvarint

if TYPE_CHECKING:
    from ottla.wire.schema import Encode, Field, Parts, Struct

_PACK_ARRAY = {code: ArrayStructs(code, "pack") for code in FIXED.values()}
_PACK_SHORT_ARRAY = {code: ArrayStructs(code, "pack", "B") for code in FIXED.values()}  # with its compact count
_PACK_COUNTED_ARRAY = {code: ArrayStructs(code, "pack", "i") for code in FIXED.values()}  # with its int32 count

NAMESPACE: dict[str, Any] = {
    "BUFFERS": frozenset((bytes, bytearray, memoryview)),
    "SHORT": SHORT_VARINTS,
    "join": b"".join,
    "tag_section": tag_section,
    "uvarint": uvarint,
}


def compile_encoder(cls: type[Struct], version: int, flexible: bool) -> Encode:
    """`message -> bytes` for one version."""
    emit = EncodeEmitter(version, flexible, NAMESPACE)
    emit.line(0, "def encode(message):")
    emit.line(1, "out = []; put = out.append")
    emit.struct(1, cls, "message")
    emit.flush(1)
    emit.line(1, "return join(out)")
    return emit.build("encode", f"<encoder of {cls.__name__} v{version}>")


def compile_parts_encoder(cls: type[Struct], version: int, flexible: bool) -> Parts:
    """`message -> [bytes, pass-through object, bytes, ...]` for one version. The first part is always bytes."""
    emit = EncodeEmitter(version, flexible, NAMESPACE, passes_through=True)
    emit.line(0, "def parts(message):")
    emit.line(1, "out = []; put = out.append; done = []")
    emit.struct(1, cls, "message")
    emit.flush(1)
    emit.line(1, "if out: done.append(join(out))")
    emit.line(1, "return done")
    return emit.build("parts", f"<parts encoder of {cls.__name__} v{version}>")


class EncodeEmitter(Emitter):
    """Emits writing code. `run` holds the values that the next flush packs at once ("x" is a zero byte without a value)."""

    __slots__ = ("passes_through",)

    def __init__(self, version: int, flexible: bool, namespace: dict[str, Any], passes_through: bool = False) -> None:
        super().__init__(version, flexible, namespace)
        self.passes_through = passes_through

    def packed(self) -> str:
        """The expression for the whole run; empties it."""
        codes = "".join(code for code, _ in self.run)
        values = ", ".join(value for _, value in self.run if value)
        self.run = []
        return "SHORT[0]" if codes == "x" else f"{self.method(codes, 'pack')}({values})"

    def flush(self, depth: int) -> None:
        if self.run:
            self.line(depth, f"put({self.packed()})")

    def value(self, depth: int, field: Field, value: str) -> None:
        """Write one value; fixed ones only join the run."""
        if field.kind in FIXED:
            self.run.append((FIXED[field.kind], value))
            return
        if field.kind == "struct":
            self.nested(depth, field, value)
            return
        item, length = self.fresh("s"), self.fresh("n")
        self.line(depth, f"{item} = {value}")
        if field.nullable_since <= self.version:
            run = list(self.run)
            self.line(depth, f"if {item} is None:")
            self.run.append(("x", "") if self.flexible else ("h" if field.kind == "string" else "i", "-1"))
            self.flush(depth + 1)
            self.line(depth, "else:")
            self.run = run
            depth += 1
        if field.kind == "array":
            self.array(depth, field.element, item, length)
        else:
            self.text_or_bytes(depth, field, item, length)

    def length(self, depth: int, kind: str, name: str) -> None:
        """Write a length or count together with the run before it."""
        if not self.flexible:
            self.run.append(("h" if kind == "string" else "i", name))
            self.flush(depth)
            return
        self.line(depth, f"{name} += 1")
        run = list(self.run)
        if run:
            self.run.append(("B", name))
            short = self.packed()
            self.run = run
            long = f"{self.packed()} + uvarint({name})"
        else:
            short, long = f"SHORT[{name}]", f"uvarint({name})"
        self.line(depth, f"put({short} if {name} < 128 else {long})")

    def text_or_bytes(self, depth: int, field: Field, item: str, length: str) -> None:
        if field.kind == "string":
            self.line(depth, f"{item} = {item}.encode()")
        self.line(depth, f"{length} = len({item})")
        self.length(depth, field.kind, length)
        if field.kind == "records" and self.passes_through:
            self.line(depth, f"if {item}.__class__ in BUFFERS: put({item})")
            self.line(depth, f"elif len({item}): done.append(join(out)); done.append({item}); out.clear()")
        else:
            self.line(depth, f"put({item})")

    def array(self, depth: int, element: Field, item: str, count: str) -> None:
        self.line(depth, f"{count} = len({item})")
        if element.kind in FIXED and element.kind != "uuid":
            self.numbers(depth, FIXED[element.kind], item, count)
            return
        self.length(depth, "array", count)
        one = self.fresh("y")
        start = len(self.lines)
        self.line(depth, f"for {one} in {item}:")
        self.value(depth + 1, element, one)
        if len(self.lines) == start + 1:  # fixed-width fields only: one comprehension packs them all
            self.lines.pop()
            self.line(depth, f"out += [{self.packed()} for {one} in {item}]")
        else:
            self.flush(depth + 1)

    def numbers(self, depth: int, code: str, item: str, count: str) -> None:
        """An array of numbers is one pack, its count included."""
        self.flush(depth)
        if self.flexible:
            short = self.bind(_PACK_SHORT_ARRAY[code], "pack_short_array")
            pack = self.bind(_PACK_ARRAY[code], "pack_array")
            long = f"uvarint({count} + 1) + {pack}[{count}](*{item})"
            self.line(depth, f"put({short}[{count}]({count} + 1, *{item}) if {count} < 127 else {long})")
        else:
            counted = self.bind(_PACK_COUNTED_ARRAY[code], "pack_counted_array")
            self.line(depth, f"put({counted}[{count}]({count}, *{item}))")

    def nested(self, depth: int, field: Field, value: str) -> None:
        nullable = field.nullable_since <= self.version
        if not nullable:
            item = value
            if "." in value:
                item = self.fresh("s")
                self.line(depth, f"{item} = {value}")
            self.struct(depth, field.struct, item)
            return
        item = self.fresh("s")
        self.line(depth, f"{item} = {value}")
        run = list(self.run)
        self.line(depth, f"if {item} is None:")
        self.run.append(("b", "-1" if field.tag is None else "0"))  # see the decoder
        self.flush(depth + 1)
        self.line(depth, "else:")
        self.run = [*run, ("b", "1")]
        self.struct(depth + 1, field.struct, item)
        self.flush(depth + 1)

    def struct(self, depth: int, cls: type[Struct], item: str) -> None:
        plain, tagged = self.fields(cls)
        for field in plain:
            self.value(depth, field, f"{item}.{field.name}")
        if not self.flexible:
            return
        if not tagged:
            self.run.append(("x", ""))
            return
        found = self.fresh("t")
        self.line(depth, f"{found} = None")
        for field in tagged:
            self.tagged(depth, field, item, found)
        run = list(self.run)
        self.line(depth, f"if {found} is None:")
        self.run.append(("x", ""))
        self.flush(depth + 1)
        self.line(depth, "else:")
        self.run = run
        self.flush(depth + 1)
        self.line(depth + 1, f"put(tag_section({found}))")

    def tagged(self, depth: int, field: Field, item: str, found: str) -> None:
        """Add a tagged field to `found` unless it has its default. A struct that is left out is None, or empty."""
        value = self.fresh("s")
        self.line(depth, f"{value} = {item}.{field.name}")
        if field.kind == "struct":
            null = "is None or" if field.absent_is_empty else "is not None and"
            differs = f"{value} {null} {value} != {self.bind(field.struct(), 'default')}"
        elif field.kind == "array":
            differs = f"{value} is None or len({value})" if field.nullable_since <= self.version else f"len({value})"
        else:
            differs = f"{value} is not None" if field.default is None else f"{value} != {field.default!r}"
        write = self.bind(self.payload(field), f"write_{field.name}")
        self.line(depth, f"if {differs}:")
        self.line(depth + 1, f"if {found} is None: {found} = []")
        self.line(depth + 1, f"{found}.append(({field.tag}, {write}({value})))")

    def payload(self, field: Field) -> Any:
        """The function that writes one tagged field's payload."""
        emit = EncodeEmitter(self.version, True, NAMESPACE)
        emit.line(0, "def write(value):")
        emit.line(1, "out = []; put = out.append")
        emit.value(1, field, "value")
        emit.flush(1)
        emit.line(1, "return join(out)")
        return emit.build("write", f"<encoder of tagged field {field.name}>")
