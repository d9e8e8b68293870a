"""A cluster whose brokers fail, return, leave and lose disks, as the brokers hear of it."""

from __future__ import annotations

import asyncio

import pytest

from ottla.controller.controller import Controller
from ottla.metadata import znodes
from ottla.metadata.store import Create, Delete, Set
from ottla.metadata.znodes import PartitionStateNode
from ottla.model import NO_LEADER, Error, KafkaError, TopicPartition
from ottla.replication.isr import IsrProposal
from unit.controller.controller_kit import Cluster, create, lay_out, story, until

TP = TopicPartition("t", 0)


async def three(cluster: Cluster) -> Controller:
    await cluster.join(1, 2, 3)
    return await cluster.stand(1)


def test_a_leader_fails() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3, 1), (3, 1, 2))
        before = cluster.stores[1].commits
        await cluster.leave(2)
        await cluster.told("t", 0, leader=3, leader_epoch=1, isr=(3, 1))
        await cluster.told("t", 1, leader=3, leader_epoch=1, isr=(3, 1))
        assert await cluster.state("t", 0) == PartitionStateNode(3, 1, (3, 1), 1)
        assert cluster.stores[1].commits == before + 1, "all of it in one transaction"
        assert cluster.listeners[3].roles[TP].leader == 3
        assert sorted(cluster.listeners[3].image.brokers) == [1, 3]

    story(steps)


def test_a_broker_without_replicas_comes_and_goes() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (1,))
        await cluster.leave(3)
        await until(lambda: sorted(cluster.listeners[2].image.brokers) == [1, 2])
        await cluster.join(4)
        await until(lambda: sorted(cluster.listeners[2].image.brokers) == [1, 2, 4])
        await until(lambda: "t" in cluster.listeners[4].image.topics)
        assert cluster.listeners[4].roles == {}

    story(steps)


def test_a_return() -> None:
    """Everything is told to who comes; nobody else is disturbed but for the partitions it can lead."""

    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3))
        await lay_out(controller, "s", (2,))
        await cluster.leave(2)
        await cluster.told("s", 0, leader=NO_LEADER, isr=(2,), leader_epoch=1)
        await cluster.join(2)
        await cluster.told("s", 0, leader=2, isr=(2,), leader_epoch=2)
        assert cluster.listeners[2].roles[TP].leader == 3, "it follows where another leads"
        assert await cluster.state("t", 0) == PartitionStateNode(3, 1, (3,), 1)

    story(steps)


def test_a_bounce_is_a_failure_and_a_return() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3))
        await lay_out(controller, "s", (2,))
        await cluster.bounce(2)
        await cluster.told("t", 0, leader=3, isr=(3,), leader_epoch=1)
        await cluster.told("s", 0, leader=2, isr=(2,), leader_epoch=2)
        await until(lambda: len(cluster.listeners[2].roles) == 2)
        assert cluster.listeners[1].image.brokers[2].epoch == await cluster.epoch(2)

    story(steps)


def test_the_controllers_own_registration_is_made_anew() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (1, 2))
        node = znodes.BROKER_IDS + "/1"
        await cluster.stores[1].commit([Delete(node)])
        await cluster.join(1)
        await cluster.told("t", 0, leader=2, isr=(2,))
        assert controller.active

    story(steps)


def test_an_unclean_election_only_where_it_is_allowed() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3))
        assert (await cluster.propose(controller, TP, (2,))).error is Error.NONE
        await cluster.leave(2)
        await cluster.told("t", 0, leader=NO_LEADER, isr=(2,))
        cluster.unclean = True
        controller.settings_changed()
        await cluster.told("t", 0, leader=3, isr=(3,))

    story(steps)


def test_a_new_address_is_told() -> None:
    async def steps(cluster: Cluster) -> None:
        await three(cluster)
        path = f"{znodes.BROKER_IDS}/2"
        node = await cluster.eye.get(path)
        assert node is not None
        await cluster.stores[2].commit([Set(path, node.data.replace(b"h2:9092", b"h2:9999"))])
        await until(lambda: cluster.listeners[3].image.brokers[2].endpoints["PLAINTEXT"].port == 9999)
        assert not [line for line in cluster.listeners[3].log if line[0] == "lead"]

    story(steps)


@pytest.mark.parametrize("current", [True, False])
def test_suspicion(current: bool) -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3))
        epoch = await cluster.epoch(2)
        await controller.suspect(2, epoch if current else epoch - 1)
        there = await cluster.eye.get(f"{znodes.BROKER_IDS}/2")
        assert (there is None) == current
        assert (await cluster.state("t")).leader == (3 if current else 2)
        await controller.suspect(9, 1)

    story(steps)


def test_a_failed_disk() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3), (2, 3))
        cluster.listeners[2].failed_disk = {TP}
        event = znodes.encode_log_dir_event(2)
        await cluster.eye.commit([Create(f"{znodes.LOG_DIR_EVENTS}/log_dir_event_", event, sequential=True)])
        await cluster.told("t", 0, leader=3, isr=(3,))
        await until(lambda: not cluster.tree.children(znodes.LOG_DIR_EVENTS))
        assert (await cluster.state("t", 1)).leader == 2, "its other disks are well"
        assert (await cluster.propose(controller, TP, (3, 2))).error is Error.INELIGIBLE_REPLICA
        cluster.listeners[2].failed_disk = set()
        await cluster.bounce(2)
        await until(lambda: TP in cluster.listeners[2].roles)
        assert (await cluster.propose(controller, TP, (3, 2))).error is Error.NONE

    story(steps)


def test_controlled_shutdown() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3), (1, 2), (2, 1))
        await lay_out(controller, "s", (2,))
        await cluster.propose(controller, TopicPartition("t", 2), (2,))
        before = cluster.stores[1].commits
        epoch = await cluster.epoch(2)
        left = await controller.controlled_shutdown(2, epoch)
        assert list(left) == [TopicPartition("t", 2)], "nobody else is in sync; a single replica is not counted"
        assert cluster.stores[1].commits == before + 1
        await cluster.told("t", 0, leader=3, isr=(3,), leader_epoch=1)
        await cluster.told("t", 1, leader=1, isr=(1,), leader_epoch=1)
        assert ("stop", 2, 1, ["t-1"], False) in cluster.listeners[2].log, "what it follows it gives up, and keeps the data"
        assert TopicPartition("t", 1) in cluster.listeners[2].data
        assert cluster.listeners[2].roles[TP].leader == 3
        assert (await cluster.propose(controller, TP, (3, 2))).error is Error.INELIGIBLE_REPLICA
        await create(controller, "u", 1, 3)
        assert (await cluster.state("u")).leader != 2, "it leads nothing new"
        assert 2 not in (await cluster.state("u")).isr

        with pytest.raises(KafkaError) as refusal:
            await controller.controlled_shutdown(2, epoch - 1)
        assert refusal.value.error is Error.STALE_BROKER_EPOCH
        with pytest.raises(KafkaError) as refusal:
            await controller.controlled_shutdown(9, 1)
        assert refusal.value.error is Error.BROKER_NOT_AVAILABLE
        await cluster.leave(2)
        await cluster.told("s", 0, leader=NO_LEADER)
        await cluster.join(2)
        await cluster.told("s", 0, leader=2)
        assert (await cluster.propose(controller, TP, (3, 2))).error is Error.NONE, "it may stay now"

    story(steps)


def test_isr_changes() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3, 1), (2, 3, 1))
        for listener in cluster.listeners.values():
            listener.log.clear()
        outcome = await cluster.propose(controller, TP, (2, 1))
        assert (outcome.error, outcome.isr, outcome.leader, outcome.leader_epoch, outcome.version) == (
            Error.NONE, (2, 1), 2, 0, 1,
        )  # fmt: skip
        await cluster.told("t", 0, isr=(2, 1), leader_epoch=0, version=1)
        assert not [line for one in cluster.listeners.values() for line in one.log if line[0] != "image"], "no new roles"
        again = await cluster.propose(controller, TP, (2, 1), version=0)
        assert again == outcome, "asked again, for the answer was lost"
        with pytest.raises(KafkaError) as refusal:
            await cluster.propose(controller, TP, (2,), broker_epoch=1)
        assert refusal.value.error is Error.STALE_BROKER_EPOCH

    story(steps)


def test_a_state_that_somebody_else_wrote_does_not_hold_up_the_others() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        topic = await lay_out(controller, "t", (2, 3), (2, 3))
        path = znodes.partition_state_path("t", 0)
        await cluster.eye.commit([Set(path, PartitionStateNode(2, 0, (2,), 1).encode())])
        wishes = [IsrProposal(TopicPartition("t", p), topic.topic_id, 0, (2,), 0) for p in range(2)]
        outcomes = await controller.alter_partitions(2, await cluster.epoch(2), wishes)
        assert [outcomes[wish.tp].error for wish in wishes] == [Error.INVALID_UPDATE_VERSION, Error.NONE]
        assert (await cluster.propose(controller, TP, (2, 3))).error is Error.NONE, "and then it is known"

    story(steps)


def test_leaders_that_write_their_isr_themselves() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3), (2, 3))
        notice = znodes.encode_isr_change([("t", 0), ("ghost", 1)])
        await cluster.eye.commit(
            [
                Set(znodes.partition_state_path("t", 0), PartitionStateNode(2, 0, (2,), 1).encode()),
                Create(f"{znodes.ISR_CHANGES}/isr_change_", notice, sequential=True),
            ]
        )
        await cluster.told("t", 0, isr=(2,), version=1)
        await until(lambda: not cluster.tree.children(znodes.ISR_CHANGES))

    story(steps)


def test_elections_on_request() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3), (3, 2), (2, 1))
        await lay_out(controller, "s", (3,))
        parts = [*(TopicPartition("t", number) for number in range(3)), TopicPartition("s", 0)]
        await cluster.bounce(2)
        await cluster.told("t", 0, leader=3, isr=(3,))

        async def elect(unclean: bool, asked: list[TopicPartition] | None) -> dict[TopicPartition, Error]:
            found = await controller.elect_leaders(unclean, asked)
            return {tp: problem.error if problem else Error.NONE for tp, problem in found.items()}

        assert await elect(False, [parts[0], parts[1], parts[3], TopicPartition("t", 9)]) == {
            parts[0]: Error.PREFERRED_LEADER_NOT_AVAILABLE,
            parts[1]: Error.ELECTION_NOT_NEEDED,
            parts[3]: Error.ELECTION_NOT_NEEDED,
            TopicPartition("t", 9): Error.UNKNOWN_TOPIC_OR_PARTITION,
        }
        await cluster.propose(controller, parts[0], (3, 2))
        assert await elect(False, None) == {parts[0]: Error.NONE, parts[2]: Error.PREFERRED_LEADER_NOT_AVAILABLE}
        await cluster.told("t", 0, leader=2, isr=(3, 2), leader_epoch=2)

        await cluster.propose(controller, parts[0], (2,))
        await cluster.leave(2)
        await cluster.told("t", 0, leader=NO_LEADER)
        assert await elect(False, [parts[0]]) == {parts[0]: Error.PREFERRED_LEADER_NOT_AVAILABLE}
        assert await elect(True, None) == {parts[0]: Error.NONE}
        await cluster.told("t", 0, leader=3, isr=(3,))
        await cluster.leave(3)
        await cluster.told("s", 0, leader=NO_LEADER)
        assert await elect(True, parts) == {
            parts[0]: Error.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            parts[1]: Error.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            parts[2]: Error.ELECTION_NOT_NEEDED,
            parts[3]: Error.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        }

    story(steps)


def test_leaders_go_back_by_themselves() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3), (3, 2))
        await cluster.bounce(2)
        await cluster.told("t", 0, leader=3)
        await controller.rebalance_leaders(10)
        assert (await cluster.state("t")).leader == 3, "not before it is in sync"
        await cluster.propose(controller, TP, (3, 2))
        await controller.rebalance_leaders(10)
        assert (await cluster.state("t")).leader == 2
        controller.stop()
        await controller.rebalance_leaders(10)

    story(steps)


def test_a_broker_that_does_not_answer_holds_nobody_up() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        cluster.listeners[3].hang = asyncio.Event()
        await lay_out(controller, "t", (2, 3))
        assert cluster.listeners[2].roles[TP].leader == 2
        for number in range(30):
            await create(controller, f"n{number}")
            cluster.listeners[2].log.clear()
        assert not cluster.listeners[3].image.topics
        cluster.listeners[3].hang.set()
        await until(lambda: len(cluster.listeners[3].image.topics) == 31)
        assert len([line for line in cluster.listeners[3].log if line[0] == "image"]) <= 4, "merged on the way"

    story(steps)


def test_a_bounce_that_the_last_controller_did_not_hear_of() -> None:
    """It wrote the partition's state after the broker was back, but without knowing: the next one must not take that for a
    state that counts on what the broker has now."""

    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        await lay_out(controller, "t", (2, 3, 1), (2, 3, 1))
        cluster.stores[1].deafen()
        before = await cluster.epoch(3)
        await cluster.bounce(3)
        outcome = await cluster.propose(controller, TP, (2, 3), broker_epochs={2: await cluster.epoch(2), 3: before})
        assert (outcome.error, outcome.isr) == (Error.NONE, (2, 3)), "the leader has not heard of it either"
        await cluster.leave(1)
        await cluster.stand(2)
        assert (await cluster.state("t")).isr == (2,)
        assert (await cluster.state("t", 1)).isr == (2,)
        await cluster.propose(cluster.controllers[2], TP, (2, 3), broker_epochs={3: await cluster.epoch(3)})
        cluster.controllers[2].stop()
        await cluster.stores[2].commit([Delete(znodes.CONTROLLER)])
        await cluster.stand(3)
        assert (await cluster.state("t")).isr == (2, 3), "it is known in its new life"

    story(steps)


def test_a_new_topic_is_known_by_its_id_at_once() -> None:
    async def steps(cluster: Cluster) -> None:
        controller = await three(cluster)
        topic = await lay_out(controller, "t", (2, 3))
        assert await controller.topic_names() == {topic.topic_id: "t"}
        controller.stop()
        with pytest.raises(KafkaError) as refusal:
            await controller.topic_names()
        assert refusal.value.error is Error.NOT_CONTROLLER

    story(steps)
