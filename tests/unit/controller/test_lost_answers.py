"""A controller whose store goes away in the middle: it reads again what really happened, and then goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest

from ottla.clock import ManualClock
from ottla.controller.controller import Controller
from ottla.metadata import znodes
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.store import Create, Delete, Operation, StoreUnavailable
from ottla.model import Error, KafkaError
from unit.controller.controller_kit import Listener, broker_node, create, inline


class ShakyStore(EmbeddedStore):
    """Loses the answer to a commit, which may have been carried out."""

    def __init__(self) -> None:
        super().__init__(":memory:", inline)
        self.commits_until_lost = -1
        self.carried_out = True
        self.problem: Exception = StoreUnavailable("gone")
        self.commits = 0

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        self.commits += 1
        self.commits_until_lost -= 1
        if self.commits_until_lost != 0:
            return await super().commit(operations)
        if self.carried_out:
            await super().commit(operations)
        raise self.problem


Steps = Callable[[ShakyStore, Controller, Listener], Awaitable[None]]


def story(steps: Steps) -> None:
    async def run() -> None:
        store, broker, node = ShakyStore(), Listener(1), broker_node(1)
        await store.commit([Create(node.path, node.encode(), ephemeral=True)])
        controller = Controller(1, store, ManualClock(), Random(4), lambda _broker: broker, lambda _overrides: False)
        await controller.start()
        await steps(store, controller, broker)

    asyncio.run(run())


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_creation(carried_out: bool) -> None:
    async def steps(store: ShakyStore, controller: Controller, broker: Listener) -> None:
        store.commits_until_lost, store.carried_out = 1, carried_out
        with pytest.raises(StoreUnavailable) as refusal:
            await create(controller, "t", 2)
        assert refusal.value.error is Error.REQUEST_TIMED_OUT
        assert "t" not in broker.image.topics, "nothing is announced that may not be"
        await create(controller, "other")
        assert ("t" in broker.image.topics) == carried_out
        if carried_out:
            assert len(broker.image.topics["t"].partitions) == 2
            with pytest.raises(KafkaError) as refused:
                await create(controller, "t")
            assert refused.value.error is Error.TOPIC_ALREADY_EXISTS
        else:
            await create(controller, "t")
        assert {tp.topic for tp in broker.roles} == {"t", "other"}

    story(steps)


@pytest.mark.parametrize(
    ("problem", "carried_out"),
    [(StoreUnavailable("gone"), True), (StoreUnavailable("gone"), False), (OSError("no space"), False)],
    ids=["lost", "not sent", "refused"],
)
def test_a_creation_that_is_cut_between_its_pieces(problem: Exception, carried_out: bool) -> None:
    """A topic that is there with some of its leaders gets the others."""
    name = "t" * 200

    async def steps(store: ShakyStore, controller: Controller, broker: Listener) -> None:
        before = store.commits
        store.commits_until_lost, store.carried_out, store.problem = 2, carried_out, problem
        with pytest.raises(type(problem)):
            await create(controller, name, 4000)
        assert store.commits - before == 2
        await create(controller, "other")
        partitions = broker.image.topics[name].partitions
        assert len(partitions) == 4000
        assert all(state.leader == 1 for state in partitions.values())
        assert len(await store.children(f"{znodes.TOPICS}/{name}/partitions")) == 4000

    story(steps)


def test_growth() -> None:
    async def steps(store: ShakyStore, controller: Controller, broker: Listener) -> None:
        await create(controller, "t")
        store.commits_until_lost = 1
        with pytest.raises(StoreUnavailable):
            await controller.create_partitions("t", 3, None, validate_only=False)
        await controller.create_partitions("t", 5, None, validate_only=False)
        assert len(broker.image.topics["t"].partitions) == 5

    story(steps)


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("commit", [1, 2])
def test_a_deletion(commit: int, carried_out: bool) -> None:
    async def steps(store: ShakyStore, controller: Controller, broker: Listener) -> None:
        await create(controller, "t")
        store.commits_until_lost, store.carried_out = commit, carried_out
        with pytest.raises(StoreUnavailable):
            await controller.delete_topic("t")
        await create(controller, "other")
        marked = commit == 2 or carried_out
        assert ("t" not in broker.image.topics) == marked, "what was marked is carried through"
        assert (await store.get(f"{znodes.TOPICS}/t") is None) == marked
        assert await store.children(znodes.DELETE_TOPICS) == []

    story(steps)


def test_a_second_session() -> None:
    """Elected again: a new epoch, the same world."""

    async def steps(store: ShakyStore, controller: Controller, broker: Listener) -> None:
        await create(controller, "t", 2)
        await store.commit([Delete(znodes.CONTROLLER)])
        await controller.start()
        epoch = await store.get(znodes.CONTROLLER_EPOCH)
        assert epoch is not None
        assert epoch.data == b"2"
        assert set(broker.image.topics) == {"t"}
        await create(controller, "u")
        assert set(broker.image.topics) == {"t", "u"}

    story(steps)
