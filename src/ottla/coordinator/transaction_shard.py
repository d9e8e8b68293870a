"""What the transaction coordinator keeps for one partition of `__transaction_state`: its transactional ids.

Guards: a transactional id goes from one state to the next only when the log has the next one; until then it is busy, and
whoever asks anything of it is told to come again. Nothing in this topic is written within transactions.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.coordinator.appending import Undo
from ottla.coordinator.transaction_format import TransactionRecord
from ottla.coordinator.transaction_state import Transaction
from ottla.model import NO_PRODUCER_ID, Error, KafkaError


class Entry:
    """One transactional id: the state that the log has, and whether another one is on its way."""

    __slots__ = ("busy", "current")

    def __init__(self, current: Transaction | None) -> None:
        self.current = current
        self.busy = False

    def is_at_rest_in(self, state: Transaction) -> bool:
        """Whether this is its state, and nothing else is on its way."""
        return not self.busy and self.current is state


class TransactionShard:
    """The transactional ids of one partition."""

    __slots__ = ("entries", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.entries: dict[str, Entry] = {}

    # Records

    def replay(self, record: TransactionRecord, producer_id: int = NO_PRODUCER_ID) -> None:
        if record.value is None:
            self.entries.pop(record.transactional_id, None)
        else:
            self.entries[record.transactional_id] = Entry(record.value)

    def take(self, records: Sequence[TransactionRecord], producer_id: int = NO_PRODUCER_ID) -> None:
        """The record is safe in the log: it counts from now on."""
        (record,) = records
        entry = self.entries.get(record.transactional_id)
        if entry is None:
            entry = self.entries[record.transactional_id] = Entry(None)
        self._settle(record.transactional_id, entry, record.value)

    def apply_all(self, records: Sequence[TransactionRecord], producer_id: int = NO_PRODUCER_ID) -> Undo:
        """The record is on its way: of this topic they come one by one."""
        (record,) = records
        entry = self.entries.setdefault(record.transactional_id, Entry(None))
        entry.busy = True
        return lambda: self._settle(record.transactional_id, entry, entry.current)

    def written(self, record: TransactionRecord) -> None:
        """The record that was on its way is safe in the log: it counts from now on."""
        self._settle(record.transactional_id, self.entries[record.transactional_id], record.value)

    def _settle(self, transactional_id: str, entry: Entry, state: Transaction | None) -> None:
        entry.busy = False
        entry.current = state
        if state is None:
            self.entries.pop(transactional_id, None)

    def end_transaction(self, producer_id: int, committed: bool) -> Undo:
        return lambda: None

    # Questions

    def find(self, transactional_id: str) -> Transaction | None:
        """The state of an id, None for a new one; raises where another state is on its way."""
        entry = self.entries.get(transactional_id)
        if entry is None:
            return None
        if entry.busy:
            raise KafkaError(Error.CONCURRENT_TRANSACTIONS, f"{transactional_id} is being changed by another request")
        return entry.current

    def get(self, transactional_id: str) -> Transaction:
        """The same, where there must be one."""
        found = self.find(transactional_id)
        if found is None:
            raise KafkaError(Error.INVALID_PRODUCER_ID_MAPPING, f"there is no transactional id {transactional_id!r}")
        return found

    def transactions(self) -> list[Transaction]:
        """Every transaction as the log has it."""
        return [entry.current for entry in self.entries.values() if entry.current is not None]

    def at_rest(self) -> list[Transaction]:
        """Those of which nothing is on its way."""
        return [entry.current for entry in self.entries.values() if entry.current is not None and not entry.busy]
