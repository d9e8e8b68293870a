"""Both ends of what brokers say to each other, without the network between: what is meant is what arrives."""

from __future__ import annotations

import asyncio
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.api.faults import Faults
from ottla.api.registry import Registry
from ottla.controller.channels import Stamp, Stop
from ottla.metadata.cache import MetadataCache
from ottla.metadata.image import BrokerImage, Endpoint, Image, MetadataUpdate, PartitionState, TopicImage
from ottla.model import Error, KafkaError, TopicPartition
from ottla.network.control import RemoteChannel
from ottla.network.controller_peer import ControllerPeer
from ottla.network.link import Link
from ottla.network.peer import Peer
from ottla.replication.isr import IsrOutcome, IsrProposal
from unit.api.handler_kit import Calls, FakePeer

STAMP = Stamp(1, 5, 77)
STATE = PartitionState(1, 3, (1, 2), (1, 2, 3), 4, 9, adding=(3,), removing=(2,))
ADDRESS = Endpoint("one", 9091)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPICS = [TopicImage("t", b"t" * 16, {0: STATE, 1: STATE}), TopicImage("u", b"u" * 16, {5: STATE})]


class Loopback:
    """A link to a broker in the same process: frames go right into its registry."""

    closed = False

    def __init__(self, services: SimpleNamespace) -> None:
        made_up: Any = services
        self._registry = Registry(made_up, Faults())

    async def exchange(self, frame: bytes, timeout: float) -> memoryview:
        peer = FakePeer()
        self._registry(peer, memoryview(bytearray(frame))[4:])
        async with asyncio.timeout(timeout):
            await peer.settled.wait()
        return memoryview(peer.answers[0])

    def close(self) -> None: ...


async def known(_epoch: int) -> None:
    """The store knows the controller that speaks."""


def way_to(services: SimpleNamespace, broker: int = 2) -> Peer:
    link = Loopback(services)

    async def dial(host: str, port: int, timeout: float) -> Link:
        return link

    return Peer(broker, lambda _broker: ADDRESS, dial, "1")


def channel_to(replicas: Calls) -> RemoteChannel:
    return RemoteChannel(way_to(SimpleNamespace(replicas=replicas, check_controller=known)), lambda _broker: ADDRESS)


def test_the_controllers_word() -> None:
    async def run() -> None:
        brokers = {1: BrokerImage(1, {"PLAINTEXT": ADDRESS, "OUT": Endpoint("o", 1, "SSL")}, "r"), 2: BrokerImage(2, {})}
        told = PartitionState(1, 3, (1, 2), (1, 2, 3), 4, 9)
        update = MetadataUpdate(1, brokers, [TopicImage("t", b"t" * 16, {0: told})])
        stops = [Stop(T0, 3, False), Stop(T1, -2, True)]
        replicas = Calls(
            leader_and_isr={T1: Error.KAFKA_STORAGE_ERROR}, stop_replicas={T0: Error.FENCED_LEADER_EPOCH}, update_metadata=None
        )
        channel = channel_to(replicas)
        assert await channel.leader_and_isr(STAMP, TOPICS, {1, 2}, {T1}) == {T1: Error.KAFKA_STORAGE_ERROR}
        assert await channel.stop_replicas(STAMP, stops) == {T0: Error.FENCED_LEADER_EPOCH}
        await channel.update_metadata(STAMP, update)
        assert replicas.asked == [
            ("leader_and_isr", STAMP, TOPICS, {1}, {T1}),
            ("stop_replicas", STAMP, stops),
            ("update_metadata", STAMP, update),
        ]

    asyncio.run(run())


@pytest.mark.parametrize("error", [Error.STALE_CONTROLLER_EPOCH, Error.STALE_BROKER_EPOCH])
def test_a_word_that_is_refused(error: Error) -> None:
    refusal = KafkaError(error)
    channel = channel_to(Calls(leader_and_isr=refusal, stop_replicas=refusal, update_metadata=refusal))
    for call in (
        lambda: channel.leader_and_isr(STAMP, TOPICS, {1}, ()),
        lambda: channel.stop_replicas(STAMP, [Stop(T0, 3, False)]),
        lambda: channel.update_metadata(STAMP, MetadataUpdate(1, {})),
    ):
        with pytest.raises(KafkaError) as told:
            asyncio.run(_awaited(call))
        assert told.value.error is error


async def _awaited(call: Any) -> Any:
    return await call()


def test_what_brokers_ask_of_the_controller() -> None:
    async def run() -> None:
        proposals = [
            IsrProposal(T0, b"t" * 16, 3, (1, 2), 8, {1: 11, 2: 22}),
            IsrProposal(TopicPartition("x", 0), b"x" * 16, 1, (1,), 0, {1: 11}),
        ]
        outcome = IsrOutcome(Error.NONE, 1, 3, (1, 2), 9)
        controller = Calls(topic_names={b"t" * 16: "t"}, alter_partitions={T0: outcome}, controlled_shutdown={T0, T1})
        there = SimpleNamespace(controller=controller, metadata=MetadataCache())
        there.metadata.image = Image().with_topics(TOPICS)
        here = MetadataCache()
        here.image = Image(controller_id=2)
        no_controller: Any = None
        peer = ControllerPeer(1, lambda: 11, here, no_controller, lambda broker: way_to(there, broker))
        assert await peer.alter_partitions(proposals) == {T0: outcome, proposals[1].tp: IsrOutcome(Error.UNKNOWN_TOPIC_ID)}
        assert await peer.controlled_shutdown() == {T0, T1}
        assert controller.asked == [
            ("topic_names",),
            ("alter_partitions", 1, 11, proposals[:1]),
            ("controlled_shutdown", 1, 11),
        ]

    asyncio.run(run())


def test_ten_thousand_partitions_go_over_quickly() -> None:
    async def run() -> None:
        topics = [TopicImage(f"t{n}", n.to_bytes(16, "big"), dict.fromkeys(range(100), STATE)) for n in range(100)]
        channel = channel_to(Calls(leader_and_isr={}, update_metadata=None))
        begin = perf_counter()
        await channel.leader_and_isr(STAMP, topics, {1}, ())
        await channel.update_metadata(STAMP, MetadataUpdate(1, {1: BrokerImage(1, {})}, topics))
        took = perf_counter() - begin
        assert took < 4, "a generous bound: both ends of both take about a third of a second"

    asyncio.run(run())
