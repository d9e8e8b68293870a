"""What a leader asks of a produce payload before it may enter the log: Kafka's checks, in Kafka's order, with Kafka's
errors.

Guards: what is written is one whole v2 batch (old message sets are converted first) whose length, checksum, count and
offsets agree. Nothing here looks into a record, except the kernel's walk over lengths, and the keys of a compacted
topic. The caller's buffer is changed in place where the topic asks for the broker's time, and replaced where it asks
for another codec.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from fastcrc.crc32 import iscsi as crc32c

from ottla.clock import Clock
from ottla.model import NO_TIMESTAMP, Error, KafkaError
from ottla.records import legacy
from ottla.records.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    HEADER_SIZE,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    payload,
    read_header,
    repack,
    split,
    with_log_append_time,
)
from ottla.records.codecs import Buffer, Codec
from ottla.records.kernel import FAULTS, check_records, keys_present
from ottla.storage.log_config import LogConfig

_LEGACY_MIN_LENGTH: Final = 14
_FIRST_VERSION_WITH_V2: Final = 3
_FIRST_VERSION_WITH_ZSTD: Final = 7
_AS_BUILT: Final = (None, Codec.NONE)
_MAX_CODEC: Final = int(Codec.ZSTD)


class Origin(IntEnum):
    """Who appends: a client through Produce, a coordinator of this broker, or the fetcher of a follower."""

    REPLICATION = 0
    COORDINATOR = 1
    CLIENT = 2


class Prepared:
    """Bytes that may be written once offsets and epoch are set. `log_append_time` is -1 where the producer's time counts."""

    __slots__ = ("headers", "log_append_time", "records")

    def __init__(self, records: memoryview, headers: tuple[BatchHeader, ...], log_append_time: int) -> None:
        self.records = records
        self.headers = headers
        self.log_append_time = log_append_time


class AppendInfo:
    """What an append came to. A duplicate has the offsets that the batch got the first time, and wrote nothing."""

    __slots__ = (
        "duplicate",
        "first_offset",
        "flush_due",
        "last_offset",
        "leader_epoch",
        "log_append_time",
        "log_start_offset",
        "max_timestamp",
        "size",
    )

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        log_append_time: int,
        log_start_offset: int,
        size: int,
        leader_epoch: int,
        max_timestamp: int,
        duplicate: bool = False,
        flush_due: bool = False,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.log_append_time = log_append_time
        self.log_start_offset = log_start_offset
        self.size = size
        self.leader_epoch = leader_epoch
        self.max_timestamp = max_timestamp
        self.duplicate = duplicate
        self.flush_due = flush_due

    def __repr__(self) -> str:
        return f"AppendInfo({self.first_offset}..{self.last_offset}, size={self.size}, duplicate={self.duplicate})"


def prepare(records: memoryview, config: LogConfig, clock: Clock, origin: Origin, api_version: int | None) -> Prepared:
    """Check a payload for a leader's log. Raises KafkaError with what Kafka answers."""
    size = len(records)
    if size < LOG_OVERHEAD + _LEGACY_MIN_LENGTH or records[MAGIC_AT] != MAGIC_V2:
        return _prepare_other(records, config, clock, api_version)
    if size < HEADER_SIZE:
        _trimmed(records, _claimed(records, 0), api_version)
        raise KafkaError(Error.CORRUPT_MESSAGE, f"{size} bytes are too few for a record batch")
    header = read_header(records)
    if origin is Origin.COORDINATOR and not config.log_append_time and config.target_codec in _AS_BUILT:
        return Prepared(records, (header,), NO_TIMESTAMP)  # built a moment ago, by us: there is nothing to find out
    length = header.length + LOG_OVERHEAD
    if length != size:
        records = _trimmed(records, length, api_version)
    if api_version is not None and api_version < _FIRST_VERSION_WITH_ZSTD and header.attributes & CODEC_MASK == Codec.ZSTD:
        raise KafkaError(
            Error.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {api_version} are not allowed to use ZStandard compression",
        )
    if header.base_offset != 0 and origin is Origin.CLIENT:
        raise KafkaError(
            Error.INVALID_RECORD, f"The baseOffset of the record batch should be 0, but it is {header.base_offset}"
        )
    if length > config.max_message_bytes:
        raise too_large(length, config)
    if length < HEADER_SIZE or crc32c(records[ATTRIBUTES_AT:]) != header.crc:
        raise KafkaError(Error.CORRUPT_MESSAGE, f"Record is corrupt (stored crc = {header.crc})")
    return _checked(records, header, config, clock, origin)


def _checked(records: memoryview, header: BatchHeader, config: LogConfig, clock: Clock, origin: Origin) -> Prepared:
    """The second half: a batch that is whole, held against the topic's settings."""
    attributes = header.attributes
    if origin is Origin.CLIENT:
        if header.count <= 0 or header.last_offset_delta != header.count - 1:
            raise KafkaError(
                Error.INVALID_RECORD,
                f"Inconsistent batch: {header.count} records, last offset delta {header.last_offset_delta}",
            )
        if attributes & CONTROL_BIT:
            raise KafkaError(Error.INVALID_RECORD, "Clients are not allowed to write control records")
        if header.producer_id >= 0 and header.base_sequence < 0:
            raise KafkaError(
                Error.INVALID_RECORD,
                f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id}",
            )
    codec = attributes & CODEC_MASK
    if codec > _MAX_CODEC:
        raise KafkaError(Error.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type id: {codec}")
    if not codec:
        fault = check_records(records, HEADER_SIZE, len(records), header.count)
        if fault:
            raise KafkaError(Error.INVALID_RECORD, f"The records do not fit their batch: {FAULTS[fault]}")
    if attributes & TIMESTAMP_TYPE_BIT and config.log_append_time:
        raise KafkaError(Error.INVALID_TIMESTAMP, "Producer should not set timestamp type to LogAppendTime.")
    if config.bounded_timestamps and not config.log_append_time:
        _check_timestamps(header, config, clock.now_ms())
    target = config.target_codec
    if target == codec:
        target = None
    if (config.compact or target is not None) and not attributes & CONTROL_BIT:
        area = payload(records, 0, header)
        if codec and (fault := check_records(area, 0, len(area), header.count)):
            raise KafkaError(Error.INVALID_RECORD, f"The records do not fit their batch: {FAULTS[fault]}")
        if config.compact:
            _check_compactable(area, header)
        if target is not None:
            packed = repack(header, area, target, config.compression_level)
            if len(packed) > config.max_message_bytes:
                raise too_large(len(packed), config)
            records = memoryview(bytearray(packed))
            header = read_header(records)
    if records.readonly:
        records = memoryview(bytearray(records))
    if attributes & TIMESTAMP_TYPE_BIT:
        header = _with_create_time(records, header)
    if config.log_append_time:
        now = clock.now_ms()
        return Prepared(records, (with_log_append_time(records, 0, header, now),), now)
    return Prepared(records, (header,), NO_TIMESTAMP)


def _check_compactable(area: Buffer, header: BatchHeader) -> None:
    """Refuse what the cleaner could not read: one such batch would keep the whole partition from being cleaned."""
    try:
        keyed = keys_present(area, 0, len(area), header.base_timestamp, header.count)
    except ValueError as error:
        raise KafkaError(Error.INVALID_RECORD, f"Compacted topic cannot accept the batch: {error}") from None
    if not keyed:
        raise KafkaError(Error.INVALID_RECORD, "Compacted topic cannot accept message without key")


def _with_create_time(records: memoryview, header: BatchHeader) -> BatchHeader:
    """Take back the claim that the broker stamped the batch, in place: the producer's timestamps count."""
    attributes = header.attributes & ~TIMESTAMP_TYPE_BIT
    records[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = attributes.to_bytes(2, "big", signed=True)
    crc = crc32c(records[ATTRIBUTES_AT:])
    records[CRC_AT:ATTRIBUTES_AT] = crc.to_bytes(4, "big")
    return header._replace(attributes=attributes, crc=crc)


def _check_timestamps(header: BatchHeader, config: LogConfig, now: int) -> None:
    """Too old or too new, judged by the batch's first and largest timestamp."""
    newest, first = header.max_timestamp, header.base_timestamp
    late = newest != NO_TIMESTAMP and newest - now > config.message_timestamp_after_max_ms
    early = first != NO_TIMESTAMP and now - min(first, newest) > config.message_timestamp_before_max_ms
    if late or early:
        raise KafkaError(
            Error.INVALID_TIMESTAMP,
            f"Timestamp {newest if late else min(first, newest)} of message is out of range: the timestamp should be within "
            f"[{now - config.message_timestamp_before_max_ms}, {now + config.message_timestamp_after_max_ms}]",
        )


def _trimmed(records: memoryview, length: int, api_version: int | None) -> memoryview:
    """The one whole batch of a payload that is not of its size; a cut-off rest is dropped, a second batch refused."""
    size = len(records)
    if length < LOG_OVERHEAD + _LEGACY_MIN_LENGTH:
        raise KafkaError(Error.CORRUPT_MESSAGE, f"Record batch claims a size of {length} bytes")
    if length > size:
        raise KafkaError(
            Error.INVALID_RECORD,
            f"Produce requests with version {api_version} must have at least one record batch per partition",
        )
    rest = size - length
    if rest > MAGIC_AT:
        claimed = _claimed(records, length)
        if claimed < LOG_OVERHEAD + _LEGACY_MIN_LENGTH or records[length + MAGIC_AT] > MAGIC_V2:
            raise KafkaError(Error.CORRUPT_MESSAGE, "What follows the record batch is not a record batch")
        if claimed <= rest:
            raise KafkaError(
                Error.INVALID_RECORD,
                f"Produce requests with version {api_version} are only allowed to contain exactly one record batch "
                "per partition",
            )
    return records[:length]


def _claimed(records: memoryview, position: int) -> int:
    """The size that the entry at `position` claims to have."""
    start = position + LENGTH_AT
    return int.from_bytes(records[start : position + LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD


def _prepare_other(records: memoryview, config: LogConfig, clock: Clock, api_version: int | None) -> Prepared:
    """Message sets v0 and v1 of old clients become batches; everything else that is no v2 batch is refused."""
    size = len(records)
    modern = api_version is not None and api_version >= _FIRST_VERSION_WITH_V2
    if size <= MAGIC_AT:
        if modern or not size:
            raise KafkaError(
                Error.INVALID_RECORD,
                f"Produce requests with version {api_version} must have at least one record batch per partition",
            )
        raise KafkaError(Error.CORRUPT_MESSAGE, f"{size} bytes are too few for a message")
    magic = records[MAGIC_AT]
    if magic > MAGIC_V2:
        raise KafkaError(Error.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
    if modern:
        raise KafkaError(
            Error.INVALID_RECORD,
            f"Produce requests with version {api_version} are only allowed to contain record batches with magic version 2",
        )
    position = 0
    while position + LOG_OVERHEAD <= size:
        claimed = _claimed(records, position)
        if claimed > config.max_message_bytes:
            raise too_large(claimed, config)
        if claimed < LOG_OVERHEAD + _LEGACY_MIN_LENGTH:
            raise KafkaError(Error.CORRUPT_MESSAGE, f"A message claims a size of {claimed} bytes")
        position += claimed
    converted = memoryview(bytearray(legacy.to_v2(records, clock.now_ms())))
    headers: list[BatchHeader] = []
    rebuilt = bytearray()
    log_append_time = NO_TIMESTAMP
    for position, header in split(converted):
        batch = converted[position : position + header.size]
        ready = _checked(batch, header, config, clock, Origin.COORDINATOR)
        headers += ready.headers
        rebuilt += ready.records
        log_append_time = ready.log_append_time
    if not headers:
        raise KafkaError(Error.INVALID_RECORD, "a message set without a message")
    return Prepared(memoryview(rebuilt), tuple(headers), log_append_time)


def too_large(size: int, config: LogConfig) -> KafkaError:
    """The answer to a batch over max.message.bytes."""
    return KafkaError(
        Error.MESSAGE_TOO_LARGE,
        f"The record batch size is {size} bytes which exceeds the maximum configured value of {config.max_message_bytes}.",
    )


def whole_batches(records: memoryview) -> tuple[memoryview, tuple[BatchHeader, ...]]:
    """What a follower got from its leader: the whole batches (the last may be cut off), each with a sound checksum."""
    headers: list[BatchHeader] = []
    end = 0
    for position, header in split(records, cut=True):
        end = position + header.size
        if crc32c(records[position + ATTRIBUTES_AT : end]) != header.crc:
            raise KafkaError(
                Error.CORRUPT_MESSAGE, f"Record is corrupt (stored crc = {header.crc}) at offset {header.base_offset}"
            )
        headers.append(header)
    return records[:end], tuple(headers)
