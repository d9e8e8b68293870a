"""What is on its way to one client: bytes and file regions, in the order in which they were said.

Guards: answers that came together leave in one piece. File regions go out with sendfile and never pass through Python. What the
others are busy with comes before large regions, and before those of old data most of the time. What the client does not take
at once stays here, and its owner looks at nothing more until it is gone, so memory stays bounded.
"""

from __future__ import annotations

import logging
import os
import socket
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ottla.network.answers import Part, in_one_piece, is_large, small_regions_read
from ottla.network.pacing import MOST_IN_A_TURN, Traffic, at_once
from ottla.storage.slices import FileSlice

log: Final = logging.getLogger("ottla.network")

_MSG_MORE: Final = getattr(socket, "MSG_MORE", 0)
_MOST_PARTS: Final = 64


class Outgoing:
    """The sending half of a connection."""

    __slots__ = (
        "_broken", "_bulky", "_fd", "_loop", "_name", "_parts", "_rest", "_sock", "_taken", "_traffic", "blocked", "late_since",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        loop: AbstractEventLoop,
        traffic: Traffic,
        taken: Callable[[bool], None],
        broken: Callable[[], None],
    ) -> None:
        """`taken` is called when the client takes more, and told whether that was all; `broken` when nothing can be sent."""
        self._sock = sock
        self._fd = sock.fileno()
        self._name = name
        self._loop = loop
        self._traffic = traffic
        self._taken = taken
        self._broken = broken
        self._parts: deque[Part | memoryview] = deque()
        self._bulky = False
        self._rest = 0.0
        self.blocked = False
        """Whether something waits until the client takes it."""
        self.late_since = 0.0
        """When that began."""

    @property
    def anything(self) -> bool:
        """Whether anything is to be sent."""
        return len(self._parts) > 0

    @property
    def enough(self) -> bool:
        """Whether it is large, or consists of many parts: then nothing more is gathered."""
        return self._bulky or len(self._parts) >= _MOST_PARTS

    def say(self, parts: Sequence[Part]) -> None:
        """An answer is to follow what is here; `flush` sends it."""
        if len(parts) > 1:
            parts = small_regions_read(parts)
        if is_large(parts):
            self._bulky = True
        self._parts.extend(parts)

    def flush(self) -> None:
        """Send what is here, as far as the client takes it; the rest when it takes more, and then nobody has to ask."""
        self._bulky = False
        parts = self._parts
        left = MOST_IN_A_TURN
        try:
            while parts:
                part = parts[0]
                if isinstance(part, FileSlice):
                    left -= self._send_region(part, left)
                    continue
                if len(parts) > 1 and not isinstance(parts[1], FileSlice):
                    part = in_one_piece(parts)
                sent = self._sock.send(part, _MSG_MORE if len(parts) > 1 else 0)
                if sent == len(part):
                    parts.popleft()
                else:
                    parts[0] = memoryview(part)[sent:]
        except (BlockingIOError, InterruptedError):
            self._wait()
        except (ConnectionError, TimeoutError):
            self._cannot_send()
        except OSError as problem:
            log.warning("Closing %s: could not send an answer: %s", self._name, problem)
            self._cannot_send()

    def forget(self) -> None:
        """Nothing is sent any more, and nobody told of anything."""
        self._parts.clear()
        self.blocked = False
        self._taken, self._broken = _nobody, _nobody_told

    def _cannot_send(self) -> None:
        broken = self._broken
        self.forget()  # or it would be tried again
        broken()

    def _send_region(self, region: FileSlice, left: int) -> int:
        """Send a region, or while others are busy what may be sent of it in this turn; how much it was."""
        traffic = self._traffic
        began = self._loop.time()
        alone = traffic.is_quiet_for(self, began)
        rests = region.old and not alone
        if rests and began < traffic.old_data.rests_until:
            self._rest = traffic.old_data.rests_until - began
            raise BlockingIOError
        most = region.length if alone else at_once(region, left)
        if most <= 0:
            raise BlockingIOError  # the others' turn: this one goes on when the loop comes round again
        sent = os.sendfile(self._fd, region.file.fd, region.position, most)
        if not sent:
            raise OSError("a segment file is shorter than its index says")
        if rests:
            traffic.old_data.sent(began, self._loop.time())
        if sent == region.length:
            self._parts.popleft()
            return sent
        self._parts[0] = region.rest(sent)
        raise BlockingIOError

    def _wait(self) -> None:
        if not self.blocked:
            self.blocked = True
            self.late_since = self._loop.time()
            self._loop.add_writer(self._fd, self._writable)
        if self._rest:
            self._loop.remove_writer(self._fd)
            self._loop.call_later(self._rest, self._rested)
            self._rest = 0.0

    def _rested(self) -> None:
        if self.blocked:
            self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        self.flush()
        if self.blocked:
            if not self._parts:
                self.blocked = False
                self._loop.remove_writer(self._fd)
            self._taken(not self.blocked)


def _nobody(_everything: bool) -> None:
    pass


def _nobody_told() -> None:
    pass
