"""Producer ids, unique in the cluster for ever: each broker takes a block of a thousand at a time and hands them out.

A block that was taken and not used up before a stop is lost; that is the price of never giving an id twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ottla.metadata.store import BadVersion, Create, NodeExists, Operation, Set, Store
from ottla.metadata.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock

BLOCK_SIZE = 1000


class ProducerIds:
    """Hands out producer ids to this broker's clients."""

    def __init__(self, store: Store, broker_id: int, highest_seen: Callable[[], Awaitable[int]]) -> None:
        """`highest_seen` finds the largest id in the logs: where metadata were lost, none of theirs may be given again."""
        self._store = store
        self._highest_seen = highest_seen
        self._broker_id = broker_id
        self._next = 0
        self._last = -1
        self._taking = asyncio.Lock()

    async def allocate(self) -> int:
        """An id that nobody had before."""
        async with self._taking:
            if self._next > self._last:
                await self._take_block()
            allocated = self._next
            self._next += 1
            return allocated

    async def _take_block(self) -> None:
        while True:
            node = await self._store.get(PRODUCER_ID_BLOCK)
            seen = await self._highest_seen()
            first = max(ProducerIdBlock.decode(node.data).last if node and node.data else -1, seen) + 1
            block = ProducerIdBlock(self._broker_id, first, first + BLOCK_SIZE - 1)
            write: Operation = (
                Set(PRODUCER_ID_BLOCK, block.encode(), node.version) if node else Create(PRODUCER_ID_BLOCK, block.encode())
            )
            try:
                await self._store.commit([write])
            except (BadVersion, NodeExists):
                continue  # another broker took it first: read again and take the next one
            self._next, self._last = block.first, block.last
            return
