"""Reassignments and deletions over brokers that fail and controllers that change."""

from __future__ import annotations

import pytest

from ottla.controller.controller import Controller, NewTopic
from ottla.metadata import znodes
from ottla.metadata.store import Create, Set
from ottla.metadata.znodes import PartitionStateNode, TopicNode
from ottla.model import NO_LEADER, Error, KafkaError, TopicPartition
from unit.controller.controller_kit import Cluster, create, lay_out, story, until

TP = TopicPartition("t", 0)


async def four(cluster: Cluster) -> Controller:
    await cluster.join(1, 2, 3, 4)
    return await cluster.stand(1)


async def reassign(controller: Controller, target: tuple[int, ...] | None, tp: TopicPartition = TP) -> Error:
    problem = (await controller.reassign({tp: target}))[tp]
    return problem.error if problem is not None else Error.NONE


async def forgotten(cluster: Cluster, controller: Controller) -> None:
    while (await cluster.topic("t")).removing or await controller.reassignments(None):
        await cluster.quiet()


def test_a_move_from_begin_to_end() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await four(cluster)
        await lay_out(controller, "t", (1, 2), (1, 2))
        assert await reassign(controller, (3, 4)) is Error.NONE
        topic = await cluster.topic("t")
        assert (topic.partitions, topic.adding, topic.removing) == ({0: (3, 4, 1, 2), 1: (1, 2)}, {0: (3, 4)}, {0: (1, 2)})
        await cluster.told("t", 0, leader=1, leader_epoch=1, replicas=(3, 4, 1, 2), adding=(3, 4), removing=(1, 2), isr=(1, 2))
        assert cluster.listeners[3].roles[TP].leader == 1
        assert (TP in cluster.listeners[3].new, TP in cluster.listeners[1].data) == (True, True)
        moving = await controller.reassignments(None)
        assert {tp: (state.adding, state.removing) for tp, state in moving.items()} == {TP: ((3, 4), (1, 2))}
        assert await controller.reassignments([TopicPartition("t", 1)]) == {}

        await cluster.propose(controller, TP, (1, 2, 3))
        assert (await cluster.topic("t")).adding == {0: (3, 4)}, "4 is awaited"
        await cluster.propose(controller, TP, (1, 2, 3, 4))
        await cluster.told("t", 0, leader=3, leader_epoch=2, replicas=(3, 4), adding=(), removing=(), isr=(3, 4))
        await until(lambda: TP not in cluster.listeners[1].data and TP not in cluster.listeners[2].data)
        await forgotten(cluster, controller)
        assert await cluster.topic("t") == TopicNode("t", topic.topic_id, {0: (3, 4), 1: (1, 2)})
        assert await cluster.state("t") == PartitionStateNode(3, 2, (3, 4), 1)
        assert TopicPartition("t", 1) in cluster.listeners[1].data

    story(steps)


@pytest.mark.parametrize("leader_moved", [False, True])
def test_a_move_is_called_off(leader_moved: bool) -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await four(cluster)
        await lay_out(controller, "t", (1, 2))
        assert await reassign(controller, None) is Error.NO_REASSIGNMENT_IN_PROGRESS
        assert await reassign(controller, (3, 4)) is Error.NONE
        if leader_moved:
            await cluster.propose(controller, TP, (1, 2, 3))
            assert (await controller.elect_leaders(False, [TP]))[TP] is None
        assert await reassign(controller, None) is Error.NONE
        await cluster.told("t", 0, leader=1, replicas=(1, 2), adding=(), isr=(1, 2))
        await until(lambda: TP not in cluster.listeners[3].data and TP not in cluster.listeners[4].data)
        await forgotten(cluster, controller)
        topic = await cluster.topic("t")
        assert (topic.partitions, topic.adding, topic.removing) == ({0: (1, 2)}, {}, {})
        assert await reassign(controller, None) is Error.NO_REASSIGNMENT_IN_PROGRESS

    story(steps)


def test_there_and_back_again() -> None:
    """A replica that is to be deleted is wanted again at once: it is stopped first."""

    async def steps(cluster: Cluster) -> None:
        controller = await four(cluster)
        await lay_out(controller, "t", (1, 2, 3))
        cluster.listeners[3].away = True
        assert await reassign(controller, (1, 2)) is Error.NONE
        assert (await cluster.topic("t")).partitions == {0: (1, 2)}, "all of the target were in sync"
        assert await reassign(controller, (1, 2, 3)) is Error.NONE
        cluster.listeners[3].away = False
        await until(lambda: cluster.listeners[3].log[-1][0] == "lead" or TP in cluster.listeners[3].roles)
        await cluster.told("t", 0, replicas=(1, 2, 3), adding=(3,))
        await until(lambda: TP in cluster.listeners[3].roles)
        kinds = [line[0] for line in cluster.listeners[3].log if line[0] != "image"]
        assert kinds[-2:] == ["stop", "lead"]
        await cluster.propose(controller, TP, (1, 2, 3))
        await forgotten(cluster, controller)

    story(steps)


def test_a_move_goes_on_under_the_next_controller() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await four(cluster)
        await lay_out(controller, "t", (2, 3), (2, 3))
        await controller.reassign({TP: (4, 2), TopicPartition("t", 1): (4,)})
        next_one = await cluster.stand(4)
        assert not next_one.active
        await cluster.leave(1)
        await until(lambda: next_one.active)
        assert len(await next_one.reassignments(None)) == 2
        await cluster.propose(next_one, TP, (2, 3, 4))
        await cluster.told("t", 0, replicas=(4, 2), isr=(2, 4))
        # This one is switched by a controller that dies before anything else happens.
        node = TopicNode("t", (await cluster.topic("t")).topic_id, {0: (4, 2), 1: (4,)}, {}, {1: (2, 3)})
        await cluster.leave(4)
        await cluster.eye.commit(
            [
                Set(node.path, node.encode()),
                Set(znodes.partition_state_path("t", 1), PartitionStateNode(4, 9, (4,), 2).encode()),
            ]
        )
        third = await cluster.stand(2)
        await until(lambda: TopicPartition("t", 1) not in cluster.listeners[2].data)
        await forgotten(cluster, third)
        topic = await cluster.topic("t")
        assert (topic.partitions, topic.removing) == ({0: (4, 2), 1: (4,)}, {})

    story(steps)


def test_a_broker_that_is_away_is_not_waited_for() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await four(cluster)
        await lay_out(controller, "t", (2, 3), (2, 4))
        cluster.listeners[3].away = True
        await reassign(controller, (2,))
        await cluster.quiet()
        assert (await cluster.topic("t")).removing == {0: (3,)}
        await cluster.leave(3)
        await forgotten(cluster, controller)
        await cluster.leave(4)
        await cluster.told("t", 1, isr=(2,))
        assert await reassign(controller, (2,), TopicPartition("t", 1)) is Error.NONE
        await forgotten(cluster, controller)

    story(steps)


def test_moves_that_cannot_be() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await four(cluster)
        await lay_out(controller, "t", (1, 2))
        for target in ((), (1, 1), (1, -3), (1, 9)):
            assert await reassign(controller, target) is Error.INVALID_REPLICA_ASSIGNMENT
        assert await reassign(controller, (1,), TopicPartition("t", 7)) is Error.UNKNOWN_TOPIC_OR_PARTITION
        assert await reassign(controller, None, TopicPartition("u", 0)) is Error.UNKNOWN_TOPIC_OR_PARTITION
        before = cluster.stores[1].commits
        assert await reassign(controller, (1, 2)) is Error.NONE
        assert cluster.stores[1].commits == before, "nothing to do"
        await reassign(controller, (3, 4))
        with pytest.raises(KafkaError) as refusal:
            await controller.create_partitions("t", 5, None, validate_only=False)
        assert refusal.value.error is Error.REASSIGNMENT_IN_PROGRESS

    story(steps)


def test_a_deletion_waits_for_the_dead() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await four(cluster)
        await lay_out(controller, "t", (2, 3), (3, 4))
        await lay_out(controller, "u", (2, 3))
        await cluster.leave(3)
        await cluster.told("u", 0, leader=2, isr=(2,))
        await controller.delete_topic("t")
        await until(lambda: all("t" not in cluster.listeners[one].image.topics for one in cluster.stores))
        await until(lambda: TP not in cluster.listeners[2].data)
        assert await cluster.eye.children(znodes.DELETE_TOPICS) == ["t"]
        results = await controller.create_topics([NewTopic("t", 1, 1)], validate_only=False)
        assert isinstance(results["t"], KafkaError)
        assert results["t"].error is Error.TOPIC_ALREADY_EXISTS
        await cluster.join(3)
        await until(lambda: not cluster.tree.children(znodes.DELETE_TOPICS))
        assert not {tp for tp in cluster.listeners[3].data if tp.topic == "t"}
        assert TopicPartition("u", 0) in cluster.listeners[3].roles
        assert not [tp for tp in cluster.listeners[3].roles if tp.topic == "t"], "it was never told to follow it"
        assert await cluster.eye.children(znodes.TOPICS) == ["u"]
        await create(controller, "t")

    story(steps)


def test_a_deletion_waits_for_a_disk() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await four(cluster)
        await lay_out(controller, "t", (2, 3))
        cluster.listeners[3].failed_disk = {TP}
        await controller.delete_topic("t")
        assert await cluster.eye.children(znodes.DELETE_TOPICS) == ["t"]
        cluster.listeners[3].failed_disk = set()
        await cluster.bounce(3)
        await until(lambda: not cluster.tree.children(znodes.DELETE_TOPICS))

    story(steps)


def test_a_deletion_ends_a_move() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await four(cluster)
        await lay_out(controller, "t", (1, 2))
        await reassign(controller, (3, 4))
        await until(lambda: TP in cluster.listeners[3].data)
        await controller.delete_topic("t")
        assert await cluster.eye.children(znodes.TOPICS) == []
        assert not any(TP in one.data for one in cluster.listeners.values())
        assert await controller.reassignments(None) == {}
        with pytest.raises(KafkaError) as refusal:
            await controller.delete_topic("t")
        assert refusal.value.error is Error.UNKNOWN_TOPIC_OR_PARTITION

    story(steps)


def test_a_deletion_goes_on_under_the_next_controller() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await four(cluster)
        await lay_out(controller, "t", (2, 3))
        cluster.listeners[3].away = True
        await controller.delete_topic("t")
        next_one = await cluster.stand(2)
        await cluster.leave(1)
        await until(lambda: next_one.active)
        assert "t" in await cluster.eye.children(znodes.TOPICS)
        cluster.listeners[3].away = False
        await until(lambda: not cluster.tree.children(znodes.DELETE_TOPICS))
        assert "t" not in cluster.listeners[4].image.topics
        assert await cluster.eye.children(znodes.TOPICS) == []

    story(steps)


def test_a_topic_is_deleted_and_made_again() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await four(cluster)
        first = await lay_out(controller, "t", (2, 3))
        await controller.delete_topic("t")
        second = await lay_out(controller, "t", (3, 4))
        assert first.topic_id != second.topic_id
        await cluster.told("t", 0, replicas=(3, 4), leader=3)
        assert cluster.listeners[2].image.topics["t"].topic_id == second.topic_id
        assert (TP in cluster.listeners[2].data, TP in cluster.listeners[3].data) == (False, True)

    story(steps)


def test_topics_of_a_time_before_ids() -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.eye.commit([Create("/brokers/topics/old", b'{"version":1,"partitions":{"0":[2,9]}}')])
        await four(cluster)
        topic = await cluster.topic("old")
        assert any(topic.topic_id)
        await cluster.told("old", 0, leader=2, isr=(2,))
        assert cluster.listeners[2].image.topics["old"].topic_id == topic.topic_id
        assert NO_LEADER not in cluster.listeners[2].image.topics["old"].partitions[0].isr

    story(steps)
