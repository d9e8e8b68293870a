"""A transaction coordinator whose log, clock and partitions the test owns."""

import asyncio
import itertools

from ottla.clock import ManualClock
from ottla.coordinator.settings import TransactionSettings
from ottla.coordinator.transactions import TransactionCoordinator
from ottla.model import Error
from unit.coordinator.coordinator_kit import ManualHandle, MemoryJournal


class Bank:
    """A coordinator whose log, clock and partitions the test owns."""

    def __init__(self, **settings):
        self.clock = ManualClock()
        self.journal = MemoryJournal()
        self.settings = TransactionSettings(**settings)
        self.markers = []
        self.refuse = {}
        """Partition -> the errors that its next markers end in."""
        self.gone = set()
        self.ids = itertools.count(100)
        self.start()

    def start(self):
        self.pauses = []
        self.coordinator = TransactionCoordinator(
            self.settings,
            self.clock,
            self.journal,
            lambda delay, callback: ManualHandle(delay, 0, callback),
            new_producer_id=self._new_id,
            send_markers=self._send,
            exists=lambda partition: partition not in self.gone,
            pause=self._pause,
            offload=self._offload,
        )

    async def restart(self):
        self.coordinator.stop()
        self.start()
        await self.coordinator.partition_of("x")

    async def _new_id(self):
        await asyncio.sleep(0)
        return next(self.ids)

    def _send(self, marker, partitions):
        results = {}
        for partition in partitions:
            refusals = self.refuse.get(partition)
            results[partition] = refusals.pop(0) if refusals else Error.NONE
            if results[partition] is Error.NONE:
                self.markers.append((partition, marker.producer_id, marker.producer_epoch, marker.committed))
        return results

    async def _pause(self, seconds):
        future = asyncio.get_running_loop().create_future()
        self.pauses.append(future)
        await future

    async def go_on(self):
        """Let all pauses be over."""
        await self.settle()
        pauses, self.pauses = self.pauses, []
        for pause in pauses:
            if not pause.done():
                pause.set_result(None)
        await self.settle()

    @staticmethod
    async def _offload(work):
        work()

    @staticmethod
    async def settle():
        for _ in range(30):
            await asyncio.sleep(0)

    async def producer(self, timeout_ms=60_000, expected=None):
        await self.coordinator.partition_of("x")
        return await self.coordinator.init_producer("x", timeout_ms, expected)

    async def status(self):
        return self.coordinator.describe("x").status


async def done(written):
    """Wait for a change, if there is one."""
    if written is not None:
        await written
