"""How leaders of this broker ask the controller for other ISRs.

Guards: one request is under way at a time, and what comes meanwhile goes together with the next; a proposal is repeated until
there is an answer that says whether it was written, for its partition counts on both until then. The controller may be another
broker, or not be known for a while: that only takes longer. Life: as long as the broker's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ottla.model import KafkaError, TopicPartition
from ottla.replication.isr import IsrOutcome, IsrProposal
from ottla.replication.partition import Partition

log = logging.getLogger("ottla.replication")

Propose = Callable[[Sequence[IsrProposal]], Awaitable[Mapping[TopicPartition, IsrOutcome]]]
"""Ask the controller; raises KafkaError where it did not answer, or refused all of it."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_MOST_AT_ONCE = 5000


class IsrChanges:
    """The proposals of this broker that are not answered yet."""

    def __init__(self, propose: Propose, pause: float = _FIRST_PAUSE, longest_pause: float = _LONGEST_PAUSE) -> None:
        self._propose = propose
        self._first_pause = pause
        self._longest_pause = longest_pause
        self._pause = pause
        self._waiting: dict[TopicPartition, tuple[Partition, IsrProposal]] = {}
        self._task: asyncio.Task[None] | None = None

    def submit(self, partition: Partition, proposal: IsrProposal) -> None:
        """Propose; the partition is told what came of it. An older proposal of the same partition that waits is forgotten."""
        self._waiting[partition.tp] = (partition, proposal)
        if self._task is None:
            self._task = asyncio.ensure_future(self._work())

    async def stop(self) -> None:
        """Propose nothing more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        try:
            await asyncio.sleep(0)  # whoever proposes in the same turn of the loop comes along
            while self._waiting:
                if await self._send_some():
                    self._pause = self._first_pause
                else:
                    await asyncio.sleep(self._pause)
                    self._pause = min(self._pause * 2, self._longest_pause)
        finally:
            self._task = None

    async def _send_some(self) -> bool:
        """One request; whether all of it was answered for good."""
        batch = dict(list(self._waiting.items())[:_MOST_AT_ONCE])
        for tp in batch:
            del self._waiting[tp]
        try:
            outcomes = await self._propose([proposal for _, proposal in batch.values()])
        except KafkaError as problem:
            log.info("The controller took no ISR changes (%s); trying again", problem.message)
            self._again(batch)
            return False
        except Exception:
            log.exception("Asking the controller for %d ISR changes failed; trying again", len(batch))
            self._again(batch)
            return False
        unanswered = {}
        for tp, (partition, proposal) in batch.items():
            outcome = outcomes.get(tp)
            try:
                again = outcome is None or partition.answered(proposal, outcome)
            except Exception:  # whoever was woken by it failed: the others' answers are good all the same
                log.exception("%s: what waits for its ISR failed", tp)
                again = False
            if again:
                unanswered[tp] = (partition, proposal)
        self._again(unanswered)
        return not unanswered

    def _again(self, some: Mapping[TopicPartition, tuple[Partition, IsrProposal]]) -> None:
        for tp, (partition, proposal) in some.items():
            if partition.proposed is proposal:
                self._waiting.setdefault(tp, (partition, proposal))
