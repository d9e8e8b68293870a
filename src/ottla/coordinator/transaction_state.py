"""A transaction as data, and the rules by which it goes on: a state and a request in, the next state or a refusal out. Pure.

Guards: of one transaction's two ends only one can be prepared, and once prepared nothing but its completion follows. A
producer speaks for its transactional id only with the current producer id and epoch; whoever takes the id over bumps the
epoch, which fences everyone before. Nothing here is true before the log has it: the coordinator writes the state that a rule
returns, and only then it counts.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import Enum
from typing import NamedTuple

from ottla.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, Error, KafkaError, TopicPartition

_LAST_EPOCH = 2**15 - 1
_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class Status(Enum):
    """The life of a transaction: its code in the topic, and the name under which it is shown."""

    EMPTY = (0, "Empty")
    ONGOING = (1, "Ongoing")
    PREPARE_COMMIT = (2, "PrepareCommit")
    PREPARE_ABORT = (3, "PrepareAbort")
    COMPLETE_COMMIT = (4, "CompleteCommit")
    COMPLETE_ABORT = (5, "CompleteAbort")
    DEAD = (6, "Dead")
    PREPARE_EPOCH_FENCE = (7, "PrepareEpochFence")

    __hash__ = object.__hash__  # there is one of each, and an enum's own goes by its name, in Python

    def __init__(self, code: int, shown: str) -> None:
        self.code = code
        self.shown = shown


STATUS_BY_CODE = {status.code: status for status in Status}
STATUS_BY_NAME = {status.shown: status for status in Status}
PREPARED = frozenset({Status.PREPARE_COMMIT, Status.PREPARE_ABORT})
_AT_REST = frozenset({Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})
_COMPLETED = {Status.PREPARE_COMMIT: Status.COMPLETE_COMMIT, Status.PREPARE_ABORT: Status.COMPLETE_ABORT}


class ProducerIdentity(NamedTuple):
    """A producer id, and the epoch in which it speaks."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    """What is known of one transactional id. `last_*`, in memory only, is who it was before: for requests that are repeated."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: Status = Status.EMPTY
    partitions: frozenset[TopicPartition] = _NO_PARTITIONS
    started_ms: int = NO_TIMESTAMP
    updated_ms: int = NO_TIMESTAMP
    last_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def epochs_used_up(self) -> bool:
        """The last epoch of an id is kept for fencing: who needs another one gets a new producer id."""
        return _used_up(self.producer_epoch)

    def check(self, speaker: ProducerIdentity) -> None:
        """Raise unless this is who speaks for the transactional id."""
        if speaker.producer_id != self.producer_id:
            raise KafkaError(
                Error.INVALID_PRODUCER_ID_MAPPING,
                f"{self.transactional_id} belongs to producer {self.producer_id}, not to {speaker.producer_id}",
            )
        if speaker.epoch != self.producer_epoch:
            raise KafkaError(
                Error.PRODUCER_FENCED,
                f"{self.transactional_id} is in epoch {self.producer_epoch}, not in {speaker.epoch}",
            )


def _used_up(epoch: int) -> bool:
    return epoch >= _LAST_EPOCH - 1


def begin(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """A transactional id that nobody used before gets its first epoch."""
    return Transaction(transactional_id, producer_id, 0, timeout_ms, updated_ms=now_ms)


def initialise(
    current: Transaction, timeout_ms: int, expected: ProducerIdentity | None, new_producer_id: int, now_ms: int
) -> Transaction:
    """A producer takes over, or asks for its next epoch (`expected` is who it thinks it is).

    Where the one before left a transaction open, the result is that transaction about to be aborted, in an epoch that fences
    it: the new producer has to come again when that is done.
    """
    if expected is not None and not _may_expect(current, expected):
        raise _fenced(current, expected)
    if current.status in PREPARED:
        raise _still_ending(current)
    if current.status is Status.ONGOING:
        return _fenced_and_aborted(current, now_ms)
    if current.epochs_used_up and (expected is None or expected.epoch == current.producer_epoch):
        return Transaction(
            current.transactional_id,
            new_producer_id,
            0,
            timeout_ms,
            updated_ms=now_ms,
            last_producer_id=current.producer_id,
            last_producer_epoch=NO_PRODUCER_EPOCH if expected is None else current.producer_epoch,
        )
    epoch, last_epoch = _next_epoch(current, expected)
    return Transaction(
        current.transactional_id,
        current.producer_id,
        epoch,
        timeout_ms,
        updated_ms=now_ms,
        last_producer_id=current.producer_id,
        last_producer_epoch=last_epoch,
    )


def _may_expect(current: Transaction, expected: ProducerIdentity) -> bool:
    """Whether the caller can be the one that it says: the present producer, or the one before it whose epochs were used up."""
    if expected.producer_id == current.producer_id:
        return True
    return expected.producer_id == current.last_producer_id and _used_up(expected.epoch)


def _next_epoch(current: Transaction, expected: ProducerIdentity | None) -> tuple[int, int]:
    """The epoch of whoever asks, and the one before it."""
    if expected is None:
        return current.producer_epoch + 1, NO_PRODUCER_EPOCH
    if expected.epoch == current.producer_epoch:
        return current.producer_epoch + 1, current.producer_epoch
    if expected.epoch == current.last_producer_epoch:
        return current.producer_epoch, current.last_producer_epoch  # it asks again, for the answer was lost
    raise _fenced(current, expected)


def _fenced_and_aborted(current: Transaction, now_ms: int) -> Transaction:
    return current._replace(
        producer_epoch=current.producer_epoch + 1,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        status=Status.PREPARE_ABORT,
        updated_ms=now_ms,
    )


def _moved(
    current: Transaction, status: Status, partitions: frozenset[TopicPartition], started_ms: int, now_ms: int
) -> Transaction:
    """The same producer's transaction, one step on. This is `_replace`, three times in every transaction."""
    name, producer_id, producer_epoch, timeout_ms, _, _, _, _, last_id, last_epoch = current
    return Transaction(
        name, producer_id, producer_epoch, timeout_ms, status, partitions, started_ms, now_ms, last_id, last_epoch
    )


def add_partitions(
    current: Transaction, speaker: ProducerIdentity, partitions: AbstractSet[TopicPartition], now_ms: int
) -> Transaction | None:
    """Partitions enter the transaction, which begins with the first of them; None where they are all in it."""
    current.check(speaker)
    if current.status in PREPARED:
        raise _still_ending(current)
    if current.status is Status.ONGOING:
        if partitions <= current.partitions:
            return None
        return _moved(current, Status.ONGOING, current.partitions | partitions, current.started_ms, now_ms)
    return _moved(current, Status.ONGOING, frozenset(partitions), now_ms, now_ms)


def end(current: Transaction, speaker: ProducerIdentity, *, commit: bool, now_ms: int) -> Transaction | None:
    """The producer wants to commit or to abort; None where that was done already."""
    current.check(speaker)
    wanted = Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT
    if current.status is Status.ONGOING:
        return _moved(current, wanted, current.partitions, current.started_ms, now_ms)
    if current.status is _COMPLETED[wanted]:
        return None
    if current.status is wanted:
        raise _still_ending(current)
    raise KafkaError(
        Error.INVALID_TXN_STATE,
        f"{current.transactional_id} cannot be {'committed' if commit else 'aborted'} in state {current.status.shown}",
    )


def complete(current: Transaction, now_ms: int) -> Transaction:
    """Every partition has its marker."""
    return _moved(current, _COMPLETED[current.status], _NO_PARTITIONS, current.started_ms, now_ms)


def time_out(current: Transaction, now_ms: int) -> Transaction | None:
    """An open transaction whose time is up is aborted, and its producer fenced; None for any other."""
    if current.status is not Status.ONGOING or current.started_ms + current.timeout_ms >= now_ms:
        return None
    return _fenced_and_aborted(current, now_ms)


def has_expired(current: Transaction, expiration_ms: int, now_ms: int) -> bool:
    """Whether nobody used the transactional id for so long that it may be forgotten."""
    return current.status in _AT_REST and current.updated_ms + expiration_ms <= now_ms


def verify(current: Transaction, speaker: ProducerIdentity, partition: TopicPartition) -> None:
    """Raise unless the producer may write to the partition within its transaction now."""
    current.check(speaker)
    if current.status in PREPARED:
        raise _still_ending(current)
    if partition not in current.partitions:
        raise KafkaError(
            Error.TRANSACTION_ABORTABLE, f"{partition} was not added to the transaction of {current.transactional_id}"
        )


def _fenced(current: Transaction, expected: ProducerIdentity) -> KafkaError:
    return KafkaError(
        Error.PRODUCER_FENCED,
        f"{current.transactional_id} was taken over: it is producer {current.producer_id} in epoch {current.producer_epoch} "
        f"now, not {expected.producer_id} in epoch {expected.epoch}",
    )


def _still_ending(current: Transaction) -> KafkaError:
    return KafkaError(
        Error.CONCURRENT_TRANSACTIONS, f"the last transaction of {current.transactional_id} is {current.status.shown}"
    )
