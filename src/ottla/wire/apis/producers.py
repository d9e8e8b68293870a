"""Producer ids: handing them out, and who uses them."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, int16, int32, int64, string


class InitProducerIdRequest(Request, key=22, versions="0-5", flexible=2):
    """A producer id, for idempotence; with a transactional id also the end of what an older producer left open.

    v2: flexible.
    v3: bump an epoch that the producer has.
    v4: PRODUCER_FENCED understood.
    v5: TRANSACTION_ABORTABLE understood.
    """

    transactional_id = string(nullable=True)
    transaction_timeout_ms = int32()
    producer_id = int64(since=3, default=-1)
    producer_epoch = int16(since=3, default=-1)


class InitProducerIdResponse(Response, answers=InitProducerIdRequest):
    """Id and epoch."""

    throttle_time_ms = int32()
    error_code = int16()
    producer_id = int64(default=-1)
    producer_epoch = int16()


class DescribeProducersTopic(Struct):
    name = string()
    partition_indexes = array(int32())


class DescribeProducersRequest(Request, key=61, versions="0", flexible=0):
    """Who writes to these partitions?"""

    topics = array(DescribeProducersTopic)


class ProducerState(Struct):
    producer_id = int64()
    producer_epoch = int32()
    last_sequence = int32(default=-1)
    last_timestamp = int64(default=-1)
    coordinator_epoch = int32()
    current_txn_start_offset = int64(default=-1)


class DescribeProducersPartitionResponse(Struct):
    partition_index = int32()
    error_code = int16()
    error_message = string(nullable=True, default=None)
    active_producers = array(ProducerState)


class DescribeProducersTopicResponse(Struct):
    name = string()
    partitions = array(DescribeProducersPartitionResponse)


class DescribeProducersResponse(Response, answers=DescribeProducersRequest):
    """Producer states as the partition leader keeps them."""

    throttle_time_ms = int32()
    topics = array(DescribeProducersTopicResponse)


class AllocateProducerIdsRequest(Request, key=67, versions="0", flexible=0):
    """A broker asks the controller for a block of producer ids."""

    broker_id = int32()
    broker_epoch = int64(default=-1)


class AllocateProducerIdsResponse(Response, answers=AllocateProducerIdsRequest):
    """The block."""

    throttle_time_ms = int32()
    error_code = int16()
    producer_id_start = int64()
    producer_id_len = int32()
