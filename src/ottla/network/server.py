"""The acceptor: listening sockets, and the set of connections that came through them.

Guards: no more connections than `max.connections` and `max.connections.per.ip` allow; a connection that is idle for
`connections.max.idle.ms` is closed. Life: `bind` before anything is announced (a port in use ends the start), `serve` when
the broker is ready to answer, `close` at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter

from ottla.config import BrokerConfig, Listener
from ottla.network.buffers import BufferPool
from ottla.network.connection import Connection, Dispatcher, TakeOver
from ottla.network.haste import Haste
from ottla.network.loop import turn_of
from ottla.network.pacing import Traffic

log = logging.getLogger("ottla.network")

_ACCEPT_AT_ONCE = 64


class BindError(Exception):
    """A listener's address could not be taken: one line for whoever starts the broker."""


class Server:
    """Every socket that clients connect to."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._loop = loop
        self._pool = BufferPool()
        self._traffic = Traffic(Haste(loop))
        self._turn = turn_of(loop)
        self._sockets: list[tuple[socket.socket, str]] = []
        self._http_listeners = config.names("metrics.listener.names")
        self._per_host: Counter[str] = Counter()
        self._dispatch: Dispatcher | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.http: TakeOver | None = None
        """Answers clients that speak HTTP, on the listeners that `metrics.listener.names` names."""
        self.listeners: list[Listener] = []

    def bind(self) -> None:
        """Take the addresses; a port 0 becomes the port that the system chose."""
        backlog = self._config.integer("socket.listen.backlog.size")
        for listener in self._config.listeners:
            sock = _listen(listener, max(backlog, 50))
            self._sockets.append((sock, listener.name))
            self.listeners.append(Listener(listener.name, listener.protocol, listener.host, sock.getsockname()[1]))

    def serve(self, dispatch: Dispatcher) -> None:
        """Begin to accept."""
        self._dispatch = dispatch
        for sock, name in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock, name)
        self._schedule_idle_check()

    def stop_accepting(self) -> None:
        """Take no new connections; those that are open go on."""
        for sock, _ in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets.clear()

    def close(self) -> None:
        """End everything."""
        self.stop_accepting()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._traffic.haste.end()
        for connection in tuple(self.connections):
            connection.close()

    def _accept(self, listening: socket.socket, name: str) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                log.error("Cannot accept on %s: %s; trying again in a second", name, problem.strerror)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(1, self._accept_again, listening, name)
                return
            if self._refused(str(address[0])):
                sock.close()
                continue
            self._open(sock, address, name)

    def _accept_again(self, listening: socket.socket, name: str) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening, name)

    def _refused(self, host: str) -> bool:
        if len(self.connections) >= self._config.integer("max.connections"):
            log.warning("Refusing a connection from %s: max.connections=%d are open", host, len(self.connections))
            return True
        if self._per_host[host] >= self._config.integer("max.connections.per.ip"):
            log.warning("Refusing a connection from %s: max.connections.per.ip=%d are open", host, self._per_host[host])
            return True
        return False

    def _open(self, sock: socket.socket, address: tuple[object, ...], name: str) -> None:
        assert self._dispatch is not None
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, setting in (
            (socket.SO_SNDBUF, "socket.send.buffer.bytes"),
            (socket.SO_RCVBUF, "socket.receive.buffer.bytes"),
        ):
            size = self._config.integer(setting)
            if size > 0:
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        if sock.getsockname()[0] == address[0]:
            _send_without_pauses(sock)
        maximum = self._config.integer("socket.request.max.bytes")
        http = self.http if "*" in self._http_listeners or name in self._http_listeners else None
        connection = Connection(
            sock, address, name, self._loop, self._pool, self._traffic, self._dispatch, maximum, self._closed, http, self._turn
        )
        self.accepted += 1
        self.connections.add(connection)
        self._per_host[connection.host] += 1

    def _closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._per_host[connection.host] -= 1
        if not self._per_host[connection.host]:
            del self._per_host[connection.host]

    def _schedule_idle_check(self) -> None:
        limit = self._config.integer("connections.max.idle.ms") / 1000
        if limit > 0:
            self._idle_timer = self._loop.call_later(min(max(limit / 2, 0.1), 30), self._close_idle, limit)

    def _close_idle(self, limit: float) -> None:
        oldest = self._loop.time() - limit
        for connection in [c for c in self.connections if c.last_active < oldest and c.idle]:
            connection.close()
        self._schedule_idle_check()


def _send_without_pauses(sock: socket.socket) -> None:
    """To somebody on this machine. Where the system's congestion control is BBR, it spaces out what is sent, by a timer for
    every 64 KB: on the way to a network that spares its queues, here it is a third of what a consumer costs."""
    with contextlib.suppress(AttributeError, OSError):  # not on this system, or not allowed here
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _listen(listener: Listener, backlog: int) -> socket.socket:
    host = listener.host or "0.0.0.0"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, listener.port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(sock.close)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(backlog)
            sock.setblocking(False)
            on_failure.pop_all()
            return sock
    except socket.gaierror as problem:
        raise BindError(f"{listener}: the host name cannot be resolved ({problem.strerror}); correct `listeners`") from None
    except PermissionError:
        raise BindError(
            f"{listener}: not permitted to listen on port {listener.port}; choose one above 1023 in `listeners`"
        ) from None
    except OSError as problem:
        raise BindError(
            f"{listener}: cannot listen ({problem.strerror}); stop what uses that port, or choose another in `listeners`"
        ) from None
