"""Transactions and producers as brokers know them, and the end of one that hangs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.client.admin.grouping import by_topic
from ottla.client.admin.hanging import ActiveProducer, OpenTransaction, hanging, older_than, open_transactions
from ottla.client.cluster import TRANSACTION, Cluster
from ottla.client.errors import ClientError, check
from ottla.model import Error, TopicPartition
from ottla.wire.apis.producers import DescribeProducersRequest, DescribeProducersResponse, DescribeProducersTopic
from ottla.wire.apis.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_FILTERS_BY_DURATION = 1  # the first version of ListTransactions that does


class ListedTransaction(NamedTuple):
    """A transactional id in a list."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """A transactional id; `started_ms` is None where no transaction is open, `partitions` are those that await its end."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


def list_transactions(
    cluster: Cluster, *, producers: Sequence[int] = (), states: Sequence[str] = (), duration_ms: int = -1
) -> list[ListedTransaction]:
    """What all brokers coordinate: of these producers and in these states, or of all; running for longer, if not negative."""
    request = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producers), duration_filter=max(duration_ms, -1)
    )
    least = _FILTERS_BY_DURATION if duration_ms >= 0 else 0

    def look() -> list[ListedTransaction]:
        found = []
        requests = dict.fromkeys(sorted(cluster.brokers()), request)
        answers: dict[int, ListTransactionsResponse] = cluster.ask_each(requests, at_least=least)
        for broker, answer in answers.items():
            check(answer.error_code, f"Broker {broker} does not list its transactions")
            found += [
                ListedTransaction(one.transactional_id, broker, one.producer_id, one.transaction_state)
                for one in answer.transaction_states
            ]
        return found

    return cluster.patiently(look)


def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    """What the coordinator of an id says of it."""
    found = describe_transactions(cluster, [transactional_id])
    if transactional_id not in found:
        raise ClientError(
            Error.TRANSACTIONAL_ID_NOT_FOUND,
            f"Transactional id {transactional_id} could not be found: `list` shows those that there are.",
        )
    return found[transactional_id]


def describe_transactions(cluster: Cluster, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription]:
    """What their coordinators say of these ids; one that is not known is left out."""

    def look() -> dict[str, TransactionDescription]:
        coordinated: dict[int, list[str]] = {}
        for name, broker in cluster.coordinators(transactional_ids, TRANSACTION).items():
            coordinated.setdefault(broker, []).append(name)
        requests = {broker: DescribeTransactionsRequest(transactional_ids=names) for broker, names in coordinated.items()}
        answers: dict[int, DescribeTransactionsResponse] = cluster.ask_each(requests)
        found = {}
        for broker, answer in answers.items():
            for one in answer.transaction_states:
                if one.error_code == Error.TRANSACTIONAL_ID_NOT_FOUND:
                    continue
                check(one.error_code, f"Transactional id {one.transactional_id} cannot be described")
                found[one.transactional_id] = TransactionDescription(
                    one.transactional_id,
                    broker,
                    one.producer_id,
                    one.producer_epoch,
                    one.transaction_state,
                    one.transaction_timeout_ms,
                    one.transaction_start_time_ms if one.transaction_start_time_ms >= 0 else None,
                    tuple(sorted(TopicPartition(topic.topic, number) for topic in one.topics for number in topic.partitions)),
                )
        return found

    return cluster.patiently(look)


def describe_producers(
    cluster: Cluster, partitions: Sequence[TopicPartition], broker: int | None = None
) -> dict[TopicPartition, list[ActiveProducer]]:
    """Who writes to these partitions, as their leaders know it, or as a certain broker does."""

    def look() -> dict[TopicPartition, list[ActiveProducer]]:
        asked = cluster.by_leader(partitions) if broker is None else {broker: list(partitions)}
        requests = {
            node: DescribeProducersRequest(
                topics=[
                    DescribeProducersTopic(name=topic, partition_indexes=numbers) for topic, numbers in by_topic(places).items()
                ]
            )
            for node, places in asked.items()
        }
        answers: dict[int, DescribeProducersResponse] = cluster.ask_each(requests)
        found = {}
        for node, answer in answers.items():
            for topic in answer.topics:
                for one in topic.partitions:
                    tp = TopicPartition(topic.name, one.partition_index)
                    what = f"Broker {node} does not describe the producers of partition {tp}"
                    check(one.error_code, what, one.error_message)
                    found[tp] = [
                        ActiveProducer(
                            state.producer_id,
                            state.producer_epoch,
                            state.last_sequence,
                            state.last_timestamp,
                            state.coordinator_epoch,
                            state.current_txn_start_offset,
                        )
                        for state in one.active_producers
                    ]
        return found

    return cluster.patiently(look) if partitions else {}


def find_hanging(
    cluster: Cluster, partitions: Sequence[TopicPartition], broker: int | None, now_ms: int, limit_ms: int
) -> list[OpenTransaction]:
    """The transactions that hang in these partitions.

    What looks like one is looked at once more: between the questions to its partition and to its coordinator it may have ended.
    """
    candidates = older_than(open_transactions(describe_producers(cluster, partitions, broker)), now_ms, limit_ms)
    if not candidates:
        return []
    producers = sorted({one.producer_id for one in candidates})
    ids = {one.producer_id: one.transactional_id for one in list_transactions(cluster, producers=producers)}
    known = describe_transactions(cluster, sorted(set(ids.values())))
    suspects = hanging(candidates, ids, {name: one.partitions for name, one in known.items()})
    still_open = _identities(open_transactions(describe_producers(cluster, [one.partition for one in suspects], broker)))
    return [one for one in suspects if still_open.issuperset(_identities([one]))]


def _identities(transactions: Iterable[OpenTransaction]) -> set[tuple[TopicPartition, int, int]]:
    return {(one.partition, one.producer_id, one.start_offset) for one in transactions}


def abort_transaction(
    cluster: Cluster, partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    """Have the partition's leader write an abort marker, as the producer's coordinator would."""
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        # No coordinator has ended a transaction of this producer there yet: 0 is not newer than any coordinator's.
        coordinator_epoch=max(coordinator_epoch, 0),
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
    )

    def order() -> None:
        leader = cluster.leaders([partition])[partition]
        answer: WriteTxnMarkersResponse = cluster.ask(WriteTxnMarkersRequest(markers=[marker]), leader)
        code = answer.markers[0].topics[0].partitions[0].error_code
        if code == Error.INVALID_PRODUCER_EPOCH:
            raise ClientError(
                Error.INVALID_PRODUCER_EPOCH,
                f"Producer {producer_id} has a newer epoch than {producer_epoch} on {partition}: describe it again.",
            )
        if code == Error.TRANSACTION_COORDINATOR_FENCED:
            epoch = marker.coordinator_epoch
            raise ClientError(
                Error.TRANSACTION_COORDINATOR_FENCED,
                f"A newer coordinator than that of epoch {epoch} has written to {partition}: describe it again.",
            )
        check(code, f"Producer {producer_id} could not be aborted on {partition}")

    cluster.patiently(order)
