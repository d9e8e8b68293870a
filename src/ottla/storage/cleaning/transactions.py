"""Which batches of a log belong to aborted transactions, and which markers have nothing left to mark. Pure.

Guards: a marker goes only after a pass has met no batch of its transaction. Batches are shown in the order of the log, from
its start or from anywhere in it; what was aborted comes from the log's own index, because a transaction's marker may lie far
behind its data.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.records.batch import BatchHeader, ControlType
from ottla.storage.aborted import AbortedTransaction


class CleanedTransactions:
    """The transactions of one walk over a log."""

    __slots__ = ("_aborted", "_committed", "_met", "_waiting")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}  # under way, by producer id
        self._met: set[int] = set()  # those of them that have shown a batch
        self._committed: set[int] = set()

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            begun = self._waiting.pop()
            self._aborted[begun.producer_id] = begun
            self._met.discard(begun.producer_id)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is not None and header.base_offset < aborted.last_offset:  # else its marker lies before this walk
            self._met.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def ends(self, header: BatchHeader, outcome: ControlType | None) -> tuple[bool, AbortedTransaction | None]:
        """A control batch: whether nothing needs it any more, and what the new index is to say of its transaction.

        `outcome` is None for a control record that ends no transaction.
        """
        self._begin_up_to(header.last_offset)
        if not header.count:  # emptied by an earlier pass
            return True, None
        if outcome is ControlType.ABORT:
            aborted = self._aborted.pop(header.producer_id, None)
            if aborted is not None and header.producer_id in self._met:
                self._met.discard(header.producer_id)
                return False, aborted
            return True, None
        if outcome is ControlType.COMMIT:
            needed = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not needed, None
        return False, None
