"""The ends of transactions on their way into partitions: those that this broker leads, and those of other brokers.

Guards: what a marker ends in `__consumer_offsets` goes through the group coordinator, which must know of it when it is written.
A partition that cannot take its marker says so by its error; it never holds up the others. A write that somebody is just
asking another broker about learns that its transaction is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from ottla.clock import Clock
from ottla.coordinator.appending import Writer
from ottla.coordinator.groups import TOPIC as OFFSETS_TOPIC
from ottla.coordinator.groups import GroupCoordinator
from ottla.coordinator.guards import Guards
from ottla.coordinator.markers import Marker, Outcome, Send
from ottla.journal import append_committed
from ottla.metadata.cache import MetadataCache
from ottla.model import Error, KafkaError, TopicPartition
from ottla.network.transaction_peer import MarkerSender
from ottla.records.batch import ControlType
from ottla.records.plain import marker_batch
from ottla.replication.replicas import Replicas
from ottla.replication.waiting import Timer

# Why the group coordinator cannot take a marker now, in the words of a partition.
_AS_PARTITION: Final = frozenset({Error.NOT_COORDINATOR, Error.COORDINATOR_LOAD_IN_PROGRESS, Error.COORDINATOR_NOT_AVAILABLE})


class LocalMarkers:
    """The marker's way into this broker's logs: for our own coordinator, and for others."""

    def __init__(
        self, replicas: Replicas, groups: GroupCoordinator, clock: Clock, timer: Timer, guards: Guards | None = None
    ) -> None:
        self._replicas = replicas
        self._groups = groups
        self._clock = clock
        self._timer = timer
        self._guards = guards if guards is not None else Guards()

    def write(self, marker: Marker, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Outcome]:
        """What came of the marker in each partition, or when that can be told."""
        batch = marker_batch(
            ControlType.COMMIT if marker.committed else ControlType.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=self._clock.now_ms(),
        )
        return {partition: self._write(marker, partition, bytearray(batch)) for partition in partitions}

    def _write(self, marker: Marker, partition: TopicPartition, batch: bytearray) -> Outcome:
        if len(self._guards):
            self._guards.marker_came(partition, marker.producer_id)
        try:
            if partition.topic == OFFSETS_TOPIC:
                writer = Writer(marker.producer_id, marker.producer_epoch)
                waiting = self._groups.end_transaction(
                    partition.partition, writer, marker.coordinator_epoch, committed=marker.committed
                )
            else:
                waiting = append_committed(self._replicas.get(*partition), batch, self._timer)
            return Error.NONE if waiting is None else _outcome(waiting)
        except KafkaError as problem:
            return _as_partition(problem.error)


class RemoteMarkers:
    """A `Send` for coordinators: every partition's marker goes to its leader as it is known now.

    A partition without a leader, or whose leader could not be asked, says so; the coordinator tries again, and looks for the
    leader anew.
    """

    def __init__(
        self, broker_id: int, write_here: Send, replicas: Replicas, metadata: MetadataCache, sender: MarkerSender
    ) -> None:
        self._broker_id = broker_id
        self._write_here = write_here
        self._replicas = replicas
        self._metadata = metadata
        self._sender = sender

    def write(self, marker: Marker, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Outcome]:
        """What came of the marker in each partition, or when that can be told."""
        outcomes: dict[TopicPartition, Outcome] = {}
        here: list[TopicPartition] = []
        elsewhere: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            try:
                leader = self._leader(tp)
            except KafkaError as problem:
                outcomes[tp] = problem.error
                continue
            if leader == self._broker_id:
                here.append(tp)
            else:
                elsewhere.setdefault(leader, []).append(tp)
        if here:
            outcomes |= self._write_here(marker, here)
        for leader, led in elsewhere.items():
            outcomes |= self._send(leader, marker, led)
        return outcomes

    def _leader(self, tp: TopicPartition) -> int:
        """Our own word about what we lead is the newest; about others the image's. Raises where there is none."""
        own = self._replicas.partitions.get(tp)
        if own is not None and own.is_leader:
            return self._broker_id
        image = self._metadata.image
        if not image.has(tp):
            raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION)
        leader = image.partition(tp).leader
        if leader not in image.brokers:
            raise KafkaError(Error.LEADER_NOT_AVAILABLE)
        return leader

    def _send(self, leader: int, marker: Marker, led: list[TopicPartition]) -> Mapping[TopicPartition, Outcome]:
        loop = asyncio.get_running_loop()
        outcomes: dict[TopicPartition, asyncio.Future[Error]] = {tp: loop.create_future() for tp in led}
        sending = loop.create_task(self._sender.send(leader, marker, led))

        def told(done: asyncio.Task[Mapping[TopicPartition, Error]]) -> None:
            failed = done.cancelled() or done.exception() is not None
            for tp, outcome in outcomes.items():
                if not outcome.done():
                    outcome.set_result(Error.BROKER_NOT_AVAILABLE if failed else done.result()[tp])

        sending.add_done_callback(told)
        return outcomes


def _as_partition(error: Error) -> Error:
    return Error.NOT_LEADER_OR_FOLLOWER if error in _AS_PARTITION else error


async def _outcome(written: asyncio.Future[None]) -> Error:
    try:
        await written
    except KafkaError as problem:
        return _as_partition(problem.error)
    return Error.NONE
