"""The ends of transactions go to whoever leads each partition now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.clock import ManualClock
from ottla.coordinator.groups import GroupCoordinator
from ottla.coordinator.guards import Guards
from ottla.coordinator.markers import Marker, all_written, deliver, settled
from ottla.coordinator.settings import GroupSettings
from ottla.markers import LocalMarkers, RemoteMarkers
from ottla.metadata.cache import MetadataCache
from ottla.metadata.image import BrokerImage, Image, PartitionState, TopicImage
from ottla.model import Error, KafkaError, TopicPartition
from ottla.replication.partition import Partition
from ottla.storage.manager import LogManager
from unit.coordinator.consumer_kit import Topics
from unit.coordinator.coordinator_kit import ManualHandle, MemoryJournal

HERE, THERE, NOWHERE, GONE = (TopicPartition("t", number) for number in range(4))
MARKER = Marker(9, 2, 3, True)


class FakeLocal:
    def __init__(self) -> None:
        self.asked: list[list[TopicPartition]] = []

    def write(self, _marker: Marker, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Error]:
        self.asked.append(list(partitions))
        return dict.fromkeys(partitions, Error.NONE)


class FakeSender:
    def __init__(self) -> None:
        self.asked: list[tuple[int, list[TopicPartition]]] = []
        self.refusals: list[Error] = []

    async def send(
        self, broker: int, _marker: Marker, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Error]:
        self.asked.append((broker, list(partitions)))
        await asyncio.sleep(0)
        return dict.fromkeys(partitions, self.refusals.pop(0) if self.refusals else Error.NONE)


class Scene:
    """Broker 1 leads the first partition, broker 2 the second, nobody that lives the third."""

    def __init__(self, logs: LogManager) -> None:
        self.local = FakeLocal()
        self.sender: Any = FakeSender()
        self.metadata = MetadataCache()
        led = Partition(1, HERE, logs.create(HERE), PartitionState(1, 0, (1,), (1,)))
        self.replicas: Any = SimpleNamespace(partitions={HERE: led})
        self.tell({0: 1, 1: 2, 2: 3})
        self.markers = RemoteMarkers(1, self.local.write, self.replicas, self.metadata, self.sender)

    def tell(self, leaders: Mapping[int, int]) -> None:
        states = {number: PartitionState(leader, 0, (leader,), (leader,)) for number, leader in leaders.items()}
        image = Image(brokers={1: BrokerImage(1, {}), 2: BrokerImage(2, {})})
        self.metadata.swap(image.with_topics([TopicImage("t", b"t" * 16, states)]))


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    manager = LogManager([str(tmp_path)], ManualClock(), broker_id=1, cluster_id="c")
    manager.load()
    yield manager
    manager.abandon()


def test_each_partition_is_asked_of_its_leader(logs: LogManager) -> None:
    async def run() -> None:
        scene = Scene(logs)
        outcomes = scene.markers.write(MARKER, [HERE, THERE, NOWHERE, GONE])
        assert not all_written(outcomes)
        assert await settled(outcomes) == {
            HERE: Error.NONE,
            THERE: Error.NONE,
            NOWHERE: Error.LEADER_NOT_AVAILABLE,
            GONE: Error.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert scene.local.asked == [[HERE]]
        assert scene.sender.asked == [(2, [THERE])]

    asyncio.run(run())


def test_what_is_led_here_needs_nobody_else(logs: LogManager) -> None:
    scene = Scene(logs)
    assert all_written(scene.markers.write(MARKER, [HERE]))  # no loop runs: nothing had to wait


def test_what_we_lead_we_know_before_the_image_says_so(logs: LogManager) -> None:
    scene = Scene(logs)
    scene.tell({0: 2})
    assert all_written(scene.markers.write(MARKER, [HERE]))


def test_a_coordinator_goes_on_until_every_partition_that_exists_has_it(logs: LogManager) -> None:
    async def run() -> None:
        scene = Scene(logs)
        scene.sender.refusals = [Error.NOT_LEADER_OR_FOLLOWER]

        async def pause(_seconds: float) -> None:
            scene.tell({0: 1, 1: 1, 2: 2})  # the second moved here, the third has a leader again

        def exists(tp: TopicPartition) -> bool:
            return scene.metadata.image.has(tp)

        first = scene.markers.write(MARKER, [HERE, THERE, NOWHERE, GONE])
        await deliver(MARKER, first, scene.markers.write, exists, pause)
        assert scene.sender.asked == [(2, [THERE]), (2, [NOWHERE])]
        assert scene.local.asked == [[HERE], [THERE]]

    asyncio.run(run())


@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (Error.NOT_COORDINATOR, Error.NOT_LEADER_OR_FOLLOWER),
        (Error.COORDINATOR_LOAD_IN_PROGRESS, Error.NOT_LEADER_OR_FOLLOWER),
        (Error.INVALID_PRODUCER_EPOCH, Error.INVALID_PRODUCER_EPOCH),
    ],
)
def test_the_group_coordinator_refuses_in_the_words_of_a_partition(refused: Error, told: Error, later: bool) -> None:
    async def offload(work: Callable[[], None]) -> None:
        work()

    def timer(delay: float, callback: Callable[[], None]) -> ManualHandle:
        return ManualHandle(delay, 0, callback)

    async def run() -> None:
        journal = MemoryJournal()
        groups = GroupCoordinator(GroupSettings(), ManualClock(), journal, timer, topics=Topics(), offload=offload)
        assert await groups.partition_of("g") == 0
        journal.refuse = KafkaError(refused)
        if later:
            journal.gate.clear()
        replicas: Any = SimpleNamespace()
        guards = Guards()
        offsets = TopicPartition("__consumer_offsets", 0)
        guard, other = guards.hold(offsets, 9), guards.hold(offsets, 8)
        outcomes = LocalMarkers(replicas, groups, ManualClock(), timer, guards).write(MARKER, [offsets])
        assert isinstance(outcomes[offsets], Error) is not later
        assert guard.broken, "the transaction is over, whether its marker could be written now or not"
        assert not other.broken
        journal.gate.set()
        assert await settled(outcomes) == {offsets: told}

    asyncio.run(run())
