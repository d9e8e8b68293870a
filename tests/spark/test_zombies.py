"""Attempts that nobody waits for any more, and that write all the same: they get nothing into a batch, and keep nothing out.

Spark counts the attempts at a task anew in every attempt at a stage, so that two may run at the same time as attempt 0,
and a Python worker outlives the batch, the query and the driver that it worked for by as long as it takes to notice. Here one
does so at each step of the end of a batch: what a worker would do is called in its place, without Spark in between.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from ottla import client
from ottla.client import ClientError, Cluster
from ottla.spark import coordination, writer
from ottla.spark.coordination import Refused, last_batch
from ottla.spark.exactly_once import DONE, task_id
from ottla.spark.options import SinkOptions
from ottla.spark.writer import StreamWriter, Written

SCHEMA = StructType().add("topic", "string").add("value", "string").add("partition", "integer")


@dataclass
class Attempt:
    """What a task knows of itself; the attempt at its stage is not among it."""

    task: int

    def partitionId(self) -> int:  # noqa: N802  (Spark's name)
        return self.task

    def attemptNumber(self) -> int:  # noqa: N802
        return 0

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return {"sql.streaming.queryId": "q", "streaming.sql.batchId": "0"}[name]


@dataclass
class Sink:
    """A query's sink, its parts called one by one."""

    options: SinkOptions
    name: str
    cluster: Cluster
    patch: pytest.MonkeyPatch
    met: list[str] = field(default_factory=list)

    def visible(self) -> list[str]:
        """The values that readers of committed records get."""
        table = client.read(self.name, cluster=self.cluster, isolation="read_committed", columns=["value"]).table()
        return sorted(value.decode() for value in table["value"].to_pylist())

    def plan(self) -> StreamWriter:
        """A batch begins."""
        planned = StreamWriter(self.options, SCHEMA)
        planned.__getstate__()
        return planned

    def zombie(self, planned: StreamWriter, task: int, partition: int) -> Callable[[], None]:
        """An attempt at a task that was given up; it does not wait long for what is being ended to have ended."""
        impatient = copy.copy(planned)
        impatient.options = replace(self.options, settings={**self.options.settings, "default.api.timeout.ms": "300"})

        def act() -> None:
            with suppress(ClientError):
                self.attempt(impatient, task, "zombie", partition)

        return act

    def attempt(self, planned: StreamWriter, task: int, value: str, partition: int) -> Written:
        """All that a worker does for a task."""
        me = Attempt(task)
        self.patch.setattr(writer.TaskContext, "get", lambda: me)
        rows = {"topic": [self.name], "value": [value], "partition": pa.array([partition], pa.int32())}
        written = planned.write(iter([pa.record_batch(rows)]))
        assert isinstance(written, Written)
        return written

    def commit(self, reports: list[Written]) -> None:
        """In another process, which knows the options alone."""
        StreamWriter(self.options, SCHEMA).commit(list(reports), 0)

    def at(self, name: str, act: Callable[[], None]) -> None:
        """Do this once, when a step is reached."""

        def reached(step: str) -> None:
            if step == name and step not in self.met:
                self.met.append(step)
                act()

        self.patch.setattr(coordination, "step", reached)


@pytest.fixture
def make_sink(
    either: str, open_cluster: Callable[[str], Cluster], topic: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Sink]:
    """The sink of a query with this kind of transactions, into a topic of three partitions."""
    monkeypatch.setattr(writer, "settle", lambda: None)

    def make(transactions: str, *, named_by_rows: bool = False) -> Sink:
        cluster = open_cluster(either)
        client.create_topic(cluster, topic, 3, 1)
        settings = {"bootstrap.servers": either}
        options = SinkOptions(settings, None if named_by_rows else topic, True, topic, transactions, None, None)
        return Sink(options, topic, cluster, monkeypatch)

    return make


# ---- a transaction for all -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["commit.checked", "commit.marked"])
def test_an_attempt_before_the_count_is_noticed(make_sink: Callable[..., Sink], where: str) -> None:
    sink = make_sink("shared")
    planned = sink.plan()
    reports = [sink.attempt(planned, 0, "a", 0), sink.attempt(planned, 1, "b", 1)]
    sink.at(where, sink.zombie(planned, 1, 2))
    with pytest.raises(Refused, match="3 attempts were made at 2 tasks"):
        sink.commit(reports)
    assert sink.visible() == []


@pytest.mark.parametrize("named_by_rows", [False, True], ids=["option", "rows"])
@pytest.mark.parametrize("where", ["commit.counted", "commit.ended"])
def test_an_attempt_after_the_count_writes_nothing(make_sink: Callable[..., Sink], where: str, named_by_rows: bool) -> None:
    """It comes while the transaction is still open, or has just ended and is ended once more, to wait for its readers."""
    sink = make_sink("shared", named_by_rows=named_by_rows)
    planned = sink.plan()
    reports = [sink.attempt(planned, 0, "a", 0), sink.attempt(planned, 1, "b", 1)]
    sink.at(where, sink.zombie(planned, 1, 2))
    sink.commit(reports)
    assert sink.met == [where]
    assert sink.visible() == ["a", "b"]
    assert client.open_transactions(sink.cluster, sink.name) == []


# ---- a transaction for each task -----------------------------------------------------------------------------------------


def replay(sink: Sink) -> None:
    """The query is started again, and Spark runs the same batch: it cannot know that it was decided."""
    planned = sink.plan()
    reports = [sink.attempt(planned, 0, "a", 0), sink.attempt(planned, 1, "b", 1)]
    sink.commit(reports)


@pytest.mark.parametrize("where", ["commit.begun", "decision.marked", "decision.checked", "decision.written"])
def test_an_id_that_is_taken_over_before_its_transaction_ends(
    make_sink: Callable[..., Sink], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Its transaction is aborted: whatever the driver had decided by then, the task is written again, the others are not."""
    sink = make_sink("task")
    planned = sink.plan()
    reports = [sink.attempt(planned, 0, "a", 0), sink.attempt(planned, 1, "b", 1)]
    looked = sink.zombie(planned, 1, 2)

    def act() -> None:  # one that looked in time, and went on only now
        with monkeypatch.context() as patch:
            patch.setattr(coordination, "must_be_open", lambda _cluster, _plan: None)
            looked()

    sink.at(where, act)
    with pytest.raises(Refused, match=r"was taken over|is visible in part"):
        sink.commit(reports)
    assert sink.met == [where]
    replay(sink)
    assert sink.visible() == ["a", "b"]


@pytest.mark.parametrize("where", ["decision.marked", "decision.checked", "decision.written", "decision.half"])
def test_an_attempt_after_the_decision_takes_nothing_over(make_sink: Callable[..., Sink], where: str) -> None:
    sink = make_sink("task")
    planned = sink.plan()
    reports = [sink.attempt(planned, 0, "a", 0), sink.attempt(planned, 1, "b", 1)]
    sink.at(where, sink.zombie(planned, 1, 2))
    sink.commit(reports)
    assert sink.met == [where]
    assert sink.visible() == ["a", "b"]


@pytest.mark.parametrize("before", [False, True], ids=["nothing", "an open transaction"])
def test_an_id_that_is_taken_over_after_its_transaction_was_committed(make_sink: Callable[..., Sink], before: bool) -> None:
    """The driver died in between. The next one hears that it is fenced, as if the task were lost; the log knows better."""
    sink = make_sink("task")
    planned = sink.plan()
    if before:  # readers do not get past what this one left, until it is aborted
        sink.attempt(planned, 7, "zombie", 0)
    reports = [sink.attempt(planned, 0, "a", 0), sink.attempt(planned, 1, "b", 1)]

    def die() -> None:
        raise KeyboardInterrupt

    sink.at("decision.half", die)
    with pytest.raises(KeyboardInterrupt):
        sink.commit(reports)
    client.init_producer(sink.cluster, task_id(sink.name, 0, 0))
    sink.plan()
    assert last_batch(sink.cluster, sink.name).state == DONE
    replay(sink)
    assert sink.visible() == ["a", "b"]
    assert client.open_transactions(sink.cluster, sink.name) == []


# ---- drivers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transactions", ["shared", "task"])
def test_a_driver_that_was_replaced_commits_nothing(make_sink: Callable[..., Sink], transactions: str) -> None:
    """A query is started twice over one checkpoint: what the first one wrote never counts, not even once it aborts."""
    sink = make_sink(transactions)
    first = sink.plan()
    old = [sink.attempt(first, task, "zombie", task) for task in range(2)]
    second = sink.plan()
    with pytest.raises(ClientError, match="another producer has taken over"):
        sink.commit(old)
    reports = [sink.attempt(second, 0, "a", 0), sink.attempt(second, 1, "b", 1)]
    sink.commit(reports)
    StreamWriter(sink.options, SCHEMA).abort([], 0)
    assert sink.visible() == ["a", "b"]
    assert client.open_transactions(sink.cluster, sink.name) == []
