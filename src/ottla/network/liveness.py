"""Whether the processes of other brokers live, without a word said: one idle connection to each, which breaks when they die.

Guards: a broker is called gone only when nobody listens at its address: its connection broke, or never was, and two attempts to
connect, some tens of milliseconds apart, were refused. Anything else (accepted, no answer, no way there) proves nothing: a
broker that hangs or is cut off falls to its session with the store, and one that restarts quickly accepts again. A wrong guess
is harmless, for what is done about it is fenced by epochs; still, of a broker that we could never reach (a rule in between that
refuses, perhaps) it is made only once.

Life: `watch` is told who is to be watched, each time that changes. A connection that the other side closes because it was idle
is made again, which needs no traffic in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from ottla.metadata.image import BrokerImage, Endpoint
from ottla.model import BrokerUnavailable
from ottla.network.link import connect

log = logging.getLogger("ottla.network")

CONFIRM_AFTER = 0.03
"""Seconds between two attempts that are refused."""
_REFUSALS = 2
_CONNECT_TIMEOUT = 3.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_SETTLED = 1.0
"""Seconds after which a connection counts: whoever closes it sooner gets no new one at once."""


class Line(Protocol):
    """An open connection on which nothing is said. The simulator has one without sockets."""

    async def ended(self) -> None:
        """Wait until the other side closed it, or it broke."""
        ...

    def close(self) -> None: ...


Open = Callable[[str, int, float], Awaitable[Line]]
"""Host, port and the seconds that may take; raises BrokerUnavailable."""


class Life(NamedTuple):
    """One life of a broker, and where it listens. An epoch of -1: not known to us."""

    broker_id: int
    epoch: int
    address: Endpoint


# Who watches whom, and who acts: pure


class Duty(Enum):
    """What a broker does about another one that is gone. Several may do the same: the store's compare-and-set lets one win."""

    NOTHING = "nothing"
    SUSPECT = "suspect"
    """We are the controller: remove its registration, and move its leaders."""
    DEPOSE = "depose"
    """It was the controller: remove its claim, and stand for election."""


def to_watch(broker_id: int, controller_id: int, brokers: Mapping[int, BrokerImage], listener: str) -> list[Life]:
    """The controller watches all other brokers, every other broker the controller."""
    watched = brokers.values() if controller_id == broker_id else filter(None, [brokers.get(controller_id)])
    return [
        Life(broker.id, broker.epoch, broker.endpoints[listener])
        for broker in watched
        if broker.id != broker_id and listener in broker.endpoints
    ]


def duty(broker_id: int, controller_id: int, gone: int) -> Duty:
    """What to do about a broker that is gone, in the light of who is the controller now."""
    if controller_id == broker_id:
        return Duty.SUSPECT if gone != broker_id else Duty.NOTHING
    return Duty.DEPOSE if gone == controller_id else Duty.NOTHING


class Liveness:
    """The brokers that are watched, one task each. `gone` is told broker id and epoch, again and again while it is so."""

    def __init__(self, gone: Callable[[int, int], object], open_line: Open | None = None) -> None:
        self._gone = gone
        self._open = open_line or open_socket_line
        self._watching: dict[Life, asyncio.Task[None]] = {}
        self._guessed: dict[int, int] = {}
        """Brokers that were called gone although they had never been reached, and in which life."""

    def watch(self, lives: Iterable[Life]) -> None:
        """Watch these from now on, and nobody else."""
        wanted = set(lives)
        for life in [life for life in self._watching if life not in wanted]:
            self._watching.pop(life).cancel()
        for life in wanted:
            if life not in self._watching:
                self._watching[life] = asyncio.ensure_future(self._keep_watching(life))

    def close(self) -> None:
        """Watch nobody."""
        self.watch(())

    async def _keep_watching(self, life: Life) -> None:
        pause = _FIRST_PAUSE
        refusals = 0
        reached = False
        while True:
            try:
                line = await self._open(life.address.host, life.address.port, _CONNECT_TIMEOUT)
            except BrokerUnavailable as problem:
                refusals = refusals + 1 if problem.refused else 0
                if 0 < refusals < _REFUSALS:
                    await asyncio.sleep(CONFIRM_AFTER)
                    continue
                if refusals and self._may_call_gone(life, reached):
                    log.warning(
                        "Nobody listens at %s:%d any more: broker %d is gone",
                        life.address.host, life.address.port, life.broker_id,
                    )  # fmt: skip
                    self._gone(life.broker_id, life.epoch)
                refusals = 0
            else:
                refusals, reached = 0, True
                self._guessed.pop(life.broker_id, None)
                if await _outlives(line, _SETTLED):
                    pause = _FIRST_PAUSE
                    continue
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _may_call_gone(self, life: Life, reached: bool) -> bool:
        """Not of a broker that came back after the last guess, still out of reach: what refuses us is not its death."""
        return reached or self._guessed.setdefault(life.broker_id, life.epoch) == life.epoch


async def _outlives(line: Line, seconds: float) -> bool:
    """Wait until a line has ended; whether that took as long as it should."""
    settled = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(seconds, settled.set)
    try:
        await line.ended()
        return settled.is_set()
    finally:
        timer.cancel()
        line.close()


async def open_socket_line(host: str, port: int, timeout: float) -> Line:
    """A line over TCP."""
    return SocketLine(await connect(host, port, timeout), asyncio.get_running_loop())


class SocketLine:
    """A socket that is only read from, to learn of its end."""

    __slots__ = ("_ended", "_loop", "_sock")

    def __init__(self, sock: socket.socket, loop: AbstractEventLoop) -> None:
        self._sock = sock
        self._loop = loop
        self._ended = asyncio.Event()
        loop.add_reader(sock.fileno(), self._readable)

    async def ended(self) -> None:
        await self._ended.wait()

    def _readable(self) -> None:
        try:
            if self._sock.recv(4096):
                return  # nothing was asked: whatever it is, its sender lives
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self._loop.remove_reader(self._sock.fileno())
        with contextlib.suppress(OSError):
            self._sock.close()
