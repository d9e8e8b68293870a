"""What the broker's sockets are waiting for: asyncio's selector, which calls the readers and writers of sockets by itself.

asyncio turns each ready socket into a key, the key into a handle, and the handle into a call in a context of its own; that is
half of what it costs the broker to wake up for a request. Here the call is made on the spot. Everything that asyncio registers
for itself (its own wake-up pipe, connections under way) takes asyncio's way.

What one poll found is a `Turn`: where many sockets had something to say, the answers to them are put off to its end. As long as
asyncio has nothing to do itself, one poll follows the other without it.
Guards: a socket for which nobody waits is not watched at all, or a peer that hung up would be reported for ever; a reader or
writer that fails harms no other; one that is taken away while others run is not called any more; nothing
that was put off is still to be done when the loop goes on to anything else.
"""

from __future__ import annotations

import contextlib
import math
import select
from collections.abc import Callable, Mapping
from selectors import EVENT_READ, EVENT_WRITE, SelectorKey
from typing import Any, Final

_IN: Final = 1
_OUT: Final = 4

_MORE_TIMERS: Final = 100
"""So many new timers bring asyncio back: it clears away those that were cancelled."""
_LONGEST: Final = 86_400.0
"""Seconds; the kernel refuses to wait for very long."""
_PUT_OFF_FOR: Final = 16
"""So many sockets have their say before what was put off is done: the first must not wait for a thousand clients."""

Ready = Callable[[], None]


class Turn:
    """The calls of readers and writers that one poll leads to, and what is put off to their end.

    A client that is sent its answer wakes up, and on a busy broker it has gone to sleep again before the next one gets its
    own. Answers that leave in a row find everybody awake.
    """

    __slots__ = ("_first", "_then", "failed", "listeners", "shared")

    def __init__(self) -> None:
        self.failed: Callable[[Exception], None] = _raised
        """What is done about a reader or writer that raises."""
        self.shared = False
        """Whether the poll found several sockets: only then there is an end that comes after others."""
        self.listeners: set[int] = set()
        """The sockets of clients that once had to wait for what others bring, until they go. Of several that are ready these
        come last: then what the others have brought is there, and nobody has to wait for it and to be woken up."""
        self._first: list[Ready] = []
        self._then: list[Ready] = []

    def put_off(self, work: Ready, *, awaited: bool = False) -> None:
        """Do this at the end; what a listener has been waiting for before what answers the others."""
        (self._first if awaited else self._then).append(work)

    def catch_up(self) -> None:
        """Do now what was put off."""
        if not self._first and not self._then:
            return
        put_off = self._first + self._then
        self._first, self._then = [], []
        for work in put_off:
            try:
                work()
            except Exception as problem:
                self.failed(problem)


class Readiness:
    """The selector of one loop."""

    def __init__(self) -> None:
        self.turn = Turn()
        self._epoll: Any = select.epoll()
        self._keys: dict[int, SelectorKey] = {}
        self._readers: dict[int, Ready] = {}
        self._writers: dict[int, Ready] = {}
        self._loop: Any = None

    def serve(self, loop: Any) -> None:
        """Whose selector this is. What it has to do itself stands in three attributes of asyncio's loop that are its own."""
        self._loop = loop

    # ---- the broker's sockets --------------------------------------------------------------------------------------------

    def set_reader(self, fd: int, ready: Ready) -> None:
        """Call `ready` whenever there is something to read."""
        before = self._mask(fd)
        self._readers[fd] = ready
        self._watch(fd, before)

    def set_writer(self, fd: int, ready: Ready) -> None:
        """Call `ready` whenever there is room to write."""
        before = self._mask(fd)
        self._writers[fd] = ready
        self._watch(fd, before)

    def drop_reader(self, fd: int) -> bool:
        """Whether there was one."""
        before = self._mask(fd)
        found = self._readers.pop(fd, None) is not None
        self._watch(fd, before)
        return found

    def drop_writer(self, fd: int) -> bool:
        """Whether there was one."""
        before = self._mask(fd)
        found = self._writers.pop(fd, None) is not None
        self._watch(fd, before)
        return found

    def _mask(self, fd: int) -> int:
        return (_IN if fd in self._readers else 0) | (_OUT if fd in self._writers else 0)

    def _watch(self, fd: int, before: int) -> None:
        mask = self._mask(fd)
        if mask == before:
            return
        if not mask:
            self._forget(fd)
        elif before:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)

    def _forget(self, fd: int) -> None:
        with contextlib.suppress(OSError):  # closed already, and with that forgotten by the kernel
            self._epoll.unregister(fd)

    # ---- what asyncio asks of a selector ---------------------------------------------------------------------------------

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Wait; call the readers and writers of the broker's sockets; what is ready of asyncio's own."""
        loop = self._loop
        if loop is None or (timeout is not None and timeout <= 0):
            found: list[tuple[SelectorKey, int]] = []
            self._poll(-1.0 if timeout is None else max(timeout, 0.0), found)
            return found
        timers: list[Any] = loop._scheduled
        first: Any = timers[0] if timers else None
        most = len(timers) + _MORE_TIMERS
        wait = -1.0 if timeout is None else timeout
        found = []
        while self._poll(wait, found) and not found and not loop._ready and not loop._stopping:
            if first is None:
                if timers:
                    break
            else:
                if timers[0] is not first or len(timers) > most:
                    break
                wait = min(first._when - loop.time(), _LONGEST)
                if wait <= 0:
                    break
        return found

    def _poll(self, wait: float, found: list[tuple[SelectorKey, int]]) -> bool:
        """One turn: whether there was anything. Below 0 it waits as long as it takes."""
        if wait > 0:
            wait = math.ceil(wait * 1e3) * 1e-3  # at least as long as asked for: the kernel counts in milliseconds
        most = len(self._keys) + len(self._readers) + len(self._writers)
        try:
            ready: list[tuple[int, int]] = self._epoll.poll(wait, most if most > 0 else 1)
        except InterruptedError:
            return False
        turn = self.turn
        if len(ready) > 1:
            turn.shared = True
            if turn.listeners:
                ready = _listeners_last(ready, turn.listeners)
        left = _PUT_OFF_FOR
        try:
            for fd, event in ready:
                key = self._keys.get(fd)
                if key is None:
                    self._call(fd, event)
                else:
                    events = (EVENT_WRITE if event & ~_IN else 0) | (EVENT_READ if event & ~_OUT else 0)
                    found.append((key, events & key.events))
                left -= 1
                if not left:
                    turn.catch_up()
                    left = _PUT_OFF_FOR
        finally:
            turn.shared = False
            turn.catch_up()
        return bool(ready)

    def _call(self, fd: int, event: int) -> None:
        try:
            if event & ~_OUT:  # also where the peer hung up: who reads learns it
                reader = self._readers.get(fd)
                if reader is not None:
                    reader()
            if event & ~_IN:
                writer = self._writers.get(fd)
                if writer is not None:
                    writer()
        except Exception as problem:
            self.turn.failed(problem)

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        fd = _descriptor(fileobj)
        if fd in self._keys:
            raise KeyError(f"{fileobj!r} is already registered")
        self._epoll.register(fd, _wanted(events))
        key = self._keys[fd] = SelectorKey(fileobj, fd, events, data)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        fd = _descriptor(fileobj)
        if self._keys[fd].events != events:
            self._epoll.modify(fd, _wanted(events))
        key = self._keys[fd] = SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> SelectorKey:
        fd = _descriptor(fileobj)
        key = self._keys.pop(fd)
        self._forget(fd)
        return key

    def get_key(self, fileobj: Any) -> SelectorKey:
        return self._keys[_descriptor(fileobj)]

    def get_map(self) -> Mapping[int, SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()
        self._readers.clear()
        self._writers.clear()


def _listeners_last(ready: list[tuple[int, int]], listeners: set[int]) -> list[tuple[int, int]]:
    first: list[tuple[int, int]] = []
    last: list[tuple[int, int]] = []
    for one in ready:
        if one[0] in listeners:
            last.append(one)
        else:
            first.append(one)
    return first + last


def _raised(problem: Exception) -> None:
    raise problem


def _wanted(events: int) -> int:
    return (_IN if events & EVENT_READ else 0) | (_OUT if events & EVENT_WRITE else 0)


def _descriptor(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
