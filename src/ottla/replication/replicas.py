"""All replicas of this broker: the controller's word turned into partitions, and the way from a name to one.

Guards: word from an older controller is ignored; a partition exists here exactly while the controller says so. Implements the
controller's `Channel`, so that the broker which is the controller itself is told in the same way as any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from ottla.metadata.cache import MetadataCache
from ottla.metadata.image import Image, PartitionState, TopicImage
from ottla.model import Error, KafkaError, TopicPartition
from ottla.replication.partition import Partition
from ottla.storage.log_config import LogConfig
from ottla.storage.manager import LogManager

log = logging.getLogger("ottla.replication")


class Replicas:
    """The partitions that live here."""

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        metadata: MetadataCache,
        config_of: Callable[[str], LogConfig],
        run_blocking: Callable[..., Awaitable[Any]],
    ) -> None:
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._broker_id = broker_id
        self._logs = logs
        self._metadata = metadata
        self._config_of = config_of
        self._run_blocking = run_blocking
        self._controller_epoch = 0
        self.role_changed: Callable[[TopicPartition, bool], None] = lambda _tp, _leads: None
        """Told after a partition began or ceased to be led here."""
        self.deleted: Callable[[list[TopicPartition]], None] = lambda _partitions: None
        """Told after partitions were deleted."""

    def get(self, topic: str, partition: int) -> Partition:
        """The partition, or the error that tells a client what to do about it."""
        found = self.partitions.get((topic, partition))
        if found is not None:
            return found
        self._metadata.image.partition(TopicPartition(topic, partition))  # raises where nobody has it
        raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)

    async def leader_and_isr(self, controller_epoch: int, topics: Iterable[TopicImage]) -> None:
        """Lead or follow these partitions."""
        self._fence(controller_epoch)
        for topic in topics:
            for number, state in topic.partitions.items():
                if self._broker_id not in state.replicas:
                    continue
                tp = TopicPartition(topic.name, number)
                existing = self.partitions.get(tp)
                created = existing is None
                if existing is None:
                    try:
                        existing = self._create(tp, topic.topic_id, state)
                    except (KafkaError, OSError) as problem:
                        log.error("%s cannot be served here: %s; the next start tries again", tp, problem)
                        continue
                elif state.leader_epoch >= existing.leader_epoch and state != existing.state:
                    existing.become(state)
                else:
                    continue
                self.role_changed(tp, existing.is_leader)
                if created:
                    await asyncio.sleep(0)  # files were made: others have their turn before the next of many

    def _create(self, tp: TopicPartition, topic_id: bytes, state: PartitionState) -> Partition:
        config = self._config_of(tp.topic)
        replica = self._logs.create(tp, config, topic_id)
        replica.config = config
        partition = self.partitions[tp] = Partition(self._broker_id, tp, replica, state)
        return partition

    async def stop_replicas(self, controller_epoch: int, partitions: Iterable[TopicPartition], delete: bool) -> None:
        """Give these partitions up, and remove their data if asked to."""
        self._fence(controller_epoch)
        given_up = list(partitions)
        for tp in given_up:
            partition = self.partitions.pop(tp, None)
            if partition is not None:
                partition.stop()
                self.role_changed(tp, False)
            if delete and tp in self._logs.logs:
                self._delete(tp)
                await asyncio.sleep(0)  # the same when files go
        if delete:
            # Before anybody forgets that the topic existed, nothing on the disk may speak of it any more.
            for write in self._logs.checkpoint_writes():
                await self._run_blocking(write)
            await self._run_blocking(self._logs.sync_directories)
            self.deleted(given_up)

    def _delete(self, tp: TopicPartition) -> None:
        try:
            self._logs.delete(tp)
        except OSError as problem:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"{tp} cannot be deleted: {problem.strerror}") from problem

    async def update_metadata(self, controller_epoch: int, image: Image) -> None:
        """Answer clients from this image."""
        self._fence(controller_epoch)
        self._metadata.swap(image)

    def config_changed(self, topic: str) -> None:
        """A topic's settings changed: its logs take the new ones from now on."""
        config = self._config_of(topic)
        for partition in self.partitions.values():
            if partition.tp.topic == topic:
                partition.log.config = config

    def defaults_changed(self) -> None:
        """The settings that topics inherit changed: every log takes the new ones from now on."""
        for topic in {partition.tp.topic for partition in self.partitions.values()}:
            self.config_changed(topic)

    def high_watermarks(self) -> Mapping[TopicPartition, int]:
        """For the checkpoint."""
        return {partition.tp: partition.log.high_watermark for partition in self.partitions.values()}

    def _fence(self, controller_epoch: int) -> None:
        if controller_epoch < self._controller_epoch:
            raise KafkaError(
                Error.STALE_CONTROLLER_EPOCH,
                f"Controller epoch {controller_epoch} is older than {self._controller_epoch}, which this broker follows.",
            )
        self._controller_epoch = controller_epoch
