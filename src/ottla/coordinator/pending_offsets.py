"""Offsets committed within transactions that are still open: nobody may go on from them, and they may yet come to nothing.

Guards: what a producer wrote in its transaction becomes the group's offset when the transaction commits, and only if nothing
newer was said of that partition in between. A partition with such an offset is unstable: a reader that asks for stable offsets
has to wait. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ottla.coordinator.appending import Undo
from ottla.coordinator.records import CommittedOffset, OffsetRecord
from ottla.model import TopicPartition

_Offsets = dict[tuple[str, TopicPartition], CommittedOffset | None]
"""Group and partition -> the offset; None where a newer commit has overtaken it."""


class PendingOffsets:
    """The offsets in open transactions of one shard, by producer."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, _Offsets] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def put(self, producer_id: int, record: OffsetRecord) -> Undo:
        """A producer commits an offset within its transaction; returns how to take that back."""
        offsets = self._by_producer.setdefault(producer_id, {})
        key = (record.group_id, record.partition)
        undo = partial(self._restore, producer_id, key, key in offsets, offsets.get(key))
        offsets[key] = record.value
        return undo

    def _restore(
        self, producer_id: int, key: tuple[str, TopicPartition], was_there: bool, value: CommittedOffset | None
    ) -> None:
        offsets = self._by_producer.setdefault(producer_id, {})
        if was_there:
            offsets[key] = value
        else:
            offsets.pop(key, None)
        if not offsets:
            del self._by_producer[producer_id]

    def overtake(self, group_id: str, partition: TopicPartition) -> list[Undo]:
        """Something newer was said of a partition outside of any transaction: what is pending will not replace it."""
        key = (group_id, partition)
        undo: list[Undo] = []
        for producer_id, offsets in self._by_producer.items():
            if offsets.get(key) is not None:
                undo.append(partial(self._restore, producer_id, key, True, offsets[key]))
                offsets[key] = None
        return undo

    def end(self, producer_id: int) -> tuple[list[OffsetRecord], Undo]:
        """A producer's transaction is over: the offsets that it would set, and how to take that back."""
        offsets = self._by_producer.pop(producer_id, None)
        if offsets is None:
            return [], _nothing
        records = [OffsetRecord(group_id, partition, value) for (group_id, partition), value in offsets.items() if value]
        return records, partial(self._by_producer.__setitem__, producer_id, offsets)

    def of(self, group_id: str) -> set[TopicPartition]:
        """The unstable partitions of a group."""
        return {partition for offsets in self._by_producer.values() for group, partition in offsets if group == group_id}

    def group_ids(self) -> Iterator[str]:
        """Every group that has something pending."""
        return iter({group_id for offsets in self._by_producer.values() for group_id, _ in offsets})


def _nothing() -> None:
    """There is nothing to take back."""
