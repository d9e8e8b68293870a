"""Transactions in a broker of this process: what happens within a few turns of its loop, and at its start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.api import transactions as api
from ottla.api.registry import Context
from ottla.broker import Broker as RealBroker
from ottla.coordinator.transaction_state import ProducerIdentity, Status
from ottla.coordinator.transactions import TransactionCoordinator
from ottla.metrics import RequestCounters
from ottla.model import TopicPartition
from ottla.testing import Broker
from ottla.wire.apis.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.wire.frame import RequestHeader
from support.waiting import wait_for

OFFSETS = TopicPartition("__consumer_offsets", 0)


def on_loop(broker: Broker, work: Callable[[RealBroker], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        return await work(broker._running)

    return broker._call(run())


def context(broker: RealBroker) -> Context:
    """A request of version 3 that came over no connection: these handlers return their answer."""
    nobody: Any = None
    return Context(broker.services, nobody, RequestHeader(0, 3, 1, None), RequestCounters())


def commit(producer: ProducerIdentity, offset: int) -> TxnOffsetCommitRequest:
    row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    return TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=-1,
        member_id="",
        topics=[TxnOffsetCommitRequestTopic(name="in", partitions=[row])],
    )


@pytest.mark.parametrize("turns", range(6))
def test_offsets_never_land_behind_the_marker_of_their_transaction(turns: int) -> None:
    """A commit of offsets that comes some turns of the loop after the end, over another connection."""

    async def story(broker: RealBroker) -> None:
        services = broker.services
        await services.transactions.partition_of("x")
        await services.groups.partition_of("g")
        producer = await services.transactions.init_producer("x", 60_000, None)
        added = services.transactions.add_partitions("x", producer, frozenset({OFFSETS}))
        if added is not None:
            await added
        first = await api.txn_offset_commit(context(broker), commit(producer, 5))
        assert first.topics[0].partitions[0].error_code == 0
        ended = services.transactions.end("x", producer, commit=False)
        for _ in range(turns):
            await asyncio.sleep(0)
        late = await api.txn_offset_commit(context(broker), commit(producer, 7))
        if ended is not None:
            await ended
        while services.transactions.describe("x").status is not Status.COMPLETE_ABORT:  # noqa: ASYNC110 - a few turns
            await asyncio.sleep(0)
        log = services.replicas.partitions[OFFSETS].log
        assert log.last_stable_offset == log.high_watermark, f"a transaction hangs; the late commit got {late}"
        assert await services.groups.committed("g", stable=True) == {}

    with Broker({"offsets.topic.num.partitions": 1}) as broker:
        broker.create_topic("in")
        on_loop(broker, story)


def test_a_decided_transaction_gets_its_markers_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a broker starts, its partitions come one by one: one that is not there yet is not gone."""
    settings = {"transaction.state.log.num.partitions": 1}
    with Broker(settings, directory=tmp_path) as broker:
        for number in range(60):
            broker.create_topic(f"t{number}")
        broker.create_topic("zz")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x", "log_level": 0})
        producer.init_transactions(20)
        with monkeypatch.context() as patched:  # the broker dies after the decision, before the markers
            patched.setattr(TransactionCoordinator, "_complete", lambda *_args: None)
            producer.begin_transaction()
            producer.produce("zz", b"decided")
            producer.commit_transaction(20)
    with Broker(settings, directory=tmp_path) as broker:

        async def status(real: RealBroker) -> Status:
            return real.services.transactions.describe("x").status

        on_loop(broker, lambda real: real.services.transactions.partition_of("x"))
        wait_for(lambda: on_loop(broker, status) is Status.COMPLETE_COMMIT, "the transaction is complete")
        log = broker.run_on_loop(lambda real: real.services.replicas.partitions["zz", 0].log)
        assert (log.last_stable_offset, log.high_watermark) == (2, 2)
