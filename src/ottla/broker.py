"""The composition root: builds the parts of one broker, starts them in order, and stops them in the other.

Start: take the addresses (a port in use must end the start before a disk is touched), lock the data, open the store, find out
who we are, recover the logs, register, become controller, answer clients. Stop: no new connections, end what is in hand,
close the logs with a clean mark, leave the store. Nothing here decides anything about Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random, SystemRandom
from typing import Any

from ottla import __version__
from ottla.api.faults import Faults
from ottla.api.fetch_sessions import FetchSessions
from ottla.api.registry import Registry
from ottla.api.services import Services
from ottla.api.topics import create_automatically
from ottla.clock import Clock, SystemClock
from ottla.config import BrokerConfig, Listener, topic_values
from ottla.controller.adoption import FoundLog, adopt
from ottla.controller.controller import Controller, new_id
from ottla.controller.topic_rules import internal_settings
from ottla.coordinator.groups import GroupCoordinator
from ottla.coordinator.settings import GroupSettings
from ottla.housekeeping import Housekeeping
from ottla.journal import TopicJournal
from ottla.metadata import embedded, znodes
from ottla.metadata.cache import MetadataCache
from ottla.metadata.configs import ALL_BROKERS, Configs
from ottla.metadata.embedded import EmbeddedStore, UnusableStore
from ottla.metadata.producer_ids import ProducerIds
from ottla.metadata.store import Create, Store
from ottla.metadata.znodes import BrokerNode, TopicNode
from ottla.model import TopicPartition
from ottla.network.server import BindError, Server
from ottla.records.kernel import NATIVE
from ottla.replication.replicas import Replicas
from ottla.storage import checkpoints, deletion
from ottla.storage.checkpoints import MalformedCheckpoint
from ottla.storage.log_config import LogConfig
from ottla.storage.manager import LogManager, StorageStartError

log = logging.getLogger("ottla.broker")

_OFFSETS_TOPIC = "__consumer_offsets"
_NICENESS = 10
_CLEAN_UP_EVERY_MS = 1000
_FLUSH_CHECK_EVERY_MS = 1000


class StartError(Exception):
    """The broker cannot start: one line that says why and what to do."""


class Broker:
    """One broker: `await start()`, and `await stop()` when it is no longer needed."""

    def __init__(self, config: BrokerConfig, clock: Clock | None = None, random: Random | None = None) -> None:
        self.config = config
        self.cluster_id = ""
        self.broker_id = -1
        self.advertised: list[Listener] = []
        self.faults = Faults()
        self.services: Services
        self._clock = clock or SystemClock()
        self._random = random or SystemRandom()
        self._pool = ThreadPoolExecutor(config.integer("num.io.threads"), "ottla-io", initializer=_give_way)
        self._metadata = MetadataCache()
        self._housekeeping = Housekeeping()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Server
        self._registry: Registry
        self._store: Store | None = None
        self._logs: LogManager | None = None

    async def start(self) -> None:
        """Start; returns when clients are answered. Raises StartError with one line."""
        self._server = Server(self.config, asyncio.get_running_loop())
        try:
            self._server.bind()
            await self._start()
        except (BindError, StorageStartError, UnusableStore, MalformedCheckpoint) as problem:
            await self._give_up()
            raise StartError(str(problem)) from None
        except BaseException:
            await self._give_up()
            raise

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._logs = logs = await self.run_blocking(self._lock_directories)
        path = os.path.join(logs.dirs[0], embedded.FILE_NAME)
        self._store = store = EmbeddedStore(path, self.run_blocking)
        await self._identify(store, logs)
        configs = Configs(store)
        await configs.start()
        self._take_dynamic_settings(configs)
        config_of = partial(self._log_config, configs)
        replicas = Replicas(self.broker_id, logs, self._metadata, config_of, self.run_blocking)
        configs.topic_changed = replicas.config_changed

        def brokers_changed() -> None:
            self._take_dynamic_settings(configs)
            replicas.defaults_changed()

        configs.brokers_changed = brokers_changed
        await self.run_blocking(logs.load, config_of, await _topic_ids(store))
        for tp, mark in (await self.run_blocking(logs.read_high_watermarks)).items():
            if tp in logs.logs:
                logs.logs[tp].high_watermark = min(mark, logs.logs[tp].log_end_offset)
        await self._adopt_logs(store, logs)
        await self._register(store)
        controller = Controller(
            self.broker_id, store, self._clock, self._random, lambda _broker: replicas, self._unclean_allowed
        )
        create = lambda name: create_automatically(self.services, name)  # noqa: E731 - services come into being below
        journal = TopicJournal(_OFFSETS_TOPIC, replicas, self._metadata, create, loop.call_later)
        groups = GroupCoordinator(
            GroupSettings.of(self.config), self._clock, journal, loop.call_later, offload=self.run_blocking
        )
        replicas.role_changed = partial(_tell_coordinator, groups)
        replicas.deleted = lambda partitions: self._spawn(groups.partitions_deleted(partitions))
        self.services = Services(
            broker_id=self.broker_id,
            cluster_id=self.cluster_id,
            config=self.config,
            clock=self._clock,
            metadata=self._metadata,
            configs=configs,
            logs=logs,
            replicas=replicas,
            controller=controller,
            groups=groups,
            producer_ids=ProducerIds(
                store, self.broker_id, max((pid for one in logs.logs.values() for pid in one.producers.by_id), default=-1)
            ),
            fetch_sessions=FetchSessions(
                self.config.integer("max.incremental.fetch.session.cache.slots"),
                self._clock.monotonic,
                lambda: self._random.randrange(1, 2**31),
            ),
            fetch_max_bytes=self.config.integer("fetch.max.bytes"),
            timer=loop.call_later,
            run_blocking=self.run_blocking,
            spawn=self._spawn,
        )
        await controller.start()
        groups.start()
        self._schedule(logs, replicas)
        self._registry = Registry(self.services, self.faults)
        self._server.serve(self._registry)
        self._say_ready()

    async def stop(self) -> None:
        """Stop cleanly: nothing is left to recover."""
        self._server.close()
        self.services.groups.stop()
        self.services.controller.stop()
        await self._housekeeping.stop()
        await self._registry.drain()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self._logs is not None
        await self.run_blocking(self._logs.shutdown, self.services.replicas.high_watermarks())
        if self._store is not None:
            await self._store.close()
        self._pool.shutdown()
        log.info("Stopped")

    async def _give_up(self) -> None:
        self._server.close()
        if self._store is not None:
            await self._store.close()
        if self._logs is not None:
            self._logs.abandon()
        self._pool.shutdown()

    async def run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run something that may wait for a disk in one of `num.io.threads` threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- who we are ------------------------------------------------------------------------------------------------------

    def _lock_directories(self) -> LogManager:
        return LogManager(
            self.config.log_dirs,
            self._clock,
            broker_id=-1,
            cluster_id=None,
            default_config=self._log_config(None, ""),
            recovery_threads=self.config.integer("num.recovery.threads.per.data.dir"),
            producer_expiration_ms=self.config.integer("producer.id.expiration.ms"),
            jitter=lambda bound: self._random.randrange(bound) if bound > 0 else 0,
        )

    async def _identify(self, store: Store, logs: LogManager) -> None:
        """Our broker id and cluster id: from the settings, from an earlier start, or new."""
        metas = [meta for path in logs.dirs if (meta := checkpoints.read_meta_properties(path)) is not None]
        wanted = self.config.integer("broker.id")
        stored = metas[0].broker_id if metas else -1
        if wanted >= 0:
            self.broker_id = wanted
        elif stored >= 0:
            self.broker_id = stored
        else:
            self.broker_id = self.config.integer("reserved.broker.max.id") + 1
        logs.broker_id = self.broker_id
        node = await store.get(znodes.CLUSTER_ID)
        if node is not None:
            self.cluster_id = znodes.decode_cluster_id(node.data)
        else:
            self.cluster_id = logs.stored_cluster_id() or znodes.encode_id(new_id(self._random))
            await store.commit([Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(self.cluster_id))])
        await self.run_blocking(logs.claim, self.cluster_id)

    async def _register(self, store: Store) -> None:
        self.advertised = self._addresses_for_clients()
        node = BrokerNode(
            self.broker_id,
            tuple(str(listener) for listener in self.advertised),
            {listener.name: listener.protocol for listener in self.advertised},
            self._clock.now_ms(),
            self.config.text("broker.rack") or None,
        )
        await store.commit([Create(node.path, node.encode(), ephemeral=True)])

    def _addresses_for_clients(self) -> list[Listener]:
        told = {listener.name: listener for listener in self.config.advertised_listeners}
        result = []
        for bound in self._server.listeners:
            if bound.name in told:
                chosen = told[bound.name]
                result.append(Listener(chosen.name, bound.protocol, chosen.host, chosen.port or bound.port))
            elif bound.any_address:
                host = socket.getfqdn() or socket.gethostname()
                log.warning(
                    "%s listens on all addresses; clients will be told %s:%d: set advertised.listeners if they cannot reach it",
                    bound.name, host, bound.port,
                )  # fmt: skip
                result.append(Listener(bound.name, bound.protocol, host, bound.port))
            else:
                result.append(bound)
        return result

    async def _adopt_logs(self, store: Store, logs: LogManager) -> None:
        """Take over topics that lie in the directories and are not in our metadata."""
        settings_of = partial(internal_settings, self.config)
        found = {tp: FoundLog(one.topic_id, one.leader_epochs.latest) for tp, one in logs.logs.items()}
        while adopted := adopt(found, await store.children(znodes.TOPICS), self.broker_id, new_id(self._random), settings_of):
            name, operations = adopted
            await store.commit(operations)
            log.warning(
                "Found topic %s in the data directory without metadata: taken over with default settings, but kept for ever "
                "(retention.ms=-1, retention.bytes=-1) until you set its retention",
                name,
            )

    # ---- settings of topics ----------------------------------------------------------------------------------------------

    def _log_config(self, configs: Configs | None, topic: str) -> LogConfig:
        values = topic_values(self.config, configs.of_topic(topic) if configs is not None else {})
        return LogConfig(**{name.replace(".", "_"): _field(value) for name, value in values.items()})

    def _take_dynamic_settings(self, configs: Configs) -> None:
        self.config.set_dynamic(configs.of_broker(ALL_BROKERS), configs.of_broker(str(self.broker_id)))

    def _unclean_allowed(self, overrides: Mapping[str, str]) -> bool:
        return topic_values(self.config, overrides)["unclean.leader.election.enable"] is True

    # ---- from time to time -----------------------------------------------------------------------------------------------

    def _schedule(self, logs: LogManager, replicas: Replicas) -> None:
        every, setting = self._housekeeping.every, self.config.integer
        delay = setting("log.initial.task.delay.ms")

        async def retention() -> None:
            logs.check_retention()

        async def flush() -> None:
            for one, job in logs.flush_jobs():
                try:
                    await self.run_blocking(job.run)
                except OSError as problem:
                    log.error("%s could not be brought to the disk: %s", one.topic_partition, problem)
                else:
                    one.flushed(job)

        async def write_all(writes: Callable[[], list[Callable[[], None]]]) -> None:
            for write in writes():
                await self.run_blocking(write)

        async def clean_up() -> None:
            due = logs.due_deletions()
            if due:
                await self.run_blocking(deletion.remove, due)

        async def expire_producers() -> None:
            logs.expire_producers()

        every(setting("log.retention.check.interval.ms"), retention, first_ms=delay)
        every(min(_FLUSH_CHECK_EVERY_MS, setting("log.flush.scheduler.interval.ms")), flush)
        every(
            setting("log.flush.offset.checkpoint.interval.ms") or 1,
            partial(write_all, logs.recovery_point_writes),
            first_ms=delay,
        )
        every(
            setting("log.flush.start.offset.checkpoint.interval.ms") or 1,
            partial(write_all, logs.log_start_writes),
            first_ms=delay,
        )
        every(
            setting("replica.high.watermark.checkpoint.interval.ms"),
            partial(write_all, lambda: logs.high_watermark_writes(replicas.high_watermarks())),
        )
        every(setting("producer.id.expiration.check.interval.ms"), expire_producers)
        every(_CLEAN_UP_EVERY_MS, clean_up)

    def _say_ready(self) -> None:
        if not NATIVE:
            log.warning("The native kernel is not installed: this broker runs slow. Install with a C compiler to get it.")
        addresses = ", ".join(str(listener) for listener in self.advertised)
        log.info(
            "Ottla %s, broker %d of cluster %s, answers at %s; data in %s",
            __version__, self.broker_id, self.cluster_id, addresses, ", ".join(self.config.log_dirs),
        )  # fmt: skip


async def _topic_ids(store: Store) -> dict[str, bytes]:
    """The topics that the metadata knows, and their ids."""
    ids: dict[str, bytes] = {}
    for name in await store.children(znodes.TOPICS):
        node = await store.get(f"{znodes.TOPICS}/{name}")
        if node is not None:
            ids[name] = TopicNode.decode(name, node.data).topic_id
    return ids


def _give_way() -> None:
    """Threads that wait for disks come after the loop that serves everybody: on Linux each thread has a niceness of its own."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _tell_coordinator(groups: GroupCoordinator, tp: TopicPartition, leads: bool) -> None:
    """Groups live where the partition of `__consumer_offsets` that holds them is led."""
    if tp.topic == _OFFSETS_TOPIC:
        if leads:
            groups.elect(tp.partition)
        else:
            groups.resign(tp.partition)


def _field(value: Any) -> Any:
    """A topic setting's value as LogConfig holds it."""
    return frozenset(value) if isinstance(value, list) else value
