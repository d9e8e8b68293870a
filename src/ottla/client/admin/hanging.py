"""Which transactions hang: open in a partition, while no coordinator will ever end them there.

Guards: a transaction that its coordinator still knows of in that partition is never called hanging, however old it is. Pure;
who asks the brokers is `transactions.find_hanging`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from ottla.model import UNKNOWN_OFFSET, TopicPartition


class ActiveProducer(NamedTuple):
    """What the leader of a partition knows of a producer; the offset of its open transaction is -1 where there is none."""

    producer_id: int
    producer_epoch: int = 0
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = 0
    transaction_start_offset: int = UNKNOWN_OFFSET


class OpenTransaction(NamedTuple):
    """What one producer has open in one partition."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int


Producers = Mapping[TopicPartition, Iterable[ActiveProducer]]


def open_transactions(producers: Producers) -> list[OpenTransaction]:
    """All that are open, by partition and producer."""
    return sorted(
        OpenTransaction(
            partition,
            one.producer_id,
            one.producer_epoch,
            one.coordinator_epoch,
            one.transaction_start_offset,
            one.last_timestamp,
        )
        for partition, states in producers.items()
        for one in states
        if one.transaction_start_offset != UNKNOWN_OFFSET
    )


def older_than(transactions: Iterable[OpenTransaction], now_ms: int, limit_ms: int) -> list[OpenTransaction]:
    """Those whose producer has written nothing for longer than the limit: a coordinator would have ended them by now."""
    return [one for one in transactions if now_ms - one.last_timestamp > limit_ms]


def hanging(
    candidates: Iterable[OpenTransaction],
    transactional_ids: Mapping[int, str],
    spans: Mapping[str, Collection[TopicPartition]],
) -> list[OpenTransaction]:
    """Those whose producer has no transactional id, or whose transaction does not span the partition (or not any more).

    `transactional_ids` is by producer id; `spans` says which partitions a coordinator still has to put an end to.
    """

    def awaits_its_end(one: OpenTransaction) -> bool:
        transactional_id = transactional_ids.get(one.producer_id)
        return transactional_id is not None and one.partition in spans.get(transactional_id, ())

    return [one for one in candidates if not awaits_its_end(one)]
