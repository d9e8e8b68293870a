"""A shard's way into its partition of the internal topic: one append at a time, in the order of the operations.

Guards: what is handed over while an append is under way goes into the next append as one batch. Where none is, `append` writes
at once, and most often that is all: no other replica is waited for, and no future is made. If an append is refused, its
operations and all that were decided in their light are taken back, newest first, and fail. Records of a producer's transaction
travel in a batch of their own under its id; what becomes of them its marker tells.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ottla.clock import Clock
from ottla.model import Error, KafkaError
from ottla.records.batch import TRANSACTIONAL_BIT
from ottla.records.plain import plain_batch

log = logging.getLogger("ottla.coordinator")

BATCH_LIMIT = 256 * 1024
"""Bytes of keys and values after which an append takes no further operation along: a great one must not sink small ones."""

Undo = Callable[[], object]
Row = tuple[bytes, bytes | None]
"""A record's key and value; without a value it is a tombstone."""


class Journal(Protocol):
    """The internal topic, as the broker offers it."""

    topic: str

    def leads(self, partition: int) -> bool:
        """Whether this broker leads the partition."""
        ...

    def epoch(self, partition: int) -> int:
        """The leader epoch in which this broker leads it."""
        ...

    def append(self, partition: int, batch: bytearray) -> asyncio.Future[None] | None:
        """Append; raises KafkaError. None where the high watermark has passed the batch, else what is done when it has.

        Called again only after that.
        """
        ...

    def read_all(self, partition: int) -> Iterator[memoryview]:
        """Chunks of whole v2 batches, from the log's start to its end. Runs in a thread."""
        ...

    async def committed(self, partition: int) -> None:
        """Wait until the high watermark has passed all that the log holds now. Raises KafkaError where another broker leads."""
        ...

    def partition_count(self) -> int:
        """How many partitions the topic has; 0 where there is none."""
        ...

    async def ensure_topic(self) -> int:
        """Make the topic if there is none; how many partitions it has."""
        ...


class Writer(NamedTuple):
    """The producer in whose transaction records are written."""

    producer_id: int
    epoch: int


@dataclass(slots=True)
class Write:
    """One operation's records on their way into the log."""

    done: asyncio.Future[None]
    rows: list[Row]
    undo: Sequence[Undo] = ()
    writer: Writer | None = None
    marker: bytearray | None = None

    @property
    def size(self) -> int:
        return sum(len(key) + len(value or b"") for key, value in self.rows)

    @property
    def alone(self) -> bool:
        """Whether this needs a batch of its own."""
        return self.writer is not None or self.marker is not None

    def settle(self, refusal: KafkaError | None = None) -> None:
        """It is safe, or it never was."""
        if self.done.done():
            return  # whoever asked is gone
        if refusal is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(refusal)


class Appender:
    """The operations of one shard, one append after the other."""

    __slots__ = ("_clock", "_journal", "_partition", "_queue", "busy", "last")

    def __init__(self, journal: Journal, clock: Clock, partition: int) -> None:
        self._journal = journal
        self._clock = clock
        self._partition = partition
        self._queue: list[Write] = []
        self.busy = False
        """Whether an append is under way, or about to be: what comes now has to queue."""
        self.last: asyncio.Future[None] | None = None
        """When the newest operation is settled."""

    def put(self, write: Write) -> None:
        """Take an operation in; it is appended in this turn of the loop, or after what is under way."""
        self._queue.append(write)
        self.last = write.done
        if not self.busy:
            self.busy = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def append(
        self, rows: list[Row], writer: Writer | None = None, marker: bytearray | None = None
    ) -> asyncio.Future[None] | None:
        """Write at once; only while it is not `busy`. None where that is safe already; else what is to be handed to
        `wait_for`, with what was done in its light. Raises KafkaError, and then nothing was written."""
        self.busy = True
        try:
            waiting = self._journal.append(self._partition, self._batch(rows, writer, marker))
        except Exception as problem:
            self._rest()
            raise self._refusal(problem) from None
        if waiting is None:
            self._rest()
        return waiting

    def wait_for(self, write: Write, waiting: asyncio.Future[None]) -> None:
        """What `append` began is settled when the other replicas have it."""
        self.last = write.done
        waiting.add_done_callback(lambda done: self._appended([write], done))

    def _rest(self) -> None:
        """An append is over; should something have queued meanwhile, it is its turn."""
        if self._queue:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self.busy = False

    def give_up(self, refusal: KafkaError) -> None:
        """The shard is gone: what is queued will not be appended."""
        for write in self._queue:
            write.settle(refusal)
        self._queue.clear()

    def _go_on(self) -> None:
        """Append what is queued, batch by batch, until nothing is, or until one has to wait for other replicas."""
        while self._queue:
            writes = _take(self._queue)
            try:
                waiting = self._journal.append(self._partition, self._batch_of(writes))
            except Exception as problem:
                self._refused(writes, problem)
                continue
            if waiting is not None:
                waiting.add_done_callback(lambda done, writes=writes: self._appended(writes, done))  # type: ignore[misc]
                return
            for write in writes:
                write.settle()
        self.busy = False

    def _appended(self, writes: list[Write], done: asyncio.Future[None]) -> None:
        """An append that had to wait is over."""
        problem = None if done.cancelled() else done.exception()
        if isinstance(problem, Exception):
            self._refused(writes, problem)
        else:
            for write in writes:
                write.settle()
        self._go_on()

    def _refused(self, writes: list[Write], problem: Exception) -> None:
        """These writes did not happen, and what is queued was decided in their light: none of it did."""
        refusal = self._refusal(problem)
        bystanders, self._queue = self._queue, []
        for write in reversed(writes + bystanders):
            for undo in reversed(write.undo):
                undo()
        for write in writes:
            write.settle(refusal)
        for write in bystanders:  # nothing is wrong with them: their clients are to try again
            write.settle(KafkaError(Error.COORDINATOR_NOT_AVAILABLE, "what came before it was refused"))

    def _refusal(self, problem: Exception) -> KafkaError:
        if isinstance(problem, KafkaError):
            return _as_coordinator(problem)
        log.error("An append to %s-%d failed", self._journal.topic, self._partition, exc_info=problem)
        return KafkaError(Error.UNKNOWN_SERVER_ERROR, "the broker failed; its log says why")

    def _batch_of(self, writes: Sequence[Write]) -> bytearray:
        first = writes[0]
        rows = first.rows if len(writes) == 1 else [row for write in writes for row in write.rows]
        return self._batch(rows, first.writer, first.marker)

    def _batch(self, rows: list[Row], writer: Writer | None, marker: bytearray | None) -> bytearray:
        if marker is not None:
            return marker
        now = self._clock.now_ms()
        if writer is None:
            return plain_batch(rows, now)
        producer_id, epoch = writer
        return plain_batch(
            rows, now, producer_id=producer_id, producer_epoch=epoch, base_sequence=0, attributes=TRANSACTIONAL_BIT
        )


def _take(queue: list[Write]) -> list[Write]:
    """The operations that go into the next append: at least one, and no more than fit."""
    count = 1
    if len(queue) > 1 and not queue[0].alone:
        size = queue[0].size
        while count < len(queue) and not queue[count].alone and (size := size + queue[count].size) <= BATCH_LIMIT:
            count += 1
    taken = queue[:count]
    del queue[:count]
    return taken


_AS_COORDINATOR = {
    Error.UNKNOWN_TOPIC_OR_PARTITION: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_ENOUGH_REPLICAS: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Error.COORDINATOR_NOT_AVAILABLE,
    Error.REQUEST_TIMED_OUT: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_LEADER_OR_FOLLOWER: Error.NOT_COORDINATOR,
    Error.KAFKA_STORAGE_ERROR: Error.NOT_COORDINATOR,
    Error.MESSAGE_TOO_LARGE: Error.INVALID_COMMIT_OFFSET_SIZE,
    Error.RECORD_LIST_TOO_LARGE: Error.INVALID_COMMIT_OFFSET_SIZE,
    Error.INVALID_FETCH_SIZE: Error.INVALID_COMMIT_OFFSET_SIZE,
}


def _as_coordinator(refusal: KafkaError) -> KafkaError:
    """A produce error in the words that a coordinator's clients understand: retry, look elsewhere, or send less."""
    return KafkaError(_AS_COORDINATOR.get(refusal.error, refusal.error), refusal.message)
