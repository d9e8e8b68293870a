"""The controller: the one broker that changes the cluster's truth and tells the others.

Guards: all changes go through one queue (a lock taken in order of arrival), each is a single transaction that carries a check
of the controller's epoch, and brokers hear of it only after it is durable. Life: `start` wins the election, reads the world
and announces it; `stop` ends it. What is decided lies in `state`, `election`, `assignment` and `topic_rules`, all pure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from ottla.clock import Clock
from ottla.config import ConfigError, check_topic_settings
from ottla.controller import assignment, state, topic_rules
from ottla.controller.channels import Channel
from ottla.metadata import znodes
from ottla.metadata.image import BrokerImage, Endpoint, Image, PartitionState, TopicImage
from ottla.metadata.store import BadVersion, Check, Create, Delete, NodeExists, Operation, Set, Store
from ottla.metadata.znodes import BrokerNode, ControllerNode, PartitionStateNode, TopicNode
from ottla.model import Error, KafkaError, TopicPartition

log = logging.getLogger("ottla.controller")


@dataclass(slots=True, frozen=True)
class NewTopic:
    """A topic that somebody wants."""

    name: str
    partitions: int
    replication_factor: int
    assignment: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)


class Controller:
    """Runs on the broker that won the election; here, always this one or none."""

    def __init__(
        self,
        broker_id: int,
        store: Store,
        clock: Clock,
        random: Random,
        channel_to: Callable[[int], Channel],
        unclean_allowed: Callable[[Mapping[str, str]], bool],
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._clock = clock
        self._random = random
        self._channel_to = channel_to
        self._unclean_allowed = unclean_allowed
        self._queue = asyncio.Lock()
        self._state = state.ClusterState(controller_epoch=0)
        self._epoch_version = 0
        self._image = Image()
        self.active = False

    async def start(self) -> None:
        """Become controller, finish what an earlier one left undone, and tell the brokers the world."""
        async with self._queue:
            await self._win_election()
            await self._read_world()
            configs = {
                path.rpartition("/")[2]: znodes.decode_config(node.data)
                for path, node in (await self._store.subtree(znodes.TOPIC_CONFIGS)).items()
            }
            unclean = [name for name in self._state.topics if self._unclean_allowed(configs.get(name, {}))]
            await self._write(state.controller_started(self._state, unclean))
            self.active = True
            await self._announce(list(self._state.topics))
            for name in await self._store.children(znodes.DELETE_TOPICS):
                await self._finish_deletion(name)

    def stop(self) -> None:
        """Decide nothing more."""
        self.active = False

    async def create_topics(self, topics: Sequence[NewTopic], validate_only: bool) -> dict[str, TopicImage | KafkaError]:
        """Create each topic or say why not; each stands for itself."""
        results: dict[str, TopicImage | KafkaError] = {}
        async with self._queue:
            self._must_be_active()
            created: list[str] = []
            operations: list[Operation] = []
            writes: list[state.WriteState] = []
            room = topic_rules.MAX_NEW_PARTITIONS
            for wanted in topics:
                try:
                    node = self._lay_out(wanted, room)
                except KafkaError as error:
                    results[wanted.name] = error
                    continue
                room -= len(node.partitions)
                first_states = state.partitions_created(self._state, wanted.name, node.partitions)
                if not validate_only:
                    operations += [await self._first_settings(wanted), Create(node.path, node.encode())]
                    writes += first_states
                    created.append(wanted.name)
                    self._state.topics[wanted.name] = node
                    self._state.topic_versions[wanted.name] = 0
                else:
                    results[wanted.name] = TopicImage(
                        wanted.name, bytes(16), {p: _planned(replicas) for p, replicas in node.partitions.items()}
                    )
            if created:
                try:
                    await self._write(writes, operations)
                except Exception:
                    for name in created:
                        self._state.forget(name)
                    raise
                await self._announce(created)
                results.update({name: self._state.image_of(name) for name in created})
                log.info(
                    "Created %s",
                    ", ".join(f"topic {n} with {len(self._state.topics[n].partitions)} partitions" for n in created),
                )
        return results

    async def _first_settings(self, wanted: NewTopic) -> Operation:
        """A new topic's settings; those that an earlier topic of its name left behind are replaced."""
        path, data = f"{znodes.TOPIC_CONFIGS}/{wanted.name}", znodes.encode_config(wanted.config)
        return Set(path, data) if await self._store.get(path) is not None else Create(path, data)

    def _lay_out(self, wanted: NewTopic, room: int) -> TopicNode:
        """The topic's node, or the reason why it may not be."""
        topic_rules.check_name(wanted.name)
        if wanted.name in self._state.topics:
            raise KafkaError(Error.TOPIC_ALREADY_EXISTS, f"Topic '{wanted.name}' already exists.")
        topic_rules.check_collision(wanted.name, self._state.topics)
        try:
            check_topic_settings(wanted.config.items())
        except ConfigError as problem:
            raise KafkaError(Error.INVALID_CONFIG, str(problem)) from None
        if wanted.assignment:
            topic_rules.check_assignment(wanted.assignment, self._state.live)
            layout = dict(wanted.assignment)
        else:
            if wanted.partitions <= 0:
                raise KafkaError(Error.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
            topic_rules.check_new_partitions(wanted.partitions, room)
            if wanted.replication_factor <= 0:
                raise KafkaError(Error.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
            layout = assignment.assign(self._state.live, wanted.partitions, wanted.replication_factor, self._random)
        return TopicNode(wanted.name, new_id(self._random), layout)

    async def create_partitions(
        self, name: str, count: int, new_assignments: Sequence[tuple[int, ...]] | None, validate_only: bool
    ) -> None:
        """Grow a topic to `count` partitions."""
        async with self._queue:
            self._must_be_active()
            topic = self._state.topics.get(name)
            if topic is None:
                raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            existing = len(topic.partitions)
            if count < existing:
                raise KafkaError(
                    Error.INVALID_PARTITIONS,
                    f"The topic {name} currently has {existing} partition(s); {count} would not be an increase.",
                )
            if count == existing:
                raise KafkaError(Error.INVALID_PARTITIONS, f"Topic already has {existing} partition(s).")
            topic_rules.check_new_partitions(count - existing)
            if new_assignments is not None:
                if len(new_assignments) != count - existing:
                    raise KafkaError(
                        Error.INVALID_REPLICA_ASSIGNMENT,
                        f"Increasing by {count - existing} partitions, but {len(new_assignments)} assignments provided.",
                    )
                added = {existing + at: replicas for at, replicas in enumerate(new_assignments)}
                topic_rules.check_assignment(added, self._state.live, existing)
            else:
                factor = len(topic.partitions[0])
                added = assignment.assign(self._state.live, count - existing, factor, self._random, existing)
            if validate_only:
                return
            grown = replace(topic, partitions={**topic.partitions, **added})
            version = self._state.topic_versions[name]
            writes = state.partitions_created(self._state, name, added)
            await self._write(writes, [Set(grown.path, grown.encode(), version)])
            self._state.topics[name] = grown
            self._state.topic_versions[name] = version + 1
            await self._announce([name])
            log.info("Topic %s grew from %d to %d partitions", name, existing, count)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; marked first, so that a crash in between is finished by the next start."""
        async with self._queue:
            self._must_be_active()
            if name not in self._state.topics:
                raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
            try:
                await self._commit([Create(f"{znodes.DELETE_TOPICS}/{name}")])
            except NodeExists:
                pass
            await self._finish_deletion(name)

    async def _finish_deletion(self, name: str) -> None:
        topic = self._state.topics.get(name)
        operations: list[Operation] = [Delete(f"{znodes.DELETE_TOPICS}/{name}")]
        if topic is not None:
            partitions = [TopicPartition(name, partition) for partition in topic.partitions]
            await self._announce([], removed=[name])
            for broker in self._state.live:
                await self._channel_to(broker).stop_replicas(self._state.controller_epoch, partitions, delete=True)
            operations.append(Delete(topic.path))
            if await self._store.get(f"{znodes.TOPIC_CONFIGS}/{name}") is not None:
                operations.append(Delete(f"{znodes.TOPIC_CONFIGS}/{name}"))
        await self._commit(operations)
        if topic is not None:
            self._state.forget(name)
        log.info("Deleted topic %s", name)

    async def _win_election(self) -> None:
        epoch_node = await self._store.get(znodes.CONTROLLER_EPOCH)
        epoch = int(epoch_node.data) + 1 if epoch_node else 1
        claim = Create(znodes.CONTROLLER, ControllerNode(self._broker_id, self._clock.now_ms()).encode(), ephemeral=True)
        bump: Operation = (
            Set(znodes.CONTROLLER_EPOCH, b"%d" % epoch, epoch_node.version)
            if epoch_node
            else Create(znodes.CONTROLLER_EPOCH, b"%d" % epoch)
        )
        _, self._epoch_version = await self._store.commit([claim, bump])
        self._state = state.ClusterState(controller_epoch=epoch)

    async def _read_world(self) -> None:
        cluster = await self._store.get(znodes.CLUSTER_ID)
        brokers: dict[int, BrokerImage] = {}
        for path, node in (await self._store.subtree(znodes.BROKER_IDS)).items():
            broker = BrokerNode.decode(int(path.rpartition("/")[2]), node.data)
            self._state.live[broker.id] = broker.rack
            brokers[broker.id] = _broker_image(broker)
        for path, node in (await self._store.subtree(znodes.TOPICS)).items():
            parts = path[len(znodes.TOPICS) + 1 :].split("/")
            if len(parts) == 1:
                self._state.topics[parts[0]] = TopicNode.decode(parts[0], node.data)
                self._state.topic_versions[parts[0]] = node.version
            elif parts[-1] == "state":
                tp = TopicPartition(parts[0], int(parts[2]))
                self._state.states[tp] = PartitionStateNode.decode(node.data)
                self._state.state_versions[tp] = node.version
        self._image = Image(znodes.decode_cluster_id(cluster.data) if cluster else "", self._broker_id, brokers)

    def _must_be_active(self) -> None:
        if not self.active:
            raise KafkaError(Error.NOT_CONTROLLER)

    async def _commit(self, operations: Sequence[Operation]) -> list[int]:
        """One transaction, good only while this controller's epoch is the current one."""
        try:
            return (await self._store.commit([Check(znodes.CONTROLLER_EPOCH, self._epoch_version), *operations]))[1:]
        except BadVersion as problem:
            if problem.path == znodes.CONTROLLER_EPOCH:
                self.active = False
                raise KafkaError(Error.NOT_CONTROLLER, "Another controller has taken over.") from None
            raise

    async def _write(self, writes: Sequence[state.WriteState], before: Sequence[Operation] = ()) -> None:
        """Partition states (after the operations they need), durable first and then in our own view."""
        operations: list[Operation] = list(before)
        for write in writes:
            path = znodes.partition_state_path(*write.tp)
            data = write.node.encode()
            operations.append(Create(path, data) if write.version is None else Set(path, data, write.version))
        if not operations:
            return
        versions = await self._commit(operations)
        for write, version in zip(writes, versions[len(before) :], strict=True):
            self._state.apply(write, version)

    async def _announce(self, names: Iterable[str], removed: Iterable[str] = ()) -> None:
        """Tell every live broker its roles in these topics, then the whole image."""
        changed = [self._state.image_of(name) for name in names]
        self._image = image = self._image.with_topics(changed, removed)
        epoch = self._state.controller_epoch
        for broker in self._state.live:
            channel = self._channel_to(broker)
            if changed:
                await channel.leader_and_isr(epoch, changed)
            await channel.update_metadata(epoch, image)


def new_id(random: Random) -> bytes:
    """A random (version 4) UUID whose text form does not begin with a dash, which command lines would take for an option."""
    while True:
        value = bytearray(random.randbytes(16))
        value[6] = value[6] & 0x0F | 0x40
        value[8] = value[8] & 0x3F | 0x80
        if not znodes.encode_id(bytes(value)).startswith("-"):
            return bytes(value)


def _planned(replicas: tuple[int, ...]) -> PartitionState:
    return PartitionState(replicas[0], state.FIRST_LEADER_EPOCH, replicas, replicas)


def _broker_image(broker: BrokerNode) -> BrokerImage:
    endpoints: dict[str, Endpoint] = {}
    for endpoint in broker.endpoints:
        name, _, address = endpoint.partition("://")
        host, _, port = address.rpartition(":")
        endpoints[name] = Endpoint(host.strip("[]"), int(port))
    return BrokerImage(broker.id, endpoints, broker.rack)
