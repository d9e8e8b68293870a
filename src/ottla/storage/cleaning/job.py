"""What the broker asks of a worker, and what the worker answers: one JSON object a line, in both directions.

Guards: a worker needs nothing but its job. It gets names and numbers, never a lock, a socket or a piece of the broker's state.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Final

from ottla.storage.aborted import AbortedTransaction
from ottla.storage.cleaning.policy import Source

# Lines to a worker: {"job": ...}, {"cancel": true}, {"bytes_per_second": N}. Lines from it: {KIND: ...}
WRITTEN: Final = "written"  # {"bases": [base offsets of the sources], "size": bytes}: a cleaned segment is on the disk
DONE: Final = "done"  # {"end": offset, "read": bytes, "written": bytes, "keys": count, "memory": bytes}
CANCELLED: Final = "cancelled"
CORRUPT: Final = "corrupt"  # a file is not what it must be: words
STUCK: Final = "stuck"  # an error that nobody thought of, and that would come again: words
FAILED: Final = "failed"  # the machine did not let it: {"errno": number, "words": text}


@dataclass(frozen=True, slots=True)
class Job:
    """One pass over one log."""

    directory: str
    sources: tuple[Source, ...]
    """Every segment below `end`, oldest first."""
    first_dirty: int
    end: int
    aborted: tuple[AbortedTransaction, ...]
    """The aborted transactions that touch the sources, wherever their markers are."""
    last_offsets: tuple[int, ...]
    """The last offset of each active producer's last batch, rising: those batches stay even without records."""
    marker_epochs: tuple[tuple[int, int], ...]
    """(producer id, epoch) of the active producers that have shown nothing but a marker: it stays."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    load_factor: float
    buffer_bytes: int
    bytes_per_second: float

    def encode(self) -> bytes:
        """The line that carries it."""
        return encode({"job": {field.name: getattr(self, field.name) for field in fields(self)}})  # asdict copies every row

    @classmethod
    def decode(cls, said: dict[str, Any]) -> Job:
        """The job in a line."""
        said["sources"] = tuple(Source(*source) for source in said["sources"])
        said["aborted"] = tuple(AbortedTransaction(*one) for one in said["aborted"])
        said["last_offsets"] = tuple(said["last_offsets"])
        said["marker_epochs"] = tuple((pid, epoch) for pid, epoch in said["marker_epochs"])
        return cls(**said)


def encode(message: dict[str, Any]) -> bytes:
    """One line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """What a line says."""
    message: dict[str, Any] = json.loads(line)
    return message
