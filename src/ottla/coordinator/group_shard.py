"""What the group coordinator keeps for one partition of `__consumer_offsets`: the groups, and their committed offsets.

Guards: a group's place in the table. While loading, the last record of a group wins; a tombstone takes the group away and
leaves a dead one in the hands of whoever still holds it, so that a name can be used anew at once.
"""

from __future__ import annotations

from functools import partial

from ottla.coordinator.group_state import Group, State
from ottla.coordinator.offsets import OffsetTable, expired, tombstones
from ottla.coordinator.records import GroupRecord, OffsetRecord, Record
from ottla.coordinator.runtime import Undo


class GroupShard:
    """The groups of one partition."""

    __slots__ = ("groups", "offsets", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetTable()

    # Records

    def replay(self, record: Record) -> None:
        if isinstance(record, OffsetRecord):
            self.offsets.put(record)
        elif record.value is None:
            self.groups.pop(record.group_id, None)
        else:
            self.groups[record.group_id] = Group.revived(record.group_id, record.value)

    def apply(self, record: Record) -> Undo:
        if isinstance(record, OffsetRecord):
            before = self.offsets.put(record)
            return partial(self.replay, OffsetRecord(record.group_id, record.partition, before))
        gone = self.groups.pop(record.group_id, None)
        if gone is None:
            return _nothing
        gone.state = State.DEAD
        return partial(self._bring_back, gone)

    def _bring_back(self, group: Group) -> None:
        """The tombstone was refused. If the name is in use again, the new group stands."""
        if self.groups.setdefault(group.group_id, group) is group:
            group.state = State.EMPTY

    def complete(self) -> None:
        """Loading is over: offsets without a group record are those of clients that only store offsets here."""
        for group_id in self.offsets.group_ids():
            self.groups.setdefault(group_id, Group(group_id))

    # Operations

    def deletion(self, group_id: str) -> list[Record]:
        """The records that remove a group and all it had."""
        return [*tombstones(group_id, self.offsets.of(group_id)), GroupRecord(group_id, None)]

    def expiry(self, group: Group, now_ms: int, retention_ms: int) -> list[Record]:
        """The records that remove what is too old of one group; all of the group, if nothing is left of it."""
        offsets = self.offsets.of(group.group_id)
        old = expired(group, offsets, now_ms, retention_ms)
        if group.state is State.EMPTY and not group.pending and len(old) == len(offsets):
            return self.deletion(group.group_id)
        return [*tombstones(group.group_id, old)]


def _nothing() -> None:
    """There is nothing to take back."""
