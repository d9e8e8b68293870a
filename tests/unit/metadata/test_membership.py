"""A broker's place: the nodes that all expect, numbers that nobody had, and one owner for each id."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from ottla.clock import ManualClock, SystemClock
from ottla.metadata import membership, znodes
from ottla.metadata.membership import NotAdmitted
from ottla.metadata.store import Create, Node, Store
from ottla.metadata.znodes import BrokerNode

if TYPE_CHECKING:
    from .conftest import Stores, ZooKeeperStores

ME = BrokerNode(1, ("PLAINTEXT://me:9092",), {"PLAINTEXT": "PLAINTEXT"}, 0)
OTHER = BrokerNode(1, ("PLAINTEXT://other:9092",), {"PLAINTEXT": "PLAINTEXT"}, 0)


def test_the_nodes_that_all_expect_are_made_once(stores: Stores) -> None:
    async def first(store: Store) -> None:
        await membership.prepare(store)
        assert set(znodes.PERSISTENT_PATHS) <= set(await store.subtree(""))
        assert await store.get("/feature") == Node(b'{"features":{},"version":2,"status":1}', 0)
        await store.commit([Create(f"{znodes.TOPICS}/t")])

    async def second(store: Store) -> None:
        await membership.prepare(store)
        assert await store.children(znodes.TOPICS) == ["t"]

    stores.story(first, second)


@pytest.mark.java
def test_two_that_prepare_at_once(zookeeper_stores: ZooKeeperStores) -> None:
    async def steps(store: Store) -> None:
        other = await zookeeper_stores.open()
        await asyncio.gather(*(membership.prepare(one) for one in (store, other, store)))
        assert set(znodes.PERSISTENT_PATHS) <= set(await store.subtree(""))
        await other.close()

    zookeeper_stores.story(steps)


@pytest.mark.parametrize("prepared", [True, False])
def test_no_number_is_given_twice(stores: Stores, prepared: bool) -> None:
    async def first(store: Store) -> None:
        if prepared:
            await membership.prepare(store)
        assert [await membership.next_sequence(store) for _ in range(3)] == [1, 2, 3]

    async def second(store: Store) -> None:
        assert await membership.next_sequence(store) == 4

    stores.story(first, second)


@pytest.mark.java
def test_registering_twice_in_a_session_is_once(zookeeper_stores: ZooKeeperStores) -> None:
    async def steps(store: Store) -> None:
        epoch = await membership.register(store, ME, 1000, SystemClock())
        assert epoch > 0
        assert await membership.register(store, ME, 1000, SystemClock()) == epoch

    zookeeper_stores.story(steps)


@pytest.mark.java
def test_an_old_session_is_waited_for(zookeeper_stores: ZooKeeperStores) -> None:
    async def steps(store: Store) -> None:
        other = await zookeeper_stores.open()
        old = await membership.register(other, OTHER, 1000, SystemClock())
        waiting = asyncio.ensure_future(membership.register(store, ME, 60_000, SystemClock()))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        await other.close()
        assert await waiting > old
        node = await store.get(ME.path)
        assert node == Node(ME.encode(), 0)

    zookeeper_stores.story(steps)


@pytest.mark.java
def test_a_broker_that_lives_keeps_its_id(zookeeper_stores: ZooKeeperStores) -> None:
    async def steps(store: Store) -> None:
        other = await zookeeper_stores.open()
        await membership.register(other, OTHER, 1000, SystemClock())
        clock = ManualClock()
        waiting = asyncio.ensure_future(membership.register(store, ME, 1000, clock))
        await asyncio.sleep(0)
        clock.advance_ms(60_000)
        with pytest.raises(NotAdmitted, match="broker id 1 is in use by another broker, at PLAINTEXT://other:9092"):
            await waiting
        await other.close()

    zookeeper_stores.story(steps)
