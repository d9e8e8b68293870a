"""The rules of replication, pure: what counts as committed, and who is in sync."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """How far a follower has come, as its fetches tell the leader."""

    broker: int
    end: int
    caught_up_at: float


def high_watermark(leader_end: int, followers: Iterable[Progress], isr: Collection[int], current: int) -> int:
    """The offset up to which every in-sync replica has the log. It never moves back.

    Replicas outside the ISR do not hold it up; a follower that is catching up counts as soon as it is in the ISR.
    """
    committed = leader_end
    for follower in followers:
        if follower.broker in isr and follower.end < committed:
            committed = follower.end
    return max(current, committed)
