"""What became of the records of a produce request; and the answer when all of them were written, made by hand.

A producer waits for nothing but this answer, tens of thousands of times a second, and what the tables make it of are objects
with a dozen fields that are empty in nearly all of them. Guards: what is made here is byte for byte what the table makes, which
the tests see to; an answer that says anything else than "written", or that speaks an old version, is left to the table.
"""

from __future__ import annotations

import struct
from typing import Final

from ottla.model import NO_TIMESTAMP, Error
from ottla.wire.apis.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from ottla.wire.primitives import SHORT_VARINTS, uvarint

_OLDEST: Final = 5
_WITH_MESSAGES: Final = 8
_LONGEST: Final = 127  # a length or count of one byte
FLEXIBLE: Final = ProduceResponse.flexible

_row: Final = struct.Struct(">ihqqq").pack
_int32: Final = struct.Struct(">i").pack
_int16: Final = struct.Struct(">h").pack
_NO_TAGS: Final = b"\0"
_NO_MESSAGES: Final = b"\0\0\0\0\xff\xff"
_NO_MESSAGES_NO_TAGS: Final = b"\1\0\0"
_NO_THROTTLE: Final = bytes(4)
_NO_THROTTLE_NO_TAGS: Final = bytes(5)


class Produced:
    """What became of the records for one partition."""

    __slots__ = ("base_offset", "error", "index", "log_append_time", "log_start_offset", "message")

    def __init__(self, index: int) -> None:
        self.index = index
        self.error: int = 0
        self.message: str | None = None
        self.base_offset: int = 0
        self.log_append_time: int = NO_TIMESTAMP
        self.log_start_offset: int = -1

    def written(self, base_offset: int, log_append_time: int, log_start_offset: int) -> None:
        """They are in the log."""
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.log_start_offset = log_start_offset

    def refused(self, error: Error, message: str | None) -> None:
        """They are not in the log, or nobody can say that they will stay there."""
        self.error = int(error)
        self.message = message
        self.base_offset = -1


Topics = list[tuple[str, list[Produced]]]


def all_written(topics: Topics, version: int) -> bytes | None:
    """The body of the answer; None where it is not of this simple form."""
    if version < _OLDEST:
        return None
    flexible = version >= FLEXIBLE
    after_row = _NO_MESSAGES_NO_TAGS if flexible else _NO_MESSAGES if version >= _WITH_MESSAGES else b""
    made = [_compact(len(topics)) if flexible else _int32(len(topics))]
    for name, results in topics:
        encoded = name.encode()
        if flexible:
            made += (_compact(len(encoded)), encoded, _compact(len(results)))
        else:
            made += (_int16(len(encoded)), encoded, _int32(len(results)))
        for one in results:
            if one.error:
                return None
            made.append(_row(one.index, 0, one.base_offset, one.log_append_time, one.log_start_offset))
            made.append(after_row)
        if flexible:
            made.append(_NO_TAGS)
    made.append(_NO_THROTTLE_NO_TAGS if flexible else _NO_THROTTLE)
    return b"".join(made)


def _compact(length: int) -> bytes:
    return SHORT_VARINTS[length + 1] if length < _LONGEST else uvarint(length + 1)


def as_table(topics: Topics) -> ProduceResponse:
    """The answer in any version, whatever it says."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name,
                partition_responses=[
                    PartitionProduceResponse(
                        index=one.index,
                        error_code=one.error,
                        error_message=one.message,
                        base_offset=one.base_offset,
                        log_append_time_ms=one.log_append_time,
                        log_start_offset=one.log_start_offset,
                    )
                    for one in results
                ],
            )
            for name, results in topics
        ]
    )
