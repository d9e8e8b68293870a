"""The runtime under a coordinator: state per partition of an internal topic, changed only through records of that topic.

An operation looks at a shard's state and hands over records. They take effect on the state at once, so that the next
operation sees them; they are appended in that order; the operation's answer leaves when the high watermark has passed them.
One append per shard is under way at a time, and what is handed over meanwhile goes into the next one, as one batch. If an
append is refused, its records and all that were built on them are taken back, newest first, and their operations fail: the
state never keeps what the log does not have. A reader that must not see what may still be taken back waits for `settled`.

A shard's life: `elect` makes it, loading replays the whole partition into a state that nobody sees yet, then it is active;
`resign` ends it. An operation before that gets COORDINATOR_LOAD_IN_PROGRESS, elsewhere NOT_COORDINATOR. Lives on the broker's
loop, but for the reading and replaying of a partition, which happens in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ottla.clock import Clock
from ottla.model import Error, KafkaError
from ottla.records.batch import CorruptRecords, Record, build, read_records, split

log = logging.getLogger("ottla.coordinator")

BATCH_LIMIT = 256 * 1024
"""Bytes of keys and values after which an append takes no further operation along: a great one must not sink small ones."""


class Journal(Protocol):
    """The internal topic, as the broker offers it."""

    def leads(self, partition: int) -> bool:
        """Whether this broker leads the partition."""
        ...

    async def append(self, partition: int, batch: bytes) -> None:
        """Append, and return when the high watermark has passed the batch; raises KafkaError. Called again only after that."""
        ...

    def read_all(self, partition: int) -> Iterator[memoryview]:
        """Chunks of whole v2 batches, from the log's start to its end. Runs in a thread."""
        ...

    async def ensure_topic(self) -> int:
        """Make the topic if there is none; how many partitions it has."""
        ...


class Handle(Protocol):
    """A timer that can be called off."""

    def cancel(self) -> None: ...


Timer = Callable[[float, Callable[[], None]], Handle]
"""Calls back after so many seconds: `loop.call_later`, or a test's."""

Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs blocking work elsewhere: `asyncio.to_thread`, or a test's."""

Undo = Callable[[], None]
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class ShardState(Protocol[R_contra]):
    """What a coordinator keeps per partition."""

    def replay(self, record: R_contra) -> None:
        """Take a record in, while loading."""
        ...

    def apply(self, record: R_contra) -> Undo:
        """Take a record in that is not in the log yet; returns how to take it back."""
        ...


class RecordFormat(Protocol[R]):
    """How a coordinator's records look as bytes: a module with these two functions."""

    def encode(self, record: R, /) -> tuple[bytes, bytes | None]: ...

    def decode(self, key: bytes, value: bytes | None, /) -> R | None: ...


S = TypeVar("S", bound=ShardState[Any])


@dataclass(slots=True)
class _Write:
    """One operation's records on their way into the log."""

    rows: list[tuple[bytes, bytes | None]]
    undo: list[Undo]
    done: asyncio.Future[None]

    @property
    def size(self) -> int:
        return sum(len(key) + len(value or b"") for key, value in self.rows)


@dataclass(slots=True, eq=False)
class _Shard(Generic[S]):
    """One partition of the internal topic that this broker speaks for."""

    partition: int
    state: S
    loading: asyncio.Task[None] | None = None
    queue: list[_Write] = field(default_factory=list)
    writer: asyncio.Task[None] | None = None
    last: _Write | None = None


class Runtime(Generic[S]):
    """All shards of one coordinator on this broker."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        record_format: RecordFormat[Any],
        new_state: Callable[[int], S],
        *,
        loaded: Callable[[S], None],
        retired: Callable[[S], None],
        offload: Offload = asyncio.to_thread,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._format = record_format
        self._new_state = new_state
        self._loaded = loaded
        self._retired = retired
        self._offload = offload
        self._shards: dict[int, _Shard[S]] = {}

    # Which shards are here

    def elect(self, partition: int) -> None:
        """This broker leads the partition from now on: load it."""
        if partition not in self._shards:
            shard = self._shards[partition] = _Shard(partition, self._new_state(partition))
            shard.loading = asyncio.get_running_loop().create_task(self._load(shard))

    def resign(self, partition: int) -> None:
        """Another broker leads the partition: forget it, and send everyone there."""
        shard = self._shards.pop(partition, None)
        if shard is None:
            return
        moved = KafkaError(Error.NOT_COORDINATOR, "the coordinator moved to another broker")
        for write in shard.queue:
            _settle(write, moved)
        shard.queue.clear()
        self._retired(shard.state)

    def resign_all(self) -> None:
        """The broker stops."""
        for partition in list(self._shards):
            self.resign(partition)

    def state(self, partition: int) -> S:
        """The state of a partition that is led here and loaded; raises for others."""
        return self._active(partition).state

    def states(self) -> list[S]:
        """Every state that is loaded."""
        return [shard.state for shard in self._shards.values() if shard.loading is None]

    def loads(self, partition: int | None = None) -> list[asyncio.Task[None]]:
        """What is being loaded, of one partition or of all, for whoever wants to wait for it."""
        shards = self._shards.values()
        return [shard.loading for shard in shards if shard.loading is not None and partition in (None, shard.partition)]

    def _active(self, partition: int) -> _Shard[S]:
        if not self._journal.leads(partition):
            self.resign(partition)
            raise KafkaError(Error.NOT_COORDINATOR, "another broker is the coordinator")
        self.elect(partition)
        shard = self._shards[partition]
        if shard.loading is not None:
            raise KafkaError(Error.COORDINATOR_LOAD_IN_PROGRESS, f"partition {partition} of the internal topic is being loaded")
        return shard

    # Loading

    async def _load(self, shard: _Shard[S]) -> None:
        begin = self._clock.monotonic()
        try:
            await self._offload(lambda: self._replay_all(shard))
        except Exception:
            log.exception("cannot load partition %d of the internal topic; the next request tries again", shard.partition)
            if self._shards.get(shard.partition) is shard:
                del self._shards[shard.partition]
            return
        if self._shards.get(shard.partition) is shard:
            shard.loading = None
            self._loaded(shard.state)
            log.debug("loaded partition %d in %.0f ms", shard.partition, (self._clock.monotonic() - begin) * 1000)

    def _replay_all(self, shard: _Shard[S]) -> None:
        """Runs in a thread, on a state that nobody else sees yet."""
        for chunk in self._journal.read_all(shard.partition):
            for position, header in split(chunk):
                if header.is_control:
                    continue
                try:
                    rows = read_records(chunk, position, header)
                except CorruptRecords as problem:
                    log.error("partition %d, batch at offset %d: %s; skipped", shard.partition, header.base_offset, problem)
                    continue
                self._replay_rows(shard, rows)

    def _replay_rows(self, shard: _Shard[S], rows: Iterable[Record]) -> None:
        decode, replay = self._format.decode, shard.state.replay
        for row in rows:
            try:
                record = decode(row.key or b"", row.value)
            except ValueError as problem:
                log.error("partition %d, record at offset %d: %s; skipped", shard.partition, row.offset, problem)
                continue
            if record is not None:
                replay(record)

    # Writing

    def write(self, partition: int, records: Sequence[Any], *, apply: bool = True) -> asyncio.Future[None]:
        """Put records into the state and on their way into the log, now; the future is done when they are safe there.

        With `apply=False` the state is left alone: the records describe what it already holds.
        """
        done = asyncio.get_running_loop().create_future()
        if not records:
            done.set_result(None)
            return done
        try:
            shard = self._active(partition)
        except KafkaError as refusal:
            done.set_exception(refusal)
            return done
        rows = [self._format.encode(record) for record in records]
        undo = [shard.state.apply(record) for record in records] if apply else []
        shard.last = _Write(rows, undo, done)
        shard.queue.append(shard.last)
        if shard.writer is None:
            shard.writer = asyncio.get_running_loop().create_task(self._drain(shard))
        return done

    async def settled(self, partition: int) -> None:
        """Wait until everything that was handed over so far is safe or taken back."""
        write = self._active(partition).last
        if write is not None and not write.done.done():
            await asyncio.wait([write.done])

    async def _drain(self, shard: _Shard[S]) -> None:
        """Append what is queued, batch by batch, until nothing is."""
        while shard.queue:
            writes = _take(shard.queue)
            try:
                await self._journal.append(shard.partition, self._batch(writes))
            except KafkaError as refusal:
                _take_back(writes, shard.queue, _as_coordinator(refusal))
            except Exception:
                log.exception("append to partition %d of the internal topic failed", shard.partition)
                _take_back(writes, shard.queue, KafkaError(Error.UNKNOWN_SERVER_ERROR, "the broker failed; its log says why"))
            else:
                for write in writes:
                    _settle(write)
        shard.writer = shard.last = None

    def _batch(self, writes: Iterable[_Write]) -> bytes:
        now = self._clock.now_ms()
        rows = (row for write in writes for row in write.rows)
        return build(Record(offset, now, key, value, ()) for offset, (key, value) in enumerate(rows))


def _take(queue: list[_Write]) -> list[_Write]:
    """The operations that go into the next append: at least one, and no more than fit."""
    size = queue[0].size
    count = 1
    while count < len(queue) and (size := size + queue[count].size) <= BATCH_LIMIT:
        count += 1
    taken = queue[:count]
    del queue[:count]
    return taken


def _take_back(writes: list[_Write], queue: list[_Write], refusal: KafkaError) -> None:
    """These writes were refused, and what is queued was decided in their light: none of it happened."""
    refused = writes + queue
    queue.clear()
    for write in reversed(refused):
        for undo in reversed(write.undo):
            undo()
    for write in refused:
        _settle(write, refusal)


def _settle(write: _Write, refusal: KafkaError | None = None) -> None:
    if write.done.done():
        return  # its connection went away
    if refusal is None:
        write.done.set_result(None)
    else:
        write.done.set_exception(refusal)


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
