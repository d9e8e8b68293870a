"""Producer snapshots: the file `OFFSET.snapshot` with the producers of a log as they were at that offset.

Kafka's layout, version 1: version (int16), CRC-32C of all that follows (uint32), count (int32), and 46 bytes a
producer. Only the last batch of each is kept: after a restart a duplicate is known if it repeats that one.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import Final

from fastcrc.crc32 import iscsi as crc32c

from ottla.storage.checkpoints import write_atomically
from ottla.storage.producers import Producer, SentBatch

SNAPSHOT_SUFFIX: Final = ".snapshot"
_VERSION: Final = 1
_HEAD: Final = Struct(">hIi")
_CRC_FROM: Final = 6
_PRODUCER: Final = Struct(">qhiqiqiq")


class CorruptSnapshot(ValueError):
    """A snapshot that cannot be believed."""


def encode(producers: list[Producer]) -> bytes:
    """The bytes of a snapshot."""
    content = bytearray(_HEAD.pack(_VERSION, 0, len(producers)))
    for producer in producers:
        last = producer.batches[-1] if producer.batches else SentBatch(-1, -1, 0, -1)
        content += _PRODUCER.pack(
            producer.producer_id,
            producer.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.transaction_start,
        )
    _HEAD.pack_into(content, 0, _VERSION, crc32c(memoryview(content)[_CRC_FROM:]), len(producers))
    return bytes(content)


def decode(content: bytes) -> list[Producer]:
    """The producers in a snapshot; `CorruptSnapshot` if it is not whole."""
    if len(content) < _HEAD.size:
        raise CorruptSnapshot(f"{len(content)} bytes are too few")
    version, checksum, count = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise CorruptSnapshot(f"version {version} is not known")
    if crc32c(content[_CRC_FROM:]) != checksum:
        raise CorruptSnapshot("its checksum is wrong")
    if len(content) != _HEAD.size + count * _PRODUCER.size:
        raise CorruptSnapshot(f"{len(content)} bytes for {count} producers")
    producers: list[Producer] = []
    for number in range(count):
        fields = _PRODUCER.unpack_from(content, _HEAD.size + number * _PRODUCER.size)
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction_start = fields
        producer = Producer(producer_id, epoch)
        producer.last_timestamp = timestamp
        producer.coordinator_epoch = coordinator_epoch
        producer.transaction_start = transaction_start
        if offset >= 0:
            producer.batches.append(SentBatch(sequence, offset, delta, timestamp))
        producers.append(producer)
    return producers


def write(path: str, producers: list[Producer]) -> None:
    """Write a snapshot. Not synced here: a flush of the log brings it to the disk, and recovery can do without it."""
    write_atomically(path, encode(producers), sync=False)


def read(path: str) -> list[Producer]:
    """Read a snapshot; `CorruptSnapshot` with its path if it is not whole."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        return decode(content)
    except CorruptSnapshot as error:
        raise CorruptSnapshot(f"{path}: {error}") from None


def offsets(directory: str) -> list[int]:
    """The offsets of the snapshots in a partition's directory, rising."""
    names = (name.removesuffix(SNAPSHOT_SUFFIX) for name in os.listdir(directory) if name.endswith(SNAPSHOT_SUFFIX))
    return sorted(int(name) for name in names if name.isdigit())
