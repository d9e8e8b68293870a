"""A look at transactions and at the producers that write to partitions: for operators who search for one that hangs."""

from __future__ import annotations

from itertools import groupby

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.coordinator.transaction_state import STATUS_BY_NAME, Status, Transaction
from ottla.model import Error, KafkaError
from ottla.replication.partition import Partition
from ottla.wire.apis.producers import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    ProducerState,
)
from ottla.wire.apis.transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
)


@handles(DescribeTransactionsRequest)
async def describe_transactions(ctx: Context, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(transaction_states=[_describe(ctx, one) for one in request.transactional_ids])


def _describe(ctx: Context, transactional_id: str) -> DescribedTransaction:
    try:
        found = ctx.transactions.describe(transactional_id)
    except KafkaError as problem:
        return DescribedTransaction(transactional_id=transactional_id, error_code=problem.error)
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=found.status.shown,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=[partition.partition for partition in partitions])
            for topic, partitions in groupby(sorted(found.partitions), key=lambda partition: partition.topic)
        ],
    )


@shapes_errors_of(DescribeTransactionsRequest)
def describe_transactions_error(
    request: DescribeTransactionsRequest, error: Error, message: str
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            DescribedTransaction(transactional_id=transactional_id, error_code=error)
            for transactional_id in request.transactional_ids
        ]
    )


@handles(ListTransactionsRequest)
async def list_transactions(ctx: Context, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """Those of this broker that pass every filter; an empty filter lets all pass."""
    states = {STATUS_BY_NAME[name] for name in request.state_filters if name in STATUS_BY_NAME}
    producers = set(request.producer_id_filters)
    now = ctx.services.clock.now_ms()

    def wanted(one: Transaction) -> bool:
        return (
            one.status is not Status.DEAD
            and (not request.state_filters or one.status in states)
            and (not producers or one.producer_id in producers)
            and (request.duration_filter < 0 or now - one.started_ms > request.duration_filter)
        )

    return ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in STATUS_BY_NAME],
        transaction_states=[
            ListedTransaction(
                transactional_id=one.transactional_id, producer_id=one.producer_id, transaction_state=one.status.shown
            )
            for one in ctx.transactions.transactions()
            if wanted(one)
        ],
    )


@handles(DescribeProducersRequest)
async def describe_producers(ctx: Context, request: DescribeProducersRequest) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            DescribeProducersTopicResponse(
                name=topic.name, partitions=[_producers_of(ctx, topic.name, number) for number in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


@shapes_errors_of(DescribeProducersRequest)
def describe_producers_error(request: DescribeProducersRequest, error: Error, message: str) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            DescribeProducersTopicResponse(
                name=topic.name,
                partitions=[
                    DescribeProducersPartitionResponse(partition_index=number, error_code=error, error_message=message)
                    for number in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _producers_of(ctx: Context, topic: str, number: int) -> DescribeProducersPartitionResponse:
    try:
        partition: Partition = ctx.services.replicas.get(topic, number)
        partition.check_leader()
    except KafkaError as problem:
        return DescribeProducersPartitionResponse(
            partition_index=number, error_code=problem.error, error_message=problem.message or None
        )
    return DescribeProducersPartitionResponse(
        partition_index=number,
        error_code=Error.NONE,
        active_producers=[
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_start,
            )
            for producer in partition.log.producers.by_id.values()
        ],
    )
