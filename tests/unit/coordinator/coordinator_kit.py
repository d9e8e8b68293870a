"""What the tests of coordinators stand on: a log in memory, and timers that ring when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ottla.model import KafkaError
from ottla.records.batch import read_records, split


class MemoryJournal:
    """The internal topic as lists of batches."""

    topic = "__internal"

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.batches: dict[int, list[bytes]] = {}
        self.leading = True
        self.refuse: KafkaError | None = None
        """What the next append ends in."""
        self.gate = asyncio.Event()
        """While this is not set, appends wait for the high watermark."""
        self.gate.set()
        self.uncommitted: asyncio.Future[None] | None = None
        """Until this is done, what an earlier leader left may yet be lost."""

    def leads(self, partition: int) -> bool:
        return self.leading

    def epoch(self, partition: int) -> int:
        return 3

    def append(self, partition: int, batch: bytearray) -> asyncio.Future[None] | None:
        if self.gate.is_set():
            self._append(partition, batch)
            return None
        return asyncio.ensure_future(self._append_later(partition, batch))

    async def _append_later(self, partition: int, batch: bytearray) -> None:
        await self.gate.wait()
        self._append(partition, batch)

    def _append(self, partition: int, batch: bytearray) -> None:
        if self.refuse is not None:
            refusal, self.refuse = self.refuse, None
            raise refusal
        self.batches.setdefault(partition, []).append(bytes(batch))

    def read_all(self, partition: int) -> Iterator[memoryview]:
        yield from (memoryview(batch) for batch in self.batches.get(partition, ()))

    async def committed(self, partition: int) -> None:
        if self.uncommitted is not None:
            await self.uncommitted

    def partition_count(self) -> int:
        return self.partitions

    async def ensure_topic(self) -> int:
        return self.partitions

    def rows(self) -> list[tuple[bytes | None, bytes | None]]:
        """All keys and values, in order."""
        return [
            (record.key, record.value)
            for batches in self.batches.values()
            for batch in batches
            for position, header in split(batch)
            for record in read_records(batch, position, header)
        ]


@dataclass(order=True)
class ManualHandle:
    due: float
    order: int
    callback: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True
