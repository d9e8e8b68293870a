"""The network of the simulation: what TCP promises, and what it does not."""

import asyncio
from random import Random
from types import SimpleNamespace

import pytest

from ottla.config import BrokerConfig
from ottla.model import BrokerUnavailable
from ottla.testing.sim.loop import Process, new_loop
from ottla.testing.sim.network import Network, SimServer


def frame(text):
    return len(text).to_bytes(4, "big") + text.encode()


class World:
    """A server that answers each frame with itself, and a client."""

    def __init__(self, seed=1):
        self.loop = new_loop()
        self.network = Network(self.loop, Random(seed))
        self.server, self.client = Process("server", "there"), Process("client", "here")
        self.seen = []

    def serve(self, answer=True):
        config = BrokerConfig({"listeners": "PLAINTEXT://there:9092"})
        listening = self.server.context.run(SimServer, self.network, config, self.loop)
        listening.bind()

        def dispatch(peer, view):
            self.seen.append(bytes(view).decode())
            if answer:
                peer.answer([frame(bytes(view).decode())])

        listening.serve(dispatch)
        return listening

    def run(self, work):
        async def go():
            return await self.loop.create_task(work, context=self.client.context)

        return self.loop.run_until_complete(go())

    def dial(self, timeout=2.0):
        return self.network.dial_from(self.client)("there", 9092, timeout)


def test_frames_and_answers_keep_their_order():
    world = World()
    world.serve()

    async def go():
        link = await world.dial()
        answers = await asyncio.gather(*(link.exchange(frame(str(n)), 5) for n in range(30)))
        assert len(answers) == 30

    world.run(go())
    assert world.seen == [str(n) for n in range(30)]


def test_a_dial_is_refused_where_nobody_listens():
    world = World()
    dialing = world.dial()
    with pytest.raises(BrokerUnavailable) as refused:
        world.run(dialing)
    assert refused.value.refused


def test_a_dial_through_a_cut_gets_no_answer():
    world = World()
    world.serve()
    world.network.cut("there", "here")
    with pytest.raises(BrokerUnavailable) as silent:
        world.run(world.dial(2.0))
    assert not silent.value.refused
    assert world.loop.time() == pytest.approx(2.0, abs=0.1)


def test_what_a_cut_holds_up_arrives_when_it_heals():
    world = World()
    world.serve()

    async def go():
        link = await world.dial()
        world.network.cut("here", "there")
        world.loop.call_later(3, world.network.heal)
        await link.exchange(frame("late"), 10)
        return world.loop.time()

    assert world.run(go()) > 3


def test_an_answer_that_is_overdue_closes_the_link():
    world = World()
    world.serve(answer=False)

    async def go():
        link = await world.dial()
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            await link.exchange(frame("lost"), 1)
        assert link.closed

    world.run(go())


def test_a_killed_server_resets_its_connections_and_refuses_new_ones():
    world = World()
    world.serve(answer=False)

    async def go():
        link = await world.dial()
        waiting = asyncio.ensure_future(link.exchange(frame("never"), 60))
        await asyncio.sleep(0.5)
        world.loop.kill(world.server)
        world.network.killed(world.server)
        with pytest.raises(BrokerUnavailable, match="closed the connection"):
            await waiting
        with pytest.raises(BrokerUnavailable) as refused:
            await world.dial()
        assert refused.value.refused
        return world.loop.time()

    assert world.run(go()) < 2


def test_a_server_without_power_is_silent_until_its_machine_is_back():
    world = World()
    world.serve()

    async def go():
        link = await world.dial()
        world.network.dark.add("there")
        world.network.went_dark(world.server)
        world.loop.kill(world.server)
        waiting = asyncio.ensure_future(link.exchange(frame("into the dark"), 60))
        await asyncio.sleep(10)
        assert not waiting.done()
        world.network.dark.discard("there")
        world.network.flow()
        with pytest.raises(BrokerUnavailable):
            await waiting
        return world.loop.time()

    assert 10 < world.run(go()) < 12


def test_views_that_are_kept_too_long_are_spoilt():
    world = World()
    kept = []
    config = BrokerConfig({"listeners": "PLAINTEXT://there:9092"})
    listening = world.server.context.run(SimServer, world.network, config, world.loop)
    listening.bind()
    listening.serve(lambda peer, view: (kept.append(view), peer.answer([frame("x")])))

    async def go():
        await (await world.dial()).exchange(frame("mine"), 5)

    world.run(go())
    assert bytes(kept[0]) != b"mine"


def test_a_waiter_of_a_lost_connection_is_discarded():
    world = World()
    discarded = []

    def dispatch(peer, _view):
        peer.waiter = SimpleNamespace(discard=lambda: discarded.append(True))

    config = BrokerConfig({"listeners": "PLAINTEXT://there:9092"})
    listening = world.server.context.run(SimServer, world.network, config, world.loop)
    listening.bind()
    listening.serve(dispatch)

    async def go():
        link = await world.dial()
        with pytest.raises(BrokerUnavailable):
            await link.exchange(frame("wait"), 1)
        await asyncio.sleep(1)

    world.run(go())
    assert discarded == [True]
    assert not world.network.connections
