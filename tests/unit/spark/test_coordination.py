"""What becomes of a batch when its end goes wrong half way, against brokers that only keep what they are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from ottla.client import ClientError, Committed, Identity, TopicPartition
from ottla.model import Error
from ottla.spark import coordination
from ottla.spark.exactly_once import DONE, PER_TASK, Plan, TaskReport, TaskTransaction, task_id
from ottla.spark.options import SinkOptions

NAME = "copy"
OPTIONS = SinkOptions({}, "t", True, NAME, "task", None, None)


class Brokers:
    """Transactions and committed offsets; `failing` is the call that fails ("end", "visible", "open"), and after how many."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.open: set[str] = set()
        self.ended: dict[str, bool] = {}
        self.failing: tuple[str, int] | None = None
        self._offsets: dict[str, dict[TopicPartition, Committed]] = {}
        self._pending: dict[str, dict[TopicPartition, Committed]] = {}

    def topics(self) -> list[str]:
        return ["t"]

    def begin(self, task: int) -> TaskReport:
        """A task that has written, and left its transaction open."""
        name = task_id(NAME, task, 0)
        identity = self.init_producer(self, name)
        self.open.add(name)
        written = frozenset({TopicPartition("t", 0)})
        return TaskReport(
            task, 0, "q", rows=1, partitions=written, transaction=TaskTransaction(task, 0, identity.producer_id, identity.epoch)
        )

    def init_producer(self, _cluster: Any, name: str) -> Identity:
        self.epochs[name] = self.epochs.get(name, -1) + 1
        if name in self.open:
            self.open.remove(name)
            self.ended[name] = False
        if name == NAME:
            self._pending.clear()
        return Identity(1, self.epochs[name], name)

    def end_transaction(self, _cluster: Any, identity: Identity, *, commit: bool) -> None:
        name = identity.transactional_id or ""
        assert identity.epoch == self.epochs[name], f"{name} is fenced"
        if name == NAME:
            self._offsets |= self._pending
            self._pending.clear()
            return
        self._fail("end")
        assert self.ended.get(name, commit) is commit, f"{name} was ended the other way"
        self.open.discard(name)
        self.ended[name] = commit

    def until_visible(self, _cluster: Any, identity: Identity) -> None:
        self._fail("visible")
        assert (identity.transactional_id or "") not in self.open

    def open_transactions(self, _cluster: Any, prefix: str) -> list[str]:
        self._fail("open")
        return sorted(name for name in self.open if name.startswith(prefix))

    def is_open(self, _cluster: Any, identity: Identity) -> bool:
        return identity.transactional_id in self.open

    def add_offsets(self, _cluster: Any, _identity: Identity, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        if offsets:
            self._pending[group] = dict(offsets)

    def committed_offsets(
        self, _cluster: Any, group: str, _partitions: Iterable[TopicPartition] | None = None, *, stable: bool = False
    ) -> dict[TopicPartition, Committed]:
        return self._offsets.get(group, {})

    def _fail(self, call: str) -> None:
        if self.failing is None or self.failing[0] != call:
            return
        left = self.failing[1]
        self.failing = (call, left - 1)
        if not left:
            self.failing = None
            raise ClientError(Error.REQUEST_TIMED_OUT, "No answer.")


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    replaced = ("init_producer", "end_transaction", "until_visible", "open_transactions", "is_open", "add_offsets")
    for name in (*replaced, "committed_offsets"):
        monkeypatch.setattr(coordination, name, getattr(made, name))
    monkeypatch.setattr(coordination, "connect", lambda _options: nullcontext(made))
    return made


def plan(brokers: Brokers) -> Plan:
    return Plan(NAME, PER_TASK, brokers.init_producer(brokers, NAME))


def test_a_decision_is_not_undone_when_its_commit_fails(brokers: Brokers) -> None:
    """Two of five are visible when the driver gets an error, and Spark asks it to abort."""
    batch = plan(brokers)
    reports = [brokers.begin(task) for task in range(5)]
    brokers.begin(9)  # an attempt that belongs to nothing
    brokers.failing = ("end", 2)
    with pytest.raises(ClientError, match="No answer"):
        coordination.commit(OPTIONS, batch, reports, 0)
    assert len(brokers.ended) == 2
    coordination.abort(OPTIONS, NAME)
    assert brokers.ended == {**{task_id(NAME, task, 0): True for task in range(5)}, task_id(NAME, 9, 0): False}
    assert coordination.last_batch(brokers, NAME).state == DONE  # type: ignore[arg-type]


def test_without_a_decision_all_is_undone(brokers: Brokers) -> None:
    plan(brokers)
    for task in range(3):
        brokers.begin(task)
    coordination.abort(OPTIONS, NAME)
    assert brokers.ended == {task_id(NAME, task, 0): False for task in range(3)}


@pytest.mark.parametrize("what", ["open", "visible"])
def test_a_batch_that_is_committed_does_not_fail_any_more(brokers: Brokers, what: str) -> None:
    """Neither because of attempts that are left open, nor because nobody says that readers see it."""
    batch = plan(brokers)
    reports = [brokers.begin(task) for task in range(2)]
    brokers.failing = (what, 0)
    coordination.commit(OPTIONS, batch, reports, 0)
    assert brokers.failing is None
    assert brokers.ended == {task_id(NAME, task, 0): True for task in range(2)}
    assert coordination.last_batch(brokers, NAME).state == DONE  # type: ignore[arg-type]


def test_a_topic_that_was_deleted_meanwhile(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of its batch counts; one that has no rows is let go."""
    batch = plan(brokers)
    monkeypatch.setattr(brokers, "topics", list)
    with pytest.raises(ClientError, match=r"The topics that batch 0 was written to are gone\. Nothing of it is visible"):
        coordination.commit(OPTIONS, batch, [brokers.begin(0)], 0)
    assert brokers.ended == {}
    coordination.commit(OPTIONS, batch, [TaskReport(0, 0, "q")], 0)
