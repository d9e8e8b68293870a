"""An internal topic as a coordinator sees it: append and wait until it is committed, read it all at start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from ottla.metadata.cache import MetadataCache
from ottla.model import Error, KafkaError
from ottla.records.batch import split
from ottla.replication.partition import ACKS_ALL
from ottla.replication.replicas import Replicas
from ottla.replication.waiting import Timer, Waiter

_CHUNK = 1 << 20
_NEWEST_PRODUCE = 11
_COMMIT_TIMEOUT = 5.0


class TopicJournal:
    """The partitions of one internal topic on this broker."""

    def __init__(
        self, topic: str, replicas: Replicas, metadata: MetadataCache, create: Callable[[str], Awaitable[None]], timer: Timer
    ) -> None:
        self._topic = topic
        self._replicas = replicas
        self._metadata = metadata
        self._create = create
        self._timer = timer

    def leads(self, partition: int) -> bool:
        found = self._replicas.partitions.get((self._topic, partition))
        return found is not None and found.is_leader

    async def append(self, partition: int, batch: bytes) -> None:
        target = self._replicas.get(self._topic, partition)
        info = target.append(memoryview(bytearray(batch)), ACKS_ALL, _NEWEST_PRODUCE)
        if target.watchers:
            target.wake()
        if target.committed(info.last_offset):
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def complete() -> None:
            if done.done():
                return
            if target.committed(info.last_offset):
                done.set_result(None)
            else:
                done.set_exception(KafkaError(Error.REQUEST_TIMED_OUT if target.is_leader else Error.NOT_LEADER_OR_FOLLOWER))

        Waiter(lambda _size: target.committed(info.last_offset), complete, [target], self._timer, _COMMIT_TIMEOUT)
        await done

    def read_all(self, partition: int) -> Iterator[memoryview]:
        log = self._replicas.get(self._topic, partition).log
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

    async def ensure_topic(self) -> int:
        if self._topic not in self._metadata.image.topics:
            await self._create(self._topic)
        return len(self._metadata.image.topics[self._topic].partitions)
