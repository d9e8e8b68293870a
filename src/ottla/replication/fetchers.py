"""All fetchers of this broker: `num.replica.fetchers` for each leader that something is followed from.

Guards: a partition is fetched by one fetcher at most, from the leader of its current epoch; a fetcher without partitions ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from zlib import crc32

from ottla.model import TopicPartition
from ottla.replication.fetcher import Fetcher, FetcherSettings
from ottla.replication.leaders import Leader
from ottla.replication.partition import Partition
from ottla.replication.throttle import UNTHROTTLED, Throttle
from ottla.replication.waiting import Timer
from ottla.storage.log import Log


class Fetchers:
    """Who fetches what."""

    def __init__(
        self,
        connect: Callable[[int], Leader],
        timer: Timer,
        look_after: Callable[[Log], Awaitable[None]],
        *,
        count: int = 1,
        settings: FetcherSettings | None = None,
        throttle: Throttle = UNTHROTTLED,
    ) -> None:
        """`connect` gives a leader's connection, each time a new one; `look_after` is `Replicas.look_after`."""
        self._connect = connect
        self._timer = timer
        self._look_after = look_after
        self._count = max(count, 1)
        self._settings = settings or FetcherSettings()
        self._throttle = throttle
        self._by_place: dict[tuple[int, int], Fetcher] = {}
        self._running: dict[tuple[int, int], tuple[asyncio.Task[None], Leader]] = {}
        self._places: dict[TopicPartition, tuple[int, int]] = {}

    def follow(self, partitions: Iterable[Partition]) -> None:
        """Fetch each of these from its leader from now on, and from nobody else."""
        gathered: dict[tuple[int, int], list[Partition]] = {}
        for partition in partitions:
            tp = partition.tp
            place = (partition.state.leader, (crc32(tp.topic.encode()) + tp.partition) % self._count)
            before = self._places.get(tp)
            if before is not None and before != place:
                self._by_place[before].forget(tp)
            self._places[tp] = place
            gathered.setdefault(place, []).append(partition)
        for place, some in gathered.items():
            self._at(place).follow(some)
        self._end_idle()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these no more."""
        for tp in partitions:
            place = self._places.pop(tp, None)
            if place is not None:
                self._by_place[place].forget(tp)
        self._end_idle()

    def followed(self, tp: TopicPartition) -> int | None:
        """The broker that a partition is fetched from."""
        place = self._places.get(tp)
        return place[0] if place is not None else None

    def _at(self, place: tuple[int, int]) -> Fetcher:
        fetcher = self._by_place.get(place)
        if fetcher is None:
            leader = self._connect(place[0])
            fetcher = Fetcher(place[0], leader, self._settings, self._timer, self._look_after, self._throttle)
            self._by_place[place] = fetcher
            self._running[place] = (asyncio.ensure_future(fetcher.run()), leader)
        return fetcher

    def _end_idle(self) -> None:
        for place in [place for place, fetcher in self._by_place.items() if not len(fetcher)]:
            self._end(place)

    def _end(self, place: tuple[int, int]) -> asyncio.Task[None]:
        del self._by_place[place]
        task, leader = self._running.pop(place)
        task.cancel()
        leader.close()
        return task

    async def stop(self) -> None:
        """End all of them."""
        self._places.clear()
        tasks = [self._end(place) for place in tuple(self._by_place)]
        await asyncio.gather(*tasks, return_exceptions=True)
