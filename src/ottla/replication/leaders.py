"""Another broker that leads partitions, as a follower sees it: values in, values out. `network/leader` has the sockets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from ottla.model import Error, TopicPartition


class SessionLost(Exception):
    """The leader does not remember our fetch session any more: everything must be told again."""


@dataclass(slots=True, frozen=True)
class Position:
    """From where a follower wants to go on, and in which epochs it believes to be."""

    topic_id: bytes
    offset: int
    log_start_offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    """The epoch of the last record we have: the leader tells by it whether our logs part. -1: not known."""


@dataclass(slots=True, frozen=True)
class EpochEnd:
    """Where an epoch ends in the leader's log."""

    epoch: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class Fetched:
    """What a leader told about one partition. `records` is valid until the next fetch from the same leader."""

    tp: TopicPartition
    error: Error
    high_watermark: int
    log_start_offset: int
    records: memoryview | bytes
    diverging: EpochEnd | None = None


class Leader(Protocol):
    """One connection to a leader, with one fetch session. Calls raise BrokerUnavailable where it does not answer."""

    async def fetch(
        self, changed: Mapping[TopicPartition, Position], gone: Collection[tuple[TopicPartition, bytes]]
    ) -> list[Fetched]:
        """Wait for news of the session's partitions. `changed` and `gone` (with topic ids) is what differs from the last
        call. Raises SessionLost: the next call begins a session with what it is given."""
        ...

    async def epoch_ends(self, asked: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, EpochEnd | Error]:
        """Where epochs end: asked with (current leader epoch, epoch)."""
        ...

    async def earliest(self, tp: TopicPartition, current_leader_epoch: int) -> EpochEnd:
        """The first offset of the leader's log, and the epoch there. Raises KafkaError."""
        ...

    async def latest(self, tp: TopicPartition, current_leader_epoch: int) -> EpochEnd:
        """The end of the leader's log, and its epoch. Raises KafkaError."""
        ...

    def close(self) -> None: ...
