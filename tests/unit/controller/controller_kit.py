"""Controllers and brokers that only listen, over stores in memory: no socket, no file, and time is short."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ottla.clock import ManualClock
from ottla.controller.channels import Stamp, Stop
from ottla.controller.controller import Controller, NewTopic
from ottla.metadata import znodes
from ottla.metadata.image import Image, MetadataUpdate, PartitionState, TopicImage
from ottla.metadata.memory import MemoryStore, SharedTree
from ottla.metadata.store import Create, Operation, Set, StoreUnavailable
from ottla.metadata.znodes import BrokerNode, PartitionStateNode, TopicNode
from ottla.model import BrokerUnavailable, Error, KafkaError, TopicPartition
from ottla.replication.isr import IsrOutcome, IsrProposal

PATIENCE = 0.05


async def inline(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


async def until(condition: Callable[[], bool], timeout: float = 5.0) -> None:
    """Wait for something that is about to happen."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def broker_node(broker_id: int, rack: str | None = None) -> BrokerNode:
    return BrokerNode(broker_id, (f"PLAINTEXT://h{broker_id}:9092",), {"PLAINTEXT": "PLAINTEXT"}, 0, rack)


@dataclass
class Listener:
    """A broker that does what it is told, remembers it, and refuses what is old."""

    id: int
    log: list[tuple[Any, ...]] = field(default_factory=list)
    epoch: int = -1
    controller_epoch: int = 0
    image: Image = field(default_factory=Image)
    roles: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    data: set[TopicPartition] = field(default_factory=set)
    new: set[TopicPartition] = field(default_factory=set)
    failed_disk: set[TopicPartition] = field(default_factory=set)
    away: bool = False
    dies_in: str = ""
    hang: asyncio.Event | None = None

    async def _told(self, what: str, stamp: Stamp, *rest: Any) -> None:
        if self.hang is not None:
            await self.hang.wait()
        if self.away or self.dies_in == what:
            raise BrokerUnavailable(f"Broker {self.id} does not answer.")
        if stamp.controller_epoch < self.controller_epoch:
            self.log.append(("refused", self.id, stamp.controller_epoch))
            raise KafkaError(Error.STALE_CONTROLLER_EPOCH)
        if stamp.broker_epoch < self.epoch:
            raise KafkaError(Error.STALE_BROKER_EPOCH)
        self.controller_epoch = stamp.controller_epoch
        self.log.append((what, self.id, stamp.controller_epoch, *rest))

    async def leader_and_isr(
        self, stamp: Stamp, topics: Sequence[TopicImage], brokers: Collection[int], new: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Error]:
        await self._told("lead", stamp, [topic.name for topic in topics])
        errors: dict[TopicPartition, Error] = {}
        for topic in topics:
            for number, state in topic.partitions.items():
                tp = TopicPartition(topic.name, number)
                assert self.id in state.replicas
                if tp in self.failed_disk:
                    errors[tp] = Error.KAFKA_STORAGE_ERROR
                    continue
                self.roles[tp] = state
                self.data.add(tp)
        self.new |= set(new)
        return errors

    async def stop_replicas(self, stamp: Stamp, stops: Sequence[Stop]) -> Mapping[TopicPartition, Error]:
        await self._told("stop", stamp, sorted(str(stop.tp) for stop in stops), stops[0].delete)
        errors: dict[TopicPartition, Error] = {}
        for stop in stops:
            if stop.tp in self.failed_disk:
                errors[stop.tp] = Error.KAFKA_STORAGE_ERROR
                continue
            self.roles.pop(stop.tp, None)
            if stop.delete:
                self.data.discard(stop.tp)
        return errors

    async def update_metadata(self, stamp: Stamp, update: MetadataUpdate) -> None:
        self.image = self.image.updated(update)
        try:
            await self._told("image", stamp, sorted(self.image.topics))
        except KafkaError:
            self.image = Image()
            raise


class CountingStore(MemoryStore):
    """Counts transactions, loses answers, and is away when a test wants it to be."""

    def __init__(self, tree: SharedTree) -> None:
        super().__init__(tree)
        self.commits = 0
        self.reads = 0
        self.commits_until_lost = 0
        self.carried_out = True
        self.away = False

    def deafen(self) -> None:
        """Nobody is told of changes any more."""
        self._watchers.clear()

    async def _reach(self) -> None:
        self.reads += 1
        if self.away:
            raise StoreUnavailable("gone")
        await super()._reach()

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        self.commits += 1
        self.commits_until_lost -= 1
        if self.commits_until_lost != 0:
            return await super().commit(operations)
        if self.carried_out:
            await super().commit(operations)
        raise StoreUnavailable("the answer was lost")


class Cluster:
    """Brokers with a session each; some of them stand for controller."""

    def __init__(self) -> None:
        self.tree = SharedTree()
        self.listeners: dict[int, Listener] = {}
        self.stores: dict[int, CountingStore] = {}
        self.controllers: dict[int, Controller] = {}
        self.unclean = False
        self.eye = MemoryStore(self.tree)

    async def join(self, *brokers: int) -> None:
        """Brokers register, in a session of their own."""
        for broker in brokers:
            if broker not in self.stores:
                self.stores[broker] = CountingStore(self.tree)
            node = broker_node(broker)
            await self.stores[broker].commit([Create(node.path, node.encode(), ephemeral=True), Set(znodes.BROKER_IDS, None)])
            listener = self.listeners.setdefault(broker, Listener(broker))
            listener.epoch = await self.epoch(broker)
            listener.image, listener.roles = Image(), {}

    async def leave(self, broker: int) -> None:
        """A broker dies, and its session with it."""
        if broker in self.controllers:
            self.controllers.pop(broker).stop()
        await self.stores.pop(broker).close()

    async def bounce(self, broker: int) -> None:
        """A broker is killed and started again, so quickly that nobody sees it away."""
        self.tree.end_session(self.stores[broker].session)
        del self.stores[broker]
        await self.join(broker)

    async def stand(self, broker: int) -> Controller:
        """A broker stands for controller."""
        made = Controller(
            broker,
            self.stores[broker],
            ManualClock(),
            Random(broker),
            self.listeners.__getitem__,
            lambda _settings: self.unclean,
            patience=PATIENCE,
        )
        self.controllers[broker] = made
        await made.start()
        return made

    async def epoch(self, broker: int) -> int:
        node = await self.eye.get(f"{znodes.BROKER_IDS}/{broker}")
        assert node is not None
        return node.created

    async def state(self, topic: str, partition: int = 0) -> PartitionStateNode:
        node = await self.eye.get(znodes.partition_state_path(topic, partition))
        assert node is not None
        return PartitionStateNode.decode(node.data)

    async def topic(self, name: str) -> TopicNode:
        node = await self.eye.get(f"{znodes.TOPICS}/{name}")
        assert node is not None
        return TopicNode.decode(name, node.data)

    async def quiet(self) -> None:
        """Let everything that is on its way happen."""
        for _ in range(400):
            await asyncio.sleep(0)

    async def told(self, topic: str, partition: int, **expected: Any) -> None:
        """Wait until all live brokers know this about a partition."""

        def known() -> bool:
            for broker in self.stores:
                found = self.listeners[broker].image.topics.get(topic)
                state = found.partitions.get(partition) if found is not None else None
                if state is None or any(getattr(state, name) != value for name, value in expected.items()):
                    return False
            return True

        await until(known)

    async def propose(
        self, controller: Controller, tp: TopicPartition, isr: tuple[int, ...], sender: int | None = None, **more: Any
    ) -> IsrOutcome:
        """The leader of a partition wishes for another ISR."""
        node = await self.eye.get(znodes.partition_state_path(*tp))
        assert node is not None
        state = PartitionStateNode.decode(node.data)
        leader = state.leader if sender is None else sender
        wish = IsrProposal(
            tp,
            more.pop("topic_id", (await self.topic(tp.topic)).topic_id),
            more.pop("leader_epoch", state.leader_epoch),
            isr,
            more.pop("version", node.version),
            more.pop("broker_epochs", {}),
        )
        epoch = more.pop("broker_epoch", await self.epoch(leader))
        return (await controller.alter_partitions(leader, epoch, [wish]))[tp]


def story(steps: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(steps(Cluster()), 30)

    asyncio.run(run())


async def create(controller: Controller, name: str, partitions: int = 1, factor: int = 1, **more: Any) -> TopicImage:
    result = (await controller.create_topics([NewTopic(name, partitions, factor, **more)], validate_only=False))[name]
    if isinstance(result, KafkaError):
        raise result
    return result


async def lay_out(controller: Controller, name: str, *replicas: tuple[int, ...]) -> TopicImage:
    """A topic with these replicas."""
    return await create(controller, name, -1, -1, assignment=dict(enumerate(replicas)))
