"""All replicas of this broker: the controller's word turned into partitions, and the way from a name to one.

Guards: word from an older controller, or for an earlier life of this broker, is refused; a partition exists here exactly while
the controller says so, in the newest epoch it spoke of, and is fetched from its leader exactly while another broker leads it.
Implements the controller's `Channel`, so that the broker which is the controller itself is told in the same way as any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ottla.metadata.cache import MetadataCache
from ottla.metadata.image import MetadataUpdate, PartitionState, TopicImage
from ottla.metrics import TopicCounters
from ottla.model import LEADER_DURING_DELETE, NO_LEADER, UNKNOWN_EPOCH, Error, KafkaError, TopicPartition
from ottla.replication.gathering import Gathering
from ottla.replication.partition import ALONE, Partition, Surroundings
from ottla.replication.throttle import UNTHROTTLED, Throttle
from ottla.replication.words import Stamp, Stop
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.manager import LogManager

log = logging.getLogger("ottla.replication")

_AT_ONCE = 200
"""So many role changes, at a few microseconds each, before others have their turn."""
_FEW_EPOCHS = 20
_WRITE_EPOCHS_AFTER = 2.0
"""Seconds: while more leaders move than a few, everybody has more urgent things to do than to write their files."""


class Following(Protocol):
    """What fetches partitions that others lead (`Fetchers`)."""

    def follow(self, partitions: Iterable[Partition]) -> None: ...
    def forget(self, partitions: Iterable[TopicPartition]) -> None: ...


class _FollowsNothing:
    """In a cluster of one nobody else leads."""

    def follow(self, partitions: Iterable[Partition]) -> None: ...
    def forget(self, partitions: Iterable[TopicPartition]) -> None: ...


class Replicas:
    """The partitions that live here."""

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        metadata: MetadataCache,
        config_of: Callable[[str], LogConfig],
        run_blocking: Callable[..., Awaitable[Any]],
        around: Surroundings = ALONE,
    ) -> None:
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.counters: dict[str, TopicCounters] = {}
        """By topic; of those that had a partition here since the start and were not deleted."""
        self.around = around
        self.fetchers: Following = _FollowsNothing()
        """Set before the first word of a controller in a cluster of several."""
        self.leader_throttle: Throttle = UNTHROTTLED
        """Holds up what is sent to replicas that are throttled."""
        self.follower_throttle: Throttle = UNTHROTTLED
        """Holds up what throttled replicas here fetch."""
        self.gathering = Gathering()
        """Whether the answers to followers wait for more."""
        self._broker_id = broker_id
        self._logs = logs
        self._metadata = metadata
        self._config_of = config_of
        self._run_blocking = run_blocking
        self._controller_epoch = 0
        self._configs: dict[str, LogConfig] = {}
        """Settings of topics as they were looked up last: thousands of partitions share a few."""
        self._unwritten: deque[Log] = deque()
        """Logs that began a new epoch of which their files do not tell yet."""
        self._writing: asyncio.Task[None] | None = None
        self.offline: set[tuple[str, int]] = set()
        """Partitions that lie in a directory which failed."""
        self.role_changed: Callable[[TopicPartition, bool], None] = lambda _tp, _leads: None
        """Told after a partition began or ceased to be led here."""
        self.roles_taken: Callable[[], object] = lambda: None
        """Told after each word of the controller about roles."""
        self.deleted: Callable[[list[TopicPartition]], object] = lambda _partitions: None
        """Told that partitions are no more, anywhere; a replica that is given up here may only have moved."""

    def get(self, topic: str, partition: int) -> Partition:
        """The partition, or the error that tells a client what to do about it."""
        found = self.partitions.get((topic, partition))
        if found is not None:
            return found
        if (topic, partition) in self.offline:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, "This partition lies in a log directory that failed.")
        self._metadata.image.partition(TopicPartition(topic, partition))  # raises where nobody has it
        raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)

    def check_leads(self, topic: str, partition: int) -> None:
        """Raise what tells a client where to go, unless the partition is led here."""
        self.get(topic, partition).check_leader()

    # The controller's word

    async def leader_and_isr(
        self, stamp: Stamp, topics: Sequence[TopicImage], brokers: Collection[int], new: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Error]:
        """Lead or follow these partitions. What could not be done, by partition."""
        self._fence(stamp)
        refused: dict[TopicPartition, Error] = {}
        new = frozenset(new)
        followed: list[Partition] = []
        done = 0
        for topic in topics:
            for number, state in topic.partitions.items():
                if self._broker_id not in state.replicas:
                    continue
                tp = TopicPartition(topic.name, number)
                try:
                    created = self._take_role(tp, topic.topic_id, state, tp in new, followed)
                except (KafkaError, OSError) as problem:
                    refused[tp] = problem.error if isinstance(problem, KafkaError) else Error.KAFKA_STORAGE_ERROR
                    continue
                done += 1
                if created or done % _AT_ONCE == 0:  # files were made, or much was done: others have their turn
                    self._fetch(followed)
                    await asyncio.sleep(0)
        self._fetch(followed)
        self.roles_taken()
        return refused

    def _take_role(
        self, tp: TopicPartition, topic_id: bytes, state: PartitionState, new: bool, followed: list[Partition]
    ) -> bool:
        """One partition's role; whether its files had to be made. Raises what cannot be done."""
        existing = self.partitions.get(tp)
        if existing is None:
            if tp in self.offline or self._may_be_in_failed_directory(tp, new or self._broker_id in state.adding):
                self.offline.add(tp)
                raise KafkaError(Error.KAFKA_STORAGE_ERROR)
            try:
                partition = self._create(tp, topic_id, state)
            except (KafkaError, OSError) as problem:
                log.error("%s cannot be served here: %s; the next start tries again", tp, problem)
                raise
            self._changed_role(partition, followed)
            return True
        if existing.log.topic_id not in (None, topic_id):
            raise KafkaError(Error.INCONSISTENT_TOPIC_ID)
        if state.leader_epoch < existing.leader_epoch:
            log.info(
                "%s: word of leader epoch %d came late, it is %d now; ignored", tp, state.leader_epoch, existing.leader_epoch
            )
            raise KafkaError(Error.STALE_CONTROLLER_EPOCH)
        newer = state.leader_epoch > existing.leader_epoch
        if newer or (state.version >= existing.state.version and state != existing.state):
            existing.become(state)
        if newer:
            self._changed_role(existing, followed)
        return False

    def _changed_role(self, partition: Partition, followed: list[Partition]) -> None:
        """Fetch from the new leader, or from nobody; and tell those who live where a partition is led."""
        if partition.log.leader_epochs.unwritten:
            self._unwritten.append(partition.log)
            if self._writing is None:
                self._writing = asyncio.ensure_future(self._write_epochs())
        if partition.is_leader or partition.state.leader == NO_LEADER:
            self.fetchers.forget([partition.tp])
        else:
            followed.append(partition)
        self.role_changed(partition.tp, partition.is_leader)

    async def _write_epochs(self) -> None:
        """One file after the other, if they are many a while later: leading thousands of partitions must not wait for that.
        What is written in such an epoch before tells of it too, and no flush passes it without the file."""
        try:
            await asyncio.sleep(0)
            if len(self._unwritten) > _FEW_EPOCHS:
                await asyncio.sleep(_WRITE_EPOCHS_AFTER)
            while self._unwritten:
                await asyncio.sleep(0)
                one = self._unwritten.popleft()
                if self._logs.logs.get(one.topic_partition) is one:
                    one.leader_epochs.write_or_warn()
        finally:
            self._writing = None

    def stop(self) -> None:
        """Nothing runs by itself any more; epochs that wait to be written are written when their logs are closed."""
        if self._writing is not None:
            self._writing.cancel()

    def _fetch(self, followed: list[Partition]) -> None:
        """Begin to fetch those that still have the role that they were given a moment ago."""
        if followed:
            self.fetchers.follow(one for one in followed if self.partitions.get(one.tp) is one and not one.is_leader)
            followed.clear()

    def _may_be_in_failed_directory(self, tp: TopicPartition, new: bool) -> bool:
        """Its log is not here, but it may be where we cannot look: a second, empty one would hide it."""
        return not new and bool(self._logs.offline_dirs) and tp not in self._logs.logs

    def take_offline(self, partitions: Iterable[TopicPartition]) -> None:
        """The directory of these partitions failed: whoever asks for them is told so."""
        gone = list(partitions)
        self.offline.update(gone)
        for tp in gone:
            self._give_up(tp)
        self.fetchers.forget(gone)

    def _give_up(self, tp: TopicPartition) -> None:
        partition = self.partitions.pop(tp, None)
        if partition is not None:
            partition.stop()
            self.role_changed(tp, False)

    def _create(self, tp: TopicPartition, topic_id: bytes, state: PartitionState) -> Partition:
        config = self._config(tp.topic)
        stray = self._logs.logs.get(tp)
        if stray is not None and stray.topic_id not in (None, topic_id):
            log.warning("%s: its log is of another topic that had this name, which is gone: deleting it", tp)
            self._delete(tp)
        replica = self._logs.create(tp, config, topic_id)
        replica.config = config
        partition = self.partitions[tp] = Partition(
            self._broker_id, tp, replica, state, self.around, self.counters.setdefault(tp.topic, TopicCounters())
        )
        return partition

    async def stop_replicas(self, stamp: Stamp, stops: Sequence[Stop]) -> Mapping[TopicPartition, Error]:
        """Give these partitions up, and remove their data if asked to. What could not be done, by partition."""
        self._fence(stamp)
        refused: dict[TopicPartition, Error] = {}
        deleted: list[TopicPartition] = []
        self.fetchers.forget([stop.tp for stop in stops if not self._is_late(stop)])
        for stop in stops:
            tp = stop.tp
            if self._is_late(stop):
                refused[tp] = Error.FENCED_LEADER_EPOCH
                continue
            if tp in self.offline:
                if stop.delete:
                    log.warning("%s lies in a log directory that failed, and is deleted when that is back", tp)
                    refused[tp] = Error.KAFKA_STORAGE_ERROR
                continue
            self._give_up(tp)
            if stop.delete:
                if tp in self._logs.logs:
                    try:
                        self._delete(tp)
                    except KafkaError as problem:
                        log.error("%s", problem.message)
                        refused[tp] = problem.error
                        continue
                    await asyncio.sleep(0)  # files went: others have their turn before the next of many
                deleted.append(tp)
        if deleted:
            # Before anybody forgets that the topic existed, nothing on the disk may speak of it any more.
            for write in self._logs.checkpoint_writes():
                await self._run_blocking(write)
            await self._run_blocking(self._logs.sync_directories)
        return refused

    def _is_late(self, stop: Stop) -> bool:
        """Whether the partition has moved on since this was decided. A negative epoch says that it is not asked for."""
        partition = self.partitions.get(stop.tp)
        return partition is not None and UNKNOWN_EPOCH < stop.leader_epoch < partition.leader_epoch

    def _delete(self, tp: TopicPartition) -> None:
        try:
            self._logs.delete(tp)
        except OSError as problem:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"{tp} cannot be deleted: {problem.strerror}") from problem

    async def update_metadata(self, stamp: Stamp, update: MetadataUpdate) -> None:
        """Answer clients from this. Groups have to forget a topic that is gone also where it had no replica."""
        self._fence(stamp)
        self._metadata.swap(self._metadata.image.updated(update))
        gone = [
            TopicPartition(topic.name, number)
            for topic in update.topics
            for number, state in topic.partitions.items()
            if state.leader == LEADER_DURING_DELETE
        ]
        if gone:
            for topic in {tp.topic for tp in gone}:
                self._configs.pop(topic, None)
                self.counters.pop(topic, None)
            self.deleted(gone)

    def _fence(self, stamp: Stamp) -> None:
        if stamp.controller_epoch < self._controller_epoch:
            raise KafkaError(
                Error.STALE_CONTROLLER_EPOCH,
                f"Controller epoch {stamp.controller_epoch} is older than {self._controller_epoch}, which this broker follows.",
            )
        if -1 < stamp.broker_epoch < self.around.broker_epoch():
            raise KafkaError(
                Error.STALE_BROKER_EPOCH,
                f"Meant for an earlier life of broker {self._broker_id}, of epoch {stamp.broker_epoch}.",
            )
        self._controller_epoch = stamp.controller_epoch

    # From time to time, and for others

    def shrink_isrs(self, now: float) -> None:
        """Propose ISRs without those who have not kept up: every `replica.lag.time.max.ms` / 2."""
        for partition in tuple(self.partitions.values()):
            partition.shrink_isr(now)

    async def look_after(self, one: Log) -> None:
        """Do for a follower's log what may wait for a disk, before the leader is asked again. An error takes its directory
        offline. Who asks on says that it has all before: with flush.messages, on the disk."""
        try:
            while (rebuild := one.begin_rebuild()) is not None:
                await self._run_blocking(rebuild.run)
                one.rebuilt(rebuild)
            if one.log_end_offset - one.recovery_point >= one.config.flush_messages and (job := one.flush_job()) is not None:
                await self._run_blocking(job.run)
                one.flushed(job)
        except OSError as problem:
            log.error("%s: %s", one.topic_partition, problem)
            self._logs.io_failed(one, problem)

    def _config(self, topic: str) -> LogConfig:
        """A topic's settings, looked up once for all its partitions."""
        config = self._configs.get(topic)
        if config is None:
            config = self._configs[topic] = self._config_of(topic)
        return config

    def config_changed(self, topic: str) -> None:
        """A topic's settings changed: its logs take the new ones from now on."""
        config = self._configs[topic] = self._config_of(topic)
        for partition in self.partitions.values():
            if partition.tp.topic == topic:
                partition.log.config = config

    def defaults_changed(self) -> None:
        """The settings that topics inherit changed: every log takes the new ones from now on."""
        self._configs.clear()
        for partition in self.partitions.values():
            partition.log.config = self._config(partition.tp.topic)

    def high_watermarks(self) -> Mapping[TopicPartition, int]:
        """For the checkpoint: of all logs, also of those that nobody told us about since the start."""
        return {tp: one.high_watermark for tp, one in self._logs.logs.items()}
