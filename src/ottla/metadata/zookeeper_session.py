"""Our session with ZooKeeper: kazoo's threads on one side, the broker's loop on the other.

Guards: nothing of kazoo's threads reaches the engine but through `call_soon_threadsafe`, and nothing here waits on the loop's
thread. A request is sent only while there is a connection; without one it waits, but not for ever: after `PATIENCE` seconds
away `StoreUnavailable` says so at once. A request whose connection was lost on the way ends in `Interrupted`: it may have
happened. Requests go out in order, at most `in_flight` at a time: what is read after an interrupted write tells whether it did.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss, KazooException, OperationTimeoutError, SessionExpiredError, SessionMovedError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.retry import KazooRetry

from ottla.clock import Clock
from ottla.metadata.store import StoreUnavailable, UnusableStore

log = logging.getLogger("ottla.metadata")

PATIENCE = 5.0
"""Seconds: longer than a ZooKeeper ensemble needs to find a new leader, shorter than clients wait for an answer."""
_RECONNECT_AT_MOST_EVERY = 1.0
_INTERRUPTIONS = (ConnectionLoss, OperationTimeoutError, SessionExpiredError, SessionMovedError)

RunBlocking = Callable[..., Awaitable[Any]]


class Interrupted(Exception):
    """The connection was lost while a request was on its way: it may have been carried out."""


class Session:
    """One session after the other, as long as the broker runs."""

    def __init__(self, servers: str, timeout_ms: int, in_flight: int, clock: Clock, run_blocking: RunBlocking) -> None:
        self._servers = servers
        self._clock = clock
        self._run_blocking = run_blocking
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout_ms / 1000
        handler = SequentialThreadingHandler()
        # It tells of every attempt to connect; we tell of what it means.
        chatter = logging.getLogger("ottla.metadata.kazoo")
        chatter.setLevel(logging.ERROR)
        self._client = KazooClient(
            servers,
            timeout=self._timeout,
            handler=handler,
            connection_retry=KazooRetry(max_tries=-1, max_delay=_RECONNECT_AT_MOST_EVERY, sleep_func=handler.sleep_func),
            logger=chatter,
        )
        self._connected = asyncio.Event()
        self._away_since = clock.monotonic()
        self._was_connected = False
        self._ended = False
        self._closing = False
        self._room = asyncio.Semaphore(in_flight)
        self.connected_again: Callable[[], None] = lambda: None
        """Told whenever there is a connection after there was none: watches are gone and must be set again."""
        self.begun_anew: Callable[[], None] = lambda: None
        """Told after that, if the session is a new one: ephemeral nodes are gone too."""

    async def open(self, timeout_ms: int) -> None:
        """Connect, or raise UnusableStore when the time is up."""
        self._client.add_listener(self._state_changed)
        self._client.start_async()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._connected.wait()
        except TimeoutError:
            await self.close()
            raise UnusableStore(
                f"no ZooKeeper answers at zookeeper.connect={self._servers} within {timeout_ms / 1000:g} s "
                "(zookeeper.connection.timeout.ms): start it, or correct the address"
            ) from None

    async def close(self) -> None:
        """End the session: ephemeral nodes go at once."""
        self._closing = True
        self._connected.clear()  # whoever still asks is told that it is unavailable
        await self._run_blocking(self._stop)

    def _stop(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except KazooException as problem:
            log.warning("The session with ZooKeeper could not be ended and will run out by itself: %s", problem)

    @property
    def id(self) -> int:
        """What ZooKeeper calls the owner of our ephemeral nodes."""
        client_id = self._client.client_id
        return client_id[0] if client_id is not None else 0

    async def call(self, send: Callable[[KazooClient], Any]) -> Any:
        """Do one request: `send` gives it to kazoo. Raises kazoo's errors of the request, Interrupted, or StoreUnavailable."""
        async with self._room:
            await self._wait_for_connection()
            done: asyncio.Future[Any] = self._loop.create_future()
            send(self._client).rawlink(lambda result: self._loop.call_soon_threadsafe(_hand_over, done, result))
            try:
                async with asyncio.timeout(self._timeout):
                    return await done
            except (*_INTERRUPTIONS, TimeoutError) as problem:
                raise Interrupted from problem

    async def _wait_for_connection(self) -> None:
        if self._connected.is_set():
            return
        patience_left = self._away_since + PATIENCE - self._clock.monotonic()
        if patience_left > 0 and not self._closing:
            try:
                async with asyncio.timeout(patience_left):
                    await self._connected.wait()
                    return
            except TimeoutError:
                pass
        raise StoreUnavailable(
            "ZooKeeper cannot be reached at the moment, and without it metadata cannot be changed: try again."
        )

    def _state_changed(self, state: str) -> None:
        """In kazoo's thread."""
        self._loop.call_soon_threadsafe(self._on_loop, state)

    def _on_loop(self, state: str) -> None:
        if self._closing:
            return
        if state != KazooState.CONNECTED:
            self._went_away(ended=state == KazooState.LOST)
            return
        self._connected.set()
        if not self._was_connected:
            self._was_connected = True
            return
        away = self._clock.monotonic() - self._away_since
        log.info(
            "ZooKeeper at %s is back after %.1f s, with %s",
            self._servers,
            away,
            "a new session" if self._ended else "our session",
        )
        self.connected_again()
        if self._ended:
            self._ended = False
            self.begun_anew()

    def _went_away(self, ended: bool) -> None:
        if self._connected.is_set():
            self._connected.clear()
            self._away_since = self._clock.monotonic()
            log.warning(
                "The connection to ZooKeeper at %s is lost: clients are served on, metadata cannot be changed until it is back",
                self._servers,
            )
        if ended and not self._ended:
            self._ended = True
            log.warning("ZooKeeper has ended our session: nobody heard of us for longer than zookeeper.session.timeout.ms")


def _hand_over(done: asyncio.Future[Any], result: Any) -> None:
    if done.done():
        return
    if result.exception is not None:
        done.set_exception(result.exception)
    else:
        done.set_result(result.value)
