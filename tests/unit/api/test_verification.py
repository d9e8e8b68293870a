"""Transactional writes whose coordinator is another broker: asked first, written then, and not at all if a marker came."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.api.faults import Faults
from ottla.api.registry import Registry
from ottla.coordinator.groups import Committing
from ottla.coordinator.guards import Guards
from ottla.coordinator.transaction_state import ProducerIdentity
from ottla.metadata.image import BrokerImage, Image, PartitionState, TopicImage
from ottla.model import Error, KafkaError, TopicPartition
from ottla.records.batch import TRANSACTIONAL_BIT
from ottla.records.plain import plain_batch
from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.apis.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.wire.frame import decode_response, encode_request
from unit.api.handler_kit import FakePeer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OFFSETS = TopicPartition("__consumer_offsets", 4)
PRODUCER = ProducerIdentity(9, 2)


class FakePartition:
    """A partition that keeps what is appended; the first record of a producer opens its transaction."""

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.is_leader = True
        self.leader_epoch = 3
        self.watchers: set[Any] = set()
        self.tail_watchers: set[Any] = set()
        self.appended: list[bytes] = []
        self.log = SimpleNamespace(producers=SimpleNamespace(by_id={}))

    def open(self) -> None:
        self.log.producers.by_id[PRODUCER.producer_id] = SimpleNamespace(transaction_start=0, epoch=PRODUCER.epoch)

    def append(self, records: memoryview, acks: int, version: int) -> Any:
        self.appended.append(bytes(records))
        self.open()
        count = len(self.appended)
        return SimpleNamespace(
            first_offset=count - 1, last_offset=count - 1, log_append_time=-1, log_start_offset=0, flush_due=False
        )

    def committed(self, _offset: int) -> bool:
        return True

    def check_leader(self, _epoch: int = -1) -> None:
        if not self.is_leader:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)


class Scene:
    """Broker 1 of two; the coordinator is broker 2, which answers when the test says so."""

    def __init__(self, coordinator: int = 2) -> None:
        self.asked: list[tuple[int, str, ProducerIdentity, list[TopicPartition]]] = []
        self.word: dict[TopicPartition, Error] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.partitions = {tp: FakePartition(tp) for tp in (T0, T1, OFFSETS)}
        self.verified_here: list[TopicPartition] = []
        self.committed_offsets = 0
        self.held_elsewhere: int | None = 6 if coordinator != 1 else None
        self.guards = Guards()
        brokers = {1: BrokerImage(1, {}), 2: BrokerImage(2, {})}
        states = {6: PartitionState(coordinator, 0, (2,), (2,))}
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
            transactions=SimpleNamespace(held_elsewhere=lambda _id: self.held_elsewhere, verify=self._verify_here),
            groups=SimpleNamespace(partition_of=self._partition_of, commit_in_transaction=self._commit),
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

    def _verify_here(self, _id: str, _producer: ProducerIdentity, partition: TopicPartition) -> None:
        self.verified_here.append(partition)
        if self.held_elsewhere is not None:
            raise KafkaError(Error.NOT_COORDINATOR)

    async def _partition_of(self, _group: str) -> int:
        return OFFSETS.partition

    def _commit(self, *_args: Any, **_more: Any) -> Any:
        self.committed_offsets += 1
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return Committing(written, {})

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


def batch(producer: ProducerIdentity = PRODUCER) -> bytes:
    return bytes(
        plain_batch(
            [(b"k", b"v")],
            0,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            attributes=TRANSACTIONAL_BIT,
        )
    )


def produce(*partitions: TopicPartition, acks: int = 1) -> ProduceRequest:
    data = [PartitionProduceData(index=tp.partition, records=memoryview(batch())) for tp in partitions]
    return ProduceRequest(
        transactional_id="alice", acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )


def test_the_first_write_is_asked_about_and_those_that_follow_are_not() -> None:
    async def run() -> None:
        scene = Scene()
        scene.may_answer.clear()
        frame = scene.send(produce(T0, T1), 11)
        frame[:] = bytes(len(frame))  # the connection reads something else into its buffer meanwhile
        await asyncio.sleep(0)
        assert scene.asked == [(2, "alice", PRODUCER, [T0, T1])]
        assert not scene.partitions[T0].appended
        scene.may_answer.set()
        assert await scene.errors() == {T0: Error.NONE, T1: Error.NONE}
        assert scene.partitions[T0].appended == [batch()]
        assert len(scene.guards) == 0
        scene.peer = FakePeer()
        scene.send(produce(T0), 11)
        assert scene.peer.answers, "at once"
        assert len(scene.asked) == 1

    asyncio.run(run())


def test_only_what_is_not_open_is_asked_about() -> None:
    async def run() -> None:
        scene = Scene()
        scene.partitions[T0].open()
        scene.send(produce(T0, T1), 11)
        assert await scene.errors() == {T0: Error.NONE, T1: Error.NONE}
        assert scene.asked == [(2, "alice", PRODUCER, [T1])]

    asyncio.run(run())


def test_a_marker_between_the_question_and_the_write() -> None:
    """The coordinator said yes, then the transaction ended: its markers are in, and the write would never get one."""

    async def run() -> None:
        scene = Scene()
        scene.may_answer.clear()
        scene.send(produce(T0, T1), 11)
        await asyncio.sleep(0)
        scene.marker_comes(T0)
        scene.may_answer.set()
        assert await scene.errors() == {T0: Error.INVALID_TXN_STATE, T1: Error.NONE}
        assert not scene.partitions[T0].appended
        assert len(scene.guards) == 0

    asyncio.run(run())


def test_a_marker_ends_what_was_open_while_another_partition_is_asked_about() -> None:
    async def run() -> None:
        scene = Scene()
        scene.partitions[T0].open()
        scene.may_answer.clear()
        scene.send(produce(T0, T1), 11)
        await asyncio.sleep(0)
        scene.marker_comes(T0)
        scene.partitions[T0].log.producers.by_id.clear()
        scene.may_answer.set()
        assert await scene.errors() == {T0: Error.NOT_ENOUGH_REPLICAS, T1: Error.NONE}, "nobody vouches for it: again"

    asyncio.run(run())


def test_another_leader_in_between() -> None:
    async def run() -> None:
        scene = Scene()
        scene.may_answer.clear()
        scene.send(produce(T0), 11)
        await asyncio.sleep(0)
        scene.partitions[T0].leader_epoch += 2
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
def test_what_the_coordinator_says(word: Error, version: int, told: Error) -> None:
    async def run() -> None:
        scene = Scene()
        scene.word[T0] = word
        scene.send(produce(T0, T1), version)
        assert await scene.errors(version) == {T0: told, T1: Error.NONE}
        assert not scene.partitions[T0].appended

    asyncio.run(run())


@pytest.mark.parametrize("coordinator", [-1, 3])
def test_no_coordinator_now(coordinator: int) -> None:
    async def run() -> None:
        scene = Scene(coordinator)
        scene.send(produce(T0), 11)
        assert await scene.errors() == {T0: Error.NOT_ENOUGH_REPLICAS}
        assert scene.asked == []

    asyncio.run(run())


def test_without_an_answer_a_refusal_is_a_hang_up() -> None:
    async def run() -> None:
        scene = Scene()
        scene.word[T0] = Error.INVALID_PRODUCER_ID_MAPPING
        scene.send(produce(T0, acks=0), 11)
        await scene.peer.settled.wait()
        assert scene.peer.closed

    asyncio.run(run())


def test_a_coordinator_on_this_broker_is_asked_in_the_same_step() -> None:
    async def run() -> None:
        scene = Scene(coordinator=1)
        scene.send(produce(T0), 11)
        assert scene.peer.answers
        assert scene.verified_here == [T0]
        assert scene.asked == []

    asyncio.run(run())


def test_verification_can_be_switched_off() -> None:
    async def run() -> None:
        scene = Scene()
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
def test_offsets_in_a_transaction(marker: bool, leads: bool, word: Error, told: Error) -> None:
    async def run() -> None:
        scene = Scene()
        scene.partitions[OFFSETS].is_leader = leads
        scene.word[OFFSETS] = word
        scene.may_answer.clear()
        scene.send(commit(), 4)
        for _ in range(5):
            await asyncio.sleep(0)
        assert scene.asked == ([(2, "alice", PRODUCER, [OFFSETS])] if leads else [])
        if marker:
            scene.marker_comes(OFFSETS)
        scene.may_answer.set()
        response = await scene.answer(TxnOffsetCommitResponse, 4)
        assert [one.error_code for topic in response.topics for one in topic.partitions] == [told]
        assert scene.committed_offsets == (1 if told is Error.NONE else 0)
        assert len(scene.guards) == 0

    asyncio.run(run())
