"""Where coordinators write: an internal topic as they see it, and the ends of transactions in every partition.

Guards: what a coordinator is told is written, every in-sync replica has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from ottla.metadata.cache import MetadataCache
from ottla.model import Error, KafkaError
from ottla.records.batch import split
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.replication.replicas import Replicas
from ottla.replication.waiting import Timer, Waiter
from ottla.storage.append import Origin

log: Final = logging.getLogger("ottla.coordinator")

_CHUNK: Final = 1 << 20
_NEWEST_PRODUCE: Final = 11
_COMMIT_TIMEOUT: Final = 5.0
_NEWS_PATIENCE: Final = 1.0


def append_committed(target: Partition, batch: bytearray, timer: Timer) -> asyncio.Future[None] | None:
    """Append what a coordinator of this broker says. Raises KafkaError.

    None where the high watermark has passed it, else what is done when it has.
    """
    info = target.append(memoryview(batch), ACKS_ALL, _NEWEST_PRODUCE, Origin.COORDINATOR)
    if target.watchers or target.tail_watchers:
        target.wake()
    return None if target.committed(info.last_offset) else _when_committed(target, info.last_offset, timer)


def _when_committed(target: Partition, last_offset: int, timer: Timer) -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    since = target.led_since

    def complete() -> None:
        if done.done():
            return
        error = target.outcome_of(last_offset, since)
        if error is Error.NONE:
            done.set_result(None)
        else:
            done.set_exception(KafkaError(error))

    Waiter(
        lambda _size: target.committed(last_offset), complete, [target], timer, _COMMIT_TIMEOUT,
        over=lambda: not target.led_all_the_time(since),
    )  # fmt: skip
    return done


class TopicJournal:
    """The partitions of one internal topic on this broker."""

    def __init__(
        self, topic: str, replicas: Replicas, metadata: MetadataCache, create: Callable[[str], Awaitable[None]], timer: Timer
    ) -> None:
        self.topic = topic
        self._replicas = replicas
        self._metadata = metadata
        self._create = create
        self._timer = timer
        self._told = ""

    def leads(self, partition: int) -> bool:
        found = self._replicas.partitions.get((self.topic, partition))
        return found is not None and found.is_leader

    def epoch(self, partition: int) -> int:
        return self._replicas.get(self.topic, partition).leader_epoch

    def append(self, partition: int, batch: bytearray) -> asyncio.Future[None] | None:
        return append_committed(self._replicas.get(self.topic, partition), batch, self._timer)

    def read_all(self, partition: int) -> Iterator[memoryview]:
        log = self._replicas.get(self.topic, partition).log
        offset, end = log.log_start_offset, log.log_end_offset
        while offset < end:
            region = log.read(offset, _CHUNK, end, min_one=True)
            if region is None:
                return
            chunk = memoryview(region.read())
            size = 0
            for position, header in split(chunk, cut=True):
                size, offset = position + header.size, header.next_offset
            if not size:
                return
            yield chunk[:size]

    async def committed(self, partition: int) -> None:
        found = self._replicas.get(self.topic, partition)
        last = found.log.log_end_offset - 1
        while not found.committed(last):
            try:
                await _when_committed(found, last, self._timer)
            except KafkaError:
                found.check_leader()

    def partition_count(self) -> int:
        topic = self._metadata.image.topics.get(self.topic)
        return len(topic.partitions) if topic is not None else 0

    async def ensure_topic(self) -> int:
        """The controller may be another broker: a new topic is known here when its word arrives."""
        if self.topic not in self._metadata.image.topics:
            try:
                await self._create(self.topic)
            except KafkaError as problem:
                self._tell(problem)
                raise
            if not await self._metadata.wait_for(lambda image: self.topic in image.topics, _NEWS_PATIENCE):
                raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE, f"{self.topic} is being created")
        return self.partition_count()

    def _tell(self, problem: KafkaError) -> None:
        """Clients ask again and again, and most of them say nothing of it: the operator is told, once."""
        if problem.error is Error.INVALID_REPLICATION_FACTOR and problem.message != self._told:
            self._told = problem.message
            log.warning("%s cannot be created, and whoever needs it waits. %s", self.topic, problem.message)
