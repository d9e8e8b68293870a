"""What lies on the broker's disk: read with a few lines of its own, so that a test does not believe the broker about it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from support.server import ServerProcess

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")


class StoredBatch(NamedTuple):
    """The head of one batch in a segment file."""

    base_offset: int
    magic: int
    codec: str
    log_append_time: bool
    producer_id: int


def batches(server: ServerProcess, topic: str, partition: int = 0) -> list[StoredBatch]:
    """Every batch of a partition, oldest first."""
    found = []
    for segment in sorted(Path(server.directory, f"{topic}-{partition}").glob("*.log")):
        data = segment.read_bytes()
        at = 0
        while at + 61 <= len(data):
            base_offset, length, _, magic, _, attributes = struct.unpack_from(">qiibIh", data, at)
            (producer_id,) = struct.unpack_from(">q", data, at + 43)
            found.append(StoredBatch(base_offset, magic, CODEC_NAMES[attributes & 7], bool(attributes & 8), producer_id))
            at += 12 + length
    return found
