"""Who leads: pure rules over an assignment, the in-sync replicas and the live brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def first_leader(replicas: Sequence[int], live: Collection[int]) -> tuple[int, tuple[int, ...]] | None:
    """Leader and ISR of a new partition: its live replicas are in sync, the first of them leads. None if none lives."""
    isr = tuple(replica for replica in replicas if replica in live)
    return (isr[0], isr) if isr else None


def after_failure(
    replicas: Sequence[int], isr: Sequence[int], live: Collection[int], unclean_allowed: bool
) -> tuple[int, tuple[int, ...]] | None:
    """Leader and ISR when the leader is gone: the first live in-sync replica in assignment order.

    With `unclean_allowed`, a live replica that is not in sync may lead when no in-sync one lives: records may be lost then,
    so the ISR begins anew with it alone. None: the partition stays without a leader.
    """
    in_sync = tuple(replica for replica in isr if replica in live)
    for replica in replicas:
        if replica in in_sync:
            return replica, in_sync
    if unclean_allowed:
        for replica in replicas:
            if replica in live:
                return replica, (replica,)
    return None


def without(
    replicas: Sequence[int], isr: Sequence[int], leader: int, leaving: int, live: Collection[int]
) -> tuple[int, tuple[int, ...]] | None:
    """Leader and ISR when a broker is about to leave: what it leads goes to another live in-sync replica, what it follows
    goes on without it. `live` are those that may lead. None: there is nobody else, everything stays as it is."""
    if leader != leaving:
        others = tuple(replica for replica in isr if replica != leaving)
        return (leader, others) if leaving in isr and others else None
    return after_failure(replicas, [replica for replica in isr if replica != leaving], live, unclean_allowed=False)


def preferred(replicas: Sequence[int], isr: Collection[int], live: Collection[int]) -> int | None:
    """The first replica of the assignment, if it can lead."""
    first = replicas[0]
    return first if first in isr and first in live else None


def imbalanced(leaders: Iterable[tuple[int, int]], percentage: int) -> set[int]:
    """The brokers that do not lead more than `percentage` % of what they should, from each partition's preferred and real
    leader."""
    total: dict[int, int] = {}
    elsewhere: dict[int, int] = {}
    for first, leader in leaders:
        total[first] = total.get(first, 0) + 1
        if leader != first:
            elsewhere[first] = elsewhere.get(first, 0) + 1
    return {broker for broker, count in elsewhere.items() if count * 100 > percentage * total[broker]}
