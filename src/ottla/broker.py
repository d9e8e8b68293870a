"""The composition root: builds the parts of one broker, starts them in order, and stops them in the other.

Start: take the addresses (a port in use must end the start before a disk is touched), lock the data, open the store, find out
who we are, recover the logs, register, stand for controller, answer whoever asks, and be ready when the controller has told us
the world. Stop: have our leaders moved away, no new connections, end what is in hand, close the logs with a clean mark, leave
the store. Nothing here decides anything about Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import UUID

from ottla import __version__
from ottla.api.faults import Faults
from ottla.api.fetch_sessions import FetchSessions
from ottla.api.registry import Registry
from ottla.api.services import Services
from ottla.api.topics import create_automatically
from ottla.compiled import PLAIN_BECAUSE
from ottla.config import BrokerConfig, Listener, topic_values
from ottla.controller.controller import Controller, new_id
from ottla.coordinator.cluster_topics import ImageTopics
from ottla.coordinator.groups import TOPIC as OFFSETS_TOPIC
from ottla.coordinator.groups import GroupCoordinator
from ottla.coordinator.guards import Guards
from ottla.coordinator.settings import GroupSettings, TransactionSettings
from ottla.coordinator.transactions import TOPIC as TRANSACTIONS_TOPIC
from ottla.coordinator.transactions import TransactionCoordinator
from ottla.housekeeping import Housekeeping
from ottla.identity import adopt_logs, identify, topic_ids
from ottla.journal import TopicJournal
from ottla.markers import LocalMarkers, RemoteMarkers
from ottla.metadata import membership, znodes
from ottla.metadata.cache import MetadataCache
from ottla.metadata.configs import ALL_BROKERS, Configs
from ottla.metadata.producer_ids import ProducerIds
from ottla.metadata.store import Store, StoreError, StoreUnavailable, UnusableStore
from ottla.model import TopicPartition
from ottla.monitoring.pages import Monitoring
from ottla.neighbours import Neighbours
from ottla.network.controller_peer import ControllerPeer
from ottla.network.haste import wake_up_in_batches
from ottla.network.server import BindError, Server
from ottla.network.transaction_peer import MarkerSender, Verifications
from ottla.records.kernel import NATIVE
from ottla.registration import Registration
from ottla.replication.deadlines import Deadlines
from ottla.replication.fetcher import FetcherSettings
from ottla.replication.fetchers import Fetchers
from ottla.replication.isr import IsrOutcome, IsrProposal
from ottla.replication.isr_changes import IsrChanges
from ottla.replication.moving import Mover
from ottla.replication.partition import Surroundings as Around
from ottla.replication.replicas import Replicas
from ottla.replication.throttle import follower_throttle, leader_throttle
from ottla.schedule import schedule
from ottla.storage.checkpoints import MalformedCheckpoint
from ottla.storage.cleaning.cleaner import Cleaner, CleanerSettings
from ottla.storage.log_config import LogConfig
from ottla.storage.manager import LogManager, StorageStartError
from ottla.surroundings import Listening, Surroundings, of_the_machine

log = logging.getLogger("ottla.broker")

_NICENESS = 10
_WORD_WITHIN = 30.0
"""Seconds that a start waits for the controller's first word before it says so."""


class StartError(Exception):
    """The broker cannot start: one line that says why and what to do."""


class Broker:
    """One broker: `await start()`, and `await stop()` when it is no longer needed."""

    def __init__(self, config: BrokerConfig, surroundings: Surroundings | None = None) -> None:
        self.config = config
        self.cluster_id = ""
        self.broker_id = -1
        self.advertised: list[Listener] = []
        self.faults = Faults()
        self.failed = asyncio.Event()
        """Set when nothing is left to serve: whoever started the broker is to stop it."""
        self.services: Services
        self._surroundings = surroundings or of_the_machine()
        self._clock = self._surroundings.clock
        self._random = self._surroundings.random
        self._pool = ThreadPoolExecutor(config.integer("num.io.threads"), "ottla-io", initializer=_give_way)
        self._metadata = MetadataCache()
        self._housekeeping = Housekeeping()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Listening
        self._registry: Registry
        self._registration: Registration
        self._neighbours: Neighbours
        self._controller_peer: ControllerPeer
        self._verifications: Verifications
        self._marker_sender: MarkerSender
        self._fetchers: Fetchers
        self._isr_changes: IsrChanges
        self._store: Store | None = None
        self._logs: LogManager | None = None
        self._cleaner: Cleaner | None = None
        self._monitoring: Monitoring | None = None

    async def start(self) -> None:
        """Start; returns when clients are answered. Raises StartError with one line."""
        self._server = self._surroundings.make_server(self.config, asyncio.get_running_loop())
        try:
            self._server.bind()
            await self._start()
        except (BindError, StorageStartError, UnusableStore, MalformedCheckpoint) as problem:
            await self._give_up()
            raise StartError(str(problem)) from None
        except (StoreError, StoreUnavailable) as problem:
            await self._give_up()
            raise StartError(f"the metadata changed or went away during the start ({problem}): try again") from None
        except BaseException:
            await self._give_up()
            raise

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._logs = logs = await self.run_blocking(self._lock_directories)
        logs.directory_failed = partial(self._on_loop, loop)
        if logs.home in logs.offline_dirs and not self.config.text("zookeeper.connect"):
            raise StartError(
                f"the metadata lie in {logs.home}, which cannot be used; repair it, or change the order of log.dirs"
            )
        self._store = store = await self._surroundings.open_store(self.config, logs.home, self._clock, self.run_blocking)
        await membership.prepare(store)
        self.broker_id, self.cluster_id = await identify(self.config, store, logs, self._random, self.run_blocking)
        configs = Configs(store)
        await configs.start()
        self._take_dynamic_settings(configs)
        self._registration = Registration(self.config, store, self._clock, self.broker_id, self._server.listeners)
        self.advertised = self._registration.advertised
        replicas = await self._open_replicas(store, logs, configs)
        await self._registration.enter()
        controller = self._build(store, logs, configs, replicas)
        await self._registration.keep(controller.start)
        await controller.start()
        self._registry = Registry(self.services, self.faults)
        self._server.serve(self._registry)
        if not await self._metadata.wait_for(lambda image: self.broker_id in image.brokers, _WORD_WITHIN):
            log.warning("No word from a controller yet: clients are told of no topics until it comes")
        self.services.groups.start()
        schedule(self._housekeeping, self.services)
        if self.config.flag("log.cleaner.enable"):
            self._cleaner = Cleaner(logs, self._clock, partial(CleanerSettings.of, self.config), self.run_blocking)
            self._cleaner.start()
        if isinstance(self._server, Server):  # the simulator has none that anybody could look at
            self._monitoring = Monitoring(self.services, self._registry, self._server, self._cleaner)
            self._monitoring.start()
        self._say_ready()

    async def _open_replicas(self, store: Store, logs: LogManager, configs: Configs) -> Replicas:
        """The logs as they lie on the disks; nobody leads or follows yet."""
        config_of = partial(self._log_config, configs)
        self._isr_changes = IsrChanges(self._alter_partitions)
        around = Around(
            monotonic=self._clock.monotonic,
            max_lag=self.config.integer("replica.lag.time.max.ms") / 1000,
            alive=lambda broker: broker in self._metadata.image.brokers,
            broker_epoch=lambda: self._registration.epoch,
            propose=self._isr_changes.submit,
        )
        replicas = Replicas(self.broker_id, logs, self._metadata, config_of, self.run_blocking, around)
        configs.topic_changed = replicas.config_changed

        windows = self.config.integer("replication.quota.window.num")
        window_size = self.config.integer("replication.quota.window.size.seconds")
        replicas.leader_throttle = leader_throttle(self._clock.monotonic, windows, window_size)
        replicas.follower_throttle = follower_throttle(self._clock.monotonic, windows, window_size)

        def take_limits() -> None:
            replicas.leader_throttle.set_limit(self.config.integer("leader.replication.throttled.rate"))
            replicas.follower_throttle.set_limit(self.config.integer("follower.replication.throttled.rate"))

        def brokers_changed() -> None:
            self._take_dynamic_settings(configs)
            take_limits()
            replicas.defaults_changed()

        take_limits()
        configs.brokers_changed = brokers_changed
        await self.run_blocking(logs.load, config_of, await topic_ids(store))
        for tp, mark in (await self.run_blocking(logs.read_high_watermarks)).items():
            if tp in logs.logs:
                logs.logs[tp].high_watermark = min(mark, logs.logs[tp].log_end_offset)
        await adopt_logs(self.config, store, logs, self.broker_id, self._random)
        return replicas

    def _build(self, store: Store, logs: LogManager, configs: Configs, replicas: Replicas) -> Controller:
        """Everything that serves clients and other brokers."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later
        deadlines = Deadlines(timer, loop.time)
        around = self._surroundings
        self._neighbours = neighbours = Neighbours(
            self.broker_id, self.config, self._metadata, store, around.dial, around.open_line, self._spawn,
            lambda: self._registration.epoch,
        )  # fmt: skip
        controller = Controller(
            self.broker_id, store, self._clock, self._random, partial(neighbours.channel_to, replicas), self._unclean_allowed
        )
        controller.settings_written = configs.learn_topic
        self._controller_peer = neighbours.know(controller)
        self._fetchers = Fetchers(
            neighbours.leader, timer, replicas.look_after, count=self.config.integer("num.replica.fetchers"),
            settings=FetcherSettings(backoff=self.config.integer("replica.fetch.backoff.ms") / 1000),
            throttle=replicas.follower_throttle,
        )  # fmt: skip
        replicas.fetchers = self._fetchers
        producer_ids = ProducerIds(store, self.broker_id, self._highest_producer_id)
        create = lambda name: create_automatically(self.services, name)  # noqa: E731 - services come into being below
        groups = GroupCoordinator(
            GroupSettings.of(self.config),
            self._clock,
            TopicJournal(OFFSETS_TOPIC, replicas, self._metadata, create, deadlines),
            timer,
            topics=ImageTopics(self._metadata),
            new_member_id=lambda prefix: f"{prefix}-{UUID(bytes=new_id(self._random))}",
            new_consumer_id=lambda: znodes.encode_id(new_id(self._random)),
            offload=self.run_blocking,
        )
        guards = Guards()
        markers = LocalMarkers(replicas, groups, self._clock, deadlines, guards)
        self._marker_sender = MarkerSender(neighbours.connect)
        self._verifications = Verifications(neighbours.connect)
        transactions = TransactionCoordinator(
            TransactionSettings.of(self.config),
            self._clock,
            TopicJournal(TRANSACTIONS_TOPIC, replicas, self._metadata, create, deadlines),
            timer,
            new_producer_id=producer_ids.allocate,
            send_markers=RemoteMarkers(self.broker_id, markers.write, replicas, self._metadata, self._marker_sender).write,
            exists=self._exists,
            offload=self.run_blocking,
        )
        replicas.role_changed = partial(_tell_coordinators, {OFFSETS_TOPIC: groups, TRANSACTIONS_TOPIC: transactions})
        replicas.deleted = lambda partitions: self._spawn(groups.partitions_deleted(partitions))
        self.services = Services(
            broker_id=self.broker_id,
            cluster_id=self.cluster_id,
            shared=store.shared,
            config=self.config,
            clock=self._clock,
            metadata=self._metadata,
            configs=configs,
            logs=logs,
            replicas=replicas,
            controller=controller,
            groups=groups,
            transactions=transactions,
            write_markers=markers.write,
            guards=guards,
            verify_elsewhere=self._verifications.verify,
            create_topics=self._controller_peer.create_topics,
            check_controller=neighbours.check_controller,
            producer_ids=producer_ids,
            fetch_sessions=FetchSessions(
                self.config.integer("max.incremental.fetch.session.cache.slots"),
                self._clock.monotonic,
                lambda: self._random.randrange(1, 2**31),
            ),
            fetch_max_bytes=self.config.integer("fetch.max.bytes"),
            timer=deadlines,
            run_blocking=self.run_blocking,
            spawn=self._spawn,
            mover=(mover := Mover(replicas, logs, self.run_blocking, self._spawn)),
        )
        replicas.roles_taken = lambda: self._spawn(mover.resume()) if logs.interrupted_moves else None
        return controller

    async def stop(self) -> None:
        """Stop cleanly: somebody else leads what we led, and nothing is left to recover."""
        await self._neighbours.leave(self._controller_peer)
        await self._registration.stop()  # first: others see at once that we listen no more, and end our registration
        self._server.close()
        await self.services.controller.resign()
        await self._end_work()
        assert self._logs is not None
        await self.run_blocking(self._logs.shutdown, self.services.replicas.high_watermarks(), self._registration.epoch)
        if self._store is not None:
            await self._store.close()
        self._pool.shutdown()
        log.info("Stopped")

    async def abandon(self) -> None:
        """End as kill -9 ends a process, for tests: sockets close, nobody is told, nothing is brought to the disk. The session
        with the store is left to whoever plays ZooKeeper."""
        self._server.close()
        self._neighbours.close()
        await self._registration.stop()
        self.services.controller.stop()
        await self._end_work()
        assert self._logs is not None
        self._logs.abandon()
        self._pool.shutdown()

    async def _end_work(self) -> None:
        """Everything that runs by itself."""
        if self._monitoring is not None:
            await self._monitoring.stop()
        self.services.transactions.stop()
        self.services.groups.stop()
        await self._isr_changes.stop()
        await self._fetchers.stop()
        self.services.replicas.stop()
        for peers in (self._marker_sender, self._verifications, self._controller_peer):
            peers.close()
        if self._cleaner is not None:
            await self._cleaner.stop()
        await self._housekeeping.stop()
        await self._registry.drain()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _give_up(self) -> None:
        self._server.close()
        try:
            if self._store is not None:
                await self._store.close()
        finally:  # a store that is away must not keep the directories locked
            if self._logs is not None:
                self._logs.abandon()
            self._pool.shutdown()

    def _on_loop(self, loop: asyncio.AbstractEventLoop, path: str, error: OSError) -> None:
        """Whoever met the error may be a thread, or in the middle of an append."""
        loop.call_soon_threadsafe(self._directory_failed, path, error)

    def _directory_failed(self, path: str, error: OSError) -> None:
        """A disk failed: its partitions are offline, the others are served."""
        assert self._logs is not None
        gone = self._logs.fail(path, error)
        if hasattr(self, "services"):
            self.services.replicas.take_offline(gone)
            if gone:
                self._spawn(self._neighbours.tell_of_failed_disk())
        if not self._logs.dirs:
            log.critical("Stopping: every log directory has failed (%s)", ", ".join(sorted(self._logs.offline_dirs)))
            self.failed.set()

    async def _highest_producer_id(self) -> int:
        """The largest producer id that anything here speaks of: partitions forget theirs sooner than transactional ids do."""
        assert self._logs is not None
        in_logs = max((pid for one in self._logs.logs.values() for pid in one.producers.by_id), default=-1)
        return max(in_logs, await self.services.transactions.highest_producer_id())

    def _exists(self, tp: TopicPartition) -> bool:
        """Whether there is such a partition: before the controller's first word nobody can tell that there is not."""
        image = self._metadata.image
        return not image.brokers or image.has(tp)

    async def _alter_partitions(self, proposals: Sequence[IsrProposal]) -> Mapping[TopicPartition, IsrOutcome]:
        return await self._controller_peer.alter_partitions(proposals)  # which comes into being after the replicas

    async def run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run something that may wait for a disk in one of `num.io.threads` threads."""
        if self._surroundings.run_blocking is not None:
            return await self._surroundings.run_blocking(function, *args)
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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

    # ---- settings of topics ----------------------------------------------------------------------------------------------

    def _log_config(self, configs: Configs | None, topic: str) -> LogConfig:
        values = topic_values(self.config, configs.of_topic(topic) if configs is not None else {})
        return LogConfig(**{name.replace(".", "_"): _field(value) for name, value in values.items()})

    def _take_dynamic_settings(self, configs: Configs) -> None:
        self.config.set_dynamic(configs.of_broker(ALL_BROKERS), configs.of_broker(str(self.broker_id)))

    def _unclean_allowed(self, overrides: Mapping[str, str]) -> bool:
        return topic_values(self.config, overrides)["unclean.leader.election.enable"] is True

    def _say_ready(self) -> None:
        if not NATIVE:
            log.warning("The native kernel is not installed: this broker runs slow. Install with a C compiler to get it.")
        elif PLAIN_BECAUSE:
            log.warning("This broker runs slower than it could: %s.", PLAIN_BECAUSE)
        addresses = ", ".join(str(listener) for listener in self.advertised)
        log.info(
            "Ottla %s, broker %d of cluster %s, answers at %s; data in %s",
            __version__, self.broker_id, self.cluster_id, addresses, ", ".join(self.config.log_dirs),
        )  # fmt: skip


def _give_way() -> None:
    """Threads that wait for disks come after the loop that serves everybody: on Linux each thread has a niceness of its own.

    One that is started while large requests stream in has inherited the loop's patience.
    """
    wake_up_in_batches(False)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _tell_coordinators(
    coordinators: Mapping[str, GroupCoordinator | TransactionCoordinator], tp: TopicPartition, leads: bool
) -> None:
    """Groups and transactions live where the partition of the internal topic that holds them is led."""
    coordinator = coordinators.get(tp.topic)
    if coordinator is not None:
        if leads:
            coordinator.elect(tp.partition)
        else:
            coordinator.resign(tp.partition)


def _field(value: Any) -> Any:
    """A topic setting's value as LogConfig holds it."""
    return frozenset(value) if isinstance(value, list) else value
