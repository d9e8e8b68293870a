"""What all parts of a console share: the cluster, the sampler, the rules, and what it was told on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from ottla.client.cluster import Cluster
from ottla.client.settings import parse
from ottla.console.process import ReaderProcess
from ottla.console.sampler import Sampler
from ottla.console.security import Rules

_PATIENCE = {"default.api.timeout.ms": 10_000, "request.timeout.ms": 10_000, "socket.connection.setup.timeout.ms": 5_000}
"""Somebody waits in front of the screen: rather say what is wrong than wait for a minute."""

_SAMPLER_PATIENCE_MS = 3_000
"""It looks again anyway."""


@dataclass(slots=True)
class Console:
    """One console of one cluster."""

    settings: Mapping[str, object]
    rules: Rules
    period: float = 5.0
    log_dirs: tuple[str, ...] = ()
    """Directories of a broker on this machine, where segments can be looked at."""
    cluster: Cluster = field(init=False)
    """For what pages ask for. The sampler has its own, so that neither waits for the other."""
    sampler: Sampler = field(init=False)
    reader: ReaderProcess = field(init=False)
    """What has to do with messages is done there."""

    def __post_init__(self) -> None:
        settings = {"client.id": "ottla-console", **_PATIENCE, **self.settings}
        self.cluster = Cluster(parse(settings))
        self.sampler = Sampler(Cluster(parse({**settings, "default.api.timeout.ms": _SAMPLER_PATIENCE_MS})), self.period)

        self.reader = ReaderProcess(settings)

    def close(self) -> None:
        self.reader.close()
        self.sampler.close()
        self.cluster.close()


def of(request: Request) -> Console:
    """The console that a request is for."""
    console: Console = request.app.state.console
    return console
