"""Many reads in one request (ZooKeeper's multiRead, since 3.6), which kazoo does not have: bytes in, values out. Pure.

A request of kazoo's costs both sides more than a hundred microseconds, and a controller that begins reads tens of thousands of
nodes. Unlike a transaction each read stands for itself: one that finds no node says so, and the others are answered.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar

from kazoo.exceptions import EXCEPTIONS, NoNodeError
from kazoo.protocol import serialization

_HEADER = struct.Struct(">i?i")
_INT = struct.Struct(">i")
_GET_DATA, _GET_CHILDREN, _ERROR = 4, 8, -1
_END = _HEADER.pack(-1, True, -1)


class ManyReads:
    """The contents, or the children, of many nodes. In the shape of kazoo's own requests."""

    type: ClassVar[int] = 22
    __slots__ = ("_kind", "_paths")

    def __init__(self, kind: int, paths: Sequence[str]) -> None:
        self._kind = kind
        self._paths = paths

    @classmethod
    def nodes(cls, paths: Sequence[str]) -> ManyReads:
        """Answered by a list of (data, stat), None for a node that is not there."""
        return cls(_GET_DATA, paths)

    @classmethod
    def children(cls, paths: Sequence[str]) -> ManyReads:
        """Answered by a list of names for each node, None for a node that is not there."""
        return cls(_GET_CHILDREN, paths)

    def serialize(self) -> bytes:
        out = bytearray()
        header = _HEADER.pack(self._kind, False, -1)
        for path in self._paths:
            name = path.encode()
            out += header + _INT.pack(len(name)) + name + b"\0"
        return bytes(out) + _END

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        found: list[Any] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if done:
                return found
            if kind == _ERROR:
                (code,) = _INT.unpack_from(data, offset)
                offset += _INT.size
                if code != NoNodeError.code:
                    raise EXCEPTIONS[code]()
                found.append(None)
            elif kind == _GET_DATA:
                content, offset = serialization.read_buffer(data, offset)
                stat = serialization.ZnodeStat._make(serialization.stat_struct.unpack_from(data, offset))
                offset += serialization.stat_struct.size
                found.append((content, stat))
            else:
                (count,) = _INT.unpack_from(data, offset)
                offset += _INT.size
                names: list[str] = []
                for _ in range(max(count, 0)):
                    name, offset = serialization.read_string(data, offset)
                    names.append(name)
                found.append(names)
