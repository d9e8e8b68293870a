"""A transactional producer of the simulation: transactions over several partitions, ended one way or the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ottla.model import BrokerUnavailable, Error, TopicPartition
from ottla.testing.sim.clients import PASSING, Producing, error_of
from ottla.testing.sim.history import Attempted, Refused, TransactionEnded, TransactionEnding
from ottla.wire.apis.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)

_TRANSACTION = 1
_ADD_VERSION = 3  # the last one that clients use

_NOT_OURS = frozenset({Error.PRODUCER_FENCED, Error.INVALID_PRODUCER_EPOCH, Error.INVALID_PRODUCER_ID_MAPPING})
"""A newer producer, or the coordinator after a time-out, took the transactional id."""


class TransactionalProducer(Producing):
    """One transactional id. A transaction that fails is aborted by the next `init_producer`."""

    async def transact(self, partitions: Sequence[TopicPartition], until: float, every: float) -> None:
        """One transaction after the other until a time has come."""
        self.transactional_id = self.name
        number = 0
        await self._init()
        while self.now < until:
            number += 1
            width = self.random.randint(1, min(3, len(partitions)))
            chosen = sorted(self.random.sample(list(partitions), width))
            if not await self._transaction(f"{self.name}/{number}", chosen):
                await self._init()
            await asyncio.sleep(self.random.expovariate(1 / every))

    async def _init(self) -> None:
        error = await self.init_producer()
        if error is not Error.NONE:
            self.note(Refused(self.now, self.name, None, f"InitProducerId: {error.name}"))

    async def _transaction(self, name: str, partitions: Sequence[TopicPartition]) -> bool:
        """One transaction; whether the next one may begin without a new epoch."""
        if not await self._enter(partitions):
            return False
        work = []
        for tp in partitions:
            batches = [self.batch(tp, self.random.randint(1, 3)) for _ in range(self.random.choice((1, 1, 2)))]
            for batch in batches:
                self.note(Attempted(self.now, self.name, tp, batch.values, name))
            work.append(self.cluster.loop.create_task(self.deliver(tp, batches), context=self.process.context))
        delivered = await asyncio.gather(*work)
        if any(outcome is not Error.NONE for outcome in delivered):
            return False
        if self.random.random() < 0.05:
            return False  # left open, as by a producer that died: the next epoch ends it
        await asyncio.sleep(self.random.expovariate(1 / 0.05))
        return await self._end(name, commit=self.random.random() < 0.7)

    async def _enter(self, partitions: Sequence[TopicPartition]) -> bool:
        topics: dict[str, list[int]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=parts) for topic, parts in topics.items()],
        )
        while True:
            coordinator = await self.transaction_coordinator(self.name)
            try:
                answer = await self.ask(coordinator, request, AddPartitionsToTxnResponse, _ADD_VERSION)
            except BrokerUnavailable:
                errors = {Error.NETWORK_EXCEPTION}
            else:
                results = [one for topic in answer.results_by_topic_v3_and_below for one in topic.results_by_partition]
                errors = {error_of(one.partition_error_code) for one in results} - {Error.NONE, Error.OPERATION_NOT_ATTEMPTED}
                if not errors:
                    return True
            if not errors <= PASSING:
                return False
            if errors != {Error.CONCURRENT_TRANSACTIONS}:
                self.forget_coordinator(self.name, _TRANSACTION)
            await self.back_off()

    async def _end(self, name: str, *, commit: bool) -> bool:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=commit,
        )
        self.note(TransactionEnding(self.now, self.name, name, commit))
        while True:
            coordinator = await self.transaction_coordinator(self.name)
            try:
                error = error_of((await self.ask(coordinator, request, EndTxnResponse)).error_code)
            except BrokerUnavailable:
                error = Error.NETWORK_EXCEPTION
            if error is Error.NONE:
                self.note(TransactionEnded(self.now, self.name, name, commit))
                return True
            if error in _NOT_OURS:
                return False
            if error not in PASSING:
                self.note(Refused(self.now, self.name, None, f"EndTxn: {error.name}"))
                return False
            if error is not Error.CONCURRENT_TRANSACTIONS:
                self.forget_coordinator(self.name, _TRANSACTION)
            await self.back_off()
