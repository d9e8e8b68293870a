"""What leaves for a broker, in which order, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import pytest

from ottla.controller.channels import Stamp, Stop
from ottla.controller.outbox import Outbox, merged
from ottla.metadata.image import BrokerImage, MetadataUpdate, PartitionState, TopicImage
from ottla.model import BrokerUnavailable, Error, KafkaError, TopicPartition

ONE, TWO = BrokerImage(1, {}, None, 11), BrokerImage(2, {}, None, 12)


def topic(name: str, *partitions: int, epoch: int = 0, topic_id: bytes = b"i" * 16) -> TopicImage:
    return TopicImage(name, topic_id, {number: PartitionState(1, epoch, (1,), (1,)) for number in partitions})


class Recorder:
    """A channel that notes what it is told, and fails as often as a test wants."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        self.stamps: list[Stamp] = []
        self.updates: list[MetadataUpdate] = []
        self.failures: list[Exception] = []
        self.errors: dict[TopicPartition, Error] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def _note(self, stamp: Stamp, what: str, about: object) -> None:
        self.stamps.append(stamp)
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.told.append((what, about))

    async def leader_and_isr(
        self, stamp: Stamp, topics: Sequence[TopicImage], brokers: Collection[int], new: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Error]:
        epochs = {f"{one.name}-{number}": state.leader_epoch for one in topics for number, state in one.partitions.items()}
        await self._note(stamp, "roles", epochs)
        return self.errors

    async def stop_replicas(self, stamp: Stamp, stops: Sequence[Stop]) -> Mapping[TopicPartition, Error]:
        await self._note(stamp, "stop", [str(stop.tp) for stop in stops])
        return self.errors

    async def update_metadata(self, stamp: Stamp, update: MetadataUpdate) -> None:
        self.updates.append(update)
        await self._note(stamp, "metadata", sorted(one.name for one in update.topics))


class Desk:
    """An outbox to broker 1, and to 2 which nobody looks at."""

    def __init__(self) -> None:
        self.channels: dict[int, Recorder] = {1: Recorder(), 2: Recorder()}
        self.deposed = 0
        self.outbox = Outbox(7, 3, self.channels.__getitem__, self._deposed)
        self.outbox.members({1: ONE})

    def _deposed(self) -> None:
        self.deposed += 1
        self.outbox.close()

    @property
    def told(self) -> list[tuple[str, object]]:
        return self.channels[1].told


def story(steps: Callable[[Desk], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(steps(Desk()), 10)

    asyncio.run(run())


def stop(name: str, partition: int = 0) -> Stop:
    return Stop(TopicPartition(name, partition), 0, delete=True)


def test_roles_before_metadata_before_stops() -> None:
    async def steps(desk: Desk) -> None:
        desk.outbox.roles(1, [topic("first", 0)])
        desk.outbox.metadata([topic("first", 0)])
        await desk.outbox.settled(None)
        assert desk.told == [("metadata", ["first"]), ("roles", {"first-0": 0})], "but who comes must know the cluster first"
        desk.told.clear()
        desk.outbox.stop(1, [stop("gone")])
        desk.outbox.metadata([topic("t", 0)])
        desk.outbox.roles(1, [topic("t", 0)])
        await desk.outbox.settled(None)
        assert desk.told == [("roles", {"t-0": 0}), ("metadata", ["t"]), ("stop", ["gone-0"])]
        assert set(desk.channels[1].stamps) == {Stamp(7, 3, 11)}

    story(steps)


def test_what_waits_is_merged() -> None:
    async def steps(desk: Desk) -> None:
        desk.channels[1].gate.clear()
        desk.outbox.metadata([topic("first", 0)])
        await asyncio.sleep(0.01)
        for epoch in range(40):
            desk.outbox.roles(1, [topic("t", epoch % 2, epoch=epoch), topic(f"n{epoch}", 0)])
            desk.outbox.metadata([topic("t", 0, epoch=epoch)])
        desk.channels[1].gate.set()
        await desk.outbox.settled(None)
        assert [what for what, _ in desk.told] == ["metadata", "roles", "metadata"]
        roles = desk.told[1][1]
        assert isinstance(roles, dict)
        assert (roles["t-0"], roles["t-1"], len(roles)) == (38, 39, 42)
        assert desk.channels[1].updates[-1].topics[0].partitions[0].leader_epoch == 39

    story(steps)


def test_a_replica_that_is_stopped_and_wanted_again() -> None:
    async def steps(desk: Desk) -> None:
        desk.outbox.stop(1, [stop("t")])
        desk.outbox.roles(1, [topic("other", 0)])
        desk.outbox.roles(1, [topic("t", 0)])
        desk.outbox.roles(1, [topic("t", 1)])
        await desk.outbox.settled(None)
        assert desk.told == [("roles", {"other-0": 0}), ("stop", ["t-0"]), ("roles", {"t-0": 0, "t-1": 0})]

    story(steps)


def test_all_brokers_get_the_same_update() -> None:
    async def steps(desk: Desk) -> None:
        desk.outbox.members({1: ONE, 2: TWO})
        desk.outbox.metadata([topic("t", 0)])
        await desk.outbox.settled(None)
        assert desk.channels[1].updates[0] is desk.channels[2].updates[0]
        assert set(desk.channels[1].updates[0].brokers) == {1, 2}
        desk.outbox.metadata([topic("t", 0)], to=[2])
        await desk.outbox.settled(None)
        assert (len(desk.channels[1].updates), len(desk.channels[2].updates)) == (1, 2)

    story(steps)


@pytest.mark.parametrize("problem", [BrokerUnavailable("away"), KafkaError(Error.UNKNOWN_SERVER_ERROR), OSError("broken")])
def test_repeated_until_done(problem: Exception) -> None:
    async def steps(desk: Desk) -> None:
        desk.channels[1].failures = [problem, problem]
        desk.outbox.metadata([topic("t", 0)])
        desk.outbox.stop(1, [stop("u")])
        await desk.outbox.settled(None)
        assert desk.told == [("metadata", ["t"]), ("stop", ["u-0"])]

    story(steps)


def test_a_newer_controller_ends_it() -> None:
    async def steps(desk: Desk) -> None:
        desk.channels[1].failures = [KafkaError(Error.STALE_CONTROLLER_EPOCH)]
        desk.outbox.metadata([topic("t", 0)])
        desk.outbox.stop(1, [stop("u")])
        await desk.outbox.settled(None)
        await asyncio.sleep(0.01)
        assert (desk.deposed, desk.told) == (1, [])
        desk.outbox.metadata([topic("t", 0)])
        await desk.outbox.settled(None)
        assert desk.told == []

    story(steps)


def test_word_for_an_earlier_life_is_dropped() -> None:
    async def steps(desk: Desk) -> None:
        desk.channels[1].failures = [KafkaError(Error.STALE_BROKER_EPOCH)]
        desk.outbox.metadata([topic("t", 0)])
        await desk.outbox.settled(None)
        desk.outbox.metadata([topic("u", 0)])
        await desk.outbox.settled(None)
        assert (desk.deposed, desk.told) == (0, [])
        desk.outbox.members({1: BrokerImage(1, {}, None, 20)})
        desk.outbox.metadata([topic("v", 0)])
        await desk.outbox.settled(None)
        assert desk.told == [("metadata", ["v"])]
        assert desk.channels[1].stamps[-1].broker_epoch == 20

    story(steps)


def test_who_is_gone_is_told_nothing_more_and_not_waited_for() -> None:
    async def steps(desk: Desk) -> None:
        desk.channels[1].failures = [BrokerUnavailable("away")] * 1000
        desk.outbox.metadata([topic("t", 0)])
        waiting = asyncio.ensure_future(desk.outbox.settled(None))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        desk.outbox.members({})
        await waiting
        asked = len(desk.channels[1].stamps)
        await asyncio.sleep(0.2)
        assert len(desk.channels[1].stamps) == asked
        await desk.outbox.settled(0.01)

    story(steps)


def test_answers_come_back() -> None:
    async def steps(desk: Desk) -> None:
        refused: list[object] = []
        stopped: list[object] = []
        desk.outbox.roles_refused = lambda broker, errors: refused.append((broker.id, dict(errors)))
        desk.outbox.stopped = lambda broker, stops, errors: stopped.append((broker.id, list(stops), dict(errors)))
        desk.outbox.roles(1, [topic("t", 0)])
        await desk.outbox.settled(None)
        assert refused == []
        desk.channels[1].errors = {TopicPartition("t", 0): Error.KAFKA_STORAGE_ERROR}
        desk.outbox.roles(1, [topic("t", 0)])
        desk.outbox.stop(1, [stop("t", 1)])
        await desk.outbox.settled(None)
        assert refused == [(1, desk.channels[1].errors)]
        assert stopped == [(1, [stop("t", 1)], desk.channels[1].errors)]

    story(steps)


def test_merging_topics() -> None:
    old, new = topic("t", 0, 1), topic("t", 0, topic_id=b"n" * 16)
    assert merged([[old], [new]]) == [new], "another id is another topic"
    assert merged([[old], [topic("t", 1, epoch=4)]])[0].partitions[1].leader_epoch == 4
    assert old == topic("t", 0, 1), "what was put in is left alone"
    assert merged([[old], [topic("u", 0)]]) == [old, topic("u", 0)]
