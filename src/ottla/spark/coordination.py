"""The driver's part of exactly once: to take over before the tasks start, and to make a batch visible, or undo it, afterwards.

Guards: nothing is visible before the driver says so, and what it says is carried out, by itself or by the next one; a batch
that is visible is never written again (its marker is in the very transaction that made it visible). `exactly_once` decides;
here the cluster is asked and told. Every step can be repeated.

Life: `take_over` in the process that plans a batch, `commit` or `abort` in another one when its tasks have ended: nothing is
kept between them except what tasks bring along in their reports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow
import pyarrow.fs

from ottla.client import (
    ClientError,
    Cluster,
    Committed,
    Identity,
    InvalidSetting,
    OffsetOutOfRange,
    ProducerFenced,
    TopicPartition,
    TransactionAborted,
    add_offsets,
    committed_offsets,
    end_transaction,
    init_producer,
    is_open,
    list_offsets,
    open_transactions,
    read,
    until_visible,
)
from ottla.client.admin.offsets import LATEST
from ottla.model import Error
from ottla.spark.exactly_once import (
    DECIDED,
    DONE,
    PARTIAL,
    SHARED,
    Marker,
    Plan,
    TaskReport,
    TaskTransaction,
    attempts_made,
    choose,
    from_pieces,
    more_pieces,
    settled,
    to_pieces,
    why_not_repaired,
    why_not_shared,
)
from ottla.spark.faults import step
from ottla.spark.log import log
from ottla.spark.offsets import from_json, is_position
from ottla.spark.options import SinkOptions

_LIMIT_MS = 900_000  # what brokers allow at most unless they are told otherwise
_EPOCHS_LEFT = 32_000  # of 32,767: a batch must not see the counter begin anew


class SourceOffsets(NamedTuple):
    """How far a query has read, and the group that is to know."""

    group: str
    offsets: Mapping[TopicPartition, int]


class Refused(ClientError):
    """A batch that cannot be committed; nothing of it is visible."""

    def __init__(self, why: str) -> None:
        super().__init__(Error.INVALID_TXN_STATE, why)


def connect(options: SinkOptions) -> Cluster:
    """The cluster that is written to; transactions live as long as brokers allow unless a setting says less."""
    quick = {"transaction.timeout.ms": str(_LIMIT_MS), "retry.backoff.ms": "20"} if options.exactly_once else {}
    return Cluster({**quick, **options.settings})


def counter(transactional_id: str) -> str:
    """The id whose epoch counts attempts."""
    return f"{transactional_id}/attempts"


# ---- before the tasks ----------------------------------------------------------------------------------------------------


def take_over(options: SinkOptions, transactional_id: str, columns: Sequence[str]) -> Plan:
    """Fence whoever was here before, carry out what was decided, abort what was not, and choose the way of the next batch."""
    with connect(options) as cluster:
        identity = _take_id(cluster, transactional_id)
        step("plan.taken")
        marker = _settle(cluster, options, transactional_id, identity)
        step("plan.settled")
        _abandon(cluster, transactional_id)
        topic = options.topic
        count = None if topic is None else len(cluster.topic(topic).partitions)
        mode, why = choose(options.transactions, columns, marker, count)
        log.info(
            "Exactly once with %s (%s). Transactional id %s, last batch %d.",
            "one transaction for all tasks" if mode == SHARED else "one transaction for each task",
            why,
            transactional_id,
            marker.batch,
        )
        attempts = _count(cluster, transactional_id) if mode == SHARED else None
        step("plan.ready")
        by_task = mode == SHARED and topic is not None and not {"key", "partition"} & set(columns)
        places = tuple(_places(cluster, transactional_id, options, ()))
        return Plan(transactional_id, mode, identity, attempts, marker, by_task, places)


def _take_id(cluster: Cluster, transactional_id: str) -> Identity:
    try:
        return init_producer(cluster, transactional_id)
    except ClientError as problem:
        if problem.error is not Error.INVALID_TRANSACTION_TIMEOUT:
            raise
        limit = cluster.settings.transaction_timeout_ms
        raise InvalidSetting(
            f"The brokers do not allow transactions of {limit} ms: set kafka.transaction.timeout.ms to what their setting"
            " transaction.max.timeout.ms says, or less."
        ) from None


def _count(cluster: Cluster, transactional_id: str) -> Identity:
    """The counter, with enough epochs before it begins anew."""
    found = init_producer(cluster, counter(transactional_id))
    while found.epoch > _EPOCHS_LEFT:
        found = init_producer(cluster, counter(transactional_id))
    return found


def _settle(cluster: Cluster, options: SinkOptions, transactional_id: str, identity: Identity) -> Marker:
    """Carry out what was decided and not done, whoever decided it; the marker as it is then."""
    marker = last_batch(cluster, transactional_id)
    if marker.state != DECIDED:
        return marker
    return _carry_out(cluster, transactional_id, identity, marker, _places(cluster, transactional_id, options, ()))


def _abandon(cluster: Cluster, transactional_id: str) -> None:
    """Abort what attempts left open that belong to no batch: readers would wait for them until they time out."""
    for name in open_transactions(cluster, f"{transactional_id}/task/"):
        init_producer(cluster, name)


# ---- in the tasks --------------------------------------------------------------------------------------------------------


def must_be_open(cluster: Cluster, plan: Plan) -> None:
    """Refuse an attempt that comes when its batch is ending or has ended: it waits until that is over, and finds its marker.

    Places are named: Apache Kafka does not mention those that have only an offset which is not committed yet.
    """
    places = plan.places or [TopicPartition(name, 0) for name in cluster.topics()]
    if last_batch(cluster, plan.transactional_id, places) != plan.marker:
        raise Refused("Another attempt at this task was taken, or another driver has taken over: this one writes nothing.")


# ---- after the tasks -----------------------------------------------------------------------------------------------------


def commit(options: SinkOptions, plan: Plan, reports: Sequence[TaskReport], batch: int) -> None:
    """Make a batch visible, once."""
    if all(report.skipped for report in reports) and plan.marker.state != PARTIAL:
        log.info("Batch %d is visible already: its rows were left out.", batch)
        return
    step("commit.begun")
    marker = Marker(reports[0].query, batch, DONE, plan.mode, len(reports), fallback=plan.marker.fallback)
    with connect(options) as cluster:
        source = source_offsets(options, cluster, batch)
        places = _places(cluster, plan.transactional_id, options, reports)
        if not places:
            if any(report.rows for report in reports):
                raise Refused(f"The topics that batch {batch} was written to are gone. Nothing of it is visible.")
            if not source.offsets:
                return  # no rows, and no topic that the marker could be kept under: the batch can be run again
        if plan.mode == SHARED:
            _commit_shared(options, cluster, plan, reports, marker, places, source)
        else:
            _commit_tasks(cluster, plan, reports, marker, places, source)


def _commit_shared(
    options: SinkOptions,
    cluster: Cluster,
    plan: Plan,
    reports: Sequence[TaskReport],
    marker: Marker,
    places: Sequence[TopicPartition],
    source: SourceOffsets,
) -> None:
    assert plan.attempts is not None
    step("commit.checked")
    _enter(cluster, plan.identity, marker, places, source)
    step("commit.marked")
    # Counted last: an attempt that is not counted finds the marker.
    after = init_producer(cluster, counter(plan.transactional_id))
    step("commit.counted")
    why = why_not_shared(reports, attempts_made(plan.attempts, after))
    if why is not None:
        identity = init_producer(cluster, plan.transactional_id)
        then = "Set option transactions to task."
        if options.transactions == "auto":
            _write(cluster, identity, replace(plan.marker, fallback=why), places)
            then = "Started again, the query uses one transaction for each task."
        raise Refused(f"Batch {marker.batch} cannot share one transaction: {why}. Nothing of it is visible. {then}")
    end_transaction(cluster, plan.identity, commit=True)
    step("commit.ended")
    _await_readers(cluster, marker.batch, [plan.identity])


def _commit_tasks(
    cluster: Cluster,
    plan: Plan,
    reports: Sequence[TaskReport],
    marker: Marker,
    places: Sequence[TopicPartition],
    source: SourceOffsets,
) -> None:
    why = why_not_repaired(plan.marker, reports, marker.batch)
    if why is not None:
        raise Refused(f"{why}: start the query with as many tasks as before.")
    new = tuple(report.transaction for report in reports if report.transaction is not None)
    old = plan.marker
    repairing = old.state == PARTIAL and (old.query, old.batch) == (marker.query, marker.batch)
    before = old.transactions if repairing else ()
    name = plan.transactional_id
    decision = replace(marker, state=DECIDED, transactions=before + new)
    step("commit.checked")
    _enter(cluster, plan.identity, decision, places, source)
    step("decision.marked")
    # Looked at last: an attempt that would take over one of the ids now finds the marker.
    for one in new:
        if not is_open(cluster, one.identity(name)):
            raise Refused(
                f"The transaction of task {one.task} in batch {marker.batch} has timed out or was taken over. Nothing of the"
                " batch is visible. Raise kafka.transaction.timeout.ms, and the brokers' transaction.max.timeout.ms, if"
                " batches take that long."
            )
    step("decision.checked")
    end_transaction(cluster, plan.identity, commit=True)
    step("decision.written")
    result = _carry_out(cluster, name, plan.identity, decision, places)
    if result.state == PARTIAL:
        raise Refused(f"Batch {marker.batch} is visible in part: transactions timed out. Start the query again to complete it.")
    _await_readers(cluster, marker.batch, [*(one.identity(name) for one in new), plan.identity])
    try:
        _abandon(cluster, name)
    except ClientError as problem:  # the batch is visible as a whole: it must not fail any more
        log.warning("Attempts that belong to no batch are left open until the next one, or their timeout: %s", problem.message)


def _await_readers(cluster: Cluster, batch: int, committed: Sequence[Identity]) -> None:
    """A batch is done when readers see it. The next batch would have to wait for the same, so that it costs no time."""
    try:
        for identity in committed:
            until_visible(cluster, identity)
    except ClientError as problem:  # the batch is committed: it must not fail any more
        log.warning("Batch %d is committed, and readers may see it a little later: %s", batch, problem.message)


def _carry_out(cluster: Cluster, name: str, identity: Identity, decision: Marker, places: Sequence[TopicPartition]) -> Marker:
    """End the transactions of a decision: saying it again is allowed.

    One that is fenced has timed out, or its id was taken over. It is lost, unless a driver before us had committed it by then.
    """
    lost: list[TaskTransaction] = []
    for number, one in enumerate(decision.transactions):
        try:
            end_transaction(cluster, one.identity(name), commit=True)
        except (ProducerFenced, TransactionAborted):
            lost.append(one)
        if number == 0:
            step("decision.half")
    step("decision.carried")
    if lost:
        _write(cluster, identity, decision, places)  # who was taken over himself must not abort what goes on without him
        _abandon(cluster, name)  # readers do not get past what is open
        lost = [one for one in lost if not _is_visible(cluster, one)]
    result = settled(decision, lost)
    _write(cluster, identity, result, places)
    return result


def _is_visible(cluster: Cluster, one: TaskTransaction) -> bool:
    """Whether a transaction that has ended was committed: whether readers get the first of its records."""
    tp = TopicPartition(one.topic, one.partition)
    if one.first < 0 or one.topic not in cluster.topics():
        return False

    def reached() -> None:
        if list_offsets(cluster, {tp: LATEST}, "read_committed")[tp] <= one.first:
            raise ClientError(
                Error.UNSTABLE_OFFSET_COMMIT, f"Transactions of others are open before offset {one.first} of {tp}."
            )

    cluster.patiently(reached)
    place = ({tp: one.first}, {tp: one.first + 1})
    try:
        with read(one.topic, *place, cluster=cluster, columns=["offset"], isolation="read_committed") as found:
            return any(batch.num_rows for batch in found)
    except OffsetOutOfRange:  # deleted since: what is written again cannot be there twice
        return False


def abort(options: SinkOptions, transactional_id: str) -> None:
    """Undo what the tasks of a batch wrote, those that still run included: they are fenced.

    Spark also asks for this when `commit` failed. A batch that was decided by then is not undone but carried out: some of its
    transactions may be visible already.
    """
    with connect(options) as cluster:
        identity = init_producer(cluster, transactional_id)
        _settle(cluster, options, transactional_id, identity)
        _abandon(cluster, transactional_id)


# ---- markers and offsets -------------------------------------------------------------------------------------------------


def _group(transactional_id: str, piece: int = 0) -> str:
    return f"ottla-sink-{transactional_id}" + (f"/{piece}" if piece else "")


def last_batch(cluster: Cluster, transactional_id: str, places: Sequence[TopicPartition] | None = None) -> Marker:
    """The marker of the last batch, in any place. All hold the same, except those of topics that are gone."""
    kept = committed_offsets(cluster, _group(transactional_id), places, stable=True)
    if not kept:
        return Marker()
    place = max(kept, key=lambda tp: kept[tp].offset)
    pieces = [kept[place].metadata]
    for number in range(1, more_pieces(pieces[0]) + 1):
        more = committed_offsets(cluster, _group(transactional_id, number), [place], stable=True)
        pieces.append(more[place].metadata)
    return from_pieces(pieces)


def _places(
    cluster: Cluster, transactional_id: str, options: SinkOptions, reports: Sequence[TaskReport]
) -> list[TopicPartition]:
    """Where the marker is kept: under the topic that is written to; where rows name topics, under one and where it was."""
    before = {tp.topic for tp in committed_offsets(cluster, _group(transactional_id))}
    written = sorted(tp.topic for report in reports for tp in report.partitions)
    wanted = before | ({options.topic} if options.topic is not None else set(written[:1]))
    there = cluster.topics()
    return [TopicPartition(topic, 0) for topic in sorted(wanted) if topic in there]


def _enter(
    cluster: Cluster, identity: Identity, marker: Marker, places: Sequence[TopicPartition], source: SourceOffsets
) -> None:
    """Put the marker, and the source's offsets, into the driver's transaction."""
    name = identity.transactional_id or ""
    for number, piece in enumerate(to_pieces(marker)):
        add_offsets(cluster, identity, _group(name, number), {tp: Committed(marker.batch + 1, piece) for tp in places})
    add_offsets(cluster, identity, source.group, source.offsets)


def _write(cluster: Cluster, identity: Identity, marker: Marker, places: Sequence[TopicPartition]) -> None:
    """The marker in a transaction of its own: an older driver cannot overwrite a newer one's."""
    if places:
        _enter(cluster, identity, marker, places, SourceOffsets("", {}))
        end_transaction(cluster, identity, commit=True)


def source_offsets(options: SinkOptions, cluster: Cluster, batch: int) -> SourceOffsets:
    """How far the query has read when a batch is done, as Spark wrote it down before the batch began."""
    group = options.commit_group
    if group is None:
        return SourceOffsets("", {})
    found: dict[TopicPartition, int] = {}
    for line in _checkpointed(options, f"offsets/{batch}").splitlines():
        try:
            written = json.loads(line)
        except ValueError:
            continue
        if is_position(written):
            found |= from_json(written).offsets
    there = cluster.topics()
    return SourceOffsets(group, {tp: offset for tp, offset in found.items() if tp.topic in there})


def query_id(options: SinkOptions) -> str:
    """The id of a query, which stays the same as long as its checkpoint does."""
    found: str = json.loads(_checkpointed(options, "metadata"))["id"]
    return found


def _checkpointed(options: SinkOptions, name: str) -> str:
    place = options.checkpoint
    if place is None:
        what = "commitGroup" if name.startswith("offsets") else "exactlyOnce without transactionalId"
        raise InvalidSetting(
            f"Option {what} needs option checkpointLocation at the sink: set it there, not in Spark's settings."
        )
    try:
        if "://" in place or place.startswith("file:"):
            files, root = pyarrow.fs.FileSystem.from_uri(place)
        else:
            files, root = pyarrow.fs.LocalFileSystem(), place
        with files.open_input_stream(f"{root.rstrip('/')}/{name}") as stream:
            return bytes(stream.read()).decode()
    except (OSError, pyarrow.ArrowException) as problem:
        raise InvalidSetting(f"The checkpoint's file {place}/{name} cannot be read: {problem}") from None
