"""Committed offsets: what a group has read, when it may be forgotten, and the rules of a commit.

Guards: an offset is in the table only as the log has it, or is about to have it and can take it back. Whether a client may
commit at all is the membership's to say (`membership.check_commit`). No I/O, no await; wall time in milliseconds comes in as
an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from ottla.coordinator.group_state import CONSUMER, Group, State
from ottla.coordinator.records import CommittedOffset, OffsetRecord
from ottla.coordinator.settings import GroupSettings
from ottla.model import NO_TIMESTAMP, Error, TopicPartition

_LAST_TIMESTAMP = 2**63 - 1
_NOTHING: Mapping[TopicPartition, CommittedOffset] = {}


class OffsetTable:
    """The offsets of all groups of one shard."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}

    def group_ids(self) -> Iterator[str]:
        """Every group that has an offset."""
        return iter(self._groups)

    def of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._groups.get(group_id, _NOTHING)

    def made_for(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """A group's offsets, for somebody who has some to put there."""
        offsets = self._groups.get(group_id)
        if offsets is None:
            offsets = self._groups[group_id] = {}
        return offsets

    def put(self, record: OffsetRecord) -> CommittedOffset | None:
        """Take a record in; returns what it replaces."""
        group_id, partition, value = record
        if value is not None:
            offsets = self._groups.setdefault(group_id, {})
            before = offsets.get(partition)
            offsets[partition] = value
            return before
        kept = self._groups.get(group_id)
        if kept is None:
            return None
        before = kept.pop(partition, None)
        if not kept:
            del self._groups[group_id]
        return before


class Commit(NamedTuple):
    """One partition's offset, as a client commits it."""

    partition: TopicPartition
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""
    timestamp: int = NO_TIMESTAMP


def commit_records(
    settings: GroupSettings, now_ms: int, group_id: str, commits: Iterable[Commit], retention_ms: int
) -> tuple[list[OffsetRecord], dict[TopicPartition, Error]]:
    """The records of a commit, and the partitions that are refused: an offset whose metadata is too long is left out."""
    records: list[OffsetRecord] = []
    errors: dict[TopicPartition, Error] = {}
    longest = settings.offset_metadata_max_bytes
    for partition, offset, leader_epoch, metadata, wanted in commits:
        if metadata and len(metadata) > longest:
            errors[partition] = Error.OFFSET_METADATA_TOO_LARGE
            continue
        timestamp = now_ms if wanted == NO_TIMESTAMP else wanted
        # Old clients may ask for any retention, and "for ever" is usually the largest number there is.
        expires = NO_TIMESTAMP if retention_ms == NO_TIMESTAMP else min(max(timestamp + retention_ms, 0), _LAST_TIMESTAMP)
        value = CommittedOffset(offset, leader_epoch, metadata or "", timestamp, expires)
        records.append(OffsetRecord(group_id, partition, value))
    return records, errors


def tombstones(group_id: str, partitions: Iterable[TopicPartition]) -> list[OffsetRecord]:
    return [OffsetRecord(group_id, partition, None) for partition in partitions]


def expired(
    group: Group, offsets: Mapping[TopicPartition, CommittedOffset], now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    """The offsets that nobody wants any more.

    A group without members keeps its offsets for the retention time from when it became empty; a stable consumer group keeps
    those of topics that it reads, and the others for the retention time from their commit; as does who commits without a group.
    """
    age_from: Callable[[CommittedOffset], int]
    reads: Callable[[str], bool]
    if group.protocol_type is None:
        age_from, reads = _commit_time, _never
    elif group.state is State.EMPTY:
        age_from, reads = partial(_emptied_or_commit_time, group), _never
    elif group.protocol_type == CONSUMER and group.state is State.STABLE:
        age_from, reads = _commit_time, group.reads
    else:
        return []
    return [
        partition
        for partition, value in offsets.items()
        if not reads(partition.topic) and is_over(value, now_ms, retention_ms, age_from)
    ]


def _commit_time(value: CommittedOffset) -> int:
    return value.commit_timestamp


def is_over(
    value: CommittedOffset, now_ms: int, retention_ms: int, age_from: Callable[[CommittedOffset], int] = _commit_time
) -> bool:
    """Whether an offset that nobody reads on from has been kept for long enough."""
    if value.expire_timestamp != NO_TIMESTAMP:
        return now_ms >= value.expire_timestamp
    return now_ms - age_from(value) >= retention_ms


def _emptied_or_commit_time(group: Group, value: CommittedOffset) -> int:
    """Old records do not say when their group became empty."""
    return value.commit_timestamp if group.state_timestamp == NO_TIMESTAMP else group.state_timestamp


def _never(topic: str) -> bool:
    return False
