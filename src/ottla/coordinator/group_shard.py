"""What the group coordinator keeps for one partition of `__consumer_offsets`: the groups, and their committed offsets.

Guards: a name is that of one group, be it of the classic or of the consumer protocol. While loading, the last record of a group
wins; a tombstone takes the group away and leaves a dead one in the hands of whoever still holds it, so that a name can be used
anew at once; one for the other kind of group does nothing. Offsets of a transaction wait apart (`pending`) until its marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ottla.coordinator.appending import Undo
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_records import ConsumerRecord, EpochRecord
from ottla.coordinator.group_state import Group, State
from ottla.coordinator.offsets import OffsetTable, expired, is_over, tombstones
from ottla.coordinator.pending_offsets import PendingOffsets
from ottla.coordinator.plain_offsets import PlainOffsets
from ottla.coordinator.records import CommittedOffset, GroupRecord, OffsetRecord, Record
from ottla.model import NO_PRODUCER_ID


class GroupShard:
    """The groups of one partition."""

    __slots__ = ("consumer_groups", "groups", "offsets", "partition", "pending")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.groups: dict[str, Group] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.offsets = OffsetTable()
        self.pending = PendingOffsets()

    # Records

    def replay(self, record: Record, producer_id: int = NO_PRODUCER_ID) -> None:
        if isinstance(record, OffsetRecord):
            if producer_id != NO_PRODUCER_ID:
                self.pending.put(producer_id, record)
            else:
                self.pending.overtake(record.group_id, record.partition)
                self.offsets.put(record)
        elif not isinstance(record, GroupRecord):
            self._put(record)
        elif record.value is None:
            self.groups.pop(record.group_id, None)
        else:
            self.consumer_groups.pop(record.group_id, None)
            self.groups[record.group_id] = Group.revived(record.group_id, record.value)

    def apply(self, record: Record, producer_id: int = NO_PRODUCER_ID) -> Undo:
        if isinstance(record, OffsetRecord):
            if producer_id != NO_PRODUCER_ID:
                return self.pending.put(producer_id, record)
            return partial(_all, [*self.pending.overtake(record.group_id, record.partition), self._set(record)])
        if not isinstance(record, GroupRecord):
            return self._put(record)
        if record.value is not None:
            self.groups[record.group_id] = Group.revived(record.group_id, record.value)
            return partial(self.groups.pop, record.group_id, None)
        gone = self.groups.pop(record.group_id, None)
        if gone is None:
            return _nothing
        undo = partial(self._bring_back, gone, gone.state)
        gone.state = State.DEAD
        return undo

    def take(self, records: Sequence[Record] | PlainOffsets, producer_id: int = NO_PRODUCER_ID) -> None:
        """Records that are safe in the log."""
        if isinstance(records, PlainOffsets) and not self.pending:
            records.put_into(self.offsets.made_for(records.group_id))
        else:
            self.apply_all(records, producer_id)

    def apply_all(self, records: Sequence[Record] | PlainOffsets, producer_id: int = NO_PRODUCER_ID) -> Undo:
        """Many at once; commits are mostly of offsets alone, outside of transactions, and many."""
        if isinstance(records, PlainOffsets):
            records = records.records()
        if producer_id == NO_PRODUCER_ID and not self.pending and isinstance(records[0], OffsetRecord):
            put = self.offsets.put
            before = [(record, put(record)) for record in records if isinstance(record, OffsetRecord)]
            if len(before) == len(records):
                return partial(self._take_back, before)
            rest = [self.apply(record) for record in records if not isinstance(record, OffsetRecord)]
            return partial(_all, [partial(self._take_back, before), *rest])
        return partial(_all, [self.apply(record, producer_id) for record in records])

    def _take_back(self, before: list[tuple[OffsetRecord, CommittedOffset | None]]) -> None:
        for (group_id, partition, _), value in reversed(before):
            self.offsets.put(OffsetRecord(group_id, partition, value))

    def _put(self, record: ConsumerRecord) -> Undo:
        """A record of a consumer group. The first makes the group; the tombstone of its epoch takes it away."""
        group_id = record.group_id
        group = self.consumer_groups.get(group_id)
        if group is None:
            if record.value is None:
                return _nothing
            group = self.consumer_groups[group_id] = ConsumerGroup(group_id)
            before = self.groups.pop(group_id, None)  # one of offsets alone; one with members is buried by its own tombstone
            return partial(_all, [partial(self._unmake, group_id, before), group.put(record)])
        undo = group.put(record)
        if isinstance(record, EpochRecord) and record.value is None:
            del self.consumer_groups[group_id]
            return partial(_all, [undo, partial(self.consumer_groups.setdefault, group_id, group)])
        return undo

    def _unmake(self, group_id: str, before: Group | None) -> None:
        self.consumer_groups.pop(group_id, None)
        if before is not None:
            self.groups[group_id] = before

    def _set(self, record: OffsetRecord) -> Undo:
        before = self.offsets.put(record)
        return partial(self.offsets.put, OffsetRecord(record.group_id, record.partition, before))

    def end_transaction(self, producer_id: int, committed: bool) -> Undo:
        """The offsets of a producer's transaction are the groups' from now on, or never were."""
        records, reopen = self.pending.end(producer_id)
        if not committed:
            return reopen
        undo: list[Undo] = [reopen]
        for record in records:
            undo.append(self._set(record))
            self._make_simple(record.group_id)
        return partial(_all, undo)

    def _bring_back(self, group: Group, state: State) -> None:
        """The tombstone was refused. If the name is in use again, the new group stands."""
        if group.group_id not in self.consumer_groups and self.groups.setdefault(group.group_id, group) is group:
            group.state = state

    def _make_simple(self, group_id: str) -> None:
        """Offsets need a group: without one, theirs has nothing but its name."""
        if group_id not in self.consumer_groups:
            self.groups.setdefault(group_id, Group(group_id))

    def complete(self) -> None:
        """Loading is over: offsets without a group record are those of clients that only store offsets here."""
        for group_id in (*self.offsets.group_ids(), *self.pending.group_ids()):
            self._make_simple(group_id)

    # Operations

    def deletion(self, group_id: str) -> list[Record]:
        """The records that remove a group and all it had."""
        group = self.consumer_groups.get(group_id)
        membership: list[ConsumerRecord] | list[GroupRecord] = [GroupRecord(group_id, None)]
        partitions = self.pending.of(group_id).union(self.offsets.of(group_id))
        return [*tombstones(group_id, partitions), *(membership if group is None else group.tombstones())]

    def expiry(self, group: Group, now_ms: int, retention_ms: int) -> list[Record]:
        """The records that remove what is too old of one group; all of the group, if nothing is left of it."""
        offsets = self.offsets.of(group.group_id)
        unstable = self.pending.of(group.group_id)
        old = [partition for partition in expired(group, offsets, now_ms, retention_ms) if partition not in unstable]
        if group.state is State.EMPTY and not group.pending and not unstable and len(old) == len(offsets):
            return self.deletion(group.group_id)
        return [*tombstones(group.group_id, old)]

    def consumer_group_expiry(self, group: ConsumerGroup, now_ms: int, retention_ms: int) -> list[Record]:
        """The same of a consumer group: it keeps what it reads, and the rest for the retention time from its commit."""
        group_id = group.group_id
        offsets = self.offsets.of(group_id)
        unstable = self.pending.of(group_id)
        old = [
            partition
            for partition, value in offsets.items()
            if partition not in unstable and not group.reads(partition.topic) and is_over(value, now_ms, retention_ms)
        ]
        if not group.members and not unstable and len(old) == len(offsets):
            return self.deletion(group_id)
        return [*tombstones(group_id, old)]


def _all(undo: list[Undo]) -> None:
    """Take several things back, the newest first."""
    for one in reversed(undo):
        one()


def _nothing() -> None:
    """There is nothing to take back."""
