"""The controller over an embedded store, speaking to brokers that only listen: create, grow, delete, fail, and begin again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest

from ottla.clock import ManualClock
from ottla.controller.controller import Controller, NewTopic, new_id
from ottla.metadata import znodes
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.image import TopicImage
from ottla.metadata.store import BadVersion, Create, Delete, NodeExists, Operation, Set
from ottla.metadata.znodes import PartitionStateNode, TopicNode
from ottla.model import Error, KafkaError
from unit.controller.controller_kit import PATIENCE, Cluster, Listener, broker_node, create, inline, until
from unit.controller.controller_kit import story as cluster_story


class Store(EmbeddedStore):
    """A store that can be deaf: nobody is told of changes any more."""

    def deafen(self) -> None:
        self._watchers.clear()


class World:
    """A store with live brokers, and one controller after the other."""

    def __init__(self, brokers: Sequence[int] = (1,)) -> None:
        self.store = Store(":memory:", inline)
        self.log: list[tuple[Any, ...]] = []
        self.brokers = {broker: Listener(broker, self.log) for broker in brokers}
        self.unclean = False

    async def register(self) -> None:
        for broker in self.brokers:
            node = broker_node(broker)
            await self.store.commit([Create(node.path, node.encode(), ephemeral=True)])

    async def controller(self) -> Controller:
        """A controller that has just won; the one before it is gone, or has not noticed yet."""
        self.store.deafen()
        if await self.store.get(znodes.CONTROLLER) is not None:
            await self.store.commit([Delete(znodes.CONTROLLER)])
        unclean_allowed: Callable[[object], bool] = lambda _overrides: self.unclean  # noqa: E731
        channels = self.brokers.__getitem__
        made = Controller(1, self.store, ManualClock(), Random(4), channels, unclean_allowed, patience=PATIENCE)
        await made.start()
        return made

    async def state(self, topic: str, partition: int) -> PartitionStateNode:
        node = await self.store.get(znodes.partition_state_path(topic, partition))
        assert node is not None
        return PartitionStateNode.decode(node.data)


def story(steps: Callable[[World], Awaitable[None]], brokers: Sequence[int] = (1,)) -> None:
    async def run() -> None:
        world = World(brokers)
        await world.register()
        await steps(world)

    asyncio.run(run())


def test_a_topic_is_durable_before_brokers_hear_of_it() -> None:
    async def steps(world: World) -> None:
        controller = await world.controller()
        world.log.clear()
        image = await create(controller, "t", 2, config={"retention.ms": "5"})
        assert [line[0] for line in world.log] == ["lead", "image"]
        node = await world.store.get("/brokers/topics/t")
        assert node is not None
        assert TopicNode.decode("t", node.data).topic_id == image.topic_id
        assert await world.state("t", 1) == PartitionStateNode(1, 0, (1,), 1)
        config = await world.store.get("/config/topics/t")
        assert config is not None
        assert znodes.decode_config(config.data) == {"retention.ms": "5"}
        assert world.brokers[1].image.topic_names == {image.topic_id: "t"}

        world.brokers[1].dies_in = "lead"
        await create(controller, "later")
        assert await world.store.get("/brokers/topics/later") is not None
        assert "later" not in world.brokers[1].image.topics, "roles come first"
        controller.stop()
        world.brokers[1].dies_in = ""
        await world.controller()
        assert "later" in world.brokers[1].image.topics, "the next controller tells"

    story(steps)


def test_each_topic_of_a_request_stands_for_itself() -> None:
    async def steps(world: World) -> None:
        controller = await world.controller()
        await create(controller, "there")
        wanted = [
            NewTopic("good", 1, 1),
            NewTopic("there", 1, 1),
            NewTopic("bad name", 1, 1),
            NewTopic("zero", 0, 1),
            NewTopic("negative", 1, -5),
            NewTopic("wide", 1, 2),
            NewTopic("setting", 1, 1, config={"no.such": "1"}),
            NewTopic("value", 1, 1, config={"retention.ms": "soon"}),
            NewTopic("layout", -1, -1, {0: (9,)}),
            NewTopic("huge", 2**31 - 1, 1),
            NewTopic("by-hand", -1, -1, {0: (1,), 1: (1,)}),
        ]
        results = await controller.create_topics(wanted, validate_only=False)
        errors = {name: one.error if isinstance(one, KafkaError) else Error.NONE for name, one in results.items()}
        assert errors == {
            "good": Error.NONE,
            "there": Error.TOPIC_ALREADY_EXISTS,
            "bad name": Error.INVALID_TOPIC_EXCEPTION,
            "zero": Error.INVALID_PARTITIONS,
            "negative": Error.INVALID_REPLICATION_FACTOR,
            "wide": Error.INVALID_REPLICATION_FACTOR,
            "setting": Error.INVALID_CONFIG,
            "value": Error.INVALID_CONFIG,
            "layout": Error.INVALID_REPLICA_ASSIGNMENT,
            "huge": Error.POLICY_VIOLATION,
            "by-hand": Error.NONE,
        }
        assert sorted(world.brokers[1].image.topics) == ["by-hand", "good", "there"]

    story(steps)


def test_validate_only_changes_nothing() -> None:
    async def steps(world: World) -> None:
        controller = await world.controller()
        await create(controller, "t")
        before = await world.store.subtree("")
        world.log.clear()
        results = await controller.create_topics([NewTopic("u", 3, 1)], validate_only=True)
        assert isinstance(results["u"], TopicImage)
        assert len(results["u"].partitions) == 3
        await controller.create_partitions("t", 5, None, validate_only=True)
        assert await world.store.subtree("") == before
        assert world.log == []
        await create(controller, "u")

    story(steps)


def test_grow() -> None:
    async def steps(world: World) -> None:
        controller = await world.controller()
        await create(controller, "t", 2, factor=2)
        await controller.create_partitions("t", 4, None, validate_only=False)
        await controller.create_partitions("t", 5, [(2, 1)], validate_only=False)
        image = world.brokers[1].image.topics["t"]
        assert sorted(image.partitions) == [0, 1, 2, 3, 4]
        assert image.partitions[4].replicas == (2, 1)
        assert all(len(one.replicas) == 2 for one in image.partitions.values())
        fresh = await world.controller()
        assert len(world.brokers[1].image.topics["t"].partitions) == 5, "and it is durable"
        for count, assignments, error in [
            (5, None, Error.INVALID_PARTITIONS),
            (4, None, Error.INVALID_PARTITIONS),
            (-1, None, Error.INVALID_PARTITIONS),
            (7, [(1, 2)], Error.INVALID_REPLICA_ASSIGNMENT),
            (6, [(1, 9)], Error.INVALID_REPLICA_ASSIGNMENT),
            (2**31 - 1, None, Error.POLICY_VIOLATION),
        ]:
            with pytest.raises(KafkaError) as refusal:
                await fresh.create_partitions("t", count, assignments, validate_only=False)
            assert refusal.value.error is error
        with pytest.raises(KafkaError) as refusal:
            await fresh.create_partitions("ghost", 2, None, validate_only=False)
        assert refusal.value.error is Error.UNKNOWN_TOPIC_OR_PARTITION

    story(steps, brokers=(1, 2))


def test_delete() -> None:
    async def steps(world: World) -> None:
        controller = await world.controller()
        await create(controller, "t", 2, config={"retention.ms": "5"})
        world.log.clear()
        await controller.delete_topic("t")
        assert world.log == [("image", 1, 1, []), ("stop", 1, 1, ["t-0", "t-1"], True)], "clients first, data afterwards"
        left = await world.store.subtree("")
        assert not [path for path in left if "/t" in path and "/topics/" in path]
        assert await world.store.children(znodes.DELETE_TOPICS) == []
        with pytest.raises(KafkaError) as refusal:
            await controller.delete_topic("t")
        assert refusal.value.error is Error.UNKNOWN_TOPIC_OR_PARTITION
        first = await create(controller, "t")
        assert first.partitions[0].leader_epoch == 0, "a topic made anew begins anew"

    story(steps)


@pytest.mark.parametrize("moment", ["image", "stop"])
def test_a_deletion_that_was_cut_short_is_finished_by_the_next_controller(moment: str) -> None:
    async def steps(world: World) -> None:
        controller = await world.controller()
        await create(controller, "doomed", 2)
        await create(controller, "kept")
        world.brokers[1].dies_in = moment
        await controller.delete_topic("doomed")
        assert await world.store.children(znodes.DELETE_TOPICS) == ["doomed"]
        assert (await world.store.get("/brokers/topics/doomed")) is not None
        controller.stop()
        world.brokers[1].dies_in = ""
        world.log.clear()
        await world.controller()
        assert ("stop", 1, 2, ["doomed-0", "doomed-1"], True) in world.log
        assert sorted(world.brokers[1].image.topics) == ["kept"]
        assert await world.store.children(znodes.TOPICS) == ["kept"]
        assert await world.store.children(znodes.DELETE_TOPICS) == []

    story(steps)


def test_a_mark_without_a_topic_is_cleared() -> None:
    async def steps(world: World) -> None:
        await world.store.commit([Create(f"{znodes.DELETE_TOPICS}/ghost")])
        await world.controller()
        assert await world.store.children(znodes.DELETE_TOPICS) == []

    story(steps)


@pytest.mark.parametrize(
    "operation",
    [
        lambda old: create(old, "u"),
        lambda old: old.create_partitions("t", 2, None, validate_only=False),
        lambda old: old.delete_topic("t"),
    ],
    ids=["create", "grow", "delete"],
)
def test_only_one_controller_at_a_time(operation: Callable[[Controller], Awaitable[object]]) -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2)
        old = await cluster.stand(1)
        await create(old, "t")
        cluster.stores[1].deafen()
        await cluster.eye.commit([Delete(znodes.CONTROLLER)])
        new = await cluster.stand(2)
        assert old.active, "it has not noticed yet"
        with pytest.raises(KafkaError) as refusal:
            await operation(old)
        assert refusal.value.error is Error.NOT_CONTROLLER
        assert not old.active
        assert await cluster.eye.children(znodes.TOPICS) == ["t"]
        assert await cluster.eye.children(znodes.DELETE_TOPICS) == []
        await create(new, "u")
        await until(lambda: old.controller_id == 2)
        epoch = await cluster.eye.get(znodes.CONTROLLER_EPOCH)
        assert epoch is not None
        assert epoch.data == b"2"

    cluster_story(steps)


def test_a_controller_that_stopped_decides_nothing() -> None:
    async def steps(world: World) -> None:
        controller = await world.controller()
        controller.stop()
        with pytest.raises(KafkaError) as refusal:
            await create(controller, "t")
        assert refusal.value.error is Error.NOT_CONTROLLER

    story(steps)


def test_a_failed_write_leaves_no_topic_behind() -> None:
    async def steps(world: World) -> None:
        controller = await world.controller()
        await world.store.commit([Create("/brokers/topics/t", b"in the way")])
        with pytest.raises(NodeExists, match="/brokers/topics/t"):
            await create(controller, "t")
        await world.store.commit([Delete("/brokers/topics/t")])
        await create(controller, "t")

    story(steps)


def test_settings_that_an_earlier_topic_left_behind_are_replaced() -> None:
    async def steps(world: World) -> None:
        controller = await world.controller()
        await world.store.commit([Create("/config/topics/t", znodes.encode_config({"retention.ms": "1"}))])
        await create(controller, "t", config={"segment.ms": "2"})
        node = await world.store.get("/config/topics/t")
        assert node is not None
        assert znodes.decode_config(node.data) == {"segment.ms": "2"}

    story(steps)


def test_requests_at_the_same_time_do_not_mix() -> None:
    async def steps(world: World) -> None:
        controller = await world.controller()
        results = await asyncio.gather(*(create(controller, "t") for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(one, TopicImage) for one in results) == 1
        assert {one.error for one in results if isinstance(one, KafkaError)} == {Error.TOPIC_ALREADY_EXISTS}
        await asyncio.gather(*(create(controller, f"n{number}") for number in range(10)))
        assert len(world.brokers[1].image.topics) == 11

    story(steps)


@pytest.mark.parametrize("unclean", [False, True])
def test_a_new_controller_elects_for_the_dead(unclean: bool) -> None:
    async def steps(world: World) -> None:
        world.unclean = unclean
        topic = TopicNode("t", bytes(range(16)), {0: (3, 2), 1: (3, 2)})
        states: list[Operation] = [
            Create(topic.path, topic.encode()),
            Create(znodes.partition_state_path("t", 0), PartitionStateNode(3, 4, (3, 2), 1).encode()),
            Create(znodes.partition_state_path("t", 1), PartitionStateNode(3, 4, (3,), 1).encode()),
        ]
        await world.store.commit(states)
        await world.controller()
        assert await world.state("t", 0) == PartitionStateNode(2, 5, (2,), 1)
        expected = PartitionStateNode(2, 5, (2,), 1) if unclean else PartitionStateNode(-1, 5, (3,), 1)
        assert await world.state("t", 1) == expected

    story(steps, brokers=(1, 2))


def test_a_node_that_somebody_else_changed_is_not_overwritten() -> None:
    async def steps(world: World) -> None:
        controller = await world.controller()
        await create(controller, "t")
        node = await world.store.get("/brokers/topics/t")
        assert node is not None
        await world.store.commit([Set("/brokers/topics/t", node.data)])
        with pytest.raises(BadVersion, match="/brokers/topics/t"):
            await controller.create_partitions("t", 2, None, validate_only=False)
        assert len(world.brokers[1].image.topics["t"].partitions) == 1

    story(steps)


def test_new_ids_are_random_uuids_that_no_command_line_takes_for_an_option() -> None:
    random = Random(5)
    ids = {new_id(random) for _ in range(2000)}
    assert len(ids) == 2000
    assert all(one[6] >> 4 == 4 and one[8] >> 6 == 2 for one in ids)
    assert not any(znodes.encode_id(one).startswith("-") for one in ids)
