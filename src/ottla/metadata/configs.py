"""The settings that were changed at run time, per topic and per broker: read from the store, kept current by its watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ottla.metadata import znodes
from ottla.metadata.store import Create, NodeExists, NoNode, Operation, Set, Store

ALL_BROKERS = "<default>"


class Configs:
    """Overrides by topic and by broker, as text. Whoever is concerned by a change is told the topic's name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.topic_changed: Callable[[str], None] = lambda _topic: None
        self.brokers_changed: Callable[[], None] = lambda: None
        self.changing = asyncio.Lock()
        """Held from reading settings to writing them back changed, so that no change is lost under another."""
        self._topics: dict[str, dict[str, str]] = {}
        self._brokers: dict[str, dict[str, str]] = {}
        self._reading: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Read what is there and follow what comes."""
        for prefix, known in ((znodes.TOPIC_CONFIGS, self._topics), (znodes.BROKER_CONFIGS, self._brokers)):
            for path, node in (await self._store.subtree(prefix)).items():
                known[path.rpartition("/")[2]] = znodes.decode_config(node.data)
            self._store.watch(prefix, self._touched)

    def of_topic(self, topic: str) -> Mapping[str, str]:
        """The topic's own settings."""
        return self._topics.get(topic, {})

    def of_broker(self, name: str) -> Mapping[str, str]:
        """A broker's own settings, by id as text; ALL_BROKERS for those of all of them."""
        return self._brokers.get(name, {})

    async def set_topic(self, topic: str, config: Mapping[str, str]) -> None:
        """Write a topic's settings; they are in force here when this returns."""
        await self._set(f"{znodes.TOPIC_CONFIGS}/{topic}", config)
        await self._read(f"{znodes.TOPIC_CONFIGS}/{topic}")

    async def set_broker(self, name: str, config: Mapping[str, str]) -> None:
        """Write a broker's settings."""
        await self._set(f"{znodes.BROKER_CONFIGS}/{name}", config)
        await self._read(f"{znodes.BROKER_CONFIGS}/{name}")

    async def _set(self, path: str, config: Mapping[str, str]) -> None:
        data = znodes.encode_config(config)
        exists: Operation = Set(path, data)
        try:
            await self._store.commit([exists])
        except NoNode:
            try:
                await self._store.commit([Create(path, data)])
            except NodeExists:
                await self._store.commit([exists])

    def _touched(self, path: str) -> None:
        task = asyncio.ensure_future(self._read(path))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        known = {znodes.TOPIC_CONFIGS: self._topics, znodes.BROKER_CONFIGS: self._brokers}.get(parent)
        if known is None:
            return
        node = await self._store.get(path)
        current = znodes.decode_config(node.data) if node else {}
        if known.get(name, {}) == current:
            return
        known[name] = current
        if node is None:
            known.pop(name)
        if parent == znodes.TOPIC_CONFIGS:
            self.topic_changed(name)
        else:
            self.brokers_changed()
