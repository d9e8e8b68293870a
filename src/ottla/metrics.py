"""What the hot paths count: plain numbers, added to where something happens, read by whoever wants to know (`monitoring`).

Guards: counting costs next to nothing. A request that is answered on the spot, as most are, is counted once, in one place; what
its time consisted of is worked out when somebody looks. Numbers only grow.
"""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 25
"""The first holds what takes less than a microsecond, each of the others up to twice as much as the one before: to 8 s, and
all beyond."""
_MICROSECONDS: Final = 1_000_000.0


class Durations:
    """How long something took, each time."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * BUCKETS
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """It took so long."""
        self.seconds += seconds
        left = int(seconds * _MICROSECONDS)
        bucket = 0
        while left > 0 and bucket < BUCKETS - 1:
            left >>= 1
            bucket += 1
        self.counts[bucket] += 1


class RequestCounters:
    """The requests of one API, and where their time went.

    `quick` are those that were handled as soon as they had come and answered on the spot. Of all others `total`, `local` (the
    handler's own time) and `remote` (waiting for data, other replicas, a disk) are kept apart, and `queue` of those that waited
    behind others of their connection. `send` is kept of answers that the client did not take at once.
    """

    __slots__ = ("errors", "local", "queue", "quick", "remote", "requests", "send", "total")

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}
        """By version."""
        self.errors: dict[int, int] = {}
        """Whole requests that ended in an error, by its code."""
        self.quick = Durations()
        self.total = Durations()
        self.local = Durations()
        self.remote = Durations()
        self.queue = Durations()
        self.send = Durations()

    def failed(self, error: int) -> None:
        """A request ended in an error."""
        self.errors[error] = self.errors.get(error, 0) + 1


class TopicCounters:
    """What goes in and out of the partitions of one topic on this broker."""

    __slots__ = (
        "bytes_in", "bytes_out", "failed_fetches", "failed_produces", "fetches", "messages_in", "produces",
        "replication_bytes_in", "replication_bytes_out",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.produces = 0
        self.failed_produces = 0
        self.fetches = 0
        self.failed_fetches = 0


class ReplicaCounters:
    """What happens to the in-sync replicas of what this broker leads."""

    __slots__ = ("failed_isr_updates", "isr_expands", "isr_shrinks")

    def __init__(self) -> None:
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.failed_isr_updates = 0


class ControllerCounters:
    """What this broker did while it was the controller."""

    __slots__ = ("leader_elections", "unclean_elections")

    def __init__(self) -> None:
        self.leader_elections = 0
        self.unclean_elections = 0
