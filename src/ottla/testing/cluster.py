"""Several brokers in this process that are one cluster: they replicate, elect and fail over as real ones do.

    with Cluster(3) as cluster:
        cluster.create_topic("orders", partitions=6)
        cluster.kill(cluster.leader_of("orders", 0))

Each broker has a thread, a port and a directory of its own; their metadata are in memory instead of in a ZooKeeper, so no Java
is needed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from ottla.clock import Clock
from ottla.config import BrokerConfig
from ottla.metadata.embedded import RunBlocking
from ottla.metadata.image import PartitionState
from ottla.metadata.memory import MemoryStore, SharedTree
from ottla.metadata.store import Store
from ottla.model import Error, KafkaError, TopicPartition
from ottla.testing.broker import Broker

_TIMEOUT = 30.0
_LOOK_EVERY = 0.01


class Cluster:
    """Brokers 1 to `brokers`. Settings are Kafka's, for all of them."""

    def __init__(
        self,
        brokers: int = 3,
        settings: Mapping[str, object] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self._own_directory = directory is None
        self.directory = tempfile.mkdtemp(prefix="ottla-") if directory is None else os.fspath(directory)
        self._tree = SharedTree()
        self._sessions: dict[int, MemoryStore] = {}
        factor = min(brokers, 3)
        shared = {
            "default.replication.factor": factor,
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": min(brokers, 2),
            **(settings or {}),
        }
        self.replication_factor = factor
        self.brokers = {
            number: Broker(
                {**shared, "broker.id": number},
                directory=os.path.join(self.directory, str(number)),
                open_store=self._open_store,
            )
            for number in range(1, brokers + 1)
        }
        self._running: set[int] = set()

    async def _open_store(self, config: BrokerConfig, _home: str, _clock: Clock, _run_blocking: RunBlocking) -> Store:
        store = self._sessions[config.integer("broker.id")] = MemoryStore(self._tree)
        return store

    @property
    def bootstrap_servers(self) -> str:
        """What a client is given to find the cluster: the brokers that run."""
        return ",".join(self.brokers[number].bootstrap_servers for number in sorted(self._running))

    def start(self) -> Self:
        """Start all brokers; returns when they know each other."""
        for number in self.brokers:
            self.start_broker(number)
        self._wait(lambda: all(self._knows_all(number) for number in self._running), "the brokers know each other")
        return self

    def stop(self) -> None:
        """Stop all brokers, and remove the data if the directory is ours."""
        for number in sorted(self._running):
            self.kill(number)  # nobody is left to move leaders to
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # ---- what happens to brokers -----------------------------------------------------------------------------------------

    def start_broker(self, number: int) -> None:
        """Start a broker that does not run, over the data of its last life."""
        os.makedirs(self.brokers[number].directory, exist_ok=True)
        self.brokers[number].start()
        self._running.add(number)

    def stop_broker(self, number: int) -> None:
        """Stop a broker cleanly: its leaders move away first."""
        self.brokers[number].stop()
        self._running.discard(number)

    def kill(self, number: int) -> None:
        """End a broker as kill -9 would."""
        self.brokers[number].kill()
        self._running.discard(number)
        self._tree.end_session(self._sessions[number].session)

    def expire_session(self, number: int) -> None:
        """Have the metadata store end a broker's session, as after a long pause: it registers again by itself."""
        self.brokers[number].run_on_loop(lambda _broker: self._sessions[number].expire())

    # ---- topics ----------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> None:
        """Create a topic, by default with as many replicas as make sense; returns when every broker knows it."""
        factor = replication_factor or self.replication_factor
        self.brokers[self.controller].create_topic(name, partitions, config, replication_factor=factor)
        self._wait(lambda: all(self._knows(number, name) for number in self._running), f"every broker knows {name}")

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its data."""
        self.brokers[self.controller].delete_topic(name)

    @property
    def controller(self) -> int:
        """The broker that reigns; waits for one."""
        found = 0

        def reigns() -> bool:
            nonlocal found
            found = next((number for number in self._running if self._is_controller(number)), 0)
            return found > 0

        self._wait(reigns, "there is a controller")
        return found

    def leader_of(self, topic: str, partition: int) -> int:
        """The broker that leads a partition; waits for one that runs."""
        tp = TopicPartition(topic, partition)
        found = 0

        def led() -> bool:
            nonlocal found
            found = self._state(tp).leader
            return found in self._running

        self._wait(led, f"{tp} has a leader")
        return found

    def in_sync(self, topic: str, partition: int) -> tuple[int, ...]:
        """The in-sync replicas of a partition, as its leader knows them."""
        tp = TopicPartition(topic, partition)
        leader = self.brokers[self.leader_of(topic, partition)]
        return leader.run_on_loop(lambda broker: broker.services.replicas.get(*tp).state.isr)

    def wait_until_in_sync(self, timeout: float = _TIMEOUT) -> None:
        """Wait until all replicas of all partitions are in sync, as every broker knows it."""
        self._wait(lambda: all(self._healthy(number) for number in self._running), "all replicas are in sync", timeout)

    # ---- looking inside --------------------------------------------------------------------------------------------------

    def _knows_all(self, number: int) -> bool:
        return self.brokers[number].run_on_loop(lambda broker: set(broker.services.metadata.image.brokers) == self._running)

    def _is_controller(self, number: int) -> bool:
        return self.brokers[number].run_on_loop(lambda broker: broker.services.controller.active)

    def _knows(self, number: int, topic: str) -> bool:
        return self.brokers[number].run_on_loop(lambda broker: topic in broker.services.metadata.image.topics)

    def _state(self, tp: TopicPartition) -> PartitionState:
        any_broker = self.brokers[min(self._running)]
        return any_broker.run_on_loop(lambda broker: broker.services.metadata.image.partition(tp))

    def _healthy(self, number: int) -> bool:
        image = self.brokers[number].run_on_loop(lambda broker: broker.services.metadata.image)
        return all(
            state.leader in self._running and len(state.isr) == len(state.replicas)
            for topic in image.topics.values()
            for state in topic.partitions.values()
        )

    def _wait(self, condition: Callable[[], bool], what: str, timeout: float = _TIMEOUT) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                if condition():
                    return
            except KafkaError as problem:
                if problem.error is not Error.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout:g} s: {what}")
            time.sleep(_LOOK_EVERY)
