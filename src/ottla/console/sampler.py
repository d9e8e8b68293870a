"""One thread looks at the cluster from time to time, for all who look at the console, and remembers figures over time.

Guards: however many pages are open, the cluster is asked once per sample; a look that took long makes the next one wait in
proportion, so that the console never costs a cluster more than a tenth of one connection. What pages get is the last view
that succeeded, with the problem of the last try beside it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from ottla.client.cluster import Cluster
from ottla.client.errors import BrokerUnreachable
from ottla.console.history import History, Key
from ottla.console.view import View, take
from ottla.model import KafkaError, TopicPartition

log = logging.getLogger("ottla.console")

_R = TypeVar("_R")

_SHARE = 10
"""Of the time, what a look may take: one part of so many."""

_LONGEST_PAUSE_S = 60.0

CLUSTER_IN: Key = ("in",)
CLUSTER_READ: Key = ("read",)
CLUSTER_LAG: Key = ("lag",)
CLUSTER_SIZE: Key = ("size",)


class Sampler:
    """The last view, the history, and the thread that keeps them. `close` ends it."""

    def __init__(self, cluster: Cluster, period: float) -> None:
        self.view: View | None = None
        self.problem: str | None = None
        self.number = 0
        """How many looks there were, also those that failed."""
        self._history = History()
        self._cluster = cluster
        self._period = period
        self._changed = threading.Condition()
        self._asked = 0
        self._closed = False
        self._listeners: set[Callable[[], object]] = set()
        self._thread = threading.Thread(target=self._run, name="ottla-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def listen(self, tell: Callable[[], object]) -> Callable[[], None]:
        """Have `tell` called, in the sampler's thread, after each look. What comes back ends that."""
        self._listeners.add(tell)
        return lambda: self._listeners.discard(tell)

    def look_now(self, wait: float = 10.0) -> None:
        """Look again at once, and wait for it: what was just done should be seen."""
        with self._changed:
            self._asked = self.number + 2  # the look that is under way may have begun before
            wanted = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.number >= wanted or self._closed, wait)

    def history(self, read: Callable[[History], _R]) -> _R:
        """Read something out of the history."""
        with self._changed:
            return read(self._history)

    def seen(self) -> View:
        """The last view; where there is none yet, the first is waited for."""
        with self._changed:
            self._changed.wait_for(lambda: self.number > 0 or self._closed, 20)
            if self.view is None:
                raise BrokerUnreachable(self.problem or "The cluster has not answered yet.")
            return self.view

    def _run(self) -> None:
        while not self._closed:
            begun = time.monotonic()
            self._look()
            took = time.monotonic() - begun
            with self._changed:
                # Where something did not answer, the time went into waiting: whether it is back should be known soon.
                whole = self.problem is None and self.view is not None and not self.view.gaps
                pause = min(max(self._period - took, took * _SHARE), _LONGEST_PAUSE_S) if whole else self._period
                self._changed.wait_for(lambda: self._closed or self._asked > self.number, pause)

    def _look(self) -> None:
        lags: dict[Key, float] = {}
        problem = view = None
        before = self.view

        def tell(group: str, tp: TopicPartition, lag: int) -> None:
            if len(lags) < 20_000:
                lags["lag", group, tp.topic, tp.partition] = lag

        try:
            view = take(self._cluster, time.time_ns() // 1_000_000, before, tell)
        except KafkaError as refused:
            problem = str(refused)
        except Exception:
            log.exception("The look at the cluster failed")
            problem = "The console failed to look at the cluster; its log says where."
        with self._changed:
            self.problem = problem
            if view is not None:
                self._history.add(view.taken_ms, {**_figures(view, before), **lags})
                self.view = view
            self.number += 1
            self._changed.notify_all()
        for told in list(self._listeners):
            told()


def _figures(view: View, before: View | None) -> Mapping[Key, float]:
    """What is remembered of a view: the few lines of the whole first, as there may be too many of the rest."""
    found: dict[Key, float] = {
        CLUSTER_LAG: sum(group.lag for group in view.groups.values()),
        CLUSTER_SIZE: sum(replica.size for dirs in view.disks.values() for one in dirs for replica in one.replicas),
    }
    for broker, dirs in view.disks.items():
        found["size", broker] = sum(replica.size for one in dirs for replica in one.replicas)
    seconds = (view.taken_ms - before.taken_ms) / 1000 if before is not None else 0
    if before is not None and seconds > 0:
        found |= _rates(view, before, seconds)
    for name, group in view.groups.items():
        found["lag", name] = group.lag
    for name, group in view.groups.items():
        for topic, progress in group.topics.items():
            found["lag", name, topic] = progress.lag
    return found


def _rates(view: View, before: View, seconds: float) -> dict[Key, float]:
    by_topic: dict[str, float] = dict.fromkeys(view.topics, 0)
    by_broker: dict[int, float] = {node.id: 0 for node in view.about.brokers}
    for tp, info in view.partitions():
        if tp in view.latest and tp in before.latest:
            grown = max(view.latest[tp] - before.latest[tp], 0) / seconds
            by_topic[tp.topic] += grown
            if info.leader in by_broker:
                by_broker[info.leader] += grown
    read = 0.0
    for name, group in view.groups.items():
        earlier = before.groups.get(name)
        for topic, progress in group.topics.items():
            if earlier is not None and topic in earlier.topics:
                read += max(progress.committed - earlier.topics[topic].committed, 0) / seconds
    found: dict[Key, float] = {CLUSTER_IN: sum(by_topic.values()), CLUSTER_READ: read}
    found |= {("in", broker): grown for broker, grown in by_broker.items()}
    found |= {("in", name): grown for name, grown in by_topic.items()}
    return found
