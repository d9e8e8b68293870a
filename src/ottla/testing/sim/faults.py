"""What goes wrong in a run, by its seed: each fault begins at some time and is made good after another.

Kafka promises that no record acknowledged with acks=all is lost while one in-sync replica survives with its data. So a machine
loses power only while every partition is whole and nothing else is wrong; and until what it lost can do no harm any more (it is
out of every ISR, or has caught up), nobody else is taken away. What loses no data (kill -9, pauses, cuts, sessions that end)
may come upon anybody, at any time, all at once.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from random import Random

from ottla.model import TopicPartition
from ottla.testing.sim.cluster import Cluster
from ottla.testing.sim.store import HOST as STORE_HOST

_LOOK_EVERY = 0.2


class Faults:
    """The faults of one run."""

    def __init__(self, cluster: Cluster, random: Random, every: float) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._random = random
        self._every = every
        self._under_way: set[asyncio.Task[None]] = set()
        self.guarding = False
        """Whether a machine lost data, and could still be elected with what it has."""
        alone = len(cluster.machines) == 1
        self._kinds: dict[str, tuple[float, Callable[[], Awaitable[None]]]] = {
            "kill": (3.0, self._kill),
            "kill several": (0.0 if alone else 1.0, self._kill_several),
            "power cut": (0.0 if alone else 2.5, self._power_cut),
            "stop": (1.5, self._stop),
            "pause": (2.5, self._pause),
            "cut one way": (0.0 if alone else 1.5, self._cut_one_way),
            "cut": (0.0 if alone else 1.5, self._cut_both_ways),
            "isolate": (0.0 if alone else 1.0, self._isolate),
            "cut from all": (0.0 if alone else 1.5, self._cut_from_all),
            "cut from store": (2.0, self._cut_from_store),
            "break connections": (2.0, self._break),
            "slow host": (1.0, self._slow),
            "store down": (0.7, self._store_down),
            "session expires": (1.0, self._expire),
            "lost answers": (1.0, self._lose_answers),
        }

    async def rage(self, until: float) -> None:
        """Let things go wrong until a time has come; then wait until each fault has been made good."""
        names = list(self._kinds)
        weights = [weight for weight, _ in self._kinds.values()]
        while self._cluster.loop.time() < until:
            await asyncio.sleep(self._random.expovariate(1 / self._every))
            name = self._random.choices(names, weights)[0]
            if not self.guarding:
                task = asyncio.ensure_future(self._do(name))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
        for task in list(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _do(self, name: str) -> None:
        await self._kinds[name][1]()

    # ---- processes -------------------------------------------------------------------------------------------------------

    def _any(self) -> int:
        return self._random.choice(sorted(self._cluster.machines))

    async def _kill(self) -> None:
        number = self._any()
        if self._cluster.machines[number].process is not None:
            self.counts["kill"] += 1
            self._cluster.kill(number)
            await asyncio.sleep(self._random.choice((0.05, 0.5, 2.0, 10.0)) * self._random.random())
            self._cluster.start(number)

    async def _kill_several(self) -> None:
        numbers = self._random.sample(sorted(self._cluster.machines), self._random.randint(2, len(self._cluster.machines)))
        self.counts["kill several"] += 1
        for number in numbers:
            self._cluster.kill(number)
        self._random.shuffle(numbers)
        for number in numbers:
            await asyncio.sleep(self._random.uniform(0.0, 4.0))
            self._cluster.start(number)

    async def _power_cut(self) -> None:
        """Wait a little for a moment at which that may be; else let it be."""
        cluster = self._cluster
        if not await cluster.until(lambda: self.guarding or self.calm, 5.0) or self.guarding:
            return
        self.guarding = True
        try:
            number = self._any()
            self.counts["power cut"] += 1
            cluster.power_cut(number)
            restart = cluster.loop.time() + self._random.choice((0.1, 1.0, 8.0, 15.0)) * self._random.random()
            while cluster.loop.time() < restart or not self._harmless(number):
                await asyncio.sleep(_LOOK_EVERY)
                if cluster.loop.time() >= restart:
                    cluster.start(number)
        finally:
            self.guarding = False

    async def _stop(self) -> None:
        number = self._any()
        machine = self._cluster.machines[number]
        if machine.serving and not machine.stopping:
            self.counts["stop"] += 1
            self._cluster.stop(number)
            if not await self._cluster.until(lambda: machine.process is None, 30.0):
                self._cluster.kill(number)
            await asyncio.sleep(self._random.uniform(0.0, 3.0))
            self._cluster.start(number)

    async def _pause(self) -> None:
        number = self._any()
        self.counts["pause"] += 1
        self._cluster.pause(number)
        await asyncio.sleep(self._random.choice((0.5, 3.0, 15.0)) * self._random.random())
        self._cluster.resume(number)

    # ---- the network -----------------------------------------------------------------------------------------------------

    def _pair(self) -> tuple[str, str]:
        one, other = self._random.sample(sorted(self._cluster.machines), 2)
        return self._cluster.machines[one].host, self._cluster.machines[other].host

    async def _cut_one_way(self) -> None:
        source, target = self._pair()
        self.counts["cut one way"] += 1
        self._cluster.cut(source, target, both=False)
        await self._then_heal(source, target)

    async def _cut_both_ways(self) -> None:
        source, target = self._pair()
        self.counts["cut"] += 1
        self._cluster.cut(source, target)
        await self._then_heal(source, target)

    async def _isolate(self) -> None:
        number = self._any()
        self.counts["isolate"] += 1
        self._cluster.isolate(number, store=False)
        await self._then_heal(self._cluster.machines[number].host, None)

    async def _cut_from_all(self) -> None:
        """No broker and no store, but clients still get there."""
        number = self._any()
        self.counts["cut from all"] += 1
        self._cluster.isolate(number, store=False)
        self._cluster.isolate(number, store=True)
        await asyncio.sleep(self._random.uniform(5.0, 15.0))
        await self._then_heal(self._cluster.machines[number].host, None)

    async def _cut_from_store(self) -> None:
        number = self._any()
        self.counts["cut from store"] += 1
        self._cluster.isolate(number, store=True)
        await self._then_heal(self._cluster.machines[number].host, STORE_HOST)

    async def _then_heal(self, one: str, other: str | None) -> None:
        await asyncio.sleep(self._random.choice((0.3, 3.0, 12.0)) * self._random.random())
        self._cluster.network.heal(one, other)
        self._cluster.network.heal(other, one)
        self._cluster.keeper.look()
        self._cluster.note("heal", f"{one} <-> {other or 'all'}")

    async def _break(self) -> None:
        self.counts["break connections"] += 1
        broken = self._cluster.network.break_some(self._random.choice((0.1, 0.5, 1.0)))
        self._cluster.note("break connections", str(broken))

    async def _slow(self) -> None:
        host = self._cluster.machines[self._any()].host
        self.counts["slow host"] += 1
        self._cluster.network.slow[host] = self._random.choice((0.02, 0.2, 1.0))
        self._cluster.note("slow host", host)
        await asyncio.sleep(self._random.uniform(0.5, 6.0))
        self._cluster.network.slow.pop(host, None)

    # ---- the store -------------------------------------------------------------------------------------------------------

    async def _store_down(self) -> None:
        self.counts["store down"] += 1
        self._cluster.store_down()
        await asyncio.sleep(self._random.uniform(0.1, 8.0))
        self._cluster.store_up()

    async def _expire(self) -> None:
        broker = self._cluster.machines[self._any()].broker
        if broker is not None and broker._store is not None:
            self.counts["session expires"] += 1
            self._cluster.note("session expires", f"broker {broker.broker_id}")
            broker._store.expire()  # type: ignore[attr-defined]

    async def _lose_answers(self) -> None:
        self.counts["lost answers"] += 1
        self._cluster.keeper.lost_answers = 0.3
        await asyncio.sleep(self._random.uniform(0.5, 5.0))
        self._cluster.keeper.lost_answers = 0.0

    # ---- when power may go -----------------------------------------------------------------------------------------------

    @property
    def calm(self) -> bool:
        """Whether nothing is wrong with anybody, and every partition has all of its replicas in sync."""
        cluster = self._cluster
        healthy = (
            cluster.all_serving
            and not any(cluster.network.cuts)
            and not cluster.keeper.down
            and not any(one.stopping or one.process is None or one.process.paused for one in cluster.machines.values())
            and all(cluster.keeper.in_touch(one.process) for one in cluster.machines.values() if one.process is not None)
        )
        return healthy and whole(cluster)

    def _harmless(self, number: int) -> bool:
        """Whether a broker that lost data cannot be elected with what it has."""
        cluster = self._cluster
        for tp, isr, _ in states(cluster):
            if number in isr:
                log = cluster.log_of(number, tp)
                if log is None or log.log_end_offset < cluster.watch.committed.get(tp, 0):
                    return False
        return True


def states(cluster: Cluster) -> Iterator[tuple[TopicPartition, list[int], int]]:
    """Every partition in the store: its ISR and its leader."""
    for path, node in cluster.keeper.tree.below("/brokers/topics").items():
        if path.endswith("/state"):
            _, _, _, topic, _, number, _ = path.split("/")
            state = json.loads(node.data)
            yield TopicPartition(topic, int(number)), state["isr"], state["leader"]


def whole(cluster: Cluster) -> bool:
    """Whether every partition is led and has as many replicas in sync as were wanted."""
    wanted: dict[str, dict[str, list[int]]] = {}
    for topic in cluster.keeper.tree.children("/brokers/topics"):
        node = cluster.keeper.tree.get(f"/brokers/topics/{topic}", -1)
        if node is not None and node.data:
            wanted[topic] = json.loads(node.data)["partitions"]
    found = {tp: isr for tp, isr, leader in states(cluster) if leader >= 0}
    return all(
        set(found.get(TopicPartition(topic, int(number)), ())) == set(replicas)
        for topic, partitions in wanted.items()
        for number, replicas in partitions.items()
    )
