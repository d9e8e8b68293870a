"""A follower over the wire: a real broker leads, the test follows it with the broker's own fetcher and leader connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker import Broker as RealBroker
from ottla.controller.channels import Stamp
from ottla.metadata.image import Endpoint, PartitionState
from ottla.model import Error, KafkaError
from ottla.network.leader import RemoteLeader, ReplicaFetchSettings
from ottla.network.link import dial
from ottla.network.peer import Peer
from ottla.replication.fetcher import Fetcher, FetcherSettings
from ottla.replication.leaders import EpochEnd
from ottla.testing import Broker
from ottla.wire.apis.metadata import MetadataRequest, MetadataResponse
from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.apis.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.wire.frame import decode_response, encode_request
from unit.replication.replication_kit import Node, batch, topic, wait_until

ME = 2


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t", partitions=2)
        yield running


def share(broker: Broker, epochs: int = 0) -> PartitionState:
    """Make partition 0 one of two replicas, the other of which is the test's."""

    def change(real: RealBroker) -> PartitionState:
        partition = real.services.replicas.get("t", 0)
        replicas = (real.broker_id, ME)
        given = replace(
            partition.state,
            replicas=replicas,
            isr=replicas,
            leader_epoch=partition.state.leader_epoch + epochs,
            version=partition.state.version + 1,
        )
        real.services.replicas.around.alive = lambda _broker: True
        partition.become(given)
        return given

    return broker.run_on_loop(change)


def end_of(broker: Broker) -> tuple[int, int]:
    def look(real: RealBroker) -> tuple[int, int]:
        log = real.services.replicas.get("t", 0).log
        return log.high_watermark, log.log_end_offset

    return broker.run_on_loop(look)


class Follower:
    """The test as broker 2."""

    def __init__(self, broker: Broker, root: Path, wait_ms: int = 200) -> None:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self.broker = broker
        self.node = Node(root, ME)
        self.peer = Peer(1, lambda _id: Endpoint(host, int(port)), dial, "replica")
        self.leader = RemoteLeader(self.peer, ME, lambda: 7, lambda _id: None, ReplicaFetchSettings(wait_max_ms=wait_ms))
        self.fetcher = Fetcher(1, self.leader, FetcherSettings(backoff=0.01), self.node.timer, self.node.replicas.look_after)
        self.topic_id = broker.run_on_loop(lambda real: real.services.replicas.get("t", 0).log.topic_id) or bytes(16)

    async def begin(self, given: PartitionState) -> None:
        image = replace(topic({0: given}), topic_id=self.topic_id)
        await self.node.replicas.leader_and_isr(Stamp(1, 1), [image], (1, 2), ())
        self.fetcher.follow([self.node.partition])


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


def test_what_is_acknowledged_the_follower_has(broker: Broker, tmp_path: Path) -> None:
    given = share(broker)

    async def work() -> None:
        follower = Follower(broker, tmp_path)
        await follower.begin(given)
        fetching = asyncio.ensure_future(follower.fetcher.run())
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "acks": "all"})
        delivered: list[int] = []
        for number in range(200):
            producer.produce("t", b"%d" % number, partition=0, on_delivery=lambda _error, one: delivered.append(one.offset()))
        while len(delivered) < 200:
            await asyncio.to_thread(producer.poll, 0.05)
        assert follower.node.values == [b"%d" % number for number in range(200)]
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition("t", 0, 0)])
        assert len(await asyncio.to_thread(consumer.consume, 200, 10)) == 200
        await asyncio.to_thread(consumer.close)
        await wait_until(lambda: follower.node.marks == (200, 200))
        fetching.cancel()

    run(work)


def test_without_the_follower_nothing_is_acknowledged(broker: Broker, tmp_path: Path) -> None:
    share(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "request.timeout.ms": 300, "message.timeout.ms": 500})
    errors: list[object] = []
    producer.produce("t", b"x", partition=0, on_delivery=lambda error, _one: errors.append(error))
    producer.flush(10)
    assert errors[0] is not None
    assert end_of(broker)[0] == 0


def test_a_fetch_waits_for_what_is_written(broker: Broker, tmp_path: Path) -> None:
    given = share(broker)

    async def work() -> None:
        follower = Follower(broker, tmp_path, wait_ms=20_000)
        await follower.begin(given)
        waiting = asyncio.ensure_future(follower.fetcher.fetch_once())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": 1})
        producer.produce("t", b"x", partition=0)
        await asyncio.to_thread(producer.flush, 10)
        await waiting
        assert follower.node.values == [b"x"]
        assert end_of(broker) == (0, 1)
        waiting = asyncio.ensure_future(follower.fetcher.fetch_once())
        await wait_until(lambda: end_of(broker) == (1, 1))
        assert not waiting.done(), "that more is committed is worth no answer"
        producer.produce("t", b"y", partition=0)
        await asyncio.to_thread(producer.flush, 10)
        await waiting
        assert follower.node.marks == (1, 2)
        left = broker.run_on_loop(lambda real: len(real.services.replicas.get("t", 0).tail_watchers))
        assert left == 1, "its session watches on"

    run(work)


def test_logs_that_part_are_told_apart(broker: Broker, tmp_path: Path) -> None:
    given = share(broker, epochs=1)

    async def work() -> None:
        follower = Follower(broker, tmp_path)
        await follower.begin(given)
        log = follower.node.partition.log
        log.append_as_leader(batch(b"never", b"seen"), given.leader_epoch - 1)
        follower.fetcher.follow([follower.node.partition])
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": 1})
        producer.produce("t", b"x", partition=0)
        await asyncio.to_thread(producer.flush, 10)
        while follower.node.values != [b"x"]:
            await follower.fetcher.fetch_once()

    run(work)


def test_questions_to_the_leader(broker: Broker, tmp_path: Path) -> None:
    given = share(broker, epochs=1)

    async def work() -> None:
        follower = Follower(broker, tmp_path)
        await follower.begin(given)
        tp, epoch = follower.node.partition.tp, given.leader_epoch
        assert await follower.leader.latest(tp, epoch) == EpochEnd(epoch, 0)
        assert (await follower.leader.earliest(tp, epoch)).end_offset == 0
        assert await follower.leader.epoch_ends({tp: (epoch, epoch)}) == {tp: EpochEnd(epoch, 0)}
        assert await follower.leader.epoch_ends({tp: (epoch - 1, epoch)}) == {tp: Error.FENCED_LEADER_EPOCH}
        with pytest.raises(KafkaError) as refusal:
            await follower.leader.latest(tp, epoch + 1)
        assert refusal.value.error is Error.UNKNOWN_LEADER_EPOCH
        follower.leader.close()
        assert await follower.leader.latest(tp, epoch) == EpochEnd(epoch, 0), "it connects again"

    run(work)


def test_a_leader_that_forgot_the_session(broker: Broker, tmp_path: Path) -> None:
    given = share(broker)

    async def work() -> None:
        follower = Follower(broker, tmp_path, wait_ms=10)
        await follower.begin(given)
        await follower.fetcher.fetch_once()
        await follower.fetcher.fetch_once()
        sessions = broker.run_on_loop(lambda real: list(real.services.fetch_sessions._sessions))
        assert len(sessions) == 1
        broker.run_on_loop(lambda real: real.services.fetch_sessions.close(sessions[0]))
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": 1})
        producer.produce("t", b"x", partition=0)
        await asyncio.to_thread(producer.flush, 10)
        for _ in range(2):
            await follower.fetcher.fetch_once()
        assert follower.node.values == [b"x"]

    run(work)


def test_records_are_deleted_when_the_follower_has_deleted_them(broker: Broker, tmp_path: Path) -> None:
    given = share(broker)

    async def work() -> None:
        follower = Follower(broker, tmp_path, wait_ms=20_000)
        await follower.begin(given)
        fetching = asyncio.ensure_future(follower.fetcher.run())
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
        for _ in range(3):
            producer.produce("t", b"x", partition=0)
            await asyncio.to_thread(producer.flush, 10)
        other = Peer(1, follower.peer._address_of, dial, "admin")
        rows = [DeleteRecordsPartition(partition_index=0, offset=2)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=rows)], timeout_ms=10_000)
        response = await other.ask(request, DeleteRecordsResponse)
        [result] = response.topics[0].partitions
        assert (result.error_code, result.low_watermark) == (0, 2)
        assert follower.node.partition.log.log_start_offset == 2
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        rows[0] = DeleteRecordsPartition(partition_index=0, offset=3)
        request.timeout_ms = 100
        response = await other.ask(request, DeleteRecordsResponse)
        [result] = response.topics[0].partitions
        assert (result.error_code, result.low_watermark) == (Error.REQUEST_TIMED_OUT, -1)

    run(work)


def test_a_producer_need_not_wait_for_one_answer_to_have_the_next_request_carried_out(broker: Broker, tmp_path: Path) -> None:
    """Both are written before any follower has either; the answers come when it has, in the order of the requests."""
    given = share(broker)

    async def work() -> None:
        follower = Follower(broker, tmp_path)
        await follower.begin(given)
        host, _, port = broker.bootstrap_servers.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in range(3):
            data = PartitionProduceData(index=0, records=batch(b"%d" % number))
            request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[TopicProduceData(name="t", partition_data=[data])])
            writer.write(encode_request(request, 9, 100 + number, "test"))
        writer.write(encode_request(MetadataRequest(topics=[]), 9, 103, "test"))
        await wait_until(lambda: end_of(broker) == (0, 3))
        waiting = asyncio.ensure_future(reader.readexactly(4))
        fetching = asyncio.ensure_future(follower.fetcher.run())
        for number in range(4):
            size = await waiting
            response = ProduceResponse if number < 3 else MetadataResponse
            correlation, answer = decode_response(response, await reader.readexactly(int.from_bytes(size, "big")), 9)
            assert correlation == 100 + number
            if isinstance(answer, ProduceResponse):
                [result] = answer.responses[0].partition_responses
                assert (result.error_code, result.base_offset) == (0, number)
            if number < 3:
                waiting = asyncio.ensure_future(reader.readexactly(4))
        assert follower.node.values == [b"0", b"1", b"2"]
        writer.close()
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)

    run(work)
