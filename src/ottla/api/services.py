"""What handlers work with: the broker's parts, handed over once at start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.api.fetch_sessions import FetchSessions
from ottla.clock import Clock
from ottla.config import BrokerConfig
from ottla.controller.controller import Controller, NewTopic
from ottla.coordinator.groups import GroupCoordinator
from ottla.coordinator.guards import Guards
from ottla.coordinator.markers import Send
from ottla.coordinator.transaction_state import ProducerIdentity
from ottla.coordinator.transactions import TransactionCoordinator
from ottla.metadata.cache import MetadataCache
from ottla.metadata.configs import Configs
from ottla.metadata.producer_ids import ProducerIds
from ottla.model import Error, KafkaError, TopicPartition
from ottla.replication.moving import Mover
from ottla.replication.replicas import Replicas
from ottla.replication.waiting import Timer
from ottla.storage.manager import LogManager

CreateTopics = Callable[[Sequence[NewTopic]], Awaitable[Mapping[str, KafkaError | None]]]
VerifyElsewhere = Callable[[int, str, ProducerIdentity, Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, Error]]]


@dataclass(slots=True)
class Services:
    """The parts of one running broker."""

    broker_id: int
    cluster_id: str
    shared: bool
    """Whether the metadata are shared, so that other brokers may join; otherwise this is a cluster of one for ever."""
    config: BrokerConfig
    clock: Clock
    metadata: MetadataCache
    configs: Configs
    logs: LogManager
    replicas: Replicas
    controller: Controller
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    write_markers: Send
    """Write markers into the partitions that this broker leads, for whoever asks."""
    guards: Guards
    """Who must know of markers that come while another broker is asked about a transaction."""
    verify_elsewhere: VerifyElsewhere
    """Ask the coordinator on another broker whether partitions are in a producer's open transaction."""
    create_topics: CreateTopics
    """Have the controller create topics, wherever it is; of each why not, or None. Raises NOT_CONTROLLER."""
    check_controller: Callable[[int], Awaitable[None]]
    """Raise unless the store knows a controller of this epoch."""
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    fetch_max_bytes: int
    timer: Timer
    run_blocking: Callable[..., Awaitable[Any]]
    """Do something that may wait for a disk, in a thread."""
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    """Go on with something after the handler has returned."""
    mover: Mover
