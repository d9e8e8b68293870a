"""Transactions: who a producer is, what its transaction spans, how it ends.

Handlers translate between the wire and `TransactionCoordinator`, and decide nothing about transactions. What they do decide is
shape: in which version an error is known by which name, and where in the answer it belongs. Looking at transactions and
producers is in `transaction_views`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.api.verification import verify_wherever
from ottla.controller.topic_rules import INTERNAL_TOPICS
from ottla.coordinator.appending import Writer
from ottla.coordinator.groups import TOPIC as OFFSETS_TOPIC
from ottla.coordinator.markers import Marker, settled
from ottla.coordinator.offsets import Commit
from ottla.coordinator.transaction_state import ProducerIdentity
from ottla.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Error, KafkaError, TopicPartition
from ottla.wire.apis.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.apis.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.wire.schema import Request

_BATCHED = 4
"""The first version of AddPartitionsToTxn that carries many transactions."""
_KNOWS_ABORTABLE = 4
"""The first version of TxnOffsetCommit whose clients understand TRANSACTION_ABORTABLE."""
_KNOWS_FENCED: dict[type[Request], int] = {
    InitProducerIdRequest: 4,
    AddPartitionsToTxnRequest: 2,
    AddOffsetsToTxnRequest: 2,
    EndTxnRequest: 2,
}


def _in_words_of(request: Request, version: int, error: Error) -> Error:
    """An error under the name that this version of the request knows."""
    if error is Error.PRODUCER_FENCED and version < _KNOWS_FENCED.get(type(request), 0):
        return Error.INVALID_PRODUCER_EPOCH
    return error


@handles(InitProducerIdRequest)
async def init_producer_id(ctx: Context, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise KafkaError(Error.INVALID_REQUEST, "A producer id and its epoch belong together.")
    if request.transactional_id is None:
        # Whoever asks again without a transactional id simply gets a new identity: there is nothing to fence.
        return InitProducerIdResponse(producer_id=await ctx.services.producer_ids.allocate(), producer_epoch=0)
    expected = None
    if request.producer_id != NO_PRODUCER_ID:
        expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    try:
        producer_id, epoch = await ctx.transactions.init_producer(
            request.transactional_id, request.transaction_timeout_ms, expected
        )
    except KafkaError as refusal:
        return InitProducerIdResponse(error_code=_in_words_of(request, ctx.version, refusal.error), producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


# What the transaction spans


@handles(AddPartitionsToTxnRequest)
def add_partitions_to_txn(ctx: Context, request: AddPartitionsToTxnRequest) -> Any:
    if ctx.version >= _BATCHED:
        begun = [_begin(ctx, request, one) for one in request.transactions]
        finish = partial(_answer_many, request, begun)
    else:
        only = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        begun = [_begin(ctx, request, only)]
        finish = partial(_answer_one, only, begun[0])
    waits = [one.written for one in begun if one.written is not None]
    if not waits:
        return finish()
    wait = waits[0] if len(waits) == 1 else asyncio.gather(*waits, return_exceptions=True)
    return ctx.later(wait, request, finish)


class _Adding(NamedTuple):
    """Partitions on their way into a transaction: what is known of them, and what must be waited for."""

    errors: Mapping[TopicPartition, Error]
    otherwise: Error = Error.NONE
    written: asyncio.Future[None] | None = None

    def result(self, topics: Iterable[AddPartitionsToTxnTopic]) -> list[AddPartitionsToTxnTopicResult]:
        otherwise = self.otherwise
        if self.written is not None and isinstance(problem := self.written.exception(), KafkaError):
            otherwise = problem.error
        return _per_topic(topics, self.errors, otherwise)


def _answer_one(transaction: AddPartitionsToTxnTransaction, adding: _Adding) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=adding.result(transaction.topics))


def _answer_many(request: AddPartitionsToTxnRequest, begun: Iterable[_Adding]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(transactional_id=one.transactional_id, topic_results=adding.result(one.topics))
            for one, adding in zip(request.transactions, begun, strict=True)
        ]
    )


def _begin(ctx: Context, request: AddPartitionsToTxnRequest, one: AddPartitionsToTxnTransaction) -> _Adding:
    asked = [TopicPartition(topic.name, number) for topic in one.topics for number in topic.partitions]
    errors: dict[TopicPartition, Error] = {
        partition: error
        for partition in asked
        if (error := _cannot_enter(ctx, partition, from_broker=one.verify_only)) is not Error.NONE
    }
    if errors:  # all or nothing
        return _Adding(errors, Error.OPERATION_NOT_ATTEMPTED)
    producer = ProducerIdentity(one.producer_id, one.producer_epoch)
    try:
        if not one.verify_only:
            written = ctx.transactions.add_partitions(one.transactional_id, producer, frozenset(asked))
            return _Adding({}, written=written)
        for partition in asked:
            try:
                ctx.transactions.verify(one.transactional_id, producer, partition)
            except KafkaError as refusal:
                if refusal.error is not Error.TRANSACTION_ABORTABLE:
                    raise
                errors[partition] = refusal.error
        return _Adding(errors)
    except KafkaError as refusal:
        return _Adding({}, _in_words_of(request, ctx.version, refusal.error))


def _cannot_enter(ctx: Context, partition: TopicPartition, *, from_broker: bool) -> Error:
    if partition.topic in INTERNAL_TOPICS and not from_broker:
        return Error.TOPIC_AUTHORIZATION_FAILED  # nobody but coordinators writes there
    return Error.NONE if ctx.image.has(partition) else Error.UNKNOWN_TOPIC_OR_PARTITION


def _per_topic(
    topics: Iterable[AddPartitionsToTxnTopic], errors: Mapping[TopicPartition, Error], otherwise: Error
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=number,
                    partition_error_code=errors.get(TopicPartition(topic.name, number), otherwise),
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


@shapes_errors_of(AddPartitionsToTxnRequest)
def add_partitions_error(request: AddPartitionsToTxnRequest, error: Error, message: str) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        error_code=error, results_by_topic_v3_and_below=_per_topic(request.v3_and_below_topics, {}, error)
    )


@handles(AddOffsetsToTxnRequest)
async def add_offsets_to_txn(ctx: Context, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    partition = TopicPartition(OFFSETS_TOPIC, await ctx.groups.partition_of(request.group_id))
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    try:
        written = ctx.transactions.add_partitions(request.transactional_id, producer, frozenset({partition}))
        if written is not None:
            await written
    except KafkaError as refusal:
        return AddOffsetsToTxnResponse(error_code=_in_words_of(request, ctx.version, refusal.error))
    return AddOffsetsToTxnResponse()


@handles(TxnOffsetCommitRequest)
async def txn_offset_commit(ctx: Context, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    """An offset of a partition that does not exist is refused, the others are committed."""
    commits = [
        Commit(
            TopicPartition(topic.name, item.partition_index),
            item.committed_offset,
            item.committed_leader_epoch,
            item.committed_metadata,
        )
        for topic in request.topics
        for item in topic.partitions
    ]
    known = [commit for commit in commits if ctx.image.has(commit.partition)]
    errors = {commit.partition: Error.UNKNOWN_TOPIC_OR_PARTITION for commit in commits if not ctx.image.has(commit.partition)}
    if known:
        partition = TopicPartition(OFFSETS_TOPIC, await ctx.groups.partition_of(request.group_id))
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        try:
            ctx.services.replicas.check_leads(*partition)  # nobody need be asked about what we may not write
            knows_abortable = ctx.version >= _KNOWS_ABORTABLE
            await verify_wherever(ctx, request.transactional_id, producer, partition, knows_abortable=knows_abortable)
            committing = ctx.groups.commit_in_transaction(
                request.group_id,
                Writer(*producer),
                known,
                generation=request.generation_id,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
            )
            if committing.written is not None:
                await committing.written
            errors.update(committing.refused)
        except KafkaError as refusal:
            error = _as_coordinator(refusal.error)
            errors.update({commit.partition: error for commit in known})
    return _txn_committed(request, errors)


def _as_coordinator(error: Error) -> Error:
    """A produce error in the words of a coordinator."""
    if error is Error.NOT_ENOUGH_REPLICAS:
        return Error.COORDINATOR_NOT_AVAILABLE
    return Error.NOT_COORDINATOR if error is Error.NOT_LEADER_OR_FOLLOWER else error


def _txn_committed(
    request: TxnOffsetCommitRequest, errors: Mapping[TopicPartition, Error], otherwise: Error = Error.NONE
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=item.partition_index,
                        error_code=errors.get(TopicPartition(topic.name, item.partition_index), otherwise),
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@shapes_errors_of(TxnOffsetCommitRequest)
def txn_offset_commit_error(request: TxnOffsetCommitRequest, error: Error, message: str) -> TxnOffsetCommitResponse:
    return _txn_committed(request, {}, error)


# How it ends


@handles(EndTxnRequest)
def end_txn(ctx: Context, request: EndTxnRequest) -> Any:
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    try:
        written = ctx.transactions.end(request.transactional_id, producer, commit=request.committed)
    except KafkaError as refusal:
        return EndTxnResponse(error_code=_in_words_of(request, ctx.version, refusal.error))
    return EndTxnResponse() if written is None else ctx.later(written, request, partial(_ended, written))


def _ended(written: asyncio.Future[None]) -> EndTxnResponse:
    written.result()  # or what the log refused it with
    return EndTxnResponse()


@handles(WriteTxnMarkersRequest)
async def write_txn_markers(ctx: Context, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """From a transaction coordinator, or from an operator who ends a transaction that hangs."""
    begun = []
    for one in request.markers:  # all of them first: they wait for other replicas together
        marker = Marker(one.producer_id, one.producer_epoch, one.coordinator_epoch, one.transaction_result)
        partitions = [TopicPartition(topic.name, number) for topic in one.topics for number in topic.partition_indexes]
        begun.append((one, ctx.services.write_markers(marker, partitions)))
    return WriteTxnMarkersResponse(markers=[_marked(one, await settled(outcomes)) for one, outcomes in begun])


@shapes_errors_of(WriteTxnMarkersRequest)
def write_txn_markers_error(request: WriteTxnMarkersRequest, error: Error, message: str) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(markers=[_marked(one, {}, error) for one in request.markers])


def _marked(
    one: WritableTxnMarker, errors: Mapping[TopicPartition, Error], otherwise: Error = Error.UNKNOWN_SERVER_ERROR
) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=one.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=number, error_code=errors.get(TopicPartition(topic.name, number), otherwise)
                    )
                    for number in topic.partition_indexes
                ],
            )
            for topic in one.topics
        ],
    )
