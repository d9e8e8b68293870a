"""How much replication traffic may flow for partitions that are throttled, as reassignments ask for. Pure.

Guards: once more than the rate went over the last windows (`replication.quota.window.num` of
`replication.quota.window.size.seconds` each), the next is held up; who is in sync is never held up by it, and partitions that
no setting names are not counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.storage.log_config import LogConfig

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

UNLIMITED = (1 << 63) - 1


class Rate:
    """Bytes per second over sliding windows."""

    __slots__ = ("_number", "_size", "_total", "_windows")

    def __init__(self, number: int = 11, size: float = 1.0) -> None:
        self._number = number
        self._size = size
        self._windows: deque[tuple[int, int]] = deque()
        self._total = 0

    def record(self, amount: int, now: float) -> None:
        """So many bytes went now."""
        self._forget(now)
        window = int(now / self._size)
        if self._windows and self._windows[-1][0] == window:
            self._windows[-1] = (window, self._windows[-1][1] + amount)
        else:
            self._windows.append((window, amount))
        self._total += amount

    def seconds_over(self, limit: int, now: float) -> float:
        """How long nothing may go so that the rate is within `limit` again; 0.0 if it is."""
        self._forget(now)
        if limit >= UNLIMITED or not self._windows:
            return 0.0
        since = self._windows[0][0] * self._size
        elapsed = max(now - since, self._size * (self._number - 1))
        over = self._total / max(limit, 1) - elapsed
        return max(over, 0.0)

    def _forget(self, now: float) -> None:
        oldest = int(now / self._size) - self._number + 1
        while self._windows and self._windows[0][0] < oldest:
            self._total -= self._windows.popleft()[1]


def names(setting: str, partition: int, broker: int) -> bool:
    """Whether a topic's `*.replication.throttled.replicas` names a replica: `*`, or a list of partition:broker."""
    return bool(setting) and (setting == "*" or f"{partition}:{broker}" in {one.strip() for one in setting.split(",")})


class Throttle:
    """One side's throttle: the leader's for what it sends, the follower's for what it fetches."""

    __slots__ = ("_limit", "_monotonic", "_rate", "_setting", "active")

    def __init__(
        self,
        setting: Callable[[LogConfig], str],
        monotonic: Callable[[], float],
        windows: int = 11,
        window_size: float = 1.0,
    ) -> None:
        """`setting` is what a topic says of its throttled replicas."""
        self._limit = UNLIMITED
        self._setting = setting
        self._monotonic = monotonic
        self._rate = Rate(windows, window_size)
        self.active = False
        """Whether any limit is set: without one nothing is asked or counted."""

    def set_limit(self, limit: int) -> None:
        """So many bytes a second from now on (`leader.` or `follower.replication.throttled.rate`)."""
        self._limit = limit
        self.active = limit < UNLIMITED

    def seconds_to_wait(self, partition: Partition, broker: int | None = None) -> float:
        """How long the replica on `broker` (this one) must be left alone."""
        number = partition.broker_id if broker is None else broker
        if number in partition.state.isr or not self._names(partition, number):
            return 0.0
        return self._rate.seconds_over(self._limit, self._monotonic())

    def record(self, partition: Partition, size: int, broker: int | None = None) -> None:
        """So much went to or came to the replica on `broker` (this one)."""
        if self._names(partition, partition.broker_id if broker is None else broker):
            self._rate.record(size, self._monotonic())

    def _names(self, partition: Partition, broker: int) -> bool:
        return names(self._setting(partition.log.config), partition.tp.partition, broker)


def leader_throttle(monotonic: Callable[[], float], windows: int = 11, window_size: float = 1.0) -> Throttle:
    """For what a leader sends to `leader.replication.throttled.replicas`."""
    return Throttle(lambda config: config.leader_replication_throttled_replicas, monotonic, windows, window_size)


def follower_throttle(monotonic: Callable[[], float], windows: int = 11, window_size: float = 1.0) -> Throttle:
    """For what `follower.replication.throttled.replicas` fetch."""
    return Throttle(lambda config: config.follower_replication_throttled_replicas, monotonic, windows, window_size)


UNTHROTTLED = Throttle(lambda _config: "", lambda: 0.0)
