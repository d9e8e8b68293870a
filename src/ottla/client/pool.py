"""Connections for short questions, kept open between them: each is used by one thread at a time, and none waits for another.

Guards: a broker that hangs keeps only those waiting who asked it. There is no lock around a question or an attempt to connect:
who finds no connection idle opens one more. Who does not mind whom to ask gets a connection that is idle, else a new one; of
several brokers the one that keeps nobody waiting, and one that has kept somebody waiting for long comes last. When a connection
breaks, those that lie idle to the same broker go with it: whatever ended it has ended them too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ottla.client.connection import Connection
from ottla.client.errors import BrokerUnreachable
from ottla.client.settings import Address

_LONG = 1.0  # seconds after which a broker that has not answered is passed over where there is another
_IDLE = 4  # connections to one broker that are kept when nobody uses them
Open = Callable[[Address, int | None], Connection]


@dataclass(slots=True, eq=False)
class Use:
    """Somebody who asks, from before the connection is there."""

    address: Address
    since: float
    life: int
    connection: Connection | None = None
    lasting: bool = False
    """Kept for as long as somebody reads, which says nothing about the broker."""


class Pool:
    """The connections of one cluster."""

    def __init__(self, open_connection: Open) -> None:
        self._open = open_connection
        self._lock = threading.Lock()  # over the lists; never held while a broker is asked
        self._idle: dict[Address, list[Connection]] = {}
        self._uses: set[Use] = set()
        self._life = 0

    def take(self, address: Address, broker: int | None, *, lasting: bool = False) -> Connection:
        """A connection for the caller alone, until it is given back."""
        with self._lock:
            use = self._use(address)
            use.lasting = lasting
        return self._opened(use, broker)

    def take_any(self, addresses: Iterable[Address]) -> Connection:
        """One that is idle, or the first that can be opened."""
        left = list(dict.fromkeys(addresses))
        problems: list[str] = []
        while True:
            with self._lock:
                idle = [address for address, some in self._idle.items() if some]
                chosen = min((*idle, *left), key=self._disfavour, default=None)
                if chosen is None:
                    raise BrokerUnreachable(" ".join(problems))
                use = self._use(chosen)
            try:
                return self._opened(use, None)
            except BrokerUnreachable as problem:
                problems.append(str(problem))
                left.remove(chosen)

    def give_back(self, connection: Connection) -> None:
        """For others to use, unless it is closed or waits for an answer: that would be taken for one to the next question."""
        if connection.under_way:
            connection.close()
        with self._lock:
            use = next(one for one in self._uses if one.connection is connection)
            self._uses.remove(use)
            idle = self._idle.setdefault(connection.address, [])
            surplus: list[Connection] = []
            if connection.closed:
                surplus, self._idle[connection.address] = idle, []
            elif use.life == self._life and len(idle) < _IDLE:
                idle.append(connection)
            else:
                surplus = [connection]
        for one in surplus:
            one.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        with self._lock:
            self._life += 1
            idle = [one for some in self._idle.values() for one in some]
            self._idle.clear()
        for one in idle:
            one.close()

    # ---- inside ----------------------------------------------------------------------------------------------------------

    def _use(self, address: Address) -> Use:
        idle = self._idle.get(address)
        use = Use(address, time.monotonic(), self._life, idle.pop() if idle else None)
        self._uses.add(use)
        return use

    def _opened(self, use: Use, broker: int | None) -> Connection:
        if use.connection is None:
            try:
                use.connection = self._open(use.address, broker)
            except BaseException:
                with self._lock:
                    self._uses.remove(use)
                raise
        return use.connection

    def _disfavour(self, address: Address) -> tuple[bool, bool, float]:
        """For sorting: those that come first are asked first."""
        now = time.monotonic()
        waited = max((now - use.since for use in self._uses if use.address == address and not use.lasting), default=0.0)
        return waited > _LONG, not self._idle.get(address), waited
