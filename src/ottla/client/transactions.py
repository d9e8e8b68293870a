"""A producer's identity, and what it says to the coordinator of its transactions.

An `Identity` is plain data: it can be sent to other processes, which then write in the same transaction (each partition by one
of them, because sequences count per partition), while the first one ends it. Whoever initialises the same transactional id
again fences everybody who still has the old epoch, and aborts what they left open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn

from ottla.client.admin.groups import Committed
from ottla.client.cluster import TRANSACTION, Cluster
from ottla.client.errors import ClientError, ProducerFenced, TransactionAborted, describe
from ottla.model import Error, TopicPartition, error_of
from ottla.wire.apis.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.apis.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

_OF_CLIENTS = 3  # the last version of AddPartitionsToTxn that clients use; later ones are for brokers

FENCED = frozenset({Error.PRODUCER_FENCED, Error.INVALID_PRODUCER_EPOCH, Error.INVALID_PRODUCER_ID_MAPPING})
ABORTED = frozenset({Error.INVALID_TXN_STATE, Error.TRANSACTION_ABORTABLE, Error.OPERATION_NOT_ATTEMPTED})


class Identity(NamedTuple):
    """Who writes: for idempotence, and with a transactional id for transactions."""

    producer_id: int
    epoch: int
    transactional_id: str | None = None


NOBODY = Identity(-1, -1)


def init_producer(cluster: Cluster, transactional_id: str | None = None, timeout_ms: int | None = None) -> Identity:
    """A new identity. With a transactional id: its next epoch, after what an older one left open was aborted."""
    limit = cluster.settings.transaction_timeout_ms if timeout_ms is None else timeout_ms
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=limit)

    def ask() -> Identity:
        broker = None if transactional_id is None else cluster.coordinator_of(transactional_id, TRANSACTION)
        answer: InitProducerIdResponse = cluster.ask(request, broker)
        if answer.error_code != Error.NONE:
            _refuse(answer.error_code, transactional_id, "No producer id")
        return Identity(answer.producer_id, answer.producer_epoch, transactional_id)

    return cluster.patiently(ask)


def add_partitions(cluster: Cluster, identity: Identity, partitions: Iterable[TopicPartition]) -> None:
    """Say which partitions the transaction will write to, before it does."""
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=identity.transactional_id or "",
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in topics.items()],
    )

    def ask() -> None:
        answer: AddPartitionsToTxnResponse = cluster.ask(request, _coordinator(cluster, identity), at_most=_OF_CLIENTS)
        results = [one for topic in answer.results_by_topic_v3_and_below for one in topic.results_by_partition]
        codes = [one.partition_error_code for one in results]
        for code in sorted(codes, key=lambda code: code == Error.OPERATION_NOT_ATTEMPTED):  # the reason first
            if code != Error.NONE:
                _refuse(code, identity.transactional_id, "Partitions cannot enter the transaction")

    cluster.patiently(ask)


def add_offsets(cluster: Cluster, identity: Identity, group: str, offsets: Mapping[TopicPartition, int | Committed]) -> None:
    """Commit a group's offsets within the transaction: they count when it commits, and never if it does not."""
    entering = AddOffsetsToTxnRequest(
        transactional_id=identity.transactional_id or "",
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group,
    )
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for tp, one in offsets.items():
        committed = one if isinstance(one, Committed) else Committed(one)
        topics.setdefault(tp.topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=tp.partition, committed_offset=committed.offset, committed_metadata=committed.metadata
            )
        )
    committing = TxnOffsetCommitRequest(
        transactional_id=identity.transactional_id or "",
        group_id=group,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=wanted) for name, wanted in topics.items()],
    )

    def enter() -> None:
        answer: AddOffsetsToTxnResponse = cluster.ask(entering, _coordinator(cluster, identity))
        if answer.error_code != Error.NONE:
            _refuse(answer.error_code, identity.transactional_id, f"The offsets of group {group} cannot enter the transaction")

    def commit() -> None:
        answer: TxnOffsetCommitResponse = cluster.ask(committing, cluster.coordinator_of(group))
        for topic in answer.topics:
            for one in topic.partitions:
                if one.error_code != Error.NONE:
                    tp = TopicPartition(topic.name, one.partition_index)
                    what = f"Group {group} could not commit an offset of partition {tp}"
                    _refuse(one.error_code, identity.transactional_id, what)

    if offsets:
        cluster.patiently(enter)
        cluster.patiently(commit)


def end_transaction(cluster: Cluster, identity: Identity, *, commit: bool) -> None:
    """Commit or abort. Saying the same again is allowed: an answer that was lost does no harm."""
    request = EndTxnRequest(
        transactional_id=identity.transactional_id or "",
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=commit,
    )

    def ask() -> None:
        answer: EndTxnResponse = cluster.ask(request, _coordinator(cluster, identity))
        if answer.error_code != Error.NONE:
            what = f"The transaction was not {'committed' if commit else 'aborted'}"
            _refuse(answer.error_code, identity.transactional_id, what)

    cluster.patiently(ask)


def until_visible(cluster: Cluster, identity: Identity) -> None:
    """Wait until readers can see what this producer committed.

    A coordinator answers a commit as soon as it has decided; the partitions hear of it afterwards. The same commit said again
    is answered when all of them have.
    """
    end_transaction(cluster, identity, commit=True)


def is_open(cluster: Cluster, identity: Identity) -> bool:
    """Whether its transaction can still be committed: it was begun, and has neither ended nor timed out."""
    name = identity.transactional_id or ""
    request = DescribeTransactionsRequest(transactional_ids=[name])

    def look() -> bool:
        answer: DescribeTransactionsResponse = cluster.ask(request, cluster.coordinator_of(name, TRANSACTION))
        found = answer.transaction_states[0]
        if found.error_code == Error.TRANSACTIONAL_ID_NOT_FOUND:
            return False
        if found.error_code != Error.NONE:
            _refuse(found.error_code, name, "The transaction cannot be looked at")
        return (found.transaction_state, found.producer_id, found.producer_epoch) == ("Ongoing", *identity[:2])

    return cluster.patiently(look)


def open_transactions(cluster: Cluster, prefix: str) -> list[str]:
    """The transactional ids with this beginning that have an open transaction, on any broker."""
    request = ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[])

    def look() -> list[str]:
        found: list[str] = []
        for broker in cluster.brokers():
            answer: ListTransactionsResponse = cluster.ask(request, broker)
            if answer.error_code != Error.NONE:
                _refuse(answer.error_code, None, f"Broker {broker} does not list its transactions")
            found += [one.transactional_id for one in answer.transaction_states if one.transactional_id.startswith(prefix)]
        return found

    return cluster.patiently(look)


def _coordinator(cluster: Cluster, identity: Identity) -> int:
    return cluster.coordinator_of(identity.transactional_id or "", TRANSACTION)


def _refuse(code: int, transactional_id: str | None, what: str) -> NoReturn:
    error = error_of(code)
    whose = "" if transactional_id is None else f" (transactional id {transactional_id})"
    if error in FENCED:
        raise ProducerFenced(
            error, f"{what}{whose}: another producer has taken over, or the transaction timed out ({describe(code)})."
        )
    if error in ABORTED:
        raise TransactionAborted(error, f"{what}{whose}: abort it and begin again ({describe(code)}).")
    raise ClientError(error, f"{what}{whose}: {describe(code)}.")
