"""One client's connection: bytes in, frames out to the dispatcher, answers back in request order.

Guards: one request is in hand at a time, and answers leave in the order of requests. The next request is looked at when the one
in hand is answered, or when it is carried out and only its answer has to wait (`owe`); of those there are a few at a time.
While answers cannot leave because the client does not read (`outgoing`), nothing more is looked at, so memory stays bounded.
While a request is in hand at most one buffer is read ahead (which also notices a client that hung up); then the socket is left
alone. Answers to requests that came in one piece leave in one piece, and small ones at the end of a turn of the loop that
others share.
Life: opened by the acceptor, closed once, by either side; what waits on its behalf is discarded then.
"""

from __future__ import annotations

import logging
import socket
import struct
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ottla.metrics import RequestCounters
from ottla.network.answers import Owed, Part, is_large
from ottla.network.buffers import SMALL, Buffer, BufferPool
from ottla.network.outgoing import Outgoing
from ottla.network.pacing import Traffic
from ottla.network.readiness import Turn
from ottla.replication.waiting import Pending

log: Final = logging.getLogger("ottla.network")

_read_size: Final = struct.Struct(">i").unpack_from
_SMALLEST_FRAME: Final = 8  # api key, version, correlation id
_GET: Final = 0x47455420  # what the first four letters of an HTTP request would be as a size: more than any request has
_MOST_OWED: Final = 8  # answers that wait, or wait behind one that does: then no further request is looked at


class Dispatcher(Protocol):
    """What happens to a frame. The view is valid only during the call: what is kept must be copied."""

    def __call__(self, connection: Connection, frame: memoryview) -> None: ...


TakeOver = Callable[[socket.socket, bytes], None]
"""Goes on with a socket, and with what was received from it so far."""


class Connection:
    """A client's socket, on the broker's loop."""

    __slots__ = (
        "_buffer", "_dispatch", "_ending", "_filled", "_http", "_in_hand", "_large", "_loop", "_max_request", "_on_close",
        "_outgoing", "_owed", "_owes_much", "_pool", "_processing", "_put_off", "_reading", "_sock", "_start", "_traffic",
        "_turn", "answering", "closed", "fd", "host", "last_active", "listener", "port", "waiter",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        address: tuple[Any, ...],
        listener: str,
        loop: AbstractEventLoop,
        pool: BufferPool,
        traffic: Traffic,
        dispatch: Dispatcher,
        max_request: int,
        on_close: Callable[[Connection], None],
        http: TakeOver | None = None,
        turn: Turn | None = None,
    ) -> None:
        """`traffic` is that of the loop, and so is `turn`, if any. `http` takes over a client that turns out to speak HTTP."""
        self._sock = sock
        self.fd = sock.fileno()
        self.host = str(address[0])
        self.port = int(address[1])
        self.listener = listener
        self._loop = loop
        self._pool = pool
        self._traffic = traffic
        self._dispatch = dispatch
        self._max_request = max_request
        self._on_close = on_close
        self._http = http
        self._turn = turn if turn is not None else Turn()
        self.answering: RequestCounters | None = None
        self._buffer: Buffer | None = None
        self._start = 0
        self._filled = 0
        self._large = False
        self._in_hand = False
        self._processing = False
        self._put_off = False
        self._reading = True
        self._ending = False
        self._outgoing = Outgoing(sock, str(self), loop, traffic, self._taken, self._cannot_send)
        self._owed: deque[Owed] = deque()
        self._owes_much = False
        self.closed = False
        self.waiter: Pending | None = None
        self.last_active = loop.time()
        loop.add_reader(self.fd, self._readable)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    # ---- reading ---------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = self._pool.take(self._large)
        filled = self._filled
        if filled == buffer.size:
            if self._in_hand or self._outgoing.blocked:
                # As far ahead as we may: the rest stays in the kernel until the answer is gone.
                self._reading = False
                self._loop.remove_reader(self.fd)
            else:  # the answer has just gone, and what is here was not looked at yet
                self._process()
            return
        try:
            got = self._sock.recv_into(buffer.view[filled : self._read_until(buffer)] if filled else buffer.view)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            got = 0
        if not got:
            self._hang_up()
            return
        self._filled = filled + got
        self.last_active = now = self._loop.time()
        outgoing = self._outgoing
        self._traffic.heard(outgoing, now)
        if not self._in_hand and not outgoing.blocked:
            self._process()

    def _hang_up(self) -> None:
        """The client sends no more. What it sent before is still carried out (acks=0 wants no answer); then it is the end."""
        if self._filled > self._start and (self._in_hand or self._outgoing.blocked):
            self._ending = True
            self._reading = False
            self._loop.remove_reader(self.fd)
        else:
            self.close()

    def _read_until(self, buffer: Buffer) -> int:
        """Where to stop reading: a large frame is read exactly to its end, so that nothing behind it must be moved."""
        start = self._start
        if self._filled - start < 4:
            return buffer.size
        end: int = start + 4 + _read_size(buffer.data, start)[0]
        return end if self._filled < end <= buffer.size and end - start > SMALL else buffer.size

    def _process(self) -> None:
        """Hand out the frames that are here, one at a time, as long as each is answered at once."""
        buffer = self._buffer
        if buffer is None:
            return
        self._processing = True
        outgoing = self._outgoing
        while not self._in_hand:
            if outgoing.enough:
                self._flush()
                if self.closed:
                    return
                if outgoing.blocked:
                    break
            start = self._start
            available = self._filled - start
            if available < 4:
                if self._filled == buffer.size:
                    buffer = self._make_room(buffer, 4)
                break
            size: int = _read_size(buffer.data, start)[0]
            if size < _SMALLEST_FRAME or size > self._max_request:
                if size == _GET and self._http is not None:
                    self._hand_over(self._http, bytes(buffer.view[start : self._filled]))
                    return
                log.warning(
                    "Closing %s: a request of %d bytes (allowed: %d to %d)", self, size, _SMALLEST_FRAME, self._max_request
                )
                self.close()
                if self.closed:
                    return
                break
            end = start + 4 + size
            if end > self._filled:
                if end > buffer.size:
                    buffer = self._make_room(buffer, size + 4)
                break
            self._start = end
            self._in_hand = True
            if size > SMALL:
                self._traffic.haste.large_request()
            self._dispatch(self, buffer.view[start + 4 : end])
            if self.closed:
                return
        self._processing = False
        if self._start == self._filled:
            self._start = self._filled = 0
            self._pool.give_back(buffer)
            self._buffer = None
        if outgoing.anything and not outgoing.blocked:
            self._flush_in_turn()  # only small ones are left: a large one has gone by itself
        self._end_if_done()

    def _end_if_done(self) -> None:
        """Of a client that hung up all is carried out, and answered."""
        if self._ending and not self._in_hand and not self._outgoing.blocked and not self._owed:
            self.close()

    def _make_room(self, buffer: Buffer, need: int) -> Buffer:
        """Move the beginning of a frame to where all of it (or twice what we have of it) fits."""
        start, have = self._start, self._filled - self._start
        if need <= buffer.size:
            buffer.view[:have] = buffer.view[start : self._filled]  # the two may overlap: that is seen to
            roomy = buffer
        else:
            self._large = True
            roomy = self._pool.take_for(need, have)
            roomy.view[:have] = buffer.view[start : self._filled]
            self._pool.give_back(buffer)
            self._buffer = roomy
        self._start, self._filled = 0, have
        return roomy

    # ---- answering -------------------------------------------------------------------------------------------------------

    def answer(self, parts: Sequence[Part]) -> None:
        """Send the answer to the request in hand."""
        if self.closed:
            return
        if self.waiter is not None:
            self.waiter = None
            self._turn.listeners.add(self.fd)
        if self._owed:
            behind = Owed(self)
            behind.parts, behind.answering = parts, self.answering
            self._owe(behind)
        else:
            self._outgoing.say(parts)
            self._answered()

    def no_answer(self) -> None:
        """The request in hand wants no answer."""
        if not self.closed:
            self._answered()

    def owe(self) -> Owed:
        """The request in hand is carried out, and its answer comes later: go on with the next."""
        owed = Owed(self)
        self._owe(owed)
        return owed

    def _owe(self, owed: Owed) -> None:
        self._owed.append(owed)
        if self._may_owe_more():
            self._answered()
        else:
            self._owes_much = True

    def _may_owe_more(self) -> bool:
        """Whether the next request may be carried out: answers that wait are few and, but for one, small."""
        owed = self._owed
        return len(owed) < _MOST_OWED and not (owed and is_large(owed[-1].parts))

    def paid(self) -> None:
        """An answer that was waited for is here: send what may leave now."""
        if self.closed:
            return
        owed = self._owed
        while owed and (parts := owed[0].parts) is not None:
            first = owed.popleft()
            if parts:
                self.answering = first.answering
                self._outgoing.say(parts)
        if not self._processing and not self._outgoing.blocked and self._outgoing.anything:
            self._flush_in_turn()
        if self._owes_much and self._may_owe_more():
            self._owes_much = False
            self._answered()
        elif self._ending and not self._processing:
            self._go_on()

    def _answered(self) -> None:
        self._in_hand = False
        if not self._processing:  # else the loop in `_process` goes on by itself, and sends what has gathered
            if self._outgoing.anything:
                self._flush()
            self._go_on()

    def _go_on(self) -> None:
        """Nothing is in hand: look at what has come meanwhile, and read on."""
        if self._outgoing.blocked or self.closed:
            return
        if self._buffer is not None:
            self._loop.call_soon(self._resume)
        else:
            self._end_if_done()
        if not self._reading and not self._ending:
            self._reading = True
            self._loop.add_reader(self.fd, self._readable)

    def _resume(self) -> None:
        if not self._in_hand and not self._outgoing.blocked and not self.closed:
            self._process()

    def _flush(self) -> None:
        self._put_off = False
        if not self._outgoing.blocked:
            self._outgoing.flush()

    def _flush_in_turn(self) -> None:
        """Send what is here, at the end of this turn of the loop if others share it."""
        if self._turn.shared:
            self._put_off = True
            self._turn.put_off(self._flush, awaited=self.fd in self._turn.listeners)
        else:
            self._flush()

    def _taken(self, everything: bool) -> None:
        """The client has taken more of what is on its way."""
        self.last_active = self._loop.time()
        if everything:
            if self.answering is not None:
                self.answering.send.add(self.last_active - self._outgoing.late_since)
                self.answering = None
            if not self._in_hand:
                self._go_on()

    def _cannot_send(self) -> None:
        self._ending = True  # nothing that is owed may follow what was cut off
        self.close()

    # ---- closing ---------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no request is in hand, and no answer owed."""
        return not self._in_hand and not self._owed

    @property
    def waiters(self) -> list[Pending]:
        """Whatever waits on its behalf."""
        waiting = [owed.waiter for owed in self._owed if owed.waiter is not None]
        if self.waiter is not None:
            waiting.append(self.waiter)
        return waiting

    def _hand_over(self, take_over: TakeOver, received: bytes) -> None:
        """The socket is somebody else's from now on."""
        self.closed = True
        self._leave_loop()
        self._let_go()
        self._outgoing.forget()
        self._on_close(self)
        take_over(self._sock, received)

    def _leave_loop(self) -> None:
        self._loop.remove_reader(self.fd)
        self._loop.remove_writer(self.fd)
        self._turn.listeners.discard(self.fd)

    def _let_go(self) -> None:
        if self._buffer is not None:
            self._pool.give_back(self._buffer)
            self._buffer = None

    def _end_when_paid(self) -> None:
        """The request in hand and what is behind it are not carried out; those before it get their answers."""
        self._ending = True
        self._in_hand = False
        self._start = self._filled
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self.fd)

    def close(self) -> None:
        """End the connection; nothing is answered any more, but for what was good before a request that is hung up on."""
        if self.closed:
            return
        if self._processing and self._owed and not self._ending:
            self._end_when_paid()
            return
        self.closed = True
        if (self._processing or self._put_off) and self._outgoing.anything and not self._outgoing.blocked:
            self._flush()  # a bad request does not take the answers to the good ones before it along
        self._leave_loop()
        for waiter in self.waiters:
            waiter.discard()
        for owed in self._owed:
            owed.waiter = None
        self.waiter = None
        self._owed.clear()
        self._outgoing.forget()
        if self._processing:
            self._loop.call_soon(self._let_go)  # what it holds is still being looked at
        else:
            self._let_go()
        self._sock.close()
        self._on_close(self)
