"""`ottla delete-records`: flags and lines are those of Apache Kafka's kafka-delete-records.sh. A client like any other."""

from __future__ import annotations

import click

from ottla import __version__
from ottla.cli.output import Cell, Column, one_line, print_rows, progress
from ottla.cli.partition_files import read_partitions
from ottla.cli.tool import OneLine, cluster_options
from ottla.client.admin.topics import delete_records
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, UnknownTopic
from ottla.model import TopicPartition

_AT_ONCE = 1000  # partitions in one request
_COLUMNS = (
    Column("Topic", "topic"),
    Column("Partition", "partition"),
    Column("Low watermark", "lowWatermark"),
    Column("Error", "error"),
)


@click.command("delete-records", cls=OneLine)
@click.version_option(__version__, prog_name="ottla")
@click.option(
    "--offset-json-file",
    required=True,
    metavar="FILE",
    help='As {"partitions": [{"topic": "t", "partition": 0, "offset": 3}], "version": 1}; -1 deletes all.',
)
@cluster_options
def command(cluster: Cluster, offset_json_file: str, as_json: bool) -> None:
    """Delete the records of partitions before given offsets. Flags and output are those of kafka-delete-records.sh."""
    wanted = read_partitions(offset_json_file, "--offset-json-file", "offset")
    outcomes = _missing(cluster, wanted)
    there = [tp for tp in wanted if tp not in outcomes]
    with progress("deleting records", len(there)) as tell:
        for at in range(0, len(there), _AT_ONCE):
            some = there[at : at + _AT_ONCE]
            outcomes |= delete_records(cluster, {tp: int(wanted[tp]["offset"]) for tp in some})
            tell(at + len(some))
    rows: list[tuple[Cell, ...]] = []
    lines = ["Executing records delete operation", "Records delete operation completed:"]
    for tp in wanted:
        outcome = outcomes[tp]
        if isinstance(outcome, ClientError):
            rows.append((*tp, None, str(outcome)))
            lines.append(one_line(f"partition: {tp}") + "\t" + one_line(f"error: {outcome}"))
        else:
            rows.append((*tp, outcome, None))
            lines.append(one_line(f"partition: {tp}") + f"\tlow_watermark: {outcome}")
    print_rows(_COLUMNS, rows, as_json=as_json, lines=lines)


def _missing(cluster: Cluster, wanted: dict[TopicPartition, dict[str, object]]) -> dict[TopicPartition, int | ClientError]:
    """Those that do not exist: they are told, and the others are emptied all the same."""
    known = cluster.topics() if wanted else {}
    return {
        tp: UnknownTopic(f"Partition {tp} does not exist: check its topic and number.")
        for tp in wanted
        if tp.topic not in known or tp.partition not in known[tp.topic].partitions
    }
