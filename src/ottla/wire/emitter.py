"""Source text in the making: what the decoder's and the encoder's compilers share.

A generated function is straight-line code for one message in one version. Adjacent fixed-width values gather in `run` until
something of unknown length follows; the whole run is then one call of a prepared `struct.Struct`, which is what makes
the generated code fast. Names that the code needs (structs, message classes) are bound in `namespace`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.wire.schema import Field, Struct

# One field for every code, so that the compiled text of all messages shares the same few struct objects.
_structs: dict[str, struct.Struct] = {}


def prepared(codes: str) -> struct.Struct:
    """The struct for a run of fixed-width values."""
    made = _structs.get(codes)
    if made is None:
        made = _structs[codes] = struct.Struct(">" + codes)
    return made


class Emitter:
    """One function's source, line by line."""

    __slots__ = ("_bound", "_count", "flexible", "lines", "namespace", "run", "version")

    def __init__(self, version: int, flexible: bool, namespace: dict[str, Any]) -> None:
        self.version = version
        self.flexible = flexible
        self.namespace = dict(namespace)
        self.lines: list[str] = []
        self.run: list[tuple[str, str]] = []  # (struct code, the expression or target it stands for)
        self._count = 0
        self._bound: dict[int, str] = {}

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def fresh(self, stem: str) -> str:
        """A local name that is not taken."""
        self._count += 1
        return f"{stem}{self._count}"

    def bind(self, value: Any, stem: str) -> str:
        """The name under which the generated code finds `value`."""
        name = self._bound.get(id(value))
        if name is None:
            name = self._bound[id(value)] = self.fresh(stem)
            self.namespace[name] = value
        return name

    def method(self, codes: str, method: str) -> str:
        """A bound method of the struct for a run, e.g. its `pack`."""
        name = f"{method}_{codes.replace('?', 'z')}"
        self.namespace.setdefault(name, getattr(prepared(codes), method))
        return name

    def fields(self, cls: type[Struct]) -> tuple[list[Field], list[Field]]:
        """The plain and the tagged fields that a struct has in this version, each in their order on the wire."""
        present = [field for field in cls.__fields__ if field.since <= self.version <= field.until]
        plain = [field for field in present if field.tag is None]
        return plain, sorted((f for f in present if f.tag is not None), key=lambda field: field.tag or 0)

    def build(self, name: str, file: str) -> Callable[..., Any]:
        """Compile the lines and hand out the function called `name`."""
        exec(compile("\n".join(self.lines), file, "exec"), self.namespace)
        made: Callable[..., Any] = self.namespace[name]
        return made
