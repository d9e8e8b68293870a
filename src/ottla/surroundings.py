"""What a broker takes from the world around it, as one value: time, chance, other brokers, its own listeners, the store.

A real broker gets `of_the_machine`; the simulator (`ottla.testing.sim`) replaces all of it at once. Nothing else in the engine
asks the machine for any of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any, Protocol

from ottla.clock import Clock, SystemClock
from ottla.config import BrokerConfig, Listener
from ottla.metadata.embedded import RunBlocking
from ottla.metadata.opening import open_store
from ottla.metadata.store import Store
from ottla.network.link import Dial, dial
from ottla.network.liveness import Open, open_socket_line
from ottla.network.server import Server


class Listening(Protocol):
    """Where requests come in: bound before anything is announced, answered from `serve` on."""

    listeners: list[Listener]

    def bind(self) -> None: ...
    def serve(self, dispatch: Callable[[Any, memoryview], None]) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class Surroundings:
    """What a broker takes from the world: replaced as a whole by the simulator."""

    clock: Clock
    random: Random
    dial: Dial
    open_line: Open
    make_server: Callable[[BrokerConfig, asyncio.AbstractEventLoop], Listening]
    open_store: Callable[[BrokerConfig, str, Clock, RunBlocking], Awaitable[Store]]
    run_blocking: Callable[..., Awaitable[Any]] | None
    """None: a thread pool; the simulator runs inline."""


def of_the_machine() -> Surroundings:
    """The machine itself."""
    return Surroundings(SystemClock(), SystemRandom(), dial, open_socket_line, Server, open_store, None)
