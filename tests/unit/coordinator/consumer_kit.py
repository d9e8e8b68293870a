"""The cluster's topics, as a test wants them, and a client of the consumer protocol, by hand."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ottla.coordinator.consumer_membership import ConsumerHeartbeat, HeartbeatResult
from ottla.coordinator.consumer_records import Partitions, TopicMetadata
from ottla.coordinator.topic_patterns import Pattern

if TYPE_CHECKING:
    from unit.coordinator.conftest import World


class Topics:
    """Topics by name and number of partitions; a topic that is made again has another id."""

    def __init__(self, **topics: int) -> None:
        self._topics: dict[str, TopicMetadata] = {}
        self._token = object()
        self._ids = itertools.count(1)
        for name, partitions in topics.items():
            self.put(name, partitions)

    def put(self, name: str, partitions: int) -> None:
        """A topic comes, or grows."""
        known = self._topics.get(name)
        topic_id = known.topic_id if known is not None else next(self._ids).to_bytes(16, "big")
        self._topics[name] = TopicMetadata(topic_id, name, partitions)
        self._token = object()

    def drop(self, name: str) -> None:
        """A topic is deleted."""
        del self._topics[name]
        self._token = object()

    def id(self, name: str) -> bytes:
        return self._topics[name].topic_id

    def token(self) -> object:
        return self._token

    def find(self, name: str) -> TopicMetadata | None:
        return self._topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((topic.name for topic in self._topics.values() if topic.topic_id == topic_id), None)

    def matching(self, pattern: str) -> frozenset[str]:
        return frozenset(filter(Pattern.of(pattern).matches, self._topics))


class Consumer:
    """A client of the consumer protocol. `parts` is what it was told last, with topics by name."""

    def __init__(
        self, world: World, member_id: str, group: str = "g", *, instance: str | None = None, topics: str = "t", **options: Any
    ) -> None:
        self.world = world
        self.id = member_id
        self.group = group
        self.instance = instance
        self.topics = frozenset(topics.split())
        self.options = options
        self.epoch = 0
        self.owned: Partitions = {}

    @property
    def parts(self) -> dict[str, list[int]]:
        names = {topic_id: self.world.topics.name_of(topic_id) or "" for topic_id in self.owned}
        return {names[topic_id]: sorted(numbers) for topic_id, numbers in sorted(self.owned.items())}

    async def send(self, epoch: int, **fields: Any) -> HeartbeatResult:
        """Any heartbeat; only what is given is said."""
        request = ConsumerHeartbeat(self.group, self.id, epoch, "client", "/127.0.0.1", self.instance, **fields)
        result = await self.world.groups.consumer_heartbeat(request)
        self.epoch = result.epoch
        self.id = result.member_id
        if result.assignment is not None:
            self.owned = result.assignment
        return result

    async def join(self) -> HeartbeatResult:
        await self.world.groups.partition_of(self.group)
        self.owned = {}
        fields = {"rebalance_timeout_ms": 30_000, "topics": self.topics, "owned": {}, **self.options}
        return await self.send(0, **fields)

    async def beat(self, **fields: Any) -> HeartbeatResult:
        """A heartbeat that says what it holds, which is what it was told to."""
        return await self.send(self.epoch, **{"owned": self.owned, **fields})

    async def leave(self) -> HeartbeatResult:
        result = await self.send(-1)
        self.owned = {}
        return result


async def joined(world: World, *names: str, **options: Any) -> list[Consumer]:
    """Members that joined one after the other, and heartbeat until nothing changes any more."""
    consumers = [Consumer(world, name, **options) for name in names]
    for consumer in consumers:
        await consumer.join()
    await settle(consumers)
    return consumers


async def settle(consumers: list[Consumer], rounds: int = 6) -> None:
    """Everyone sends heartbeats until all is as it shall be."""
    for _ in range(rounds):
        for consumer in consumers:
            await consumer.beat()
