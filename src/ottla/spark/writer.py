"""The sink: what its tasks write, and what the driver does before and after them, for streams and for batches.

Guards: nothing becomes visible from inside `write` where exactly once is promised. Spark ends the input of a task that it
cancels as if that were all: a task never knows whether it saw every row, only the driver does. Without the promise records are
written idempotently and at least once.

Life of a writer: Spark makes it in a process that plans the batch and pickles it for the tasks, which is the moment to begin
(`__getstate__`); for the end of a streaming batch it makes another one, in another process, that knows the options alone. What
the end needs comes with the tasks' reports.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.client import Cluster, InvalidSetting, InvalidTable, Producer, TopicPartition, commit_offsets, init_producer
from ottla.spark import coordination
from ottla.spark.exactly_once import SHARED, Plan, TaskReport, TaskTransaction, task_id
from ottla.spark.faults import step
from ottla.spark.log import log, speak
from ottla.spark.options import SinkOptions
from ottla.spark.workers import fit_in, settle

_KINDS = {"topic": ("string",), "key": ("string", "binary"), "value": ("string", "binary"), "partition": ("int",),
          "headers": ("array<struct<key:string,value:binary>>",)}  # fmt: skip


@dataclass
class Written(WriterCommitMessage):
    """A task's report on its way to the driver."""

    report: TaskReport
    plan: Plan | None


def columns_of(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """The columns that count, checked: the names and types of Spark's Kafka sink. Others are left alone."""
    found = {}
    for field in schema.fields:
        name, kind = field.name.lower(), field.dataType.simpleString()
        if name in _KINDS and kind not in _KINDS[name]:
            raise InvalidTable(f"Column {field.name} has type {kind}: cast it to {' or '.join(_KINDS[name])}.")
        if name in _KINDS:
            found[name] = field.name
    if "value" not in found:
        raise InvalidTable(f"There is no column value: the columns are {', '.join(schema.fieldNames())}.")
    if topic is None and "topic" not in found:
        raise InvalidTable("No topic: set option topic, or give a column topic.")
    return tuple(found)


class _Writing:
    """What streams and batches have in common."""

    def __init__(self, options: SinkOptions, schema: StructType, *, stream: bool) -> None:
        self.options = options
        self._columns = columns_of(schema, options.topic)
        self._names = {name: field.name for field in schema.fields if (name := field.name.lower()) in self._columns}
        self._stream = stream
        self._query = "" if stream else options.batch_name or uuid.uuid4().hex
        self._plan: Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickled for the tasks, before they start: this is when a batch begins."""
        if self.options.exactly_once and self._plan is None:
            speak()
            self._plan = coordination.take_over(self.options, self.transactional_id(), self._columns)
            settle()
        return self.__dict__

    def transactional_id(self) -> str:
        """As the option says; else a stream has that of its query, and a batch one that nobody else has."""
        given = self.options.transactional_id
        if given is not None:
            return given
        return f"ottla-{coordination.query_id(self.options) if self._stream else self._query}"

    # ---- in the tasks ----------------------------------------------------------------------------------------------------

    def write_task(self, rows: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task, and say where they went."""
        fit_in()
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        query, batch = self._query, 0
        if self._stream:  # a batch that is written inside foreachBatch sees these too, and they are not about it
            query = context.getLocalProperty("sql.streaming.queryId") or ""
            batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        speak()
        step("task.begun")
        plan = self._plan
        if plan is not None and plan.marker.skips(query, batch, task):
            for _ in rows:
                pass
            return Written(TaskReport(task, attempt, query, skipped=True), plan)
        with coordination.connect(self.options) as cluster:
            if plan is None:
                report = self._write(cluster, rows, TaskReport(task, attempt, query), None, None)
            elif plan.mode == SHARED:
                init_producer(cluster, coordination.counter(plan.transactional_id))
                step("task.counted")
                coordination.must_be_open(cluster, plan)
                if attempt > 0:  # the batch will be refused: a copy that comes late must not get into a transaction that ends
                    return Written(TaskReport(task, attempt, query), plan)
                place = self._place(cluster, task, batch) if plan.by_task else None
                report = self._write(cluster, rows, TaskReport(task, attempt, query), plan, place)
            else:
                report = self._write(cluster, rows, TaskReport(task, attempt, query), plan, None)
        step("task.written")
        settle()
        return Written(report, plan)

    def _place(self, cluster: Cluster, task: int, batch: int) -> int:
        """The partition of a task that shares a transaction: another one in each batch, so that all get their share."""
        count = len(cluster.topic(self.options.topic or "").partitions)
        if task >= count:
            raise coordination.Refused(
                f"Task {task} has no partition of its own in topic {self.options.topic}, which has {count}: set option"
                " transactions to task, or write with fewer tasks."
            )
        return (task + batch) % count

    def _write(
        self, cluster: Cluster, rows: Iterator[pa.RecordBatch], report: TaskReport, plan: Plan | None, place: int | None
    ) -> TaskReport:
        producer: Producer | None = None
        transaction: TaskTransaction | None = None
        count, partitions = 0, set[TopicPartition]()
        names = self._names
        try:
            for gathered in _gathered(rows):
                if producer is None:
                    producer, transaction = self._producer(cluster, plan, report)
                data = gathered if place is None else gathered.append_column("partition", pa.repeat(place, gathered.num_rows))
                written = producer.write(
                    self.options.topic,
                    data,
                    key=names.get("key"),
                    value=names["value"],
                    partition="partition" if place is not None else names.get("partition"),
                    timestamp=None,
                    headers=names.get("headers"),
                    topic_column=names.get("topic"),
                )
                transaction = transaction and transaction.begun_at(written)
                count += data.num_rows
                partitions |= set(written)
                step("task.half")
        finally:
            if producer is not None:
                producer.close()
        where = frozenset(partitions)
        return TaskReport(report.task, report.attempt, report.query, False, count, where, transaction)

    def _producer(self, cluster: Cluster, plan: Plan | None, report: TaskReport) -> tuple[Producer, TaskTransaction | None]:
        if plan is None:
            return Producer(cluster), None
        if plan.mode == SHARED:
            return Producer(cluster, identity=plan.identity), None
        coordination.must_be_open(cluster, plan)
        identity = init_producer(cluster, task_id(plan.transactional_id, report.task, report.attempt))
        own = TaskTransaction(report.task, report.attempt, identity.producer_id, identity.epoch)
        return Producer(cluster, identity=identity), own

    # ---- in the driver ---------------------------------------------------------------------------------------------------

    def commit_batch(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        speak()
        written = [message for message in messages if isinstance(message, Written)]
        reports = [message.report for message in written]
        plan = next((message.plan for message in written if message.plan is not None), None)
        begun = time.monotonic()
        if plan is not None:
            coordination.commit(self.options, plan, reports, batch)
        elif self.options.commit_group is not None:
            with coordination.connect(self.options) as cluster:
                source = coordination.source_offsets(self.options, cluster, batch)
                commit_offsets(cluster, source.group, source.offsets)
        rows, tasks = sum(report.rows for report in reports), len(reports)
        log.info("Batch %d: %d rows of %d tasks, committed in %.3f s.", batch, rows, tasks, time.monotonic() - begun)

    def abort_batch(self) -> None:
        if self.options.exactly_once:
            speak()
            coordination.abort(self.options, self.transactional_id())


def _gathered(batches: Iterator[pa.RecordBatch], rows: int = 1 << 17) -> Iterator[pa.Table]:
    """Spark's small record batches, as tables that are worth a request."""
    waiting: list[pa.RecordBatch] = []
    size = count = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            count += batch.num_rows
            size += batch.nbytes
        if count >= rows or size >= 16 << 20:
            yield pa.Table.from_batches(waiting)
            waiting, size, count = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        if options.batch_name is not None:
            raise InvalidSetting("Option batchName is for batches: those of a stream are known by their numbers.")
        super().__init__(options, schema, stream=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_task(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        self.commit_batch(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.abort_batch()


class BatchWriter(_Writing, DataSourceArrowWriter):
    """The sink of a batch: a single one, numbered 0. It is known by option batchName, or by a name that nobody else has."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema, stream=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_task(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.commit_batch(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.abort_batch()


def batch_writer(options: SinkOptions, schema: StructType, *, overwrite: bool) -> BatchWriter:
    """A batch can only append: a topic is a log, and nothing in it can be replaced."""
    if overwrite:
        raise InvalidTable('Mode overwrite is not possible: the records of a topic cannot be replaced. Use mode("append").')
    if options.commit_group is not None:
        raise InvalidSetting("Option commitGroup is for streams: a batch has no position that could be committed.")
    return BatchWriter(options, schema)
