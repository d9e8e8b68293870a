"""A network in memory, between processes of the simulation.

Guards: what TCP promises for one connection holds (order, nothing lost while it lives), and nothing more. Each message takes a
time of its own; a cut stops one direction between two hosts, what was on its way arrives after it heals; a connection breaks at
any time, and then what was on its way is lost; a process that was killed resets its connections, one whose machine lost power
just falls silent until the machine is back. A dial is refused where nobody listens, and gets no answer through a cut.
Buffers are spoilt as soon as their reader may no longer use them, so that a view that is kept too long is found.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from functools import partial
from random import Random
from typing import Any

from ottla.config import BrokerConfig, Listener
from ottla.metrics import RequestCounters
from ottla.model import BrokerUnavailable
from ottla.network.answers import Owed
from ottla.replication.waiting import Pending
from ottla.storage.slices import FileSlice
from ottla.testing.sim.loop import Process, SimLoop, current_process

Dispatch = Callable[[Any, memoryview], None]

_GAP = 1e-6  # between two arrivals of one direction of a connection: what came first stays first
_DIAL_AGAIN = (0.0, 1.0, 3.0, 7.0)  # when a SYN is sent again
_SIZE = 4
_NOBODY = Context()  # what the network itself does is a step of no process


class Network:
    """All hosts, what lies between them, and every open connection."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.loop = loop
        self.delay_s = 0.001
        """The mean of what a message takes."""
        self.slow: dict[str, float] = {}
        """Seconds that messages from and to a host take on top."""
        self.dark: set[str] = set()
        """Hosts without power."""
        self.listening: dict[tuple[str, int], SimServer] = {}
        self.connections: dict[Connection, None] = {}
        self._random = random
        self._cuts: dict[tuple[str, str], None] = {}

    def latency(self, source: str, target: str) -> float:
        """What the next message takes."""
        random = self._random
        seconds = 0.0001 + random.expovariate(1 / self.delay_s)
        if random.random() < 0.005:
            seconds += random.uniform(0.01, 0.4)
        return seconds + self.slow.get(source, 0.0) + self.slow.get(target, 0.0)

    def passes(self, source: str, target: str) -> bool:
        """Whether messages get from one host to another now."""
        return (source, target) not in self._cuts and source not in self.dark and target not in self.dark

    def cut(self, source: str, target: str) -> None:
        """Stop what goes from one host to another; the other direction is not touched."""
        self._cuts[source, target] = None

    def heal(self, source: str | None = None, target: str | None = None) -> None:
        """Let pass again what goes from one host to another; None: any."""
        for pair in list(self._cuts):
            if source in (None, pair[0]) and target in (None, pair[1]):
                del self._cuts[pair]
        self.flow()

    def flow(self) -> None:
        """What stood before an obstacle that is gone goes on."""
        for connection in list(self.connections):
            for lane in connection.lanes:
                lane.flow()

    @property
    def cuts(self) -> Iterable[tuple[str, str]]:
        return self._cuts

    def break_some(self, chance: float) -> int:
        """Break open connections by chance; how many."""
        broken = [one for one in self.connections if self._random.random() < chance]
        for one in broken:
            one.reset()
        return len(broken)

    def killed(self, process: Process) -> None:
        """The kernel of a process that was killed resets its connections and listens for it no more."""
        for address, server in list(self.listening.items()):
            if server.process is process:
                del self.listening[address]
        for connection in list(self.connections):
            if process in (connection.link.process, connection.peer.process):
                connection.reset(process)

    def went_dark(self, process: Process) -> None:
        """Its machine lost power: nobody is told."""
        for address, server in list(self.listening.items()):
            if server.process is process:
                del self.listening[address]

    def dial_from(self, process: Process) -> Callable[[str, int, float], Awaitable[SimLink]]:
        """How this process connects, to ask or just to see when the other side ends."""
        return partial(self._dial, process)

    async def _dial(self, process: Process, host: str, port: int, timeout: float) -> SimLink:
        loop = self.loop
        began = loop.time()
        for after in _DIAL_AGAIN:
            if after >= timeout:
                break
            await asyncio.sleep(max(began + after - loop.time(), 0.0))
            await asyncio.sleep(self.latency(process.host, host))
            if not self.passes(process.host, host) or not self.passes(host, process.host):
                continue
            server = self.listening.get((host, port))
            await asyncio.sleep(self.latency(host, process.host))
            if server is None:
                raise BrokerUnavailable(f"{host}:{port}: Connection refused", refused=True)
            if loop.time() - began < timeout:
                return Connection(self, process, server).link
            break
        await asyncio.sleep(max(began + timeout - loop.time(), 0.0))
        raise BrokerUnavailable(f"{host}:{port} does not answer within {timeout:g} s")


class Lane:
    """One direction of a connection."""

    __slots__ = ("_connection", "_last", "_network", "_source", "_stalled", "_target", "open")

    def __init__(self, connection: Connection, source: Process, target: Process) -> None:
        self._connection = connection
        self._network = connection.network
        self._source = source
        self._target = target
        self._last = 0.0
        self._stalled: deque[Callable[[], None]] = deque()
        self.open = True

    def send(self, arrive: Callable[[], None]) -> None:
        """`arrive` is called on the other side, as a step of its process, when this has come through."""
        network = self._network
        when = network.loop.time() + network.latency(self._source.host, self._target.host)
        self._last = when = max(when, self._last + _GAP)
        network.loop.call_at(when, self._come, arrive, context=_NOBODY)

    def _come(self, arrive: Callable[[], None]) -> None:
        if not self.open:
            return
        if self._stalled or not self._network.passes(self._source.host, self._target.host):
            self._stalled.append(arrive)
        elif not self._target.alive:
            self._connection.reset(self._target)
        else:
            self._network.loop.call_soon(arrive, context=self._target.context)

    def flow(self) -> None:
        """The way may be free again: what waited goes on, in its order, after a while (TCP has to notice)."""
        stalled, self._stalled = self._stalled, deque()
        for arrive in stalled:
            self.send(arrive)


class Connection:
    """A link of one process and what the server at its other end sees of it."""

    def __init__(self, network: Network, process: Process, server: SimServer) -> None:
        self.network = network
        self.link = SimLink(self, process, f"{server.process.host}")
        self.peer = SimPeer(self, server, process.host)
        self.there = Lane(self, process, server.process)
        self.back = Lane(self, server.process, process)
        network.connections[self] = None
        server.opened(self.peer)

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        return self.there, self.back

    def reset(self, by: Process | None = None) -> None:
        """Break: what is on its way is lost. `by` is a process that died, which need not be told."""
        self.there.open = self.back.open = False
        self.network.connections.pop(self, None)
        for end in (self.link, self.peer):
            if end.process is not by:
                there, here = (by or end.process).host, end.process.host
                delay = self.network.latency(there, here)
                self.network.loop.call_later(delay, end.lost, context=end.process.context)

    def ended(self) -> None:
        """One of its ends closed: when both have, nobody needs to remember it."""
        if self.link.closed and self.peer.closed:
            self.network.connections.pop(self, None)


def _spoil(buffer: bytearray) -> None:
    buffer[:] = b"\xee" * len(buffer)


class SimLink:
    """The end of a connection that asks: a `Link`, and a `Line` for those who only want to know when it ends."""

    def __init__(self, connection: Connection, process: Process, name: str) -> None:
        self.process = process
        self.closed = False
        self._connection = connection
        self._name = name
        self._waiting: deque[asyncio.Future[memoryview]] = deque()
        self._answer = bytearray()
        self._over = asyncio.Event()

    async def ended(self) -> None:
        """Wait until it is closed, by whichever side."""
        await self._over.wait()

    async def exchange(self, frame: bytes, timeout: float) -> memoryview:
        if self.closed:
            raise BrokerUnavailable(f"the connection to {self._name} is closed")
        loop = self._connection.network.loop
        answer: asyncio.Future[memoryview] = loop.create_future()
        self._waiting.append(answer)
        peer = self._connection.peer
        self._connection.there.send(partial(peer.arrived, bytes(frame)))
        overdue = loop.call_later(timeout, self._fail, f"{self._name} does not answer within {timeout:g} s")
        try:
            return await answer
        except asyncio.CancelledError:
            self._fail("nobody waits for the answer any more")
            raise
        finally:
            overdue.cancel()

    def arrived(self, answer: bytes) -> None:
        """An answer came."""
        if self.closed:
            return
        loop = self._connection.network.loop
        loop.call_soon(loop.call_soon, _spoil, self._answer)  # whoever was woken for it has looked at it by then
        self._answer = bytearray(answer)
        if not self._waiting:
            self._fail(f"{self._name} sent what is no answer")
            return
        waiting = self._waiting.popleft()
        if not waiting.done():
            waiting.set_result(memoryview(self._answer)[_SIZE:])

    def close(self) -> None:
        self._fail(f"the connection to {self._name} was closed")

    def lost(self) -> None:
        """The other end is gone."""
        if not self.closed:
            self._fail(f"{self._name} closed the connection", tell=False)

    def _fail(self, reason: str, *, tell: bool = True) -> None:
        if self.closed:
            return
        self.closed = True
        self._over.set()
        if tell:
            self._connection.there.send(self._connection.peer.lost)
        self._connection.back.open = False
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(BrokerUnavailable(reason))
        self._waiting.clear()
        self._connection.ended()


class SimPeer:
    """The end of a connection that is asked: what a handler sees of it, one request at a time, and answers in their order."""

    def __init__(self, connection: Connection, server: SimServer, client_host: str) -> None:
        self.process = server.process
        self.host = client_host
        self.port = 40000 + server.accepted
        self.listener = server.listeners[0].name
        self.waiter: Pending | None = None
        self.answering: RequestCounters | None = None
        self.last_active = 0.0
        self.closed = False
        self._connection = connection
        self._server = server
        self._frames: deque[bytes] = deque()
        self._owed: deque[Owed] = deque()
        self._in_hand = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def arrived(self, frame: bytes) -> None:
        """A request came."""
        self._frames.append(frame)
        self.go_on()

    def go_on(self) -> None:
        """Hand out the next request, if none is in hand and the server answers by now."""
        if self._in_hand or self.closed or not self._frames or self._server.dispatch is None:
            return
        self._in_hand = True
        buffer = bytearray(self._frames.popleft())
        self._server.dispatch(self, memoryview(buffer)[_SIZE:])
        _spoil(buffer)

    def answer(self, parts: Sequence[Any]) -> None:
        """Send the answer to the request in hand."""
        if self.closed:
            return
        self.waiter = None
        if self._owed:
            self.owe().answer(parts)
        else:
            self._say(parts)
            self._answered()

    def owe(self) -> Owed:
        """The request in hand is carried out, and its answer comes later: go on with the next."""
        owed = Owed(self)
        self._owed.append(owed)
        self._answered()
        return owed

    def paid(self) -> None:
        """An answer that was waited for is here: send what may leave now."""
        while not self.closed and self._owed and (parts := self._owed[0].parts) is not None:
            self._owed.popleft()
            if parts:
                self._say(parts)

    def _say(self, parts: Sequence[Any]) -> None:
        content = b"".join(_bytes_of(part) for part in parts)
        self._connection.back.send(partial(self._connection.link.arrived, content))

    def no_answer(self) -> None:
        """The request in hand wants no answer."""
        if not self.closed:
            self._answered()

    def _answered(self) -> None:
        self._in_hand = False
        if self._frames:
            self._connection.network.loop.call_soon(self.go_on)

    def close(self) -> None:
        """Hang up."""
        if not self.closed:
            self._connection.back.send(self._connection.link.lost)
            self.lost()

    def lost(self) -> None:
        """The connection is gone: what waits on its behalf is discarded."""
        if self.closed:
            return
        self.closed = True
        self._connection.there.open = False
        for waiter in (self.waiter, *(owed.waiter for owed in self._owed)):
            if waiter is not None:
                waiter.discard()
        self.waiter = None
        self._owed.clear()
        self._frames.clear()
        self._server.connections.pop(self, None)
        self._connection.ended()


def _bytes_of(part: Any) -> bytes:
    if not isinstance(part, FileSlice):
        return bytes(part)
    content = part.read()
    if len(content) != part.length:
        raise OSError("a segment file is shorter than its index says")
    return content


class SimServer:
    """What a broker listens with."""

    def __init__(self, network: Network, config: BrokerConfig, _loop: asyncio.AbstractEventLoop) -> None:
        process = current_process()
        assert process is not None
        self.process = process
        self.listeners: list[Listener] = list(config.listeners)
        self.dispatch: Dispatch | None = None
        self.connections: dict[SimPeer, None] = {}
        self.accepted = 0
        self._network = network

    def bind(self) -> None:
        for listener in self.listeners:
            self._network.listening[listener.host, listener.port] = self

    def serve(self, dispatch: Dispatch) -> None:
        self.dispatch = dispatch
        for peer in list(self.connections):
            peer.go_on()

    def opened(self, peer: SimPeer) -> None:
        """A connection was made; before `serve` it just waits."""
        self.accepted += 1
        self.connections[peer] = None

    def stop_accepting(self) -> None:
        """Take no new connections; those that are open go on."""
        for listener in self.listeners:
            if self._network.listening.get((listener.host, listener.port)) is self:
                del self._network.listening[listener.host, listener.port]

    def close(self) -> None:
        self.stop_accepting()
        for peer in list(self.connections):
            peer.close()
