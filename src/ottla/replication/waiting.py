"""The purgatory: requests that wait, for data to come or for the high watermark to pass.

Guards: each waiter is completed exactly once, by what it waits for, by its deadline, or by its connection's end; then it is in
no partition's list and no timer holds it. Waiters hang on the partitions they wait for, so an append looks at its own
partition's waiters and no others. Lives on the broker's loop: no locks, nothing awaits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar


class TimerHandle(Protocol):
    """A timer that can be called off."""

    def cancel(self) -> None: ...


Timer = Callable[[float, Callable[[], None]], TimerHandle]


class Watcher(Protocol):
    """Somebody who wants to know what happens to a partition."""

    def arrived(self, size: int) -> None:
        """`size` more bytes are committed."""
        ...

    def changed(self) -> None:
        """Its role changed, or it is gone: what was true of it may not be any more."""
        ...


class Pending(Protocol):
    """Somebody who waits, and who can be told that nobody wants to know any more."""

    def discard(self) -> None: ...


class TailWatcher(Watcher, Protocol):
    """Somebody who reads what is not committed yet: a follower."""

    def moved(self) -> None:
        """More is committed, or the log begins elsewhere: worth telling with the next answer, but not worth an answer."""
        ...


_W = TypeVar("_W", bound=Watcher)


class Watchers(dict[_W, None]):
    """Those who watch one thing, told in the order in which they came: a set that every run goes through in the same way."""

    __slots__ = ()

    def add(self, watcher: _W) -> None:
        self[watcher] = None

    def discard(self, watcher: _W) -> None:
        self.pop(watcher, None)


class Watched(Protocol):
    """Something that can be watched: a partition."""

    watchers: Watchers[Watcher]


class WatchedTail(Watched, Protocol):
    """Something whose end can be watched too."""

    tail_watchers: Watchers[TailWatcher]


class Waiter:
    """One request that waits. Each time more is committed it is asked whether that is enough; its deadline completes it."""

    __slots__ = ("_complete", "_done", "_ended", "_enough", "_over", "_timer", "_watched")

    def __init__(
        self,
        enough: Callable[[int], bool],
        complete: Callable[[], None],
        watched: Iterable[Watched],
        timer: Timer,
        delay: float,
        ended: Callable[[], None] | None = None,
        over: Callable[[], bool] | None = None,
    ) -> None:
        """`ended` is called when the waiting is over, however it ended, and before `complete`. `over` tells whether a change of
        what is watched ends it; without it every change does."""
        self._over = over
        self._ended = ended
        self._enough = enough
        self._complete = complete
        self._watched = tuple(watched)
        self._done = False
        for partition in self._watched:
            partition.watchers.add(self)
        self._timer = timer(delay, self.complete)

    def arrived(self, size: int) -> None:
        """`size` more bytes are committed in one of the watched partitions."""
        if self._enough(size):
            self.complete()

    def changed(self) -> None:
        """A watched partition is not what it was."""
        if self._over is None or self._over() or self._enough(0):
            self.complete()

    def complete(self) -> None:
        """Answer now, whatever there is."""
        if not self._done:
            self.discard()
            self._complete()

    def discard(self) -> None:
        """Forget the request without an answer: its connection is gone."""
        self._done = True
        self._timer.cancel()
        for partition in self._watched:
            partition.watchers.discard(self)
        if self._ended is not None:
            self._ended()


class DelayedProduce(Waiter):
    """A producer that waits for the in-sync replicas."""

    __slots__ = ()


class DelayedFetch(Waiter):
    """A reader that waits for data."""

    __slots__ = ()
