"""Producer ids and settings in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ottla.metadata.configs import Configs
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.producer_ids import BLOCK_SIZE, ProducerIds
from ottla.metadata.store import Create, Delete
from ottla.metadata.znodes import PRODUCER_ID_BLOCK, TOPIC_CONFIGS, ProducerIdBlock, encode_config


async def inline(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


async def none_seen() -> int:
    return -1


def test_ids_that_logs_speak_of_are_not_given_again() -> None:
    async def seen() -> int:
        return 4711

    async def run() -> None:
        assert await ProducerIds(EmbeddedStore(":memory:", inline), 1, seen).allocate() == 4712

    asyncio.run(run())


def test_no_id_is_given_twice_by_two_brokers() -> None:
    async def run() -> None:
        store = EmbeddedStore(":memory:", inline)
        brokers = [ProducerIds(store, 1, none_seen), ProducerIds(store, 2, none_seen)]
        given = await asyncio.gather(*(brokers[number % 2].allocate() for number in range(3 * BLOCK_SIZE)))
        assert len(set(given)) == len(given)
        assert set(given) <= set(range(4 * BLOCK_SIZE))

    asyncio.run(run())


def test_a_restart_begins_a_new_block() -> None:
    async def run() -> None:
        store = EmbeddedStore(":memory:", inline)
        assert [await ProducerIds(store, 1, none_seen).allocate() for _ in range(3)] == [0, BLOCK_SIZE, 2 * BLOCK_SIZE]
        node = await store.get(PRODUCER_ID_BLOCK)
        assert node is not None
        assert ProducerIdBlock.decode(node.data) == ProducerIdBlock(1, 2000, 2999)

    asyncio.run(run())


def test_settings_follow_the_store() -> None:
    async def run() -> None:
        store = EmbeddedStore(":memory:", inline)
        changed: list[str] = []
        await store.commit([Create(f"{TOPIC_CONFIGS}/old", encode_config({"retention.ms": "1"}))])
        configs = Configs(store)
        configs.topic_changed = changed.append
        await configs.start()
        assert configs.of_topic("old") == {"retention.ms": "1"}
        assert configs.of_topic("ghost") == {}
        await configs.set_topic("old", {"retention.ms": "2"})
        assert configs.of_topic("old") == {"retention.ms": "2"}, "in force when it returns"
        await store.commit([Create(f"{TOPIC_CONFIGS}/new", encode_config({"retention.ms": "3"}))])
        await store.commit([Delete(f"{TOPIC_CONFIGS}/old")])
        await asyncio.sleep(0.01)
        assert configs.of_topic("new") == {"retention.ms": "3"}
        assert configs.of_topic("old") == {}
        assert sorted(changed) == ["new", "old", "old"]

    asyncio.run(run())
