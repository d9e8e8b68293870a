"""A producer that does what none should: the way to a transaction that hangs."""

from __future__ import annotations

import time

from ottla.client.cluster import TRANSACTION, Cluster
from ottla.client.errors import check
from ottla.records.batch import Record, build
from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.apis.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.apis.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
)


class Producer:
    """A transactional producer that follows no rules."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.sequences: dict[tuple[str, int], int] = {}

        def init() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=10 * 60_000)
            answer: InitProducerIdResponse = cluster.ask(request, cluster.coordinator_of(transactional_id, TRANSACTION))
            check(answer.error_code, "InitProducerId")
            return answer

        answer = cluster.patiently(init)
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def add(self, topic: str, *partitions: int) -> None:
        one = AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=partitions)],
        )
        request = AddPartitionsToTxnRequest(transactions=[one])
        answer: AddPartitionsToTxnResponse = self.cluster.ask(request, self.coordinator, at_least=4)
        for result in answer.results_by_transaction[0].topic_results[0].results_by_partition:
            check(result.partition_error_code, "AddPartitionsToTxn")

    def write(self, topic: str, partition: int = 0, *, ago_ms: int = 0) -> int:
        """The offset of one record, written as part of a transaction, with a timestamp of then."""
        place = topic, partition
        sequence = self.sequences[place] = self.sequences.get(place, -1) + 1
        batch = build(
            [Record(0, int(time.time() * 1000) - ago_ms, None, b"in a transaction")],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        request = ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=5000, topic_data=[data])
        answer: ProduceResponse = self.cluster.ask(request, self.cluster.topic(topic).partitions[partition].leader)
        (result,) = answer.responses[0].partition_responses
        check(result.error_code, "Produce")
        return result.base_offset

    def commit(self) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=self.id, producer_epoch=self.epoch, committed=True
        )
        answer: EndTxnResponse = self.cluster.ask(request, self.coordinator)
        check(answer.error_code, "EndTxn")

    @property
    def coordinator(self) -> int:
        return self.cluster.coordinator_of(self.transactional_id, TRANSACTION)
