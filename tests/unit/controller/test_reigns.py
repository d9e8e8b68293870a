"""One controller at a time: elections, sessions that end, answers that are lost, and how much work a large cluster is."""

from __future__ import annotations

import asyncio
import time

import pytest

from ottla.metadata import znodes
from ottla.metadata.store import Create, Delete, Set, StoreUnavailable
from ottla.metadata.znodes import PartitionStateNode, TopicNode
from ottla.model import NO_LEADER, Error, KafkaError, TopicPartition
from unit.controller.controller_kit import Cluster, create, lay_out, story, until

TP = TopicPartition("t", 0)


def test_who_loses_knows_who_won_and_stands_again() -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2, 3)
        one, two, three = [await cluster.stand(broker) for broker in (1, 2, 3)]
        assert [controller.active for controller in (one, two, three)] == [True, False, False]
        assert [controller.controller_id for controller in (one, two, three)] == [1, 1, 1]
        await lay_out(one, "t", (1, 2, 3))
        for call in (create(two, "u"), two.suspect(3, 1), two.reassignments(None), two.controlled_shutdown(2, 1)):
            with pytest.raises(KafkaError) as refusal:
                await call
            assert refusal.value.error is Error.NOT_CONTROLLER
        await cluster.leave(1)
        await until(lambda: two.active or three.active)
        winner = two if two.active else three
        await until(lambda: {two.controller_id, three.controller_id} == {2 if winner is two else 3})
        assert winner.epoch == 2
        await cluster.told("t", 0, leader=2, isr=(2, 3), leader_epoch=1, controller_epoch=2)
        assert cluster.listeners[3].image.controller_id == winner.controller_id

    story(steps)


def test_an_old_controller_is_harmless() -> None:
    """It does not hear that it was deposed: its writes fail, its messages are refused, and that is how it learns of it."""

    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2, 3)
        old = await cluster.stand(1)
        await lay_out(old, "t", (1, 2, 3))
        cluster.stores[1].deafen()
        cluster.listeners[3].hang = asyncio.Event()
        await lay_out(old, "late", (3, 2))  # on its way to 3
        await cluster.eye.commit([Delete(znodes.CONTROLLER)])
        new = await cluster.stand(2)
        await until(lambda: cluster.listeners[2].controller_epoch == 2)
        cluster.listeners[3].controller_epoch = 2  # it has heard of the new one before the old one's word arrives
        cluster.listeners[3].hang.set()
        await until(lambda: not old.active)
        assert ("refused", 3, 1) in cluster.listeners[3].log
        assert old.controller_id == 2
        assert new.active
        await cluster.told("late", 0, leader=3)
        with pytest.raises(KafkaError) as refusal:
            await cluster.propose(old, TP, (1,))
        assert refusal.value.error is Error.NOT_CONTROLLER

    story(steps)


def test_a_write_that_comes_too_late_changes_nothing() -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2, 3)
        old = await cluster.stand(1)
        await lay_out(old, "t", (1, 2, 3))
        cluster.stores[1].deafen()
        await cluster.eye.commit([Delete(znodes.CONTROLLER)])
        new = await cluster.stand(2)
        before = await cluster.state("t")
        with pytest.raises(KafkaError) as refusal:
            await cluster.propose(old, TP, (1,))
        assert refusal.value.error is Error.NOT_CONTROLLER
        assert await cluster.state("t") == before
        assert not old.active
        assert (await cluster.propose(new, TP, (1, 2))).error is Error.NONE

    story(steps)


def test_a_state_written_without_knowing_of_a_return() -> None:
    """Broker 3 is killed and comes back, and its controller, which has not heard of it, writes 3 into an ISR once more: whoever
    reigns next does not take that for a word about the new life, which may have lost data."""

    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2, 3)
        old = await cluster.stand(1)
        await lay_out(old, "t", (2, 3, 1))
        await lay_out(old, "known", (2, 3, 1))
        cluster.stores[1].deafen()
        await cluster.bounce(3)
        assert (await cluster.propose(old, TP, (2, 3))).error is Error.NONE
        await cluster.leave(1)
        new = await cluster.stand(2)
        await cluster.told("t", 0, leader=2, isr=(2,))
        assert (await cluster.propose(new, TP, (2, 3))).error is Error.NONE
        await cluster.eye.commit([Delete(znodes.CONTROLLER)])
        await until(lambda: cluster.listeners[2].controller_epoch == 3)
        assert (await cluster.state("t")).isr == (2, 3), "this was written knowing of it"

    story(steps)


def test_a_new_session() -> None:
    """The controller's session ends: registered again, it stands again, and whoever was faster reigns."""

    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2)
        one, two = await cluster.stand(1), await cluster.stand(2)
        await lay_out(one, "t", (1, 2))
        cluster.stores[1].expire()
        await cluster.join(1)
        await one.start()
        await until(lambda: one.active != two.active)
        winner = one if one.active else two
        assert winner.epoch == 2
        await cluster.told("t", 0, leader=2, isr=(2,))
        await create(winner, "u")

    story(steps)


def test_a_claim_whose_answer_was_lost() -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2)
        cluster.stores[1].commits_until_lost = 1
        with pytest.raises(StoreUnavailable):
            await cluster.stand(1)
        one = cluster.controllers[1]
        await until(lambda: one.active)
        assert one.epoch == 2, "claimed again"

    story(steps)


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_failure_whose_answer_was_lost(carried_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.controller.controller._TRY_EVERY", 0.01)

    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2, 3)
        controller = await cluster.stand(1)
        await lay_out(controller, "t", (2, 3), (2, 1))
        cluster.stores[1].commits_until_lost, cluster.stores[1].carried_out = 1, carried_out
        await cluster.leave(2)
        await cluster.told("t", 0, leader=3, isr=(3,), leader_epoch=1)
        await cluster.told("t", 1, leader=1, isr=(1,), leader_epoch=1)
        assert controller.active

    story(steps)


def test_a_store_that_is_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures and bounces that nobody could follow are made up for, and nothing is decided meanwhile."""
    monkeypatch.setattr("ottla.controller.controller._TRY_EVERY", 0.01)

    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2, 3)
        controller = await cluster.stand(1)
        await lay_out(controller, "t", (2, 3), (3, 2))
        cluster.stores[1].away = True
        with pytest.raises(StoreUnavailable):
            await create(controller, "u")
        await cluster.bounce(2)
        await cluster.leave(3)
        await asyncio.sleep(0.05)
        assert (await cluster.state("t", 1)).leader == 3
        cluster.stores[1].away = False
        await cluster.told("t", 1, leader=2)
        node = await cluster.state("t", 0)
        assert node.leader_epoch > 0, "its leader was started again: another epoch"
        assert controller.active
        await create(controller, "u")

    story(steps)


def test_a_lost_answer_in_the_middle_of_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.controller.controller._TRY_EVERY", 0.01)

    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2, 3)
        controller = await cluster.stand(1)
        await lay_out(controller, "t", (1, 2))
        cluster.stores[1].commits_until_lost = 1
        with pytest.raises(StoreUnavailable):
            await controller.reassign({TP: (1, 3)})
        await cluster.told("t", 0, replicas=(1, 3, 2), adding=(3,), removing=(2,))
        cluster.stores[1].commits_until_lost = 2  # the ISR is written, the switch is, but nobody hears of it
        with pytest.raises(StoreUnavailable):
            await cluster.propose(controller, TP, (1, 2, 3))
        await cluster.told("t", 0, replicas=(1, 3), adding=(), removing=(), isr=(1, 3))
        await until(lambda: TP not in cluster.listeners[2].data)

    story(steps)


def test_what_a_new_controller_finds_is_put_in_order() -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.eye.commit(
            [
                Create(f"{znodes.DELETE_TOPICS}/ghost"),
                Create(f"{znodes.ISR_CHANGES}/isr_change_0000000001", znodes.encode_isr_change([("t", 0)])),
            ]
        )
        await cluster.join(1)
        await cluster.stand(1)
        for parent in (znodes.DELETE_TOPICS, znodes.ISR_CHANGES):
            assert await cluster.eye.children(parent) == []

    story(steps)


def test_a_topic_that_changed_behind_our_back_is_read_again() -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2)
        controller = await cluster.stand(1)
        await create(controller, "t")
        topic = await cluster.topic("t")
        await cluster.eye.commit([Set(topic.path, topic.encode())])
        first = await asyncio.gather(controller.create_partitions("t", 2, None, validate_only=False), return_exceptions=True)
        assert isinstance(first[0], Exception)
        await controller.create_partitions("t", 2, None, validate_only=False)

    story(steps)


PARTITIONS = 10_000


def test_ten_thousand_partitions() -> None:
    """What a large cluster costs: few transactions, few messages, and no step that looks at everything for each partition."""

    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2, 3)
        controller = await cluster.stand(1)
        before = cluster.stores[1].commits
        await create(controller, "warm", 3000, 3)
        assert cluster.stores[1].commits - before <= 4
        for number in range(7):
            await create(controller, f"t{number}", 1000, 3)
        two = await cluster.stand(2)
        for listener in cluster.listeners.values():
            listener.log.clear()
        before, reads = cluster.stores[2].commits, cluster.stores[2].reads
        began = time.perf_counter()
        await cluster.leave(1)
        await until(lambda: two.active, 20)
        for listener in (cluster.listeners[2], cluster.listeners[3]):
            await until(lambda told=listener: all(state.controller_epoch == 2 for state in told.roles.values()), 20)
        took = time.perf_counter() - began
        assert len(cluster.listeners[3].roles) == PARTITIONS
        assert all(state.leader in (2, 3) for state in cluster.listeners[3].roles.values())
        assert cluster.stores[2].commits - before <= 8, "one to win, a few to elect"
        assert cluster.stores[2].reads - reads <= 40
        assert len(cluster.listeners[3].log) <= 6
        assert took < 10, f"{took:.1f} s"
        commits = cluster.stores[2].commits
        await cluster.leave(3)
        await until(lambda: all(one.leader == 2 for one in cluster.listeners[2].roles.values()), 20)
        assert cluster.stores[2].commits - commits <= 6

    story(steps)


def test_many_moves_are_few_transactions() -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.join(1, 2, 3)
        controller = await cluster.stand(1)
        count = 2000
        topic = TopicNode("t", b"t" * 16, dict.fromkeys(range(count), (1, 2)))
        states = [
            Create(znodes.partition_state_path("t", number), PartitionStateNode(1, 0, (1, 2), 1).encode())
            for number in range(count)
        ]
        cluster.stores[1].deafen()
        await cluster.eye.commit([Create(topic.path, topic.encode()), *states, Delete(znodes.CONTROLLER)])
        controller = await cluster.stand(2)
        before = cluster.stores[2].commits
        partitions = [TopicPartition("t", number) for number in range(count)]
        results = await controller.reassign(dict.fromkeys(partitions, (2, 3)))
        assert set(results.values()) == {None}
        assert cluster.stores[2].commits - before <= 3
        assert len(await controller.reassignments(None)) == count
        assert NO_LEADER not in {(await cluster.state("t", number)).leader for number in (0, count - 1)}

    story(steps)
