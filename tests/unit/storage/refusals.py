"""Produce payloads with the answers they deserve: held against our checks, and against Apache Kafka itself."""

from __future__ import annotations

import struct

from fastcrc.crc32 import iscsi

from ottla.model import Error
from ottla.records.batch import ControlType, end_transaction_marker
from ottla.records.codecs import Codec
from ottla.storage.log_config import COMPACT, LOG_APPEND_TIME
from unit.storage.storage_kit import NOW, batch


def resealed(data: bytes, at: int, field: str, value: int) -> bytes:
    """The batch with one field changed and its checksum right again."""
    changed = bytearray(data)
    struct.pack_into(field, changed, at, value)
    struct.pack_into(">I", changed, 17, iscsi(bytes(changed[21:])))
    return bytes(changed)


def broken(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 0x40
    return bytes(changed)


GOOD = batch(3)
PACKED = batch(1, value=b"\0" * 900, codec=Codec.GZIP)
HOUR = 3_600_000
MARKER = end_transaction_marker(ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW)

HUGE = resealed(GOOD, 8, ">i", 2**31 - 1)
UNKNOWN_CODEC = resealed(GOOD, 21, ">h", 5)
STAMPED = resealed(GOOD, 21, ">h", 8)
BROKEN_GZIP = resealed(batch(2, codec=Codec.GZIP), 75, ">b", 7)

# (payload, settings of the topic, version of the Produce request, error)
REFUSED: list[tuple[bytes, dict[str, object], int | None, Error]] = [
    # what a request may hold at all
    (b"", {}, 9, Error.INVALID_RECORD),
    (GOOD[:40], {}, 9, Error.INVALID_RECORD),
    (GOOD[:-1], {}, 9, Error.INVALID_RECORD),
    (GOOD + GOOD, {}, 9, Error.INVALID_RECORD),
    (GOOD + GOOD, {}, None, Error.INVALID_RECORD),
    (GOOD + b"\0" * 30, {}, 9, Error.CORRUPT_MESSAGE),
    (resealed(GOOD, 8, ">i", 5), {}, 9, Error.CORRUPT_MESSAGE),  # a length that lies
    (resealed(GOOD, 8, ">i", -1), {}, 9, Error.CORRUPT_MESSAGE),
    (HUGE, {}, 9, Error.INVALID_RECORD),
    (resealed(GOOD, 16, ">b", 3), {}, 9, Error.CORRUPT_MESSAGE),
    (resealed(GOOD, 16, ">b", 1), {}, 9, Error.INVALID_RECORD),  # an old message in a new request
    (resealed(GOOD, 16, ">b", -1), {}, 9, Error.CORRUPT_MESSAGE),
    (batch(3, codec=Codec.ZSTD), {}, 6, Error.UNSUPPORTED_COMPRESSION_TYPE),
    # the batch
    (batch(3, base_offset=5), {}, 9, Error.INVALID_RECORD),
    (batch(1, size=900), {"max_message_bytes": 500}, 9, Error.MESSAGE_TOO_LARGE),
    (broken(batch(1, size=900), 700), {"max_message_bytes": 500}, 9, Error.MESSAGE_TOO_LARGE),  # size before checksum
    (broken(GOOD, 70), {}, 9, Error.CORRUPT_MESSAGE),
    (broken(GOOD, 17), {}, 9, Error.CORRUPT_MESSAGE),
    (resealed(GOOD, 57, ">i", 2), {}, 9, Error.INVALID_RECORD),  # the count
    (resealed(GOOD, 57, ">i", 0), {}, 9, Error.INVALID_RECORD),
    (resealed(GOOD, 57, ">i", -1), {}, 9, Error.INVALID_RECORD),
    (resealed(GOOD, 23, ">i", 3), {}, 9, Error.INVALID_RECORD),  # the last offset delta
    (resealed(resealed(GOOD, 23, ">i", 3), 57, ">i", 4), {}, 9, Error.INVALID_RECORD),  # both, but not the records
    (resealed(resealed(GOOD, 23, ">i", 1), 57, ">i", 2), {}, 9, Error.INVALID_RECORD),
    (resealed(GOOD, 61, ">b", 0), {}, 9, Error.INVALID_RECORD),  # a record's length
    (MARKER, {}, 9, Error.INVALID_RECORD),  # a client does not end transactions
    (resealed(batch(1, pid=5), 53, ">i", -1), {}, 9, Error.INVALID_RECORD),
    (UNKNOWN_CODEC, {}, 9, Error.UNSUPPORTED_COMPRESSION_TYPE),
    (STAMPED, {"message_timestamp_type": LOG_APPEND_TIME}, 9, Error.INVALID_TIMESTAMP),  # that is the broker's to say
    # the topic
    (batch(1, timestamp=NOW - HOUR - 1), {"message_timestamp_before_max_ms": HOUR}, 9, Error.INVALID_TIMESTAMP),
    (batch(1, timestamp=NOW + HOUR + 1), {"message_timestamp_after_max_ms": HOUR}, 9, Error.INVALID_TIMESTAMP),
    (batch(2, key=None), {"cleanup_policy": frozenset({COMPACT})}, 9, Error.INVALID_RECORD),
    (batch(2, key=None, codec=Codec.LZ4), {"cleanup_policy": frozenset({COMPACT})}, 9, Error.INVALID_RECORD),
    (BROKEN_GZIP, {"cleanup_policy": frozenset({COMPACT})}, 9, Error.CORRUPT_MESSAGE),
    (PACKED, {"max_message_bytes": 300, "compression_type": "uncompressed"}, 9, Error.MESSAGE_TOO_LARGE),
]  # fmt: skip

MAX_INT = 2**31 - 1
ACCEPTED = -1

# (what a producer has sent: epoch, first sequence, count; then epoch, sequence and count of one more; what comes of it: an
# error, ACCEPTED, or for a duplicate the offset that it got the first time, in a log that began with these)
SEQUENCES: list[tuple[list[tuple[int, int, int]], int, int, int, Error | int]] = [
    ([], 0, 0, 1, ACCEPTED),
    ([], 0, 17, 1, ACCEPTED),  # an unknown producer may start anywhere: its state may have expired
    ([(0, 0, 1)], 0, 1, 1, ACCEPTED),
    ([(0, 0, 5)], 0, 5, 1, ACCEPTED),
    ([(0, 0, 1)], 0, 0, 1, 0),  # a duplicate, answered with the offset of the first time
    ([(0, 0, 2), (0, 2, 3), (0, 5, 1)], 0, 2, 3, 2),
    ([(0, n, 1) for n in range(6)], 0, 1, 1, 1),  # the fifth from the end is remembered
    ([(0, n, 1) for n in range(6)], 0, 0, 1, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),  # the sixth is not
    ([(0, 0, 2)], 0, 0, 1, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),  # the same start, another end: not the same batch
    ([(0, 0, 1)], 0, 2, 1, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),  # a gap
    ([(1, 0, 1)], 0, 1, 1, Error.INVALID_PRODUCER_EPOCH),  # a zombie
    ([(0, 0, 1)], 1, 0, 1, ACCEPTED),
    ([(0, 0, 1)], 1, 1, 1, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),  # a new epoch starts at 0
    ([(0, MAX_INT, 1)], 0, 0, 1, ACCEPTED),  # after 2^31-1 comes 0
    ([(0, MAX_INT - 1, 4)], 0, 2, 1, ACCEPTED),  # a batch across the end
    ([(0, MAX_INT - 1, 4)], 0, MAX_INT - 1, 4, 0),  # and its duplicate
    ([(0, MAX_INT - 5, 1)], 0, 0, 1, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),
]
