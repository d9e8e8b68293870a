"""A broker's registration: another life for each session, and again when a controller took it away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.clock import ManualClock
from ottla.config import BrokerConfig, Listener
from ottla.metadata import znodes
from ottla.metadata.memory import MemoryStore, SharedTree
from ottla.metadata.store import Delete
from ottla.registration import Registration

NODE = f"{znodes.BROKER_IDS}/5"


class Setting:
    """One broker's registration, who is told of it, and another session that looks on."""

    def __init__(self) -> None:
        self.tree = SharedTree()
        self.store = MemoryStore(self.tree)
        self.eye = MemoryStore(self.tree)
        bound = [Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)]
        self.registration = Registration(BrokerConfig({}), self.store, ManualClock(), 5, bound)
        self.epochs: list[int] = []
        self.registration.epoch_changed = self.epochs.append
        self.roles = 0

    async def take_role(self) -> None:
        self.roles += 1

    async def another_life(self, than: int) -> int:
        async with asyncio.timeout(5):
            while self.registration.epoch == than or self.roles == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        node = await self.eye.get(NODE)
        assert node is not None
        assert node.created == self.registration.epoch
        return node.created


def story(steps: Callable[[Setting], Awaitable[None]]) -> None:
    async def run() -> None:
        setting = Setting()
        await setting.registration.enter()
        await setting.registration.keep(setting.take_role)
        await steps(setting)
        await setting.registration.stop()

    asyncio.run(run())


def test_the_epoch_is_the_nodes_birth() -> None:
    async def steps(setting: Setting) -> None:
        node = await setting.eye.get(NODE)
        assert node is not None
        assert setting.registration.epoch == node.created
        assert setting.epochs == [node.created]

    story(steps)


def test_a_new_session_is_a_new_life() -> None:
    async def steps(setting: Setting) -> None:
        first = setting.registration.epoch
        setting.store.expire()
        second = await setting.another_life(first)
        assert second > first
        assert setting.epochs == [first, second]

    story(steps)


@pytest.mark.parametrize("times", [1, 3])
def test_a_controller_that_took_us_for_dead(times: int) -> None:
    async def steps(setting: Setting) -> None:
        for _ in range(times):
            setting.roles = 0
            before = setting.registration.epoch
            await setting.eye.commit([Delete(NODE)])
            assert await setting.another_life(before) > before
        assert len(setting.epochs) == times + 1

    story(steps)
