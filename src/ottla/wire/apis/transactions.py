"""Transactions, for producers, coordinators and those who look at them."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string


class AddPartitionsToTxnTopic(Struct):
    name = string()
    partitions = array(int32())


class AddPartitionsToTxnTransaction(Struct):
    transactional_id = string()
    producer_id = int64()
    producer_epoch = int16()
    verify_only = boolean()
    topics = array(AddPartitionsToTxnTopic)


class AddPartitionsToTxnRequest(Request, key=24, versions="0-5", flexible=3):
    """Partitions enter a transaction.

    v3: flexible.
    v4: brokers verify many transactions at once.
    v5: TRANSACTION_ABORTABLE understood.
    """

    transactions = array(AddPartitionsToTxnTransaction, since=4)
    v3_and_below_transactional_id = string(until=3)
    v3_and_below_producer_id = int64(until=3)
    v3_and_below_producer_epoch = int16(until=3)
    v3_and_below_topics = array(AddPartitionsToTxnTopic, until=3)


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index = int32()
    partition_error_code = int16()


class AddPartitionsToTxnTopicResult(Struct):
    name = string()
    results_by_partition = array(AddPartitionsToTxnPartitionResult)


class AddPartitionsToTxnResult(Struct):
    transactional_id = string()
    topic_results = array(AddPartitionsToTxnTopicResult)


class AddPartitionsToTxnResponse(Response, answers=AddPartitionsToTxnRequest):
    """One result per partition.

    v4: per transaction.
    """

    throttle_time_ms = int32()
    error_code = int16(since=4)
    results_by_transaction = array(AddPartitionsToTxnResult, since=4)
    results_by_topic_v3_and_below = array(AddPartitionsToTxnTopicResult, until=3)


class AddOffsetsToTxnRequest(Request, key=25, versions="0-4", flexible=3):
    """A group's offsets enter a transaction.

    v3: flexible.
    v4: TRANSACTION_ABORTABLE understood.
    """

    transactional_id = string()
    producer_id = int64()
    producer_epoch = int16()
    group_id = string()


class AddOffsetsToTxnResponse(Response, answers=AddOffsetsToTxnRequest):
    """Done, or why not."""

    throttle_time_ms = int32()
    error_code = int16()


class EndTxnRequest(Request, key=26, versions="0-4", flexible=3):
    """Commit or abort.

    v3: flexible.
    v4: TRANSACTION_ABORTABLE understood.
    """

    transactional_id = string()
    producer_id = int64()
    producer_epoch = int16()
    committed = boolean()


class EndTxnResponse(Response, answers=EndTxnRequest):
    """Done, or why not."""

    throttle_time_ms = int32()
    error_code = int16()


class WritableTxnMarkerTopic(Struct):
    name = string()
    partition_indexes = array(int32())


class WritableTxnMarker(Struct):
    producer_id = int64()
    producer_epoch = int16()
    transaction_result = boolean()
    topics = array(WritableTxnMarkerTopic)
    coordinator_epoch = int32()


class WriteTxnMarkersRequest(Request, key=27, versions="0-1", flexible=1):
    """The coordinator has partitions marked as committed or aborted.

    v1: flexible.
    """

    markers = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Struct):
    partition_index = int32()
    error_code = int16()


class WritableTxnMarkerTopicResult(Struct):
    name = string()
    partitions = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Struct):
    producer_id = int64()
    topics = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Response, answers=WriteTxnMarkersRequest):
    """One result per marker and partition."""

    markers = array(WritableTxnMarkerResult)


class TxnOffsetCommitRequestPartition(Struct):
    partition_index = int32()
    committed_offset = int64()
    committed_leader_epoch = int32(since=2, default=-1)
    committed_metadata = string(nullable=True)


class TxnOffsetCommitRequestTopic(Struct):
    name = string()
    partitions = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(Request, key=28, versions="0-4", flexible=3):
    """Commit offsets within a transaction.

    v2: leader epoch.
    v3: flexible; member, generation and instance.
    v4: TRANSACTION_ABORTABLE understood.
    """

    transactional_id = string()
    group_id = string()
    producer_id = int64()
    producer_epoch = int16()
    generation_id = int32(since=3, default=-1)
    member_id = string(since=3)
    group_instance_id = string(since=3, nullable=True, default=None)
    topics = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index = int32()
    error_code = int16()


class TxnOffsetCommitResponseTopic(Struct):
    name = string()
    partitions = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(Response, answers=TxnOffsetCommitRequest):
    """One result per partition."""

    throttle_time_ms = int32()
    topics = array(TxnOffsetCommitResponseTopic)


class DescribeTransactionsRequest(Request, key=65, versions="0", flexible=0):
    """Describe transactions."""

    transactional_ids = array(string())


class TopicData(Struct):
    topic = string()
    partitions = array(int32())


class DescribedTransaction(Struct):
    error_code = int16()
    transactional_id = string()
    transaction_state = string()
    transaction_timeout_ms = int32()
    transaction_start_time_ms = int64()
    producer_id = int64()
    producer_epoch = int16()
    topics = array(TopicData)


class DescribeTransactionsResponse(Response, answers=DescribeTransactionsRequest):
    """Their states."""

    throttle_time_ms = int32()
    transaction_states = array(DescribedTransaction)


class ListTransactionsRequest(Request, key=66, versions="0-1", flexible=0):
    """List transactions by state and producer.

    v1: filter by duration.
    """

    state_filters = array(string())
    producer_id_filters = array(int64())
    duration_filter = int64(since=1, default=-1)


class ListedTransaction(Struct):
    transactional_id = string()
    producer_id = int64()
    transaction_state = string()


class ListTransactionsResponse(Response, answers=ListTransactionsRequest):
    """What matched."""

    throttle_time_ms = int32()
    error_code = int16()
    unknown_state_filters = array(string())
    transaction_states = array(ListedTransaction)
