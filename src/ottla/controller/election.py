"""Who leads: pure rules over an assignment, the in-sync replicas and the live brokers."""

from __future__ import annotations

from collections.abc import Collection, Sequence


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
