"""The pages of a broker: `/metrics` and `/healthz`.

A broker is well when its cluster knows it and all of its disks serve. Without one of them it goes on with the others, which is
worth telling and no reason to stop it.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from ottla import __version__
from ottla.api.registry import Registry
from ottla.api.services import Services
from ottla.clock import stopwatch
from ottla.metrics import Durations
from ottla.monitoring.collector import Sources, scrape
from ottla.monitoring.text import CONTENT_TYPE
from ottla.network.http import HttpPages, Page
from ottla.network.server import Server
from ottla.replication.waiting import Timer, TimerHandle
from ottla.storage.cleaning.cleaner import Cleaner

_LOOK_EVERY: Final = 0.5


def page_of(path: str, sources: Sources) -> Page | None:
    """The page at a path."""
    if path == "/metrics":
        return Page(HTTPStatus.OK, CONTENT_TYPE, scrape(sources))
    if path == "/healthz":
        return _health(sources)
    return None


def _health(sources: Sources) -> Page:
    services = sources.services
    known = services.broker_id in services.metadata.image.brokers
    offline = sorted(services.logs.offline_dirs)
    status = "ok" if known and not offline else "degraded" if known else "not in the cluster"
    body = {
        "status": status,
        "version": __version__,
        "broker": services.broker_id,
        "cluster": services.cluster_id,
        "controller": services.controller.controller_id,
        "offline_log_dirs": offline,
    }
    code = HTTPStatus.OK if known else HTTPStatus.SERVICE_UNAVAILABLE
    return Page(code, "application/json", iter([json.dumps(body) + "\n"]))


class LoopLag:
    """Asks the loop for a call now and then, and looks how late it comes."""

    def __init__(self, timer: Timer) -> None:
        self.measured = Durations()
        self._timer = timer
        self._due = 0.0
        self._handle: TimerHandle | None = None

    def start(self) -> None:
        self._due = stopwatch() + _LOOK_EVERY
        self._handle = self._timer(_LOOK_EVERY, self._called)

    def _called(self) -> None:
        self.measured.add(max(stopwatch() - self._due, 0.0))
        self.start()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class Monitoring:
    """Shows a running broker to whoever asks at its listeners."""

    def __init__(self, services: Services, registry: Registry, server: Server, cleaner: Cleaner | None) -> None:
        self._lag = LoopLag(services.timer)
        sources = Sources(services, registry, server, cleaner, self._lag.measured, services.clock.now_ms() / 1000)
        self._server = server
        self._pages = HttpPages(lambda path: page_of(path, sources))

    def start(self) -> None:
        """Answer from now on."""
        self._lag.start()
        self._server.http = self._pages.take_over

    async def stop(self) -> None:
        """Answer no more."""
        self._server.http = None
        self._lag.stop()
        await self._pages.close()
