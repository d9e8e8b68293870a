"""Compiles the function that reads one message in one version.

Guards: the generated function trusts nothing. It may run its position past the end while it walks (a slice simply comes out
short), but every later read then fails, and the last line compares position and end; counts are checked against the bytes
that are left before anything is allocated; whatever goes wrong leaves as `Malformed`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ottla.wire.emitter import Emitter
from ottla.wire.primitives import FIXED, ArrayStructs, Malformed, read_string_length, read_tags, read_uvarint, width

if TYPE_CHECKING:
    from ottla.wire.schema import Decode, Field, Struct

_UNPACK_ARRAY = {code: ArrayStructs(code, "unpack_from") for code in FIXED.values()}

NAMESPACE: dict[str, Any] = {
    "Malformed": Malformed,
    # What reading and converting the sender's bytes can raise: a short struct, an index past the end, bad UTF-8.
    "TOO_SHORT": (struct.error, IndexError),
    "REFUSED": (ValueError, OverflowError),
    "new": object.__new__,
    "read_uvarint": read_uvarint,
    "read_string_length": read_string_length,
    "read_tags": read_tags,
}


def compile_decoder(cls: type[Struct], version: int, flexible: bool) -> Decode:
    """`(buffer, position) -> (message, position after it)` for one version."""
    emit = DecodeEmitter(version, flexible, NAMESPACE)
    where = f"{cls.__name__} v{version}"
    emit.line(0, "def decode(buf, pos=0):")
    emit.line(1, "try:")
    emit.line(2, "view = memoryview(buf); end = len(view)")
    emit.struct(2, cls, "message")
    emit.flush(2)
    emit.line(2, "if pos > end: raise Malformed(f'{pos - end} bytes are missing')")
    emit.line(2, "return message, pos")
    emit.line(1, "except TOO_SHORT as error:")
    emit.line(2, f"raise Malformed(f'{where} ends before all its fields are there') from error")
    emit.line(1, "except REFUSED as error:")
    emit.line(2, f"raise Malformed(f'{where}: {{error}}') from error")
    return emit.build("decode", f"<decoder of {where}>")


class DecodeEmitter(Emitter):
    """Emits reading code. `run` holds the targets that the next flush assigns from one unpack."""

    __slots__ = ()

    def flush(self, depth: int) -> None:
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        targets = [target for _, target in self.run]
        self.run = []
        if codes == "B":
            self.line(depth, f"{targets[0]} = buf[pos]; pos += 1")
            return
        unpack = self.method(codes, "unpack_from")
        self.line(depth, f"{', '.join(targets)}{',' * (len(targets) == 1)} = {unpack}(buf, pos); pos += {width(codes)}")

    def value(self, depth: int, field: Field, target: str) -> None:
        """Read one value into `target`; fixed ones only join the run."""
        if field.kind in FIXED:
            self.run.append((FIXED[field.kind], target))
        elif field.kind == "struct":
            self.nested(depth, field, target)
        elif field.kind == "array":
            self.array(depth, field, target)
        else:
            self.text_or_bytes(depth, field, target)

    def length(self, depth: int, field: Field, name: str) -> str:
        """Read a length or count, fused into the run before it. Returns the condition that it is one, and not null.

        A compact length is left as it was sent, one too large, and null is 0.
        """
        if not self.flexible:
            self.run.append(("h" if field.kind == "string" else "i", name))
            self.flush(depth)
            return f"{name} >= 0"
        self.run.append(("B", name))
        self.flush(depth)
        read = "read_string_length" if field.kind == "string" else "read_uvarint"
        self.line(depth, f"if {name} > 127: {name}, pos = {read}(buf, pos - 1)")
        return name

    def null(self, depth: int, field: Field, name: str, target: str) -> None:
        """The other branch of `length`: null where that is allowed, and a refusal for every other negative number."""
        if field.nullable_since <= self.version:
            allowed = "else" if self.flexible else f"elif {name} == -1"
            self.line(depth, f"{allowed}: {target} = None")
            if self.flexible:
                return
        self.line(depth, f"else: raise Malformed('{field.name} may not be null or have a negative length')")

    def text_or_bytes(self, depth: int, field: Field, target: str) -> None:
        length, stop = self.fresh("n"), self.fresh("e")
        present = self.length(depth, field, length)
        self.line(depth, f"if {present}:")
        self.line(depth + 1, f"{stop} = pos + {length}{' - 1' * self.flexible}")
        slice_ = {
            "string": f"str(buf[pos:{stop}], 'utf-8')",
            "bytes": f"bytes(buf[pos:{stop}])",
            "records": f"view[pos:{stop}]",
        }[field.kind]
        self.line(depth + 1, f"{target} = {slice_}; pos = {stop}")
        self.null(depth, field, length, target)

    def array(self, depth: int, field: Field, target: str) -> None:
        count = self.fresh("n")
        present = self.length(depth, field, count)
        self.line(depth, f"if {present}:")
        inside = depth + 1
        if self.flexible:
            self.line(inside, f"{count} -= 1")
        element = field.element
        smallest = max(1, self.smallest(element))
        refusal = f"raise Malformed(f'{field.name}: {{{count}}} elements in {{end - pos}} bytes')"
        self.line(inside, f"if {count} * {smallest} > end - pos: {refusal}")
        if element.kind in FIXED and element.kind != "uuid":
            code = FIXED[element.kind]
            unpack = self.bind(_UNPACK_ARRAY[code], "unpack_array")
            self.line(inside, f"{target} = {unpack}[{count}](buf, pos); pos += {count} * {width(code)}")
        elif element.kind == "struct" and self.is_flat(element.struct):
            self.flat_structs(inside, element.struct, count, target)
        else:
            self.elements(inside, element, count, target)
        self.null(depth, field, count, target)

    def elements(self, depth: int, element: Field, count: str, target: str) -> None:
        items, add, item = self.fresh("a"), self.fresh("add"), self.fresh("x")
        self.line(depth, f"{target} = {items} = []; {add} = {items}.append")
        self.line(depth, f"for _ in range({count}):")
        if element.kind == "struct":
            self.struct(depth + 1, element.struct, item)
        else:
            self.value(depth + 1, element, item)
        self.flush(depth + 1)
        self.line(depth + 1, f"{add}({item})")

    def flat_structs(self, depth: int, cls: type[Struct], count: str, target: str) -> None:
        """Structs of fixed-width fields only: one pass of `iter_unpack`, as long as no element has tagged fields."""
        plain, _ = self.fields(cls)
        codes = "".join(FIXED[field.kind] for field in plain) + "B" * self.flexible
        items, add, item, stop, tags = (self.fresh(stem) for stem in ("a", "add", "x", "e", "t"))
        values = [self.fresh("v") for _ in plain]
        loop = ", ".join(values + [tags] * self.flexible) + "," * (len(values) + self.flexible == 1)
        self.line(depth, f"{target} = {items} = []; {add} = {items}.append; {stop} = pos + {count} * {width(codes)}")
        self.line(depth, f"for {loop} in {self.method(codes, 'iter_unpack')}(view[pos:{stop}]):")
        if self.flexible:
            self.line(depth + 1, f"if {tags}: break")
        self.line(depth + 1, f"{item} = new({self.bind(cls, cls.__name__)})")
        self.absent(depth + 1, cls, item)
        self.line(depth + 1, "; ".join(f"{item}.{field.name} = {value}" for field, value in zip(plain, values, strict=True)))
        self.line(depth + 1, f"{add}({item})")
        self.line(depth, f"else: pos = {stop}")
        if self.flexible:
            self.line(depth, f"if pos != {stop}:")  # an element has tags: read them all again, one by one
            self.line(depth + 1, f"{items}.clear()")
            self.line(depth + 1, f"for _ in range({count}):")
            self.struct(depth + 2, cls, item)
            self.flush(depth + 2)
            self.line(depth + 2, f"{add}({item})")

    def nested(self, depth: int, field: Field, target: str) -> None:
        self.flush(depth)
        if field.nullable_since <= self.version:
            mark = self.fresh("n")
            self.run.append(("b", mark))
            self.flush(depth)
            # A null struct is marked by -1, but by 0 in a tagged field: the two kinds grew apart in Kafka.
            null = f"{mark} < 0" if field.tag is None else f"not {mark}"
            self.line(depth, f"if {null}: {target} = None")
            self.line(depth, "else:")
            depth += 1
        item = self.fresh("x")
        self.struct(depth, field.struct, item)
        self.flush(depth)
        self.line(depth, f"{target} = {item}")

    def struct(self, depth: int, cls: type[Struct], item: str) -> None:
        """Read a struct into the local `item`. Every slot is set: a field that this version lacks gets its default."""
        self.flush(depth)
        self.line(depth, f"{item} = new({self.bind(cls, cls.__name__)})")
        self.absent(depth, cls, item)
        plain, tagged = self.fields(cls)
        for field in plain:
            self.value(depth, field, f"{item}.{field.name}")
        if self.flexible:
            self.tags(depth, tagged, item)

    def tags(self, depth: int, tagged: list[Field], item: str) -> None:
        """The tag section: its count, nearly always zero, joins the run."""
        count = self.fresh("t")
        self.run.append(("B", count))
        self.flush(depth)
        self.line(depth, f"if {count}:")
        self.line(depth + 1, f"if {count} > 127: {count}, pos = read_uvarint(buf, pos - 1)")
        known = self.bind(frozenset(field.tag for field in tagged), "known")
        self.line(depth + 1, f"{count}, pos = read_tags(buf, pos, end, {count}, {known})")
        for field in tagged:
            read = self.bind(self.payload(field), f"read_{field.name}")
            self.line(depth + 1, f"if {field.tag} in {count}: {item}.{field.name} = {read}({count}[{field.tag}])")

    def payload(self, field: Field) -> Any:
        """The function that reads one tagged field from its payload."""
        emit = DecodeEmitter(self.version, True, NAMESPACE)
        emit.line(0, "def read(buf):")
        emit.line(1, "pos = 0; view = memoryview(buf); end = len(view)")
        emit.value(1, field, "value")
        emit.flush(1)
        emit.line(1, f"if pos != end: raise Malformed('{field.name} does not fill its tagged field')")
        emit.line(1, "return value")
        return emit.build("read", f"<decoder of tagged field {field.name}>")

    def absent(self, depth: int, cls: type[Struct], item: str) -> None:
        plain, _ = self.fields(cls)
        by_default: dict[str, list[str]] = {}
        for field in cls.__fields__:
            if field not in plain:
                value = repr(field.default)
                if field.absent_is_empty:
                    value = f"{self.bind(field.struct, field.struct.__name__)}()"
                by_default.setdefault(value, []).append(f"{item}.{field.name} = ")
        for value, targets in by_default.items():
            self.line(depth, "".join(targets) + value)

    def is_flat(self, cls: type[Struct]) -> bool:
        return all(field.kind in FIXED for field in self.fields(cls)[0])

    def smallest(self, field: Field) -> int:
        """The fewest bytes that a value can take: what bounds an array's count."""
        if field.kind in FIXED:
            return width(FIXED[field.kind])
        if field.kind == "struct":
            if field.nullable_since <= self.version:
                return 1
            return sum(map(self.smallest, self.fields(field.struct)[0])) + self.flexible
        if self.flexible:
            return 1
        return 2 if field.kind == "string" else 4
