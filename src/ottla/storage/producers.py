"""What a log remembers of its producers: sequences for idempotence, open transactions for the last stable offset. Pure.

Guards: a batch is accepted once. A producer's next batch continues its sequence (after 2^31-1 comes 0), a repeated one
of its last five is answered with the offsets it got the first time, an older epoch is refused. Transactions stay open
until their marker; one that is complete still holds the last stable offset back until the high watermark has passed its
marker.

A batch is judged by `check` before it is written and remembered by `record` after; `record` alone replays a log.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from ottla.model import NO_PRODUCER_EPOCH, NO_TIMESTAMP, UNKNOWN_OFFSET, Error, KafkaError, TopicPartition
from ottla.records.batch import BatchHeader, ControlType, EndTransactionMarker

log: Final = logging.getLogger("ottla.storage")

_REMEMBERED: Final = 5
_SEQUENCES: Final = 1 << 31
_TRANSACTIONAL: Final = 0x10


class SentBatch(NamedTuple):
    """A batch that a producer got through."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % _SEQUENCES

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class CompletedTransaction(NamedTuple):
    """A transaction that its marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class Producer:
    """One producer id. `transaction_start` is the first offset of its open transaction, -1 if it has none."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "transaction_start")

    def __init__(self, producer_id: int, epoch: int = NO_PRODUCER_EPOCH) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.last_timestamp = NO_TIMESTAMP
        self.transaction_start = UNKNOWN_OFFSET
        self.batches: list[SentBatch] = []

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    def remember(self, batches: list[SentBatch]) -> None:
        """Take `batches`, found in the log, as the last ones: they must end with the one that is known."""
        if self.batches and batches[-1][:3] == self.batches[-1][:3] and len(batches) > len(self.batches):
            self.batches = batches[-_REMEMBERED:]


class Producers:
    """The producers of one log. `open` maps producer ids to where their transactions began, oldest first."""

    __slots__ = ("_open", "_partition", "_unreplicated", "by_id")

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self.by_id: dict[int, Producer] = {}
        self._open: dict[int, int] = {}
        self._unreplicated: list[CompletedTransaction] = []

    # Judging

    def check(self, header: BatchHeader, offset: int, *, sequences: bool) -> SentBatch | None:
        """Whether a data batch may be appended at `offset`; the earlier batch if it repeats one. Raises what Kafka answers.

        `sequences` is for batches from clients: the coordinators write without them.
        """
        producer = self.by_id.get(header.producer_id)
        if producer is None:
            return None
        epoch = header.producer_epoch
        if sequences and epoch == producer.epoch:
            first, expected = header.base_sequence, producer.last_sequence + 1
            if first != expected and not (first == 0 and expected == _SEQUENCES):
                last = header.last_sequence
                for sent in producer.batches:
                    if sent.last_sequence == last and sent.first_sequence == first:
                        return sent
                if producer.epoch != NO_PRODUCER_EPOCH:
                    raise KafkaError(
                        Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        f"Out of order sequence number for producer {header.producer_id} at offset {offset} in partition "
                        f"{self._partition}: {first} (incoming seq. number), {expected - 1} (current end sequence number)",
                    )
        elif epoch < producer.epoch:
            raise self._fenced(header, offset, producer)
        elif sequences and header.base_sequence != 0 and producer.epoch != NO_PRODUCER_EPOCH:
            raise KafkaError(
                Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number for new epoch of producer {header.producer_id} at offset {offset} in partition "
                f"{self._partition}: {epoch} (request epoch), {header.base_sequence} (seq. number), "
                f"{producer.epoch} (current epoch)",
            )
        if producer.transaction_start >= 0 and not header.attributes & _TRANSACTIONAL:
            raise KafkaError(
                Error.INVALID_TXN_STATE,
                f"Expected transactional write from producer {header.producer_id} at offset {offset} in "
                f"partition {self._partition}",
            )
        return None

    def check_marker(self, header: BatchHeader, marker: EndTransactionMarker, offset: int) -> None:
        """Whether a transaction marker may be appended. Raises what Kafka answers."""
        producer = self.by_id.get(header.producer_id)
        if producer is None:
            return
        if header.producer_epoch < producer.epoch:
            raise self._fenced(header, offset, producer)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                Error.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producer {header.producer_id} at offset {offset} in partition "
                f"{self._partition}: {marker.coordinator_epoch} (zombie), {producer.coordinator_epoch} (current)",
            )

    def _fenced(self, header: BatchHeader, offset: int, producer: Producer) -> KafkaError:
        return KafkaError(
            Error.INVALID_PRODUCER_EPOCH,
            f"Epoch of producer {header.producer_id} at offset {offset} in {self._partition} is {header.producer_epoch}, "
            f"which is smaller than the last seen epoch {producer.epoch}",
        )

    # Remembering

    def record(self, header: BatchHeader, base_offset: int, max_timestamp: int) -> None:
        """A data batch is in the log, at `base_offset`."""
        producer = self.by_id.get(header.producer_id)
        if producer is None:
            producer = self.by_id[header.producer_id] = Producer(header.producer_id, header.producer_epoch)
        elif producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        delta = header.last_offset_delta
        batches = producer.batches
        if len(batches) == _REMEMBERED:
            del batches[0]
        batches.append(SentBatch(header.last_sequence, base_offset + delta, delta, max_timestamp))
        producer.last_timestamp = max_timestamp
        if producer.transaction_start < 0 and header.attributes & _TRANSACTIONAL:
            producer.transaction_start = base_offset
            self._open[header.producer_id] = base_offset

    def record_marker(
        self, header: BatchHeader, marker: EndTransactionMarker, offset: int, timestamp: int
    ) -> CompletedTransaction | None:
        """A transaction marker is in the log, at `offset`; the transaction that it ended, if one was open."""
        producer = self.by_id.get(header.producer_id)
        if producer is None:
            producer = self.by_id[header.producer_id] = Producer(header.producer_id, header.producer_epoch)
        elif producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        start, producer.transaction_start = producer.transaction_start, UNKNOWN_OFFSET
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = timestamp
        if start < 0:
            return None
        completed = CompletedTransaction(header.producer_id, start, offset, marker.type is ControlType.ABORT)
        self._open.pop(header.producer_id, None)
        self._unreplicated.append(completed)
        return completed

    def add(self, producer: Producer) -> None:
        """Take a producer from a snapshot."""
        self.by_id[producer.producer_id] = producer
        if producer.transaction_start >= 0:
            self._open[producer.producer_id] = producer.transaction_start
            self._open = dict(sorted(self._open.items(), key=lambda item: item[1]))

    def clear(self) -> None:
        self.by_id.clear()
        self._open.clear()
        self._unreplicated.clear()

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers without an open transaction that were silent for `expiration_ms`; how many."""
        gone = [key for key, producer in self.by_id.items() if expired(producer, now_ms, expiration_ms)]
        for key in gone:
            del self.by_id[key]
        return len(gone)

    # The last stable offset

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open, or whose marker the high watermark has not passed."""
        if not self._open and not self._unreplicated:
            return None
        return min([*self._open.values(), *(completed.first_offset for completed in self._unreplicated)])

    @property
    def unstable(self) -> bool:
        return bool(self._open or self._unreplicated)

    def stable_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset once `completed` counts as ended: what the transaction index stores beside it."""
        return min((start for start in self._open.values()), default=completed.last_offset + 1)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Ended transactions below the high watermark hold nothing back any more."""
        if self._unreplicated:
            self._unreplicated = [done for done in self._unreplicated if done.last_offset >= high_watermark]

    def log_start_moved(self, log_start_offset: int) -> None:
        """Ended transactions that were deleted with their segments hold nothing back any more."""
        self.high_watermark_moved(log_start_offset)


def expired(producer: Producer, now_ms: int, expiration_ms: int) -> bool:
    """Whether nobody needs to remember the producer any more."""
    return producer.transaction_start < 0 and now_ms - producer.last_timestamp >= expiration_ms
