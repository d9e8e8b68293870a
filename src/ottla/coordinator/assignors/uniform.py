"""The `uniform` assignor: everyone gets as many partitions as everyone else, and keeps what it has where that allows it.

Guards: balance comes before stickiness. With equal subscriptions no two members differ by more than one partition. With
different ones nobody has two more than another to whom a partition could be passed on, be it by way of others; no smaller sum
of squares exists then. Members are taken in the order of their ids, so that equal input gives equal output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ottla.coordinator.assignors.spec import Spec
from ottla.coordinator.consumer_records import Partitions, by_topic, flat

_Partition = tuple[bytes, int]


def assign_uniformly(spec: Spec) -> dict[str, Partitions]:
    """A target for every member."""
    if not spec.members:
        return {}
    kept = _still_valid(spec)
    held = _with_equal_subscriptions(spec, kept) if spec.is_homogeneous else _Balance(spec, kept).result()
    return {member_id: by_topic(partitions) for member_id, partitions in held.items()}


def _still_valid(spec: Spec) -> dict[str, list[_Partition]]:
    """What each member has and may keep: of a topic that it reads, that exists, and that nobody before it has."""
    taken: set[_Partition] = set()
    kept: dict[str, list[_Partition]] = {}
    for member_id in sorted(spec.members):
        member = spec.members[member_id]
        kept[member_id] = [
            (topic_id, number)
            for topic_id, number in sorted(flat(member.assigned))
            if topic_id in member.topics and number < spec.topics[topic_id] and (topic_id, number) not in taken
        ]
        taken.update(kept[member_id])
    return kept


def _all_partitions(spec: Spec, topics: Iterable[bytes]) -> list[_Partition]:
    return [(topic_id, number) for topic_id in sorted(topics) for number in range(spec.topics[topic_id])]


# Equal subscriptions


def _with_equal_subscriptions(spec: Spec, kept: dict[str, list[_Partition]]) -> dict[str, list[_Partition]]:
    """Everyone keeps up to its quota; what is over, or nobody's, fills the others up."""
    every = _all_partitions(spec, next(iter(spec.members.values())).topics)
    quota, larger = divmod(len(every), len(kept))
    # One partition more than the quota goes to those that have it already, as far as there are such places.
    for partitions in kept.values():
        if len(partitions) > quota:
            larger_here = larger > 0
            larger -= larger_here
            del partitions[quota + larger_here :]
    taken = {partition for partitions in kept.values() for partition in partitions}
    free = deque(partition for partition in every if partition not in taken)
    for partitions in kept.values():
        while len(partitions) < quota:
            partitions.append(free.popleft())
    for partitions in kept.values():
        if free and len(partitions) == quota:
            partitions.append(free.popleft())
    return kept


# Different subscriptions


class _Balance:
    """A distribution that is filled up and then evened out, step by step."""

    __slots__ = ("_before", "_held", "_spec", "_subscribers")

    def __init__(self, spec: Spec, kept: dict[str, list[_Partition]]) -> None:
        self._spec = spec
        self._before = {partition: member_id for member_id, partitions in kept.items() for partition in partitions}
        self._held: dict[str, dict[bytes, set[int]]] = {}
        for member_id, partitions in kept.items():
            self._held[member_id] = {topic_id: set(numbers) for topic_id, numbers in by_topic(partitions).items()}
        self._subscribers = {topic_id: sorted(members) for topic_id, members in spec.subscribers().items()}

    def result(self) -> dict[str, list[_Partition]]:
        loads = {member_id: sum(map(len, topics.values())) for member_id, topics in self._held.items()}
        self._fill(loads)
        self._even_out(loads)
        return {
            member_id: [(topic_id, number) for topic_id, numbers in topics.items() for number in numbers]
            for member_id, topics in self._held.items()
        }

    def _fill(self, loads: dict[str, int]) -> None:
        """Free partitions go to whoever has least; those that fewest members may have go first."""
        for topic_id in sorted(self._subscribers, key=lambda one: (len(self._subscribers[one]), one)):
            members = self._subscribers[topic_id]
            for number in range(self._spec.topics[topic_id]):
                if (topic_id, number) not in self._before:
                    member_id = min(members, key=loads.__getitem__)
                    self._held[member_id].setdefault(topic_id, set()).add(number)
                    loads[member_id] += 1

    def _even_out(self, loads: dict[str, int]) -> None:
        """Pass partitions on from those who have most, until that helps nobody; then from the next ones."""
        done: set[str] = set()
        while len(done) < len(loads):
            most = max(load for member_id, load in loads.items() if member_id not in done)
            sources = [member_id for member_id, load in loads.items() if load == most and member_id not in done]
            way = self._ways_from(sources)
            end = min(way, key=loads.__getitem__)
            if loads[end] > most - 2:
                done.update(way)  # none of these can be relieved, and what they could pass on to each other changes nothing
                continue
            loads[end] += 1
            while (step := way[end]) is not None:
                giver, topic_id = step
                self._pass_on(giver, end, topic_id)
                end = giver
            loads[end] -= 1

    def _ways_from(self, sources: list[str]) -> dict[str, tuple[str, bytes] | None]:
        """Everyone whom a partition of one of the sources could reach, by the fewest steps: from whom it gets one of what."""
        way: dict[str, tuple[str, bytes] | None] = dict.fromkeys(sources)
        seen_topics: set[bytes] = set()
        queue = deque(sources)
        while queue:
            giver = queue.popleft()
            for topic_id, numbers in self._held[giver].items():
                if not numbers or topic_id in seen_topics:
                    continue
                seen_topics.add(topic_id)
                for member_id in self._subscribers[topic_id]:
                    if member_id not in way:
                        way[member_id] = (giver, topic_id)
                        queue.append(member_id)
        return way

    def _pass_on(self, giver: str, taker: str, topic_id: bytes) -> None:
        """Best a partition that the taker had before, else one that the giver did not have, else the last."""
        before = self._before
        number = max(
            self._held[giver][topic_id],
            key=lambda one: (before.get((topic_id, one)) == taker, before.get((topic_id, one)) != giver, one),
        )
        self._held[giver][topic_id].remove(number)
        self._held[taker].setdefault(topic_id, set()).add(number)
