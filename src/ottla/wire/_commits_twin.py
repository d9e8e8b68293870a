"""What `plain_commit` does with bytes, in Python: what `_commits.pyx` has to give too, and what runs without it."""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Final

from ottla.wire.primitives import Buffer, uvarint

_ROW: Final = struct.Struct(">iqiBB")
_INT32: Final = struct.Struct(">i")
_LONGEST: Final = 127  # a length or count of one byte
_taken: Final = struct.Struct(">ihx").pack

Topics = list[tuple[str, bytes]]
Fields = tuple[str, int, str, str | None, Topics]


def read_plain(buf: Buffer, start: int) -> Fields | None:
    """Group, generation, member, instance and topics of a request whose body begins at `start`; None for another form."""
    data = bytes(buf[start:])
    try:
        group_id, pos = _text(data, 0)
        generation: int = _INT32.unpack_from(data, pos)[0]
        member_id, pos = _text(data, pos + 4)
        instance_id, pos = _text(data, pos) if data[pos] else (None, pos + 1)
        topics: Topics = []
        count, pos = _count(data, pos)
        for _ in range(count):
            name, pos = _text(data, pos)
            rows, pos = _count(data, pos)
            end = pos + rows * _ROW.size
            if data[end]:  # this also sees to it that all of them are there
                return None
            topics.append((name, data[pos:end]))
            if any(metadata > 1 or tags for *_, metadata, tags in _ROW.iter_unpack(data[pos:end])):
                return None
            pos = end + 1
        sound = not data[pos] and len(data) == pos + 1
    except (IndexError, ValueError, struct.error):
        return None
    return (group_id, generation, member_id, instance_id, topics) if sound else None


def _count(data: bytes, pos: int) -> tuple[int, int]:
    count = data[pos]
    if not 0 < count <= _LONGEST:
        raise ValueError
    return count - 1, pos + 1


def _text(data: bytes, pos: int) -> tuple[str, int]:
    size, pos = _count(data, pos)
    if pos + size > len(data):
        raise ValueError
    return data[pos : pos + size].decode(), pos + size


def all_in(rows: bytes, there: Container[int]) -> bool:
    """Whether all of a topic's partitions are there."""
    return all(number in there for number, *_ in _ROW.iter_unpack(rows))


def taken(topics: Topics) -> bytes:
    """The body of the answer that says of every partition that its offset is committed."""
    parts: list[bytes] = [b"\0\0\0\0", uvarint(len(topics) + 1)]
    for name, rows in topics:
        text = name.encode()
        parts += [uvarint(len(text) + 1), text, uvarint(len(rows) // _ROW.size + 1)]
        parts += [_taken(number, 0) for number, *_ in _ROW.iter_unpack(rows)]
        parts.append(b"\0")
    parts.append(b"\0")
    return b"".join(parts)
