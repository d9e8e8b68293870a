"""The settings that were changed at run time, per topic and per broker: read from the store, kept current by its watch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from ottla.metadata import znodes
from ottla.metadata.store import Create, Delete, NodeExists, NoNode, Operation, Set, Store, StoreUnavailable

ALL_BROKERS = "<default>"
# Apache Kafka keeps them for 15 minutes. A broker that was away reads all settings when it is back.
_NOTICES_KEPT = 500
_RETRY_AFTER = 1.0


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
            await self._store.watch(prefix, self._touched)  # first: a change while reading is read again
            for path, node in (await self._store.subtree(prefix)).items():
                known[path.rpartition("/")[2]] = znodes.decode_config(node.data)

    def of_topic(self, topic: str) -> Mapping[str, str]:
        """The topic's own settings."""
        return self._topics.get(topic, {})

    def learn_topic(self, topic: str, config: Mapping[str, str]) -> None:
        """Take settings that were just written, without waiting for the store to tell of them."""
        self._take(self._topics, topic, dict(config), self.topic_changed)

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
        notice = [_notice(path)] if self._store.shared else []
        exists: list[Operation] = [Set(path, data), *notice]
        try:
            await self._store.commit(exists)
        except NoNode:
            try:
                await self._store.commit([Create(path, data), *notice])
            except NodeExists:
                await self._store.commit(exists)
        if self._store.shared:
            await self._forget_old_notices()

    async def _forget_old_notices(self) -> None:
        for name in (await self._store.children(znodes.CONFIG_CHANGES))[:-_NOTICES_KEPT]:
            with contextlib.suppress(NoNode):  # another broker was faster
                await self._store.commit([Delete(f"{znodes.CONFIG_CHANGES}/{name}")])

    def _touched(self, path: str) -> None:
        task = asyncio.ensure_future(self._follow(path))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _follow(self, path: str) -> None:
        while True:
            try:
                await self._read(path)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_AFTER)  # we are told of a change once
            else:
                return

    async def _read(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        known = {znodes.TOPIC_CONFIGS: self._topics, znodes.BROKER_CONFIGS: self._brokers}.get(parent)
        if known is None:
            return
        node = await self._store.get(path)
        current = znodes.decode_config(node.data) if node else {}
        changed = self.topic_changed if parent == znodes.TOPIC_CONFIGS else lambda _name: self.brokers_changed()
        self._take(known, name, current, changed)

    def _take(
        self, known: dict[str, dict[str, str]], name: str, current: dict[str, str], changed: Callable[[str], None]
    ) -> None:
        if known.get(name, {}) == current:
            return
        known[name] = current
        if not current:
            known.pop(name)
        changed(name)


def _notice(path: str) -> Operation:
    """How Apache Kafka's brokers learn of a change: a numbered node that names whose settings changed."""
    entity = path.removeprefix(f"{znodes.CONFIGS}/")
    return Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(entity), sequential=True)
