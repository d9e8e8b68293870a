"""What the group coordinator keeps in `__consumer_offsets`, as values.

An offset that a group committed, a classic group's last stable membership, and what `consumer_records` tells of the groups of
the consumer protocol make up the whole durable state. A record without a value is a tombstone: the thing is gone. How they look
as bytes is `record_format`'s business alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ottla.coordinator.consumer_records import ConsumerRecord
from ottla.model import NO_TIMESTAMP, UNKNOWN_EPOCH, TopicPartition


class CommittedOffset(NamedTuple):
    """Where a group stands in one partition."""

    offset: int
    leader_epoch: int = UNKNOWN_EPOCH
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP
    expire_timestamp: int = NO_TIMESTAMP
    """Only from old clients that gave a retention of their own; otherwise `offsets.retention.minutes` decides."""


class OffsetRecord(NamedTuple):
    """A group committed an offset, or lost it."""

    group_id: str
    partition: TopicPartition
    value: CommittedOffset | None


@dataclass(slots=True, frozen=True)
class StoredMember:
    """A member as the topic keeps it: enough to go on with the generation after a restart."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(slots=True, frozen=True)
class StoredGroup:
    """A group at a moment when it was stable, or had become empty."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[StoredMember, ...]


class GroupRecord(NamedTuple):
    """A group's membership was settled, or the group is gone."""

    group_id: str
    value: StoredGroup | None


Record = OffsetRecord | GroupRecord | ConsumerRecord
