"""Planned misbehaviour, for tests of other people's programs: the next request of a kind fails, waits, or loses its connection.

Nothing is planned in normal operation, and then this costs one attribute look-up per request.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ottla.model import Error
from ottla.wire.apis import ApiKey


@dataclass(slots=True, frozen=True)
class Fault:
    """What is to happen to one request: first the delay, then the error or the hang-up, or else what it asked for."""

    error: Error | None = None
    delay: float = 0.0
    disconnect: bool = False


class Faults:
    """The faults that are planned, per API, in order."""

    __slots__ = ("planned",)

    def __init__(self) -> None:
        self.planned: dict[int, deque[Fault]] = {}

    def plan(self, api: ApiKey, fault: Fault, times: int = 1) -> None:
        """The next `times` requests of this kind meet `fault`."""
        self.planned.setdefault(api, deque()).extend([fault] * times)

    def clear(self) -> None:
        """Behave from now on."""
        self.planned.clear()

    def take(self, api_key: int) -> Fault | None:
        """The fault that the request at hand is to meet."""
        queue = self.planned.get(api_key)
        if not queue:
            return None
        fault = queue.popleft()
        if not queue:
            del self.planned[api_key]
        return fault
