"""Exactly once, decided from facts alone: which transactions a batch uses, whether it may be committed, what a replay skips.

There are two ways to make a batch visible once and as a whole.

*Shared*: one transaction for all tasks, with a marker that names the batch in it; the driver ends it. It needs that each output
partition is written by one task (the tasks share a producer's sequences, which count per partition), and that no task runs
twice: what a first attempt wrote cannot be told from the second's. The driver checks both before it commits: each attempt
counts itself (`attempts`), and each task says where it wrote. Spark lets an attempt that it has given up go on, and does not
even tell it: so an attempt counts itself first and then looks for the marker of a batch that is ending, and the driver enters
the marker first and then counts. Whoever is not counted finds the marker, however long either pauses, and writes nothing.

*One transaction for each task*: every attempt has its own, and leaves it open. When all tasks are done the driver writes its
decision (the batch, and the transactions that belong to it) in a transaction of its own, and ends the others afterwards. If it
dies on the way, whoever continues the query finds the decision and carries it out; without a decision all of them are aborted.
An attempt that was given up may take over the id of one that counts: before its end this aborts it, and the task is written
again; afterwards only the log can tell that it was committed, and is asked. Tasks may be retried, speculated, and share
partitions. A reader can see the parts of a batch appear one after the other.

The driver's transactional id fences: whoever plans a batch takes it over, and an older driver can neither decide nor commit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ottla.client import Identity, TopicPartition, Written

SHARED, PER_TASK = "shared", "task"
DONE, DECIDED, PARTIAL = "done", "decided", "partial"
_PIECE = 3000  # characters of metadata in one commit: brokers take 4096


class TaskTransaction(NamedTuple):
    """A task's own transaction, and where the first of its records is: if readers see that one, they see all."""

    task: int
    attempt: int
    producer_id: int
    epoch: int
    topic: str = ""
    partition: int = -1
    first: int = -1

    def begun_at(self, written: Mapping[TopicPartition, Written]) -> TaskTransaction:
        """The same, once something was written in it."""
        if self.first >= 0:
            return self
        tp = next((tp for tp, one in written.items() if one.first >= 0), None)
        return self if tp is None else self._replace(topic=tp.topic, partition=tp.partition, first=written[tp].first)

    def identity(self, transactional_id: str) -> Identity:
        return Identity(self.producer_id, self.epoch, task_id(transactional_id, self.task, self.attempt))


@dataclass(frozen=True, slots=True)
class Marker:
    """What is known of the last batch: kept as the metadata of an offset that the sink's own group commits."""

    query: str = ""
    batch: int = -1
    state: str = DONE
    mode: str = ""
    tasks: int = 0
    transactions: tuple[TaskTransaction, ...] = ()
    """Of a decision: those that belong to the batch. Of a batch that is partial: those that were committed."""
    fallback: str = ""
    """Why a shared transaction is not tried any more."""

    def skips(self, query: str, batch: int, task: int) -> bool:
        """Whether a task's rows are visible already."""
        if query != self.query or batch > self.batch:
            return False
        return self.state == DONE or batch < self.batch or task in {one.task for one in self.transactions}


@dataclass(frozen=True, slots=True)
class Plan:
    """What tasks and the end of a batch have to know; made anew for each batch, before its tasks start."""

    transactional_id: str
    mode: str
    identity: Identity
    attempts: Identity | None = None
    """The counter of attempts as it stood before the tasks started."""
    marker: Marker = field(default_factory=Marker)
    by_task: bool = False
    """Rows name neither a partition nor a key: each task writes to a partition of its own."""
    places: tuple[TopicPartition, ...] = ()
    """Where the marker is, and will be; nothing where that depends on what the rows say."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task says when its rows are written."""

    task: int
    attempt: int
    query: str
    skipped: bool = False
    rows: int = 0
    partitions: frozenset[TopicPartition] = frozenset()
    transaction: TaskTransaction | None = None


def task_id(transactional_id: str, task: int, attempt: int) -> str:
    """The transactional id of an attempt: used again in every batch.

    A worker that outlived its batch, or its attempt at the stage, may take it over: what is open is aborted then.
    """
    return f"{transactional_id}/task/{task}.{attempt}"


def choose(asked: str, columns: Collection[str], marker: Marker, partitions: int | None) -> tuple[str, str]:
    """The way a batch goes, and why. `partitions` is how many the topic has, None if rows name their topics."""
    if marker.state == PARTIAL:
        return PER_TASK, "the last batch is to be completed"
    if asked in (SHARED, PER_TASK):
        return asked, "as option transactions says"
    if marker.fallback:
        return PER_TASK, marker.fallback
    if "partition" in columns:
        return SHARED, "rows name their partitions"
    if "key" in columns:
        return PER_TASK, "keys decide about partitions, so that several tasks write to each"
    if partitions is None:
        return PER_TASK, "rows name their topics, so that several tasks may write to each partition"
    if marker.batch < 0:
        return PER_TASK, "how many tasks a batch has is not known yet"
    if marker.tasks > partitions:
        return PER_TASK, f"{marker.tasks} tasks write to {partitions} partitions"
    return SHARED, "each task has a partition of its own"


def why_not_shared(reports: Sequence[TaskReport], attempts: int) -> str | None:
    """What forbids to commit a shared transaction, if something does."""
    again = next((one.task for one in reports if one.attempt > 0 and not one.skipped), None)
    if again is not None:  # its first attempt may have died before it counted itself; the second wrote nothing
        return f"task {again} was attempted again"
    if attempts != len(reports):
        return f"{attempts} attempts were made at {len(reports)} tasks (a retry, speculation, or a stage that ran again)"
    writer: dict[TopicPartition, int] = {}
    for report in reports:
        for tp in report.partitions:
            if tp in writer:
                return f"tasks {writer[tp]} and {report.task} both wrote to partition {tp}"
            writer[tp] = report.task
    return None


def attempts_made(before: Identity, after: Identity) -> int:
    """How many attempts counted themselves between two looks at the counter; -1 where it cannot be told."""
    return after.epoch - before.epoch - 1 if after.producer_id == before.producer_id else -1


def why_not_repaired(marker: Marker, reports: Sequence[TaskReport], batch: int) -> str | None:
    """A batch that is partly visible can only be completed by the same tasks."""
    repairing = marker.state == PARTIAL and marker.batch == batch and any(report.skipped for report in reports)
    if repairing and marker.tasks != len(reports):
        return f"batch {batch} is visible in part, written by {marker.tasks} tasks, and was written by {len(reports)} now"
    return None


# ---- the marker as text --------------------------------------------------------------------------------------------------


def to_pieces(marker: Marker) -> list[str]:
    """The marker as metadata of offsets, in as many pieces as it takes."""
    text = json.dumps(
        {
            "query": marker.query,
            "batch": marker.batch,
            "state": marker.state,
            "mode": marker.mode,
            "tasks": marker.tasks,
            "transactions": [list(one) for one in marker.transactions],
            "fallback": marker.fallback,
        },
        separators=(",", ":"),
    )
    return list(_cut(text))


def _cut(text: str) -> Iterator[str]:
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    for number, piece in enumerate(pieces):
        yield f"{len(pieces) - number}|{piece}"


def more_pieces(first: str) -> int:
    """How many pieces come after this one."""
    return int(first.split("|", 1)[0]) - 1


def from_pieces(pieces: Sequence[str]) -> Marker:
    """The other way round."""
    found = json.loads("".join(piece.split("|", 1)[1] for piece in pieces))
    found["transactions"] = tuple(TaskTransaction(*one) for one in found["transactions"])
    return Marker(**found)


def settled(decision: Marker, lost: Collection[TaskTransaction]) -> Marker:
    """What becomes of a decision once its transactions were ended; those that are lost had timed out before."""
    if not lost:
        return replace(decision, state=DONE, transactions=())
    kept = tuple(one for one in decision.transactions if one not in lost)
    return replace(decision, state=PARTIAL, transactions=kept)
