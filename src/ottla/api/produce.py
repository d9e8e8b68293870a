"""Produce: the way in.

The hot path: one pass over the request, nothing per record, an answer at once where all in-sync replicas have the data already.
"""

from __future__ import annotations

import errno
import logging
from typing import Any, Final

from ottla.api.registry import DISCONNECT, LATER, NO_ANSWER, Context, handles, shapes_errors_of
from ottla.api.verification import Verification, first_writes, is_open, produce_when_verified, verify_write
from ottla.controller.topic_rules import INTERNAL_TOPICS
from ottla.coordinator.transaction_state import ProducerIdentity
from ottla.model import Error, KafkaError
from ottla.records.batch import is_transactional, read_header
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.replication.waiting import DelayedProduce
from ottla.storage.log import Log
from ottla.wire.apis.produce import ProduceRequest, ProduceResponse
from ottla.wire.plain_produce import FLEXIBLE, Produced, Topics, all_written, as_table

log: Final = logging.getLogger("ottla.api")

ADMIN_CLIENT: Final = "__admin_client"
_KNOWS_ABORTABLE: Final = 11
"""The first version whose clients abort their transaction, and go on, when they are told TRANSACTION_ABORTABLE."""
_NOT_COMMITTED: Final = {
    Error.REQUEST_TIMED_OUT: "Not replicated to all in-sync replicas within {} ms.",
    Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "Written, but then too few replicas were in sync.",
    Error.NOT_LEADER_OR_FOLLOWER: "Written, but this broker does not lead the partition any more.",
}
Pending = tuple[Partition, int, int, Produced]
"""Where, up to which offset, since when we lead there without a break, and what is answered."""


@handles(ProduceRequest)
def produce(ctx: Context, request: ProduceRequest, verified: Verification | None = None) -> Any:
    """`verified` is what a coordinator on another broker has said of the request's transaction."""
    acks = request.acks
    if acks not in (ACKS_ALL, 0, 1):
        raise KafkaError(Error.INVALID_REQUIRED_ACKS, "acks must be -1 (all), 0 or 1.")
    if request.transactional_id and verified is None and (asked := first_writes(ctx, request)):
        return produce_when_verified(ctx, request, asked, produce)
    version = ctx.version
    partitions = ctx.services.replicas.partitions
    topics: Topics = []
    touched: list[Partition] = []
    waiting: list[Pending] = []
    to_flush: list[Log] = []
    for topic in request.topic_data:
        name = topic.name
        forbidden = name in INTERNAL_TOPICS and ctx.header.client_id != ADMIN_CLIENT
        results: list[Produced] = []
        for data in topic.partition_data:
            index = data.index
            result = Produced(index)
            results.append(result)
            try:
                partition = partitions.get((name, index)) or ctx.services.replicas.get(name, index)
                if forbidden:
                    raise KafkaError(Error.INVALID_TOPIC_EXCEPTION, f"Clients cannot write to the internal topic {name}.")
                if data.records is None:
                    raise KafkaError(Error.INVALID_RECORD, "A produce request needs records.")
                if is_transactional(data.records):
                    _check_transaction(ctx, request, partition, data.records, verified)
                info = partition.append(data.records, acks, version)
            except KafkaError as problem:
                _refused(ctx, result, problem, name, acks)
                continue
            result.written(info.first_offset, info.log_append_time, info.log_start_offset)
            if info.flush_due:
                to_flush.append(partition.log)
            if partition.watchers or partition.tail_watchers:
                touched.append(partition)
            if acks == ACKS_ALL and not partition.committed(info.last_offset):
                waiting.append((partition, info.last_offset, partition.led_since, result))
        topics.append((name, results))
    for partition in touched:
        partition.wake()
    if to_flush:
        ctx.services.spawn(_answer_when_flushed(ctx, request, topics, waiting, to_flush))
        return LATER
    return _answer(ctx, request, topics, waiting)


def _check_transaction(
    ctx: Context, request: ProduceRequest, partition: Partition, records: memoryview, verified: Verification | None
) -> None:
    if not request.transactional_id:
        raise KafkaError(Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "A transactional batch came without a transactional id.")
    partition.check_leader()  # first: a producer at the wrong broker shall look for the right one, and not wait here
    header = read_header(records)
    producer = ProducerIdentity(header.producer_id, header.producer_epoch)
    knows_abortable = ctx.version >= _KNOWS_ABORTABLE
    if not is_open(partition, producer):
        verify_write(ctx, request.transactional_id, producer, partition.tp, knows_abortable=knows_abortable, verified=verified)


def _answer(ctx: Context, request: ProduceRequest, topics: Topics, waiting: list[Pending]) -> Any:
    if request.acks == 0:
        return _hang_up_on_failure(ctx, topics)
    if waiting:
        _answer_when_committed(ctx, request.timeout_ms, topics, waiting)
        return LATER
    return _said(ctx, topics)


def _said(ctx: Context, topics: Topics) -> Any:
    body = all_written(topics, ctx.version)
    return as_table(topics) if body is None else ctx.answer_with(body, tagged=ctx.version >= FLEXIBLE)


async def _answer_when_flushed(
    ctx: Context, request: ProduceRequest, topics: Topics, waiting: list[Pending], logs: list[Log]
) -> None:
    """With flush.messages a batch counts as written when it is on the disk."""
    try:
        for one in logs:
            job = one.flush_job()
            if job is not None:
                await ctx.services.run_blocking(job.run)
                one.flushed(job)
            if one.flush_failed:
                raise OSError(errno.EIO, f"{one.topic_partition} could not be flushed before, and is not trusted any more")
    except OSError as problem:
        log.error("%s could not be brought to the disk: %s", one.topic_partition, problem)
        ctx.services.logs.io_failed(one, problem)
        failed = produce_error(request, Error.KAFKA_STORAGE_ERROR, f"Not brought to the disk: {problem.strerror}")
        ctx.finish(DISCONNECT if failed is None else failed)
    else:
        ctx.finish(_answer(ctx, request, topics, waiting))


def _hang_up_on_failure(ctx: Context, topics: Topics) -> Any:
    """With acks=0 nobody listens for an answer: a producer whose records were refused notices that it has to connect again."""
    for topic, results in topics:
        for result in results:
            if result.error:
                log.warning(
                    "Closing %s:%d: records for %s-%d were refused (%s), and with acks=0 there is no answer to say so",
                    ctx.connection.host, ctx.connection.port, topic, result.index, result.message,
                )  # fmt: skip
                return DISCONNECT
    return NO_ANSWER


def _refused(ctx: Context, result: Produced, problem: KafkaError, topic: str, acks: int) -> None:
    result.refused(problem.error, problem.message)
    if (counters := ctx.services.replicas.counters.get(topic)) is not None:
        counters.failed_produces += 1
    if acks and problem.error not in (Error.NOT_LEADER_OR_FOLLOWER, Error.UNKNOWN_TOPIC_OR_PARTITION):
        log.warning("Refused records of %s for %s-%d: %s", ctx.client_host, topic, result.index, problem.message)


def _answer_when_committed(ctx: Context, timeout_ms: int, topics: Topics, pending: list[Pending]) -> None:
    """Answer when the high watermark has passed everything, or when the time is up."""

    def complete() -> None:
        for partition, last_offset, since, result in pending:
            error = partition.outcome_of(last_offset, since)
            if error is not Error.NONE:
                result.refused(error, _NOT_COMMITTED.get(error, "").format(timeout_ms))
        ctx.finish(_said(ctx, topics))

    def enough(_size: int) -> bool:
        return all(partition.committed(last_offset) for partition, last_offset, _, _ in pending)

    def over() -> bool:
        return not all(partition.led_all_the_time(since) for partition, _, since, _ in pending)

    if over() or enough(0):  # while the disk was waited for
        complete()
        return
    watched = {partition: None for partition, _, _, _ in pending}
    ctx.connection = ctx.connection.owe()  # it is carried out: what the client asks next need not wait
    ctx.connection.waiter = DelayedProduce(enough, complete, watched, ctx.services.timer, timeout_ms / 1000, over=over)


@shapes_errors_of(ProduceRequest)
def produce_error(request: ProduceRequest, error: Error, message: str) -> ProduceResponse | None:
    if request.acks == 0:
        return None
    topics: Topics = [(topic.name, [Produced(data.index) for data in topic.partition_data]) for topic in request.topic_data]
    for _, results in topics:
        for result in results:
            result.refused(error, message)
    return as_table(topics)
