"""What happened in a run, as values in the order of their happening: all that the checker goes by.

Clients write down what they asked and what they were told; the simulation writes down what it saw of the brokers and of the
store. A record is known by its value, which no other record has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from ottla.model import TopicPartition


@dataclass(slots=True, frozen=True)
class Event:
    """Something that happened, at a second of virtual time."""

    at: float


@dataclass(slots=True, frozen=True)
class Fault(Event):
    """The simulation did something to the cluster."""

    kind: str
    text: str


@dataclass(slots=True, frozen=True)
class Attempted(Event):
    """A producer sends these values, in this order. `transaction`: the transaction that they are of, if any."""

    producer: str
    tp: TopicPartition
    values: tuple[str, ...]
    transaction: str | None = None
    promised: bool = True
    """Whether order and being there only once are promised: not to a producer without idempotence."""


@dataclass(slots=True, frozen=True)
class Acknowledged(Event):
    """A producer was told that these values are in the log; at which offset (-1: it was not told where)."""

    producer: str
    tp: TopicPartition
    values: tuple[str, ...]
    base_offset: int


@dataclass(slots=True, frozen=True)
class Refused(Event):
    """A client was told something that may not happen to it, or that ends what it does."""

    client: str
    tp: TopicPartition | None
    error: str


@dataclass(slots=True, frozen=True)
class Served(Event):
    """A consumer was given these values at these offsets."""

    consumer: str
    tp: TopicPartition
    committed_only: bool
    records: tuple[tuple[int, str], ...]


@dataclass(slots=True, frozen=True)
class TransactionEnding(Event):
    """A producer asks to end a transaction."""

    producer: str
    transaction: str
    commit: bool


@dataclass(slots=True, frozen=True)
class TransactionEnded(Event):
    """A producer was told that its transaction ended so."""

    producer: str
    transaction: str
    commit: bool


@dataclass(slots=True, frozen=True)
class Assigned(Event):
    """A member was given partitions in a generation of its group."""

    group: str
    generation: int
    member: str
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True, frozen=True)
class OffsetCommitting(Event):
    """A member asks to commit. `tag` names this commit among all others."""

    group: str
    tp: TopicPartition
    offset: int
    tag: str


@dataclass(slots=True, frozen=True)
class OffsetCommitted(Event):
    """It was told that it is done."""

    tag: str


@dataclass(slots=True, frozen=True)
class OffsetRefused(Event):
    """It was told that it is not done, and never will be."""

    tag: str


@dataclass(slots=True, frozen=True)
class OffsetFetched(Event):
    """A member asked at second `asked` for the committed offset, and was told this; `tag` is None where there is none."""

    group: str
    tp: TopicPartition
    asked: float
    offset: int
    tag: str | None


@dataclass(slots=True, frozen=True)
class StateWritten(Event):
    """The state of a partition in the store changed."""

    tp: TopicPartition
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: int
    controller_epoch: int


@dataclass(slots=True, frozen=True)
class ControllerEpochWritten(Event):
    """The controller's epoch in the store changed."""

    epoch: int


@dataclass(slots=True, frozen=True)
class Appended(Event):
    """A broker, as leader, wrote to its log."""

    broker: int
    tp: TopicPartition
    leader_epoch: int
    first_offset: int
    last_offset: int


@dataclass(slots=True, frozen=True)
class Committed(Event):
    """A batch came under the high watermark of a broker. The checksum does not cover offset and epoch, which are beside it."""

    broker: str
    tp: TopicPartition
    base_offset: int
    last_offset: int
    leader_epoch: int
    checksum: int


class History:
    """The events of a run."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.events.append(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def digest(self) -> str:
        """Equal for two runs that were the same."""
        summed = hashlib.sha256()
        for event in self.events:
            summed.update(repr(event).encode())
        return summed.hexdigest()


@dataclass(slots=True, frozen=True)
class Entry:
    """One record of a final log. `control`: "COMMIT" or "ABORT" for the end of a transaction."""

    offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    transactional: bool
    control: str | None
    value: str
