"""The records of `__transaction_state` as bytes: Apache Kafka's own layout, in the version that its 3.9 writes.

Guards: a record that cannot be read is a `Malformed`, for the loader to name and skip.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from struct import Struct
from typing import Final, NamedTuple

from ottla.coordinator.transaction_state import STATUS_BY_CODE, Status, Transaction
from ottla.model import TopicPartition
from ottla.wire.apis.transaction_records import TransactionLogKey, TransactionLogValue
from ottla.wire.schema import Malformed, decode_versioned, encode_versioned, peek_version

_KEY: Final = 0
_VALUE: Final = 0
_HEAD: Final = Struct(">hqhib")
_TAIL: Final = Struct(">qq")
_INT32: Final = Struct(">i")
_INT16: Final = Struct(">h")
_NO_PARTITIONS: Final = _INT32.pack(-1)


class TransactionRecord(NamedTuple):
    """A transactional id went on to another state, or was forgotten."""

    transactional_id: str
    value: Transaction | None


def encode_all(records: Sequence[TransactionRecord]) -> list[tuple[bytes, bytes | None]]:
    """The keys and values of records."""
    return [encode(record) for record in records]


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """A record's key and value; no value makes it a tombstone."""
    return _key(record.transactional_id), None if record.value is None else _encode_value(record.value)


@lru_cache(maxsize=4096)
def _key(transactional_id: str) -> bytes:
    return encode_versioned(TransactionLogKey(transactional_id=transactional_id), _KEY)


def _encode_value(transaction: Transaction) -> bytes:
    """By hand, for three of them are written with every transaction; the tests hold it against the table."""
    head = _HEAD.pack(
        _VALUE, transaction.producer_id, transaction.producer_epoch, transaction.timeout_ms, transaction.status.code
    )
    partitions = _NO_PARTITIONS if transaction.status is Status.EMPTY else _partitions(transaction.partitions)
    return head + partitions + _TAIL.pack(transaction.updated_ms, transaction.started_ms)


@lru_cache(maxsize=1024)
def _partitions(partitions: frozenset[TopicPartition]) -> bytes:
    """A producer writes to the same few partitions again and again."""
    topics = [
        (topic.encode(), [partition.partition for partition in found])
        for topic, found in groupby(sorted(partitions), key=lambda partition: partition.topic)
    ]
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics:
        parts += [_INT16.pack(len(topic)), topic, _INT32.pack(len(numbers)), *map(_INT32.pack, numbers)]
    return b"".join(parts)


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """The record that these bytes are; None for a kind that this coordinator does not keep."""
    if peek_version(key) != _KEY:
        return None
    transactional_id = decode_versioned(TransactionLogKey, key).transactional_id
    return TransactionRecord(transactional_id, None if value is None else _decode_value(transactional_id, value))


def _decode_value(transactional_id: str, data: bytes) -> Transaction:
    value = decode_versioned(TransactionLogValue, data)
    status = STATUS_BY_CODE.get(value.transaction_status)
    if status is None:
        raise Malformed(f"transaction {transactional_id} has the unknown status {value.transaction_status}")
    return Transaction(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        status,
        frozenset(
            TopicPartition(topic.topic, number)
            for topic in value.transaction_partitions or ()
            for number in topic.partition_ids
        ),
        value.transaction_start_timestamp_ms,
        value.transaction_last_update_timestamp_ms,
    )
