"""The transaction coordinator: transactional ids of the partitions of `__transaction_state` that this broker leads.

It lets the pure rules (`transaction_state`) decide, has their result written to the log, and only then answers. Guards: markers
go out only after the log has the decision, and the transaction is complete only after all markers are in; whoever leads the
partition next goes on from what the log says. Of one transactional id one change is under way at a time. Lives on the
broker's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from ottla.clock import Clock
from ottla.coordinator import transaction_format, transaction_state
from ottla.coordinator.appending import Journal
from ottla.coordinator.markers import Marker, Outcome, Pause, Send, all_written, deliver
from ottla.coordinator.runtime import Offload, Runtime, Timer
from ottla.coordinator.settings import TransactionSettings
from ottla.coordinator.transaction_format import TransactionRecord
from ottla.coordinator.transaction_shard import TransactionShard
from ottla.coordinator.transaction_state import PREPARED, ProducerIdentity, Status, Transaction
from ottla.model import Error, KafkaError, TopicPartition

log = logging.getLogger("ottla.coordinator")

TOPIC = "__transaction_state"
_RETRY_PAUSE = 0.1


class TransactionCoordinator:
    """What names a transactional id raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS where others must answer for it."""

    def __init__(
        self,
        settings: TransactionSettings,
        clock: Clock,
        journal: Journal,
        timer: Timer,
        *,
        new_producer_id: Callable[[], Awaitable[int]],
        send_markers: Send,
        exists: Callable[[TopicPartition], bool],
        pause: Pause = asyncio.sleep,
        offload: Offload = asyncio.to_thread,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._journal = journal
        self._timer = timer
        self._new_producer_id = new_producer_id
        self._send_markers = send_markers
        self._exists = exists
        self._pause = pause
        self._runtime: Runtime[TransactionShard] = Runtime(
            journal, clock, transaction_format, TransactionShard, loaded=self._loaded, retired=self._retired, offload=offload
        )
        self._completions: dict[str, asyncio.Task[None]] = {}

    # Life

    def stop(self) -> None:
        """The broker stops: what is not complete goes on after the next start."""
        self._runtime.resign_all()

    def elect(self, partition: int) -> None:
        """This broker became the leader of a partition of the topic: load it."""
        self._runtime.elect(partition)

    def resign(self, partition: int) -> None:
        """This broker no longer leads a partition of the topic."""
        self._runtime.resign(partition)

    async def partition_of(self, transactional_id: str) -> int:
        """The partition of the topic, whose leader is the id's coordinator. Makes the topic if there is none."""
        return await self._runtime.locate(transactional_id, self._timer)

    def held_elsewhere(self, transactional_id: str) -> int | None:
        """The partition of the topic that holds the id, where another broker leads it and so is its coordinator."""
        return self._runtime.held_elsewhere(transactional_id) if transactional_id else None

    # Producers

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        """InitProducerId: who the producer is from now on; everyone before is fenced."""
        shard = self._shard(transactional_id)
        if not 0 < timeout_ms <= self.settings.max_timeout_ms:
            raise KafkaError(
                Error.INVALID_TRANSACTION_TIMEOUT,
                f"A transaction timeout of {timeout_ms} ms is not allowed: transaction.max.timeout.ms is "
                f"{self.settings.max_timeout_ms}.",
            )
        current = shard.find(transactional_id)
        new_id = -1
        if current is None or current.epochs_used_up:
            new_id = await self._new_producer_id()
            shard = self._shard(transactional_id)  # the world moved on meanwhile
            current = shard.find(transactional_id)
        now = self._clock.now_ms()
        if current is None:
            following = transaction_state.begin(transactional_id, new_id, timeout_ms, now)
        else:
            following = transaction_state.initialise(current, timeout_ms, expected, new_id, now)
        written = self._go_on(shard, following)
        if written is not None:
            await written
        if following.status is Status.PREPARE_ABORT:
            raise KafkaError(
                Error.CONCURRENT_TRANSACTIONS, f"the transaction that {transactional_id} left open is being aborted"
            )
        return following.identity

    def add_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: AbstractSet[TopicPartition]
    ) -> asyncio.Future[None] | None:
        """AddPartitionsToTxn, and AddOffsetsToTxn: done when the partitions are in the transaction; None where they are."""
        shard = self._shard(transactional_id)
        current = shard.get(transactional_id)
        following = transaction_state.add_partitions(current, producer, partitions, self._clock.now_ms())
        return None if following is None else self._go_on(shard, following)

    def end(self, transactional_id: str, producer: ProducerIdentity, *, commit: bool) -> asyncio.Future[None] | None:
        """EndTxn: done when the decision is safe, and the markers follow by themselves; None where it is safe."""
        shard = self._shard(transactional_id)
        current = shard.get(transactional_id)
        following = transaction_state.end(current, producer, commit=commit, now_ms=self._clock.now_ms())
        return None if following is None else self._go_on(shard, following)

    def verify(self, transactional_id: str, producer: ProducerIdentity, partition: TopicPartition) -> None:
        """Raise unless the log says that the partition is in the producer's open transaction."""
        shard = self._shard(transactional_id)
        entry = shard.entries.get(transactional_id)
        if entry is None or entry.current is None:
            raise KafkaError(Error.INVALID_PRODUCER_ID_MAPPING, f"there is no transactional id {transactional_id!r}")
        transaction_state.verify(entry.current, producer, partition)

    # Looking

    def describe(self, transactional_id: str) -> Transaction:
        """DescribeTransactions."""
        shard = self._shard(transactional_id)
        entry = shard.entries.get(transactional_id)
        if entry is None or entry.current is None:
            raise KafkaError(Error.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id!r}")
        return entry.current

    def transactions(self) -> Iterable[Transaction]:
        """ListTransactions: all that this broker speaks for; raises while some of it is being loaded."""
        if self._runtime.loads():
            raise KafkaError(Error.COORDINATOR_LOAD_IN_PROGRESS, "transactions are being loaded")
        return self.all_transactions()

    def all_transactions(self) -> list[Transaction]:
        """What is loaded of the transactional ids here, as they are now."""
        return [one for shard in self._runtime.states() for one in shard.transactions()]

    async def highest_producer_id(self) -> int:
        """The largest producer id of any transactional id here; waits for what is being loaded."""
        await asyncio.gather(*self._runtime.loads())
        return max((one.producer_id for shard in self._runtime.states() for one in shard.transactions()), default=-1)

    # From time to time

    async def abort_timed_out(self) -> None:
        """Abort the open transactions whose time is up."""
        now = self._clock.now_ms()
        for shard in self._runtime.states():
            for current in shard.at_rest():
                following = transaction_state.time_out(current, now)
                if following is not None and self._is_still(shard, current):
                    log.info(
                        "The transaction of %s (producer %d, epoch %d) is open for more than %d ms: aborting it",
                        current.transactional_id, current.producer_id, current.producer_epoch, current.timeout_ms,
                    )  # fmt: skip
                    await self._try(shard, TransactionRecord(current.transactional_id, following))

    async def expire_ids(self) -> None:
        """Forget the transactional ids that nobody used for long."""
        now = self._clock.now_ms()
        for shard in self._runtime.states():
            for current in shard.at_rest():
                expired = transaction_state.has_expired(current, self.settings.id_expiration_ms, now)
                if expired and self._is_still(shard, current):
                    await self._try(shard, TransactionRecord(current.transactional_id, None))

    def _is_still(self, shard: TransactionShard, current: Transaction) -> bool:
        """Whether nothing has happened to a transaction since it was looked at: its producer may have come back meanwhile."""
        entry = shard.entries.get(current.transactional_id)
        return self._runtime.is_current(shard.partition, shard) and entry is not None and entry.is_at_rest_in(current)

    async def _try(self, shard: TransactionShard, record: TransactionRecord) -> None:
        """A change that nobody waits for: where it fails, the next round tries again."""
        try:
            written = self._write(shard, record)
            if written is not None:
                await written
        except KafkaError as refusal:
            log.warning("A transaction could not be cleaned up (%s); it will be tried again", refusal.message)

    # Inside

    def _shard(self, transactional_id: str) -> TransactionShard:
        if not transactional_id:
            raise KafkaError(Error.INVALID_REQUEST, "A transactional id must not be empty.")
        return self._runtime.state_of(transactional_id)

    def _go_on(self, shard: TransactionShard, following: Transaction) -> asyncio.Future[None] | None:
        return self._write(shard, TransactionRecord(following.transactional_id, following))

    def _write(self, shard: TransactionShard, record: TransactionRecord) -> asyncio.Future[None] | None:
        """Have a record written; it counts, and what follows from it begins, before anybody is answered. None where it is
        safe; raises KafkaError where it is refused at once."""
        written = self._runtime.write_now(shard.partition, [record])
        if written is None:
            self._follow_up(shard, record)
        else:
            written.add_done_callback(partial(self._written, shard, record))
        return written

    def _written(self, shard: TransactionShard, record: TransactionRecord, done: asyncio.Future[None]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        shard.written(record)
        self._follow_up(shard, record)

    def _follow_up(self, shard: TransactionShard, record: TransactionRecord) -> None:
        """What the log says is carried out; should that fail, the decision stands, and whoever made it is told so."""
        if record.value is not None and record.value.status in PREPARED:
            try:
                self._complete(shard, record.value)
            except Exception:
                log.exception("The end of the transaction of %s was not carried out", record.transactional_id)

    # The end of a transaction: markers to all partitions, then the last word to the log

    def _complete(self, shard: TransactionShard, transaction: Transaction) -> None:
        """At once where all partitions are led here; else, and where something goes wrong, in a task that does not give up."""
        if not self._journal.leads(shard.partition):
            return  # whoever leads now reads in the log what is to be done
        marker = Marker(
            transaction.producer_id,
            transaction.producer_epoch,
            self._journal.epoch(shard.partition),
            transaction.status is Status.PREPARE_COMMIT,
        )
        outcomes = self._send_markers(marker, transaction.partitions)
        if not all_written(outcomes):
            self._complete_later(shard, transaction, marker, outcomes)
            return
        try:
            written = self._go_on(shard, transaction_state.complete(transaction, self._clock.now_ms()))
        except KafkaError as refusal:
            if _may_pass(refusal):
                self._complete_later(shard, transaction, marker, outcomes)
            return
        if written is None:
            return

        def unless_written(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and isinstance(problem := done.exception(), KafkaError) and _may_pass(problem):
                self._complete_later(shard, transaction, marker, outcomes)

        written.add_done_callback(unless_written)

    def _complete_later(
        self,
        shard: TransactionShard,
        transaction: Transaction,
        marker: Marker,
        outcomes: Mapping[TopicPartition, Outcome],
    ) -> None:
        work = self._keep_completing(shard, transaction, marker, outcomes)
        task = self._completions[transaction.transactional_id] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(self._completed, transaction.transactional_id))

    def _completed(self, transactional_id: str, task: asyncio.Task[None]) -> None:
        if self._completions.get(transactional_id) is task:
            del self._completions[transactional_id]
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("The transaction of %s could not be completed", transactional_id, exc_info=problem)

    async def _keep_completing(
        self,
        shard: TransactionShard,
        transaction: Transaction,
        marker: Marker,
        outcomes: Mapping[TopicPartition, Outcome],
    ) -> None:
        try:
            await deliver(marker, outcomes, self._send_markers, self._exists, self._pause)
        except KafkaError as refusal:
            log.warning("The end of the transaction of %s stops here: %s", transaction.transactional_id, refusal.message)
            return
        while True:
            try:
                written = self._go_on(shard, transaction_state.complete(transaction, self._clock.now_ms()))
                if written is not None:
                    await written
            except KafkaError as refusal:
                if not _may_pass(refusal):
                    return
                await self._pause(_RETRY_PAUSE)
            else:
                return

    def _loaded(self, shard: TransactionShard) -> None:
        """What was decided before a restart, or by the coordinator before us, is carried out."""
        for transaction in shard.transactions():
            if transaction.status in PREPARED:
                self._complete(shard, transaction)

    def _retired(self, shard: TransactionShard) -> None:
        for transactional_id in shard.entries:
            completion = self._completions.pop(transactional_id, None)
            if completion is not None:
                completion.cancel()


def _may_pass(refusal: KafkaError) -> bool:
    """Whether trying again helps: not where another broker has taken over."""
    return refusal.error is not Error.NOT_COORDINATOR
