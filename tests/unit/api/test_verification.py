"""Transactional writes whose coordinator is another broker: asked first, written then, and not at all if a marker came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.api.faults import Faults
from ottla.api.registry import Registry
from ottla.clock import ManualClock
from ottla.coordinator.groups import GroupCoordinator
from ottla.coordinator.guards import Guards
from ottla.coordinator.hashing import partition_for
from ottla.coordinator.settings import GroupSettings, TransactionSettings
from ottla.coordinator.transaction_state import ProducerIdentity
from ottla.coordinator.transactions import TransactionCoordinator
from ottla.metadata.image import BrokerImage, Image, PartitionState, TopicImage
from ottla.model import Error, TopicPartition
from ottla.records.batch import MAGIC_AT, TRANSACTIONAL_BIT, split
from ottla.records.plain import plain_batch
from ottla.replication.partition import Partition
from ottla.storage.manager import LogManager
from ottla.storage.producers import Producer
from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.apis.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.wire.frame import decode_response, encode_request
from unit.api.handler_kit import FakePeer
from unit.coordinator.consumer_kit import Topics
from unit.coordinator.coordinator_kit import ManualHandle, MemoryJournal

INTERNAL_PARTITIONS = 50
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OFFSETS = TopicPartition("__consumer_offsets", partition_for("g", INTERNAL_PARTITIONS))
PRODUCER = ProducerIdentity(9, 2)


class Scene:
    """Broker 1 of two; the coordinator is broker 2, which answers when the test says so."""

    def __init__(self, logs: LogManager, coordinator: int = 2) -> None:
        self.asked: list[tuple[int, str, ProducerIdentity, list[TopicPartition]]] = []
        self.word: dict[TopicPartition, Error] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.partitions = {tp: Partition(1, tp, logs.create(tp), PartitionState(1, 3, (1,), (1,))) for tp in (T0, T1, OFFSETS)}
        self.guards = Guards()
        self.offsets = MemoryJournal(INTERNAL_PARTITIONS)
        self.groups = GroupCoordinator(
            GroupSettings(), ManualClock(), self.offsets, _timer, topics=Topics(t=1), offload=self._offload
        )
        journal = MemoryJournal(INTERNAL_PARTITIONS)
        journal.leading = coordinator == 1
        self.transactions = TransactionCoordinator(
            TransactionSettings(),
            ManualClock(),
            journal,
            _timer,
            new_producer_id=self._new_producer_id,
            send_markers=lambda _marker, partitions: dict.fromkeys(partitions, Error.NONE),
            exists=lambda _partition: True,
            offload=self._offload,
        )
        brokers = {1: BrokerImage(1, {}), 2: BrokerImage(2, {})}
        states = {partition_for("alice", INTERNAL_PARTITIONS): PartitionState(coordinator, 0, (2,), (2,))}
        data = {0: PartitionState(1, 0, (1,), (1,))}
        image = Image(brokers=brokers).with_topics(
            [TopicImage("__transaction_state", b"s" * 16, states), TopicImage("t", b"t" * 16, data)]
        )
        self.flags = True
        services: Any = SimpleNamespace(
            broker_id=1,
            metadata=SimpleNamespace(image=image),
            config=SimpleNamespace(flag=lambda _name: self.flags),
            replicas=SimpleNamespace(
                partitions=self.partitions,
                counters={},
                get=lambda *tp: self.partitions[TopicPartition(*tp)],
                check_leads=lambda *tp: self.partitions[TopicPartition(*tp)].check_leader(),
            ),
            transactions=self.transactions,
            groups=self.groups,
            guards=self.guards,
            verify_elsewhere=self._verify_elsewhere,
            spawn=asyncio.ensure_future,
        )
        self.registry = Registry(services, Faults())
        self.peer = FakePeer()

    async def _verify_elsewhere(
        self, broker: int, transactional_id: str, producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Error]:
        self.asked.append((broker, transactional_id, producer, sorted(partitions)))
        await self.may_answer.wait()
        return {tp: self.word.get(tp, Error.NONE) for tp in partitions}

    async def _new_producer_id(self) -> int:
        return PRODUCER.producer_id

    @staticmethod
    async def _offload(work: Callable[[], None]) -> None:
        work()

    async def begin(self, *partitions: TopicPartition) -> None:
        """The producer's transaction, with the coordinator on this broker."""
        await self.transactions.partition_of("alice")
        for epoch in range(PRODUCER.epoch + 1):
            assert await self.transactions.init_producer("alice", 60_000, None) == (PRODUCER.producer_id, epoch)
        assert self.transactions.add_partitions("alice", PRODUCER, frozenset(partitions)) is None

    def open(self, tp: TopicPartition) -> None:
        """The producer's transaction has records in a partition already."""
        producer = Producer(*PRODUCER)
        producer.transaction_start = 0
        self.partitions[tp].log.producers.add(producer)

    def appended(self, tp: TopicPartition) -> list[bytes]:
        """The batches of a partition, without what its leader writes into them."""
        region = self.partitions[tp].read(0, 1 << 20, 0, -1, min_one=True)
        data = region.read() if region is not None else b""
        return [data[position + MAGIC_AT : position + header.size] for position, header in split(data)]

    @property
    def committed_offsets(self) -> int:
        return len(self.offsets.rows())

    @staticmethod
    async def settle() -> None:
        """Let everything happen that can."""
        for _ in range(30):
            await asyncio.sleep(0)

    def send(self, request: Any, version: int) -> bytearray:
        """The frame's memory, which belongs to the connection again when the call returns."""
        frame = bytearray(encode_request(request, version, 7, "test")[4:])
        self.registry(self.peer, memoryview(frame))
        return frame

    async def answer(self, response: Any, version: int) -> Any:
        async with asyncio.timeout(10):
            await self.peer.settled.wait()
        return decode_response(response, self.peer.answers[-1], version)[1]

    async def errors(self, version: int = 11) -> dict[TopicPartition, int]:
        response = await self.answer(ProduceResponse, version)
        return {
            TopicPartition(topic.name, one.index): one.error_code
            for topic in response.responses
            for one in topic.partition_responses
        }

    def marker_comes(self, tp: TopicPartition) -> None:
        self.guards.marker_came(tp, PRODUCER.producer_id)


def _timer(delay: float, callback: Callable[[], None]) -> ManualHandle:
    return ManualHandle(delay, 0, callback)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    manager = LogManager([str(tmp_path)], ManualClock(), broker_id=1, cluster_id="c")
    manager.load()
    yield manager
    manager.abandon()


def batch(sequence: int = 0) -> bytes:
    return bytes(
        plain_batch(
            [(b"k", b"v")],
            0,
            producer_id=PRODUCER.producer_id,
            producer_epoch=PRODUCER.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_BIT,
        )
    )


def produce(*partitions: TopicPartition, acks: int = 1, sequence: int = 0) -> ProduceRequest:
    data = [PartitionProduceData(index=tp.partition, records=memoryview(batch(sequence))) for tp in partitions]
    return ProduceRequest(
        transactional_id="alice", acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )


def test_the_first_write_is_asked_about_and_those_that_follow_are_not(logs: LogManager) -> None:
    async def run() -> None:
        scene = Scene(logs)
        scene.may_answer.clear()
        frame = scene.send(produce(T0, T1), 11)
        frame[:] = bytes(len(frame))  # the connection reads something else into its buffer meanwhile
        await asyncio.sleep(0)
        assert scene.asked == [(2, "alice", PRODUCER, [T0, T1])]
        assert not scene.appended(T0)
        scene.may_answer.set()
        assert await scene.errors() == {T0: Error.NONE, T1: Error.NONE}
        assert scene.appended(T0) == [batch()[MAGIC_AT:]]
        assert len(scene.guards) == 0
        scene.peer = FakePeer()
        scene.send(produce(T0, sequence=1), 11)
        assert scene.peer.answers, "at once"
        assert len(scene.asked) == 1
        assert scene.appended(T0) == [batch()[MAGIC_AT:], batch(1)[MAGIC_AT:]]

    asyncio.run(run())


def test_only_what_is_not_open_is_asked_about(logs: LogManager) -> None:
    async def run() -> None:
        scene = Scene(logs)
        scene.open(T0)
        scene.send(produce(T0, T1), 11)
        assert await scene.errors() == {T0: Error.NONE, T1: Error.NONE}
        assert scene.asked == [(2, "alice", PRODUCER, [T1])]

    asyncio.run(run())


def test_a_marker_between_the_question_and_the_write(logs: LogManager) -> None:
    """The coordinator said yes, then the transaction ended: its markers are in, and the write would never get one."""

    async def run() -> None:
        scene = Scene(logs)
        scene.may_answer.clear()
        scene.send(produce(T0, T1), 11)
        await asyncio.sleep(0)
        scene.marker_comes(T0)
        scene.may_answer.set()
        assert await scene.errors() == {T0: Error.INVALID_TXN_STATE, T1: Error.NONE}
        assert not scene.appended(T0)
        assert len(scene.guards) == 0

    asyncio.run(run())


def test_a_marker_ends_what_was_open_while_another_partition_is_asked_about(logs: LogManager) -> None:
    async def run() -> None:
        scene = Scene(logs)
        scene.open(T0)
        scene.may_answer.clear()
        scene.send(produce(T0, T1), 11)
        await asyncio.sleep(0)
        scene.marker_comes(T0)
        scene.partitions[T0].log.producers.clear()
        scene.may_answer.set()
        assert await scene.errors() == {T0: Error.NOT_ENOUGH_REPLICAS, T1: Error.NONE}, "nobody vouches for it: again"

    asyncio.run(run())


def test_another_leader_in_between(logs: LogManager) -> None:
    async def run() -> None:
        scene = Scene(logs)
        scene.may_answer.clear()
        scene.send(produce(T0), 11)
        await asyncio.sleep(0)
        scene.partitions[T0].become(PartitionState(1, 5, (1,), (1,)))
        scene.may_answer.set()
        assert await scene.errors() == {T0: Error.NOT_LEADER_OR_FOLLOWER}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("word", "version", "told"),
    [
        (Error.TRANSACTION_ABORTABLE, 11, Error.TRANSACTION_ABORTABLE),
        (Error.TRANSACTION_ABORTABLE, 10, Error.INVALID_TXN_STATE),
        (Error.PRODUCER_FENCED, 11, Error.INVALID_PRODUCER_EPOCH),
        (Error.INVALID_PRODUCER_ID_MAPPING, 11, Error.INVALID_PRODUCER_ID_MAPPING),
        (Error.CONCURRENT_TRANSACTIONS, 11, Error.NOT_ENOUGH_REPLICAS),
        (Error.NETWORK_EXCEPTION, 11, Error.NOT_ENOUGH_REPLICAS),
        (Error.NOT_COORDINATOR, 11, Error.NOT_ENOUGH_REPLICAS),
    ],
)
def test_what_the_coordinator_says(logs: LogManager, word: Error, version: int, told: Error) -> None:
    async def run() -> None:
        scene = Scene(logs)
        scene.word[T0] = word
        scene.send(produce(T0, T1), version)
        assert await scene.errors(version) == {T0: told, T1: Error.NONE}
        assert not scene.appended(T0)

    asyncio.run(run())


@pytest.mark.parametrize("coordinator", [-1, 3])
def test_no_coordinator_now(logs: LogManager, coordinator: int) -> None:
    async def run() -> None:
        scene = Scene(logs, coordinator)
        scene.send(produce(T0), 11)
        assert await scene.errors() == {T0: Error.NOT_ENOUGH_REPLICAS}
        assert scene.asked == []

    asyncio.run(run())


def test_without_an_answer_a_refusal_is_a_hang_up(logs: LogManager) -> None:
    async def run() -> None:
        scene = Scene(logs)
        scene.word[T0] = Error.INVALID_PRODUCER_ID_MAPPING
        scene.send(produce(T0, acks=0), 11)
        await scene.peer.settled.wait()
        assert scene.peer.closed

    asyncio.run(run())


def test_a_coordinator_on_this_broker_is_asked_in_the_same_step(logs: LogManager) -> None:
    async def run() -> None:
        scene = Scene(logs, coordinator=1)
        await scene.begin(T0)
        scene.send(produce(T0, T1), 11)
        assert scene.peer.answers
        assert await scene.errors() == {T0: Error.NONE, T1: Error.TRANSACTION_ABORTABLE}, "both were looked up"
        assert scene.asked == []

    asyncio.run(run())


def test_verification_can_be_switched_off(logs: LogManager) -> None:
    async def run() -> None:
        scene = Scene(logs)
        scene.flags = False
        scene.send(produce(T0), 11)
        assert await scene.errors() == {T0: Error.NONE}
        assert scene.asked == []

    asyncio.run(run())


# Offsets


def commit() -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    return TxnOffsetCommitRequest(
        transactional_id="alice",
        group_id="g",
        producer_id=PRODUCER.producer_id,
        producer_epoch=PRODUCER.epoch,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
    )


@pytest.mark.parametrize(
    ("marker", "leads", "word", "told"),
    [
        (False, True, Error.NONE, Error.NONE),
        (True, True, Error.NONE, Error.INVALID_TXN_STATE),
        (False, True, Error.TRANSACTION_ABORTABLE, Error.TRANSACTION_ABORTABLE),
        (False, True, Error.NETWORK_EXCEPTION, Error.COORDINATOR_NOT_AVAILABLE),
        (False, False, Error.NONE, Error.NOT_COORDINATOR),
    ],
)
def test_offsets_in_a_transaction(logs: LogManager, marker: bool, leads: bool, word: Error, told: Error) -> None:
    async def run() -> None:
        scene = Scene(logs)
        if not leads:
            scene.partitions[OFFSETS].become(PartitionState(2, 4, (2,), (1, 2)))
        scene.word[OFFSETS] = word
        scene.may_answer.clear()
        scene.send(commit(), 4)
        await scene.settle()
        assert scene.asked == ([(2, "alice", PRODUCER, [OFFSETS])] if leads else [])
        if marker:
            scene.marker_comes(OFFSETS)
        scene.may_answer.set()
        response = await scene.answer(TxnOffsetCommitResponse, 4)
        assert [one.error_code for topic in response.topics for one in topic.partitions] == [told]
        assert scene.committed_offsets == (1 if told is Error.NONE else 0)
        assert len(scene.guards) == 0

    asyncio.run(run())
