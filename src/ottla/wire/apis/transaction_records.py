"""The records of `__transaction_state`."""

from __future__ import annotations

from ottla.wire.schema import Data, Struct, array, int8, int16, int32, int64, string


class TransactionLogKey(Data, versions="0"):
    """Key of a transactional id."""

    transactional_id = string()


class TransactionPartitions(Struct):
    topic = string()
    partition_ids = array(int32())


class TransactionLogValue(Data, versions="0-1", flexible=1):
    """A transaction's state. Partitions are null when none are in it.

    v1: flexible.
    """

    producer_id = int64()
    producer_epoch = int16()
    transaction_timeout_ms = int32()
    transaction_status = int8()
    transaction_partitions = array(TransactionPartitions, nullable=True)
    transaction_last_update_timestamp_ms = int64()
    transaction_start_timestamp_ms = int64()
