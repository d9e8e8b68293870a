"""What handlers work with: the broker's parts, handed over once at start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ottla.api.fetch_sessions import FetchSessions
from ottla.clock import Clock
from ottla.config import BrokerConfig
from ottla.controller.controller import Controller
from ottla.coordinator.groups import GroupCoordinator
from ottla.metadata.cache import MetadataCache
from ottla.metadata.configs import Configs
from ottla.metadata.producer_ids import ProducerIds
from ottla.replication.replicas import Replicas
from ottla.replication.waiting import Timer
from ottla.storage.manager import LogManager


@dataclass(slots=True)
class Services:
    """The parts of one running broker."""

    broker_id: int
    cluster_id: str
    config: BrokerConfig
    clock: Clock
    metadata: MetadataCache
    configs: Configs
    logs: LogManager
    replicas: Replicas
    controller: Controller
    groups: GroupCoordinator
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    fetch_max_bytes: int
    timer: Timer
    run_blocking: Callable[..., Awaitable[Any]]
    """Do something that may wait for a disk, in a thread."""
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Go on with something after the handler has returned."""
