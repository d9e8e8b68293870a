"""The store of the simulation: sessions, lost answers, order."""

import asyncio
from random import Random

import pytest

from ottla.config import BrokerConfig
from ottla.metadata.store import Create, Set, StoreUnavailable
from ottla.testing.sim.history import History, StateWritten
from ottla.testing.sim.loop import Process, new_loop
from ottla.testing.sim.network import Network
from ottla.testing.sim.store import HOST, Keeper

CONFIG = BrokerConfig({"zookeeper.connect": "zookeeper:2181", "zookeeper.session.timeout.ms": "6000"})


class World:
    def __init__(self):
        self.loop = new_loop()
        self.network = Network(self.loop, Random(1))
        self.history = History()
        self.keeper = Keeper(self.loop, self.network, Random(2), self.history)
        self.process = Process("broker", "host")

    def run(self, story):
        """`story` gets a session of the process and runs outside of it."""

        async def go():
            store = await self.loop.create_task(self.keeper.open(CONFIG, "", None, None), context=self.process.context)
            return await story(store)

        return self.loop.run_until_complete(go())


def test_what_is_committed_is_read():
    world = World()

    async def story(store):
        await store.commit([Create("/a", b"1")])
        await store.commit([Set("/a", b"2")])
        return (await store.get("/a")).data

    assert world.run(story) == b"2"


def test_an_answer_is_lost_but_the_transaction_happened():
    world = World()
    world.keeper.lost_answers = 1.0

    async def story(store):
        with pytest.raises(StoreUnavailable):
            await store.commit([Create("/a", b"1")])
        return (await store.get("/a")).data

    assert world.run(story) == b"1"


def test_a_session_of_which_nothing_is_heard_ends_and_a_new_one_begins():
    world, begun = World(), []

    async def story(store):
        store.on_new_session(lambda: begun.append(world.loop.time()))
        await store.commit([Create("/me", ephemeral=True)])
        world.network.cut(HOST, "host")
        world.keeper.look()
        with pytest.raises(StoreUnavailable):
            await store.get("/me")
        await asyncio.sleep(10)
        assert world.keeper.tree.get("/me", -1) is None
        assert not begun
        world.network.heal()
        world.keeper.look()
        await asyncio.sleep(1)
        assert await store.get("/me") is None

    world.run(story)
    assert len(begun) == 1


def test_a_short_cut_ends_no_session():
    world = World()

    async def story(store):
        await store.commit([Create("/me", ephemeral=True)])
        world.network.cut("host", HOST)
        world.keeper.look()
        await asyncio.sleep(4)
        world.network.heal()
        world.keeper.look()
        await asyncio.sleep(20)
        return await store.get("/me")

    assert world.run(story) is not None


def test_the_session_of_a_dead_or_paused_process_runs_out():
    for stop in ("kill", "pause"):
        world = World()

        async def story(store, world=world, stop=stop):
            await store.commit([Create("/me", ephemeral=True)])
            getattr(world.loop, stop)(world.process)
            world.keeper.look()
            await asyncio.sleep(5)
            assert world.keeper.tree.get("/me", -1) is not None
            await asyncio.sleep(5)
            return world.keeper.tree.get("/me", -1)

        assert world.run(story) is None


def test_whoever_reads_something_new_was_told_of_it_before():
    world, told = World(), []

    async def story(store):
        await store.watch("/a", told.append)
        await store.commit([Create("/a", b"")])
        await store.get("/a")
        assert told == ["/a"]

    world.run(story)


def test_a_store_that_is_down_ends_no_sessions():
    world = World()

    async def story(store):
        await store.commit([Create("/me", ephemeral=True)])
        world.keeper.down = True
        world.keeper.look()
        await asyncio.sleep(60)
        world.keeper.down = False
        world.keeper.look()
        await asyncio.sleep(1)
        return await store.get("/me")

    assert world.run(story) is not None


def test_states_of_partitions_are_written_down():
    world = World()
    state = b'{"controller_epoch":3,"leader":1,"version":1,"leader_epoch":2,"isr":[1,2]}'

    async def story(store):
        await store.commit([Create("/brokers/topics/t/partitions/0/state", state)])

    world.run(story)
    (event,) = world.history
    assert isinstance(event, StateWritten)
    assert (event.leader, event.leader_epoch, event.isr, event.controller_epoch) == (1, 2, (1, 2), 3)
