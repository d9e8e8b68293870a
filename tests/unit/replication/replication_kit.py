"""Brokers of a cluster in one process, as replication sees them: real logs, roles given by the test, leaders asked directly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ottla.clock import ManualClock
from ottla.controller.channels import Stamp
from ottla.metadata.cache import MetadataCache
from ottla.metadata.image import PartitionState, TopicImage
from ottla.model import BrokerUnavailable, Error, KafkaError, TopicPartition
from ottla.records.batch import Record, build
from ottla.replication.fetcher import Fetcher, FetcherSettings
from ottla.replication.isr import IsrProposal, LastAsked
from ottla.replication.leaders import EpochEnd, Fetched, Position, SessionLost
from ottla.replication.partition import ACKS_ALL, Partition, Surroundings
from ottla.replication.replicas import Replicas
from ottla.storage.log_config import LogConfig
from ottla.storage.manager import LogManager
from unit.storage.storage_kit import records

TP = TopicPartition("t", 0)
TOPIC_ID = b"t".ljust(16, b".")
NOW = 1_700_000_000_000


def batch(*values: bytes) -> memoryview:
    return memoryview(bytearray(build([Record(n, NOW, None, value) for n, value in enumerate(values)])))


def state(
    leader: int,
    epoch: int,
    isr: tuple[int, ...],
    replicas: tuple[int, ...] | None = None,
    version: int = 0,
) -> PartitionState:
    return PartitionState(leader, epoch, isr, replicas or isr, version=version)


def topic(states: Mapping[int, PartitionState], name: str = "t") -> TopicImage:
    return TopicImage(name, name.encode().ljust(16, b"."), states)


async def at_once(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class FakeTimer:
    """Timers that go off when the test says so."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        self.set.append((delay, callback))
        return self

    def cancel(self) -> None: ...

    def fire(self) -> None:
        due, self.set = self.set, []
        for _, callback in due:
            callback()


class Node:
    """One broker: its logs, its partitions, and what its leaders propose."""

    def __init__(self, root: Path, broker_id: int, clock: ManualClock | None = None, config: LogConfig | None = None) -> None:
        self.id = broker_id
        self.path = str(root / f"broker-{broker_id}")
        self.clock = clock or ManualClock(NOW)
        self.config = config or LogConfig()
        self.proposals: list[tuple[Partition, IsrProposal]] = []
        self.dead: set[int] = set()
        self.timer = FakeTimer()
        self.start()

    def start(self) -> None:
        self.logs = LogManager([self.path], self.clock, broker_id=self.id, cluster_id="c", default_config=self.config)
        self.logs.load()
        for tp, mark in self.logs.read_high_watermarks().items():
            if tp in self.logs.logs:
                self.logs.logs[tp].high_watermark = min(mark, self.logs.logs[tp].log_end_offset)
        self.around = Surroundings(
            monotonic=self.clock.monotonic,
            max_lag=30.0,
            alive=lambda broker: broker not in self.dead,
            broker_epoch=lambda: 100 + self.id,
            propose=lambda partition, proposal: self.proposals.append((partition, proposal)),
        )
        self.replicas = Replicas(self.id, self.logs, MetadataCache(), lambda _topic: self.config, at_once, self.around)

    def crash(self) -> None:
        """As kill -9 would: the high watermarks that were checkpointed are those of the last checkpoint."""
        self.logs.abandon()

    def checkpoint(self) -> None:
        for write in self.logs.high_watermark_writes(self.replicas.high_watermarks()):
            write()

    async def role(self, given: PartitionState, controller_epoch: int = 1) -> Mapping[TopicPartition, Error]:
        return await self.replicas.leader_and_isr(Stamp(1, controller_epoch), [topic({0: given})], (1, 2, 3), ())

    @property
    def partition(self) -> Partition:
        return self.replicas.get(*TP)

    def produce(self, *values: bytes, acks: int = ACKS_ALL) -> int:
        """Append; the offset of the last record."""
        info = self.partition.append(batch(*values), acks, 9)
        self.partition.wake()
        return info.last_offset

    @property
    def marks(self) -> tuple[int, int]:
        """(high watermark, log end offset)."""
        return self.partition.log.high_watermark, self.partition.log.log_end_offset

    @property
    def values(self) -> list[bytes | None]:
        return [one.value for one in records(self.partition.log)]


class DirectLeader:
    """A leader that a follower asks without a socket. It can be away, forget its session, and lie."""

    def __init__(self, node: Node, follower: Node, max_bytes: int = 1 << 20) -> None:
        self.node = node
        self.follower = follower
        self.max_bytes = max_bytes
        self.session: dict[TopicPartition, Position] | None = None
        self.away = False
        self.lose_session = False
        self.spoil: Callable[[Fetched], Fetched] = lambda one: one
        self.asked: list[tuple[Mapping[TopicPartition, Position], Collection[tuple[TopicPartition, bytes]]]] = []
        self.questions: list[str] = []
        self.between: Callable[[], Awaitable[None]] | None = None

    async def fetch(
        self, changed: Mapping[TopicPartition, Position], gone: Collection[tuple[TopicPartition, bytes]]
    ) -> list[Fetched]:
        self.asked.append((dict(changed), tuple(gone)))
        if self.away:
            self.session = None
            raise BrokerUnavailable("nobody there", refused=True)
        if self.lose_session:
            self.lose_session = False
            self.session = None
            raise SessionLost
        if self.session is None:
            self.session = {}
        self.session.update(changed)
        for tp, _ in gone:
            self.session.pop(tp, None)
        answers = [self._read(tp, position) for tp, position in self.session.items()]
        if self.between is not None:
            await self.between()
        return [self.spoil(one) for one in answers]

    def _read(self, tp: TopicPartition, position: Position) -> Fetched:
        try:
            partition = self.node.replicas.get(*tp)
            parted = partition.follower_asks(
                self.follower.id,
                position.offset,
                position.log_start_offset,
                position.current_leader_epoch,
                position.last_fetched_epoch,
                LastAsked(self.node.clock.monotonic(), self.follower.around.broker_epoch()),
            )
            if partition.news:
                partition.wake()
            log = partition.log
            region = None
            if parted is None:
                region = log.read(position.offset, self.max_bytes, log.log_end_offset, True)
        except KafkaError as problem:
            return Fetched(tp, problem.error, -1, -1, b"")
        data = memoryview(bytearray(region.read())) if region is not None else b""
        return Fetched(tp, Error.NONE, log.high_watermark, log.log_start_offset, data, parted)

    async def epoch_ends(self, asked: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, EpochEnd | Error]:
        self.questions.append("epoch_ends")
        found: dict[TopicPartition, EpochEnd | Error] = {}
        for tp, (current, epoch) in asked.items():
            partition = self.node.replicas.get(*tp)
            partition.check_leader(current)
            found[tp] = partition.epoch_end(epoch)
        return found

    async def earliest(self, tp: TopicPartition, current_leader_epoch: int) -> EpochEnd:
        self.questions.append("earliest")
        log = self.node.replicas.get(*tp).log
        return EpochEnd(log.leader_epochs.epoch_for(log.log_start_offset), log.log_start_offset)

    async def latest(self, tp: TopicPartition, current_leader_epoch: int) -> EpochEnd:
        self.questions.append("latest")
        partition = self.node.replicas.get(*tp)
        partition.check_leader(current_leader_epoch)
        return EpochEnd(partition.leader_epoch, partition.log.log_end_offset)

    def close(self) -> None:
        self.session = None


def follow(leader: Node, follower: Node, kind: type[Fetcher] = Fetcher) -> tuple[Fetcher, DirectLeader]:
    """A fetcher of all that `follower` follows, which moves when the test calls `fetch_once`."""
    source = DirectLeader(leader, follower)
    fetcher = kind(leader.id, source, FetcherSettings(backoff=0.0), follower.timer, follower.replicas.look_after)
    fetcher.follow(one for one in follower.replicas.partitions.values() if not one.is_leader)
    return fetcher, source
