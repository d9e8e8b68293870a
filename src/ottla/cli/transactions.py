"""`ottla transactions`: what producers and their transactions are doing, and the end of one that hangs.

Flags and tables are those of Apache Kafka's kafka-transactions.sh. A client like any other: it works with every Kafka cluster.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from ottla import __version__
from ottla.cli.output import Column, print_json, print_rows
from ottla.cli.tool import INT16, INT32, INT64, Failure, Target, Tool, WholeNumber, json_option, with_cluster
from ottla.client.admin.hanging import open_transactions
from ottla.client.admin.nodes import check_broker
from ottla.client.admin.transactions import (
    abort_transaction,
    describe_producers,
    describe_transaction,
    list_transactions,
)
from ottla.client.admin.transactions import find_hanging as search
from ottla.client.cluster import Cluster
from ottla.clock import SystemClock
from ottla.model import UNKNOWN_OFFSET, TopicPartition

_DURATION = WholeNumber(-(1 << 63), (1 << 63) - 1)
_COORDINATOR_EPOCH = WholeNumber(-1, (1 << 31) - 1)

_LISTED = (
    Column("TransactionalId", "transactionalId"),
    Column("Coordinator", "coordinator"),
    Column("ProducerId", "producerId"),
    Column("TransactionState", "transactionState"),
)
_DESCRIBED = (
    Column("CoordinatorId", "coordinatorId"),
    Column("TransactionalId", "transactionalId"),
    Column("ProducerId", "producerId"),
    Column("ProducerEpoch", "producerEpoch"),
    Column("TransactionState", "transactionState"),
    Column("TransactionTimeoutMs", "transactionTimeoutMs"),
    Column("CurrentTransactionStartTimeMs", "currentTransactionStartTimeMs"),
    Column("TransactionDurationMs", "transactionDurationMs"),
    Column("TopicPartitions", "topicPartitions"),
)
_PRODUCERS = (
    Column("ProducerId", "producerId"),
    Column("ProducerEpoch", "producerEpoch"),
    Column("LatestCoordinatorEpoch", "latestCoordinatorEpoch"),
    Column("LastSequence", "lastSequence"),
    Column("LastTimestamp", "lastTimestamp"),
    Column("CurrentTransactionStartOffset", "currentTransactionStartOffset"),
)
_HANGING = (
    Column("Topic", "topic"),
    Column("Partition", "partition"),
    Column("ProducerId", "producerId"),
    Column("ProducerEpoch", "producerEpoch"),
    Column("CoordinatorEpoch", "coordinatorEpoch"),
    Column("StartOffset", "startOffset"),
    Column("LastTimestamp", "lastTimestamp"),
    Column("Duration(min)", "durationMinutes"),
)


@click.group("transactions", cls=Tool)
@click.version_option(__version__, "-v", "--version", prog_name="ottla")
@click.option("--bootstrap-server", metavar="HOST:PORT[,...]", help="Brokers to ask first.")
@click.option("--command-config", metavar="FILE", help="A properties file of an admin client.")
@click.pass_context
def command(ctx: click.Context, bootstrap_server: str | None, command_config: str | None) -> None:
    """Look at transactions and their producers; find and abort those that hang."""
    ctx.obj = Target(bootstrap_server, command_config)


_topic = click.option("--topic", required=True, help="Topic name.")
_partition = click.option("--partition", required=True, type=INT32, help="Partition number.")


@command.command("list")
@click.option(
    "--duration-filter",
    type=_DURATION,
    default=-1,
    metavar="MS",
    help="Only transactions that run longer than this; all if negative.",
)
@json_option
@with_cluster
def list_(cluster: Cluster, duration_filter: int, as_json: bool) -> None:
    """List transactions."""
    rows = [
        (one.transactional_id, one.coordinator, one.producer_id, one.state)
        for one in list_transactions(cluster, duration_ms=duration_filter)
    ]
    print_rows(_LISTED, rows, as_json=as_json)


@command.command("describe")
@click.option("--transactional-id", required=True, help="Transactional id.")
@json_option
@with_cluster
def describe(cluster: Cluster, transactional_id: str, as_json: bool) -> None:
    """Describe the state of an active transactional id."""
    found = describe_transaction(cluster, transactional_id)
    row = (
        found.coordinator,
        found.transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.state,
        found.timeout_ms,
        found.started_ms,
        None if found.started_ms is None else SystemClock().now_ms() - found.started_ms,
        found.partitions,
    )
    print_rows(_DESCRIBED, [row], as_json=as_json)


@command.command("describe-producers")
@click.option("--broker-id", type=INT32, help="The replica on this broker instead of the leader.")
@_topic
@_partition
@json_option
@with_cluster
def describe_producers_(cluster: Cluster, broker_id: int | None, topic: str, partition: int, as_json: bool) -> None:
    """Describe the states of active producers for a partition."""
    place = TopicPartition(topic, partition)
    if broker_id is not None:
        check_broker(cluster, broker_id)
    rows = [
        (
            one.producer_id,
            one.producer_epoch,
            one.coordinator_epoch,
            one.last_sequence,
            one.last_timestamp,
            None if one.transaction_start_offset == UNKNOWN_OFFSET else one.transaction_start_offset,
        )
        for one in describe_producers(cluster, [place], broker_id)[place]
    ]
    print_rows(_PRODUCERS, rows, as_json=as_json)


@command.command("find-hanging")
@click.option("--broker-id", type=INT32, help="Search the partitions of this broker.")
@click.option(
    "--max-transaction-timeout",
    type=INT32,
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="The largest timeout that a producer may have asked for: what is younger does not hang.",
)
@click.option("--topic", help="Search this topic; required with --partition.")
@click.option("--partition", type=INT32, help="Partition number.")
@json_option
@with_cluster
def find_hanging(
    cluster: Cluster,
    broker_id: int | None,
    max_transaction_timeout: int,
    topic: str | None,
    partition: int | None,
    as_json: bool,
) -> None:
    """Find transactions that no coordinator will end."""
    if topic is None and broker_id is None:
        raise click.UsageError("find-hanging requires either --topic or --broker-id to limit the scope of the search")
    if topic is None and partition is not None:
        raise click.UsageError("The --partition argument requires --topic to be provided")
    now = SystemClock().now_ms()
    if broker_id is not None:
        check_broker(cluster, broker_id)
    partitions = _places(cluster, topic, partition, broker_id)
    found = search(cluster, partitions, broker_id, now, max_transaction_timeout * 60_000)
    rows = [
        (
            *one.partition,
            one.producer_id,
            one.producer_epoch,
            one.coordinator_epoch,
            one.start_offset,
            one.last_timestamp,
            (now - one.last_timestamp) // 60_000,
        )
        for one in found
    ]
    print_rows(_HANGING, rows, as_json=as_json)


def _places(cluster: Cluster, topic: str | None, partition: int | None, broker: int | None) -> list[TopicPartition]:
    """One partition, or those of a topic, or of all topics; with a broker, only those that it has a replica of."""
    if topic is not None and partition is not None:
        return list(cluster.leaders([TopicPartition(topic, partition)]))
    return [
        TopicPartition(found.name, number)
        for found in cluster.topics(None if topic is None else [topic]).values()
        for number, one in found.partitions.items()
        if broker is None or broker in one.replicas
    ]


_Command = Callable[..., None]


def _old_broker(name: str, kind: WholeNumber, what: str) -> Callable[[_Command], _Command]:
    return click.option(name, type=kind, help=f"{what} (brokers older than 3.0: give all three, no offset).")


@command.command("abort")
@_topic
@_partition
@click.option("--start-offset", type=INT64, help="Where the transaction begins (brokers of 3.0 and newer).")
@_old_broker("--producer-id", INT64, "Producer id")
@_old_broker("--producer-epoch", INT16, "Producer epoch")
@_old_broker("--coordinator-epoch", _COORDINATOR_EPOCH, "Coordinator epoch")
@json_option
@with_cluster
def abort(
    cluster: Cluster,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    as_json: bool,
) -> None:
    """Abort a hanging transaction (requires administrative privileges)."""
    place = TopicPartition(topic, partition)
    if start_offset is None:
        if producer_id is None:
            raise click.UsageError(
                "The transaction to abort must be identified either with --start-offset (for brokers on 3.0 or above)"
                " or with --producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)"
            )
        if producer_epoch is None:
            raise click.UsageError("Missing required argument --producer-epoch")
        if coordinator_epoch is None:
            raise click.UsageError("Missing required argument --coordinator-epoch")
        _abort(cluster, place, producer_id, producer_epoch, coordinator_epoch, as_json)
        return
    found = open_transactions(describe_producers(cluster, [place], None))
    for one in found:
        if one.start_offset == start_offset:
            _abort(cluster, place, one.producer_id, one.producer_epoch, one.coordinator_epoch, as_json)
            return
    known = ", ".join(str(one.start_offset) for one in found)
    raise Failure(
        f"Could not find any open transactions starting at offset {start_offset} on partition {place}: "
        + (f"open ones start at {known}." if known else "none is open there.")
    )


def _abort(cluster: Cluster, place: TopicPartition, producer: int, epoch: int, coordinator_epoch: int, as_json: bool) -> None:
    """Apache's tool says nothing when it has worked; programs are told what was aborted."""
    abort_transaction(cluster, place, producer, epoch, coordinator_epoch)
    if as_json:
        whose = {"producerId": producer, "producerEpoch": epoch, "coordinatorEpoch": coordinator_epoch}
        print_json({**place._asdict(), **whose, "aborted": True})
