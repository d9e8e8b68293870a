"""Both stores for the tests of what a store promises; the real ZooKeeper is started once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from ottla.clock import SystemClock
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.store import Store
from ottla.metadata.zookeeper import ZooKeeperStore
from support.kafka import ZooKeeper


async def inline(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


class Stores(Protocol):
    """Opens the same store as often as a test wants, one session after the other or beside it."""

    kind: str

    async def open(self) -> Store: ...

    def story(self, *chapters: Callable[[Any], Awaitable[None]]) -> None:
        """Each chapter in a session of its own."""
        for chapter in chapters:
            asyncio.run(self._tell(chapter))

    async def _tell(self, chapter: Callable[[Any], Awaitable[None]]) -> None:
        store = await self.open()
        try:
            await chapter(store)
        finally:
            await store.close()


class EmbeddedStores(Stores):
    kind = "embedded"

    def __init__(self, file: Path) -> None:
        self._file = file

    async def open(self) -> EmbeddedStore:
        return EmbeddedStore(str(self._file), inline)


class ZooKeeperStores(Stores):
    """Below a root of its own, so that tests do not see each other."""

    kind = "zookeeper"
    _numbers = itertools.count()

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self.address = f"{zookeeper.address}/contract/{next(self._numbers)}"

    async def open(self, session_timeout_ms: int = 6000) -> ZooKeeperStore:
        store = ZooKeeperStore(self.address, session_timeout_ms, 10, SystemClock(), asyncio.to_thread)
        await store.open(15_000)
        return store


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(str(tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server


@pytest.fixture(params=["embedded", pytest.param("zookeeper", marks=pytest.mark.java)])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """Each kind of store in turn."""
    if request.param == "embedded":
        return EmbeddedStores(tmp_path / "store.db")
    return ZooKeeperStores(request.getfixturevalue("zookeeper"))


@pytest.fixture
def zookeeper_stores(zookeeper: ZooKeeper) -> ZooKeeperStores:
    return ZooKeeperStores(zookeeper)
