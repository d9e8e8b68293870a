"""Moves partitions between the log directories of this broker while they are written and read.

A copy grows beside the log, as a follower's would: chunk by chunk, in a thread. When hardly anything is missing, the rest is
copied and the two change places in one step of the loop, so that no append falls between them. Guards: until that step the log
is served as if nothing were going on, and a move that fails, or is called off, leaves nothing but files to be removed; after it
readers that are under way go on with the old files. A stop in between is made good by beginning anew after the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ottla.model import Error, KafkaError, TopicPartition
from ottla.records.batch import read_header
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.storage.deletion import remove
from ottla.storage.log import Log
from ottla.storage.manager import LogManager
from ottla.storage.slices import FileSlice, NotCached

log = logging.getLogger("ottla.replication")

_CHUNK = 4 << 20
_LAST_CHUNK = 256 << 10
"""So little may be copied on the loop, while everybody waits."""
_LOOKUPS = 8
"""How often a cold lookup is tried again before it may block."""


@dataclass(slots=True, eq=False)
class Move:
    """One partition on its way."""

    partition: Partition
    target: str
    future: Log | None = None
    task: asyncio.Task[None] | None = None
    called_off: bool = False
    flushed: bool = False
    swaps: int = 0
    cuts: int = 0

    @property
    def lag(self) -> int:
        """Records that the copy does not have yet."""
        source = self.partition.log
        return source.log_end_offset - (self.future.log_end_offset if self.future is not None else source.log_start_offset)


class Mover:
    """The moves that are under way."""

    def __init__(
        self,
        replicas: Replicas,
        logs: LogManager,
        run_blocking: Callable[..., Awaitable[Any]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.moves: dict[TopicPartition, Move] = {}
        self._replicas = replicas
        self._logs = logs
        self._run_blocking = run_blocking
        self._spawn = spawn

    async def resume(self) -> None:
        """Begin anew with what the last stop interrupted, as far as we have been given those partitions again."""
        interrupted = self._logs.interrupted_moves
        for tp in [tp for tp in interrupted if tp in self._replicas.partitions]:
            target = interrupted.pop(tp, "")
            if target in self._logs.dirs:
                try:
                    await self.move(tp, target)
                except KafkaError as problem:
                    log.error("%s could not be moved on to %s: %s; it stays where it is", tp, target, problem.message)

    async def move(self, tp: TopicPartition, target: str) -> None:
        """Begin to move a partition to another directory; one that is under way to elsewhere is called off.

        Returns when the copy has a place, from which also a restart knows of the move. Raises KafkaError.
        """
        partition = self._replicas.get(*tp)
        self._logs.interrupted_moves.pop(tp, None)  # an older wish
        known = self.moves.get(tp)
        if known is not None:
            if known.target == target:
                return
            if known.task is None:
                raise KafkaError(Error.REASSIGNMENT_IN_PROGRESS, f"{tp} is about to be moved to {known.target}")
            known.called_off = True
            known.task.cancel()
        if _parent(partition.log) == target:
            return
        move = self.moves[tp] = Move(partition, target, swaps=partition.log.swaps, cuts=partition.log.cuts)
        try:
            start = await self._start_of(partition.log)
            move.future = await self._run_blocking(self._logs.open_future, partition.log, target, start)
        except OSError as problem:
            del self.moves[tp]
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"{target}: {problem.strerror or problem}") from problem
        except BaseException:
            del self.moves[tp]
            raise
        move.task = self._spawn(self._carry_out(tp, move, move.future))

    async def _carry_out(self, tp: TopicPartition, move: Move, future: Log) -> None:
        log.info("%s: moving from %s to %s", tp, _parent(move.partition.log), move.target)
        try:
            while not await self._copy_some(tp, move, future):
                pass
        except (KafkaError, OSError) as problem:
            log.error("%s could not be moved to %s: %s; it stays where it is", tp, move.target, problem)
            await self._run_blocking(remove, [future.dir])
        except asyncio.CancelledError:
            if move.called_off:  # otherwise the broker stops, and what is there tells the next start to go on
                await self._run_blocking(remove, [future.dir])
            raise
        finally:
            if self.moves.get(tp) is move:
                del self.moves[tp]
        await self._run_blocking(self._logs.sync_directories)
        for write in self._logs.checkpoint_writes():
            await self._run_blocking(write)

    async def _copy_some(self, tp: TopicPartition, move: Move, future: Log) -> bool:
        """One step; whether it was the last."""
        partition = move.partition
        source = partition.log
        if self._replicas.partitions.get(tp) is not partition or self._logs.logs.get(tp) is not source:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER, "it is not here any more")
        # After a clean a deleted key could come back: the copy may have its value, and miss the tombstone. After a cut it may
        # hold what the leader does not have. And what would come next may have been deleted meanwhile.
        if _changed(source, move) or future.log_end_offset < source.log_start_offset:
            move.swaps, move.cuts, move.flushed = source.swaps, source.cuts, False
            await self._in_thread(future.truncate_fully_and_start_at, await self._start_of(source))
            return False
        region = await self._look_up(source, future.log_end_offset)
        if region is not None and _bytes_behind(source, future.log_end_offset, region) > _LAST_CHUNK:
            await self._in_thread(_append, future, region)
            return False
        if not move.flushed:  # what the old files had on the disk, the new ones must have before the old ones go
            await self._in_thread(future.flush)
            move.flushed = True
            return False
        if move.target not in self._logs.dirs:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"{move.target} has failed")
        if _changed(source, move):
            return False
        # From here to the end nothing else happens on the loop.
        while (region := source.read(future.log_end_offset, _LAST_CHUNK, source.log_end_offset, True)) is not None:
            _append(future, region)
        self._switch(partition, source, future)
        return True

    async def _in_thread(self, function: Callable[..., None], *args: object) -> None:
        """Like `run_blocking`, but over only when the thread is: nobody may clear up under it."""
        work = asyncio.ensure_future(self._run_blocking(function, *args))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise

    def _switch(self, partition: Partition, source: Log, future: Log) -> None:
        future.config = source.config
        future.cleaned_to = source.cleaned_to
        future.high_watermark = source.high_watermark
        if source.log_start_offset > future.log_start_offset:
            future.delete_records_before(source.log_start_offset)
        self._logs.replace(future)
        partition.log = future
        if partition.is_leader:  # a follower has its epochs from the leader's batches
            future.leader_epochs.assign(partition.leader_epoch, future.log_end_offset)

    async def _start_of(self, source: Log) -> int:
        """Where the copy begins: the first offset of the batch that holds the log's start."""
        region = await self._look_up(source, source.log_start_offset)
        if region is None:
            return source.log_start_offset
        return read_header(await self._run_blocking(region.read)).base_offset

    async def _look_up(self, source: Log, offset: int) -> FileSlice | None:
        for _ in range(_LOOKUPS):
            try:
                return source.read(offset, _CHUNK, source.log_end_offset, True, nowait=True)
            except NotCached as cold:
                await self._run_blocking(cold.warm)
        return source.read(offset, _CHUNK, source.log_end_offset, True)


def _bytes_behind(source: Log, end: int, region: FileSlice) -> int:
    """What a copy that ends at `end` is missing: the region that follows, and all later segments."""
    return region.length + sum(segment.size for segment in source.segments if segment.base_offset > end)


def _changed(source: Log, move: Move) -> bool:
    return source.swaps != move.swaps or source.cuts != move.cuts


def _append(future: Log, region: FileSlice) -> None:
    future.append_as_follower(memoryview(region.read()))


def _parent(one: Log) -> str:
    return one.dir.rpartition("/")[0]
