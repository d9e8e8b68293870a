"""The runtime under a coordinator: state per partition of an internal topic, changed only through records of that topic.

An operation looks at a shard's state and hands over records. They take effect on the state at once, so that the next
operation sees them; they are appended in that order (`appending`); the operation's answer leaves when the high watermark has
passed them. If an append is refused, its records and all that were built on them are taken back: the state never keeps what
the log does not have. A reader that must not see what may still be taken back waits for `settled`.

A shard's life: `elect` makes it, loading replays the whole partition into a state that nobody sees yet, then it is active;
`resign` ends it. An operation before that gets COORDINATOR_LOAD_IN_PROGRESS, elsewhere NOT_COORDINATOR. Lives on the broker's
loop, but for the reading and replaying of a partition, which happens in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ottla.clock import Clock
from ottla.coordinator.appending import Appender, Journal, Row, Undo, Write, Writer
from ottla.coordinator.hashing import partition_for
from ottla.model import NO_PRODUCER_ID, Error, KafkaError
from ottla.records.batch import (
    ControlType,
    CorruptRecords,
    Record,
    crc_ok,
    read_marker,
    read_records,
    split,
)
from ottla.records.plain import marker_batch

log = logging.getLogger("ottla.coordinator")

LOAD_PATIENCE = 0.1
"""Seconds for which whoever asks for a coordinator waits for it to load."""


class Handle(Protocol):
    """A timer that can be called off."""

    def cancel(self) -> None: ...


Timer = Callable[[float, Callable[[], None]], Handle]
"""Calls back after so many seconds: `loop.call_later`, or a test's."""

Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs blocking work elsewhere: `asyncio.to_thread`, or a test's."""

R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


class ShardState(Protocol[R_contra]):
    """What a coordinator keeps per partition. A record with a producer id counts once that producer's transaction commits."""

    def replay(self, record: R_contra, producer_id: int = NO_PRODUCER_ID) -> None:
        """Take a record in, while loading."""
        ...

    def take(self, records: Sequence[R_contra], producer_id: int = NO_PRODUCER_ID) -> None:
        """Take records in that are safe in the log."""
        ...

    def apply_all(self, records: Sequence[R_contra], producer_id: int = NO_PRODUCER_ID) -> Undo:
        """Take records in that are not in the log yet; returns how to take them back."""
        ...

    def end_transaction(self, producer_id: int, committed: bool) -> Undo:
        """A producer's transaction is over; returns how to take that back."""
        ...


class RecordFormat(Protocol[R_co]):
    """How a coordinator's records look as bytes: a module with these functions."""

    def encode_all(self, records: Any, /) -> list[Row]: ...

    def decode(self, key: bytes, value: bytes | None, /) -> R_co | None: ...


S = TypeVar("S", bound=ShardState[Any])


class _Shard(Generic[S]):
    """One partition of the internal topic that this broker speaks for."""

    __slots__ = ("appender", "loading", "partition", "state")

    def __init__(self, partition: int, state: S, appender: Appender) -> None:
        self.partition = partition
        self.state = state
        self.appender = appender
        self.loading: asyncio.Task[None] | None = None


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

    def elect(self, partition: int) -> bool:
        """Load a partition that this broker leads; whether it does."""
        if not self._journal.leads(partition):
            return False
        if partition not in self._shards:
            appender = Appender(self._journal, self._clock, partition)
            shard = self._shards[partition] = _Shard(partition, self._new_state(partition), appender)
            shard.loading = asyncio.get_running_loop().create_task(self._load(shard))
        return True

    def resign(self, partition: int) -> None:
        """Another broker leads the partition: forget it, and send everyone there."""
        shard = self._shards.pop(partition, None)
        if shard is None:
            return
        shard.appender.give_up(KafkaError(Error.NOT_COORDINATOR, "the coordinator moved to another broker"))
        self._retired(shard.state)

    def resign_all(self) -> None:
        """The broker stops."""
        for partition in list(self._shards):
            self.resign(partition)

    def state(self, partition: int) -> S:
        """The state of a partition that is led here and loaded; raises for others."""
        return self._active(partition).state

    def is_current(self, partition: int, state: S) -> bool:
        """Whether this is the state of a partition that is led here, and not one from an earlier time."""
        shard = self._shards.get(partition)
        return shard is not None and shard.state is state

    def states(self) -> list[S]:
        """Every state that is loaded."""
        return [shard.state for shard in self._shards.values() if shard.loading is None]

    def loads(self, partition: int | None = None) -> list[asyncio.Task[None]]:
        """What is being loaded, of one partition or of all, for whoever wants to wait for it."""
        shards = self._shards.values()
        return [shard.loading for shard in shards if shard.loading is not None and partition in (None, shard.partition)]

    async def locate(self, name: str, timer: Timer) -> int:
        """The partition that holds a group or a transactional id. Makes the topic if there is none, and waits a little for
        what is being loaded, so that whoever asks need not be told to come back."""
        partition = partition_for(name, await self._journal.ensure_topic())
        if self._journal.leads(partition):
            self.elect(partition)
        await self.await_loads(timer, partition)
        return partition

    async def await_loads(self, timer: Timer, partition: int | None = None) -> bool:
        """Wait a little for what is being loaded, of one partition or of all; whether it is there now."""
        loads = self.loads(partition)
        if loads:
            patience = asyncio.get_running_loop().create_future()
            handle = timer(LOAD_PATIENCE, lambda: None if patience.done() else patience.set_result(None))
            await asyncio.wait([asyncio.gather(*loads), patience], return_when=asyncio.FIRST_COMPLETED)
            handle.cancel()
        return not self.loads(partition)

    def held_elsewhere(self, name: str) -> int | None:
        """The partition that holds a group or a transactional id, where another broker leads it; None where this one does, or
        nobody can tell yet."""
        partitions = self._journal.partition_count()
        partition = partition_for(name, partitions) if partitions else None
        return None if partition is None or self._journal.leads(partition) else partition

    def state_of(self, name: str) -> S:
        """The state that a group or a transactional id is part of; raises where this broker does not speak for it."""
        partitions = self._journal.partition_count()
        if not partitions:
            raise KafkaError(Error.NOT_COORDINATOR, "the internal topic does not exist yet: ask for the coordinator first")
        return self.state(partition_for(name, partitions))

    def _active(self, partition: int) -> _Shard[S]:
        if not self._journal.leads(partition):
            self.resign(partition)
            raise KafkaError(Error.NOT_COORDINATOR, "another broker is the coordinator")
        shard = self._shards.get(partition)
        if shard is None:
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
            # Of what an earlier leader left, the end may yet be lost with us: nobody may be told anything that rests on it.
            await self._journal.committed(shard.partition)
        except KafkaError as refusal:
            log.info("%s-%d was not loaded: %s", self._journal.topic, shard.partition, refusal.message)
            if self._shards.get(shard.partition) is shard:
                del self._shards[shard.partition]
            return
        except Exception:
            log.exception("%s-%d cannot be loaded; the next request tries again", self._journal.topic, shard.partition)
            if self._shards.get(shard.partition) is shard:
                del self._shards[shard.partition]
            return
        if self._shards.get(shard.partition) is shard:
            shard.loading = None
            self._loaded(shard.state)
            took = (self._clock.monotonic() - begin) * 1000
            log.debug("Loaded %s-%d in %.0f ms", self._journal.topic, shard.partition, took)

    def _replay_all(self, shard: _Shard[S]) -> None:
        """Runs in a thread, on a state that nobody else sees yet."""
        for chunk in self._journal.read_all(shard.partition):
            for position, header in split(chunk):
                try:
                    if not crc_ok(chunk, position, header):
                        raise CorruptRecords("its checksum is wrong")
                    if header.is_control:
                        marker = read_marker(chunk, position, header) if header.count else None
                        if marker is not None:
                            shard.state.end_transaction(header.producer_id, marker.type is ControlType.COMMIT)
                        continue
                    rows = read_records(chunk, position, header)
                except CorruptRecords as problem:
                    where = f"{self._journal.topic}-{shard.partition}"
                    log.error("%s: the batch at offset %d cannot be read (%s); skipped", where, header.base_offset, problem)
                    continue
                self._replay_rows(shard, rows, header.producer_id if header.is_transactional else NO_PRODUCER_ID)

    def _replay_rows(self, shard: _Shard[S], rows: Iterable[Record], producer_id: int) -> None:
        decode, replay = self._format.decode, shard.state.replay
        for row in rows:
            try:
                record = decode(row.key or b"", row.value)
            except ValueError as problem:
                where = f"{self._journal.topic}-{shard.partition}"
                log.error("%s: the record at offset %d cannot be read (%s); skipped", where, row.offset, problem)
                continue
            if record is not None:
                replay(record, producer_id)

    # Writing

    def write(self, partition: int, records: Sequence[Any], *, apply: bool = True) -> asyncio.Future[None]:
        """Put records into the state and on their way into the log, now; the future is done when they are safe there.

        With `apply=False` the state is left alone: the records describe what it already holds, or will hold.
        """
        try:
            shard = self._active(partition)
        except KafkaError as refusal:
            return _failed(refusal)
        done = asyncio.get_running_loop().create_future()
        if not records:
            done.set_result(None)
            return done
        rows = self._format.encode_all(records)
        undo: list[Undo] = [shard.state.apply_all(records)] if apply else []
        shard.appender.put(Write(done, rows, undo))
        return done

    def write_now(self, partition: int, records: Any, writer: Writer | None = None) -> asyncio.Future[None] | None:
        """The same without a detour: None where the records are safe in the log and in the state already. Raises KafkaError
        where they are refused at once. With a `writer` they are part of that producer's transaction. `records` is a sequence,
        or what the format and the state take for one."""
        shard = self._active(partition)
        state, appender = shard.state, shard.appender
        rows = self._format.encode_all(records)
        if not rows:
            return None
        producer_id = writer.producer_id if writer is not None else NO_PRODUCER_ID
        waiting: asyncio.Future[None] | None = None
        if not appender.busy:
            waiting = appender.append(rows, writer)
            if waiting is None:
                state.take(records, producer_id)
                return None
        return self._when_safe(appender, Write(_new_future(), rows, [state.apply_all(records, producer_id)], writer), waiting)

    @staticmethod
    def _when_safe(appender: Appender, write: Write, waiting: asyncio.Future[None] | None) -> asyncio.Future[None]:
        """What is not safe at once: it waits for an append that has begun, or for its turn."""
        if waiting is not None:
            appender.wait_for(write, waiting)
        else:
            appender.put(write)
        return write.done

    def end_transaction(
        self, partition: int, writer: Writer, coordinator_epoch: int, *, committed: bool
    ) -> asyncio.Future[None] | None:
        """Write the marker of a producer's transaction; what it wrote here counts from now on, or never did. None where that
        is safe already; raises KafkaError where it is refused at once."""
        shard = self._active(partition)
        marker = marker_batch(
            ControlType.COMMIT if committed else ControlType.ABORT,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self._clock.now_ms(),
        )
        appender = shard.appender
        waiting: asyncio.Future[None] | None = None
        if not appender.busy:
            waiting = appender.append([], None, marker)
            if waiting is None:
                shard.state.end_transaction(writer.producer_id, committed)
                return None
        undo = shard.state.end_transaction(writer.producer_id, committed)
        return self._when_safe(appender, Write(_new_future(), [], [undo], marker=marker), waiting)

    async def settled(self, partition: int) -> None:
        """Wait until everything that was handed over so far is safe or taken back."""
        last = self._active(partition).appender.last
        if last is not None and not last.done():
            await asyncio.wait([last])


def _new_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _failed(refusal: KafkaError) -> asyncio.Future[None]:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failed.set_exception(refusal)
    return failed
