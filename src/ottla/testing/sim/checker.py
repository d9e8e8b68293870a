"""Holds a run's history against Kafka's promises. Pure: events and final logs in, what was broken out.

One function per rule. None of them knows how a broker works: they compare what clients were told with what is in the logs at
the end, and what brokers did with what the store says they may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.model import TopicPartition
from ottla.testing.sim.history import (
    Acknowledged,
    Appended,
    Assigned,
    Attempted,
    Committed,
    ControllerEpochWritten,
    Entry,
    Event,
    OffsetCommitted,
    OffsetCommitting,
    OffsetFetched,
    OffsetRefused,
    Refused,
    Served,
    StateWritten,
    TransactionEnded,
    TransactionEnding,
)

Logs = Mapping[TopicPartition, Sequence[Entry]]

NEVER = float("inf")


@dataclass(slots=True, frozen=True)
class Violation:
    """A promise that was broken, and how."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def check(history: Iterable[Event], logs: Logs) -> list[Violation]:
    """Everything that was broken in a run. `logs` are the final logs of the partitions, up to their high watermarks."""
    events = list(history)
    return [Violation(rule, text) for rule, broken in RULES.items() for text in broken(events, logs)]


def acknowledged_are_there(events: Sequence[Event], logs: Logs) -> Iterator[str]:
    """No record that was acknowledged with acks=all is lost, and it is where its producer was told."""
    places = {tp: {entry.value: entry.offset for entry in log if entry.control is None} for tp, log in logs.items()}
    for event in events:
        if isinstance(event, Acknowledged):
            for at, value in enumerate(event.values):
                offset = places.get(event.tp, {}).get(value)
                if offset is None:
                    yield f"{value}, acknowledged at {event.at:.3f} s in {event.tp} at offset {event.base_offset + at}, is gone"
                elif event.base_offset >= 0 and offset != event.base_offset + at:
                    yield f"{value}, acknowledged in {event.tp} at {event.base_offset + at}, is at {offset}"


def nothing_is_there_twice(events: Sequence[Event], logs: Logs) -> Iterator[str]:
    """Nothing is in the logs that nobody sent, and nothing is in them twice."""
    attempted = {value for event in events if isinstance(event, Attempted) for value in event.values}
    seen: dict[str, tuple[TopicPartition, int]] = {}
    for tp, log in logs.items():
        for entry in log:
            if entry.control is not None:
                continue
            if entry.value in seen:
                yield f"{entry.value} is in {tp} at {entry.offset} and in {seen[entry.value][0]} at {seen[entry.value][1]}"
            seen[entry.value] = tp, entry.offset
            if entry.value not in attempted:
                yield f"{entry.value} is in {tp} at {entry.offset}, and nobody sent it"


def order_is_kept(events: Sequence[Event], logs: Logs) -> Iterator[str]:
    """What one producer sent to one partition is there in the order in which it was sent."""
    numbers: dict[str, int] = {}
    for event in events:
        if isinstance(event, Attempted) and event.promised:
            for value in event.values:
                numbers[value] = len(numbers)
    for tp, log in logs.items():
        last: dict[int, tuple[int, str]] = {}
        for entry in log:
            number = numbers.get(entry.value)
            if number is None or entry.control is not None:
                continue
            before = last.get(entry.producer_id)
            if before is not None and before[0] > number:
                yield f"{entry.value} is in {tp} after {before[1]}, which was sent later"
            last[entry.producer_id] = number, entry.value


def one_value_per_offset(events: Sequence[Event], logs: Logs) -> Iterator[str]:
    """Under the high watermark an offset holds one value: on every broker, at any time, and for every consumer."""
    known: dict[tuple[TopicPartition, int], Committed] = {}
    for event in events:
        if isinstance(event, Committed):
            first = known.setdefault((event.tp, event.base_offset), event)
            same = (first.last_offset, first.leader_epoch, first.checksum)
            if same != (event.last_offset, event.leader_epoch, event.checksum):
                yield (
                    f"{event.tp} has at {event.base_offset} a batch of epoch {event.leader_epoch} on {event.broker} "
                    f"({event.at:.3f} s), and had one of epoch {first.leader_epoch} on {first.broker} ({first.at:.3f} s)"
                )
    values = {tp: {entry.offset: entry.value for entry in log} for tp, log in logs.items()}
    for event in events:
        if isinstance(event, Served):
            for offset, value in event.records:
                final = values.get(event.tp, {}).get(offset)
                if final != value:
                    yield f"{event.consumer} was served {value} at {offset} of {event.tp}, where the log has {final}"


def epochs_only_grow(events: Sequence[Event], _logs: Logs) -> Iterator[str]:
    """Leader epochs, versions of a partition's state and the controller's epoch never go back."""
    states: dict[TopicPartition, StateWritten] = {}
    controller = -1
    for event in events:
        if isinstance(event, ControllerEpochWritten):
            if event.epoch <= controller:
                yield f"the controller's epoch went from {controller} to {event.epoch}"
            controller = event.epoch
        elif isinstance(event, StateWritten):
            before = states.get(event.tp)
            if before is not None and event.leader_epoch < before.leader_epoch:
                yield f"{event.tp}: the leader epoch went from {before.leader_epoch} to {event.leader_epoch}"
            if event.controller_epoch > controller >= 0:
                yield f"{event.tp}: written by a controller of epoch {event.controller_epoch}, which is not known"
            states[event.tp] = event


def one_leader_per_epoch(events: Sequence[Event], _logs: Logs) -> Iterator[str]:
    """In each epoch one broker leads, and no other writes."""
    leaders: dict[tuple[TopicPartition, int], int] = {}
    told: set[tuple[TopicPartition, int, int]] = set()
    for event in events:
        if isinstance(event, StateWritten) and event.leader >= 0:
            leader = leaders.setdefault((event.tp, event.leader_epoch), event.leader)
            if leader != event.leader:
                yield f"{event.tp}: epoch {event.leader_epoch} is led by {leader} and by {event.leader}"
        elif isinstance(event, Appended):
            known = leaders.get((event.tp, event.leader_epoch))
            place = event.tp, event.leader_epoch, event.broker
            if known != event.broker and place not in told:
                told.add(place)
                yield f"{event.tp}: broker {event.broker} wrote in epoch {event.leader_epoch}, which is led by {known}"


def leaders_come_from_the_isr(events: Sequence[Event], _logs: Logs) -> Iterator[str]:
    """A new leader was in sync when the old one fell."""
    states: dict[TopicPartition, StateWritten] = {}
    for event in events:
        if isinstance(event, StateWritten):
            before = states.get(event.tp)
            if before is not None and event.leader >= 0 and event.leader not in before.isr:
                yield f"{event.tp}: {event.leader} became leader of epoch {event.leader_epoch}, the ISR was {before.isr}"
            states[event.tp] = event


@dataclass(slots=True)
class _Transaction:
    values: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    commit_asked: bool = False
    told: bool | None = None


def _transactions(events: Iterable[Event]) -> dict[str, _Transaction]:
    found: dict[str, _Transaction] = {}
    of_value: dict[str, _Transaction] = {}
    for event in events:
        if isinstance(event, Attempted) and event.transaction is not None:
            one = found.setdefault(event.transaction, _Transaction())
            one.values.update(event.values)
            of_value.update(dict.fromkeys(event.values, one))
        elif isinstance(event, Acknowledged):
            for value in event.values:
                if value in of_value:
                    of_value[value].acknowledged.add(value)
        elif isinstance(event, TransactionEnding):
            found.setdefault(event.transaction, _Transaction()).commit_asked |= event.commit
        elif isinstance(event, TransactionEnded):
            found.setdefault(event.transaction, _Transaction()).told = event.commit
    return found


def _committed_values(logs: Logs) -> set[str]:
    """The transactional records that a marker in their partition committed."""
    committed: set[str] = set()
    for log in logs.values():
        open_values: dict[int, list[str]] = {}
        for entry in log:
            if entry.control is not None:
                ended = open_values.pop(entry.producer_id, [])
                if entry.control == "COMMIT":
                    committed.update(ended)
            elif entry.transactional:
                open_values.setdefault(entry.producer_id, []).append(entry.value)
    return committed


def transactions_are_whole(events: Sequence[Event], logs: Logs) -> Iterator[str]:
    """A transaction ended as its producer was told, in all of its partitions."""
    committed = _committed_values(logs)
    for name, one in _transactions(events).items():
        there = one.values & committed
        if there and not one.commit_asked:
            yield f"{name} was never to be committed, and {sorted(there)} are"
        if there and one.told is False:
            yield f"{name} was aborted, and {sorted(there)} are committed"
        if (there or one.told is True) and not one.acknowledged <= committed:
            yield f"{name} was committed, and {sorted(one.acknowledged - committed)} are not"


def only_committed_is_read(events: Sequence[Event], logs: Logs) -> Iterator[str]:
    """A consumer that reads only what is committed is served nothing of a transaction that is open or aborted."""
    committed = _committed_values(logs)
    transactional = {value for one in _transactions(events).values() for value in one.values}
    for event in events:
        if isinstance(event, Served) and event.committed_only:
            for offset, value in event.records:
                if value in transactional and value not in committed:
                    yield f"{event.consumer} was served {value} at {offset} of {event.tp}, which is not committed"


@dataclass(slots=True)
class _Commit:
    value: OffsetCommitting
    ended: float = NEVER
    acknowledged: bool = False
    refused: bool = False


def group_offsets_are_kept(events: Sequence[Event], _logs: Logs) -> Iterator[str]:
    """A committed offset is found again, until a later commit takes its place."""
    commits: dict[str, _Commit] = {}
    by_place: dict[tuple[str, TopicPartition], list[_Commit]] = {}
    for event in events:
        if isinstance(event, OffsetCommitting):
            commits[event.tag] = one = _Commit(event)
            by_place.setdefault((event.group, event.tp), []).append(one)
        elif isinstance(event, OffsetCommitted):
            commits[event.tag].ended, commits[event.tag].acknowledged = event.at, True
        elif isinstance(event, OffsetRefused):
            commits[event.tag].refused = True
    for event in events:
        if not isinstance(event, OffsetFetched):
            continue
        place = by_place.get((event.group, event.tp), [])
        found = commits.get(event.tag) if event.tag is not None else None
        where = f"{event.group} {event.tp} at {event.at:.3f} s"
        if event.tag is not None and (found is None or found.value.offset != event.offset):
            yield f"{where}: offset {event.offset} ({event.tag}), which nobody committed"
            continue
        if found is not None and found.refused:
            yield f"{where}: offset {event.offset} ({event.tag}), a commit that was refused"
        since = found.ended if found is not None else -1.0
        lost = [one for one in place if one.acknowledged and since < one.value.at and one.ended < event.asked]
        if lost:
            last = lost[-1]
            yield (
                f"{where}: found {event.offset} ({event.tag}), but {last.value.offset} ({last.value.tag}) was committed "
                f"after it, at {last.ended:.3f} s"
            )


def one_owner_per_generation(events: Sequence[Event], _logs: Logs) -> Iterator[str]:
    """No two members of one generation own the same partition."""
    owners: dict[tuple[str, int, TopicPartition], str] = {}
    for event in events:
        if isinstance(event, Assigned):
            for tp in event.partitions:
                owner = owners.setdefault((event.group, event.generation, tp), event.member)
                if owner != event.member:
                    yield f"{event.group}, generation {event.generation}: {tp} belongs to {owner} and to {event.member}"


def nobody_is_refused_wrongly(events: Sequence[Event], _logs: Logs) -> Iterator[str]:
    """No client is told what only a loss can be the reason of: an offset out of range, a sequence out of order."""
    for event in events:
        if isinstance(event, Refused) and not event.error.endswith("(sent again)"):
            yield f"{event.client} was told {event.error}{f' for {event.tp}' if event.tp else ''} at {event.at:.3f} s"


RULES: dict[str, Callable[[Sequence[Event], Logs], Iterator[str]]] = {
    "lost": acknowledged_are_there,
    "twice": nothing_is_there_twice,
    "order": order_is_kept,
    "two values": one_value_per_offset,
    "epochs": epochs_only_grow,
    "two leaders": one_leader_per_epoch,
    "election": leaders_come_from_the_isr,
    "transactions": transactions_are_whole,
    "not committed": only_committed_is_read,
    "group offsets": group_offsets_are_kept,
    "two owners": one_owner_per_generation,
    "refused": nobody_is_refused_wrongly,
}
