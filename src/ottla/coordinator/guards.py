"""Whether a marker came while somebody asked a coordinator on another broker if a write may be part of its transaction.

Guards: between the coordinator's word and the write that follows it the transaction may end. Its markers pass through this
broker, which leads the partition; one that comes in that time breaks the guard, and the write is refused. A guard is held only
while a question is under way: nothing is remembered of producers.
"""

from __future__ import annotations

from ottla.model import TopicPartition


class Guard:
    """One question about a producer's transaction in one partition."""

    __slots__ = ("broken", "key")

    def __init__(self, key: tuple[TopicPartition, int]) -> None:
        self.key = key
        self.broken = False
        """Whether the transaction ended since the question was put."""


class Guards:
    """All questions that are under way."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[tuple[TopicPartition, int], list[Guard]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, partition: TopicPartition, producer_id: int) -> Guard:
        """Watch for markers from now on."""
        guard = Guard((partition, producer_id))
        self._held.setdefault(guard.key, []).append(guard)
        return guard

    def release(self, guard: Guard) -> None:
        """The question is settled."""
        held = self._held.get(guard.key)
        if held is not None and guard in held:
            held.remove(guard)
            if not held:
                del self._held[guard.key]

    def marker_came(self, partition: TopicPartition, producer_id: int) -> None:
        """A producer's transaction ends in a partition."""
        if self._held:
            for guard in self._held.get((partition, producer_id), ()):
                guard.broken = True
