"""`ottla leader-election`: flags and lines are those of Apache Kafka's kafka-leader-election.sh. A client like any other."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ottla import __version__
from ottla.cli.output import Column, one_line, print_rows
from ottla.cli.partition_files import read_partitions
from ottla.cli.tool import INT32, Failure, OneLine, cluster_options_with
from ottla.client.admin.topics import PREFERRED, UNCLEAN, elect_leaders
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.model import Error, TopicPartition

_KINDS = {"PREFERRED": PREFERRED, "UNCLEAN": UNCLEAN}
_COLUMNS = (Column("Topic", "topic"), Column("Partition", "partition"), Column("Result", "result"))


@click.command("leader-election", cls=OneLine)
@click.version_option(__version__, prog_name="ottla")
@click.option(
    "--election-type",
    required=True,
    type=click.Choice(["preferred", "unclean"], case_sensitive=False),
    help="preferred: the first replica, where it is in sync; unclean: any replica, where there is no leader.",
)
@click.option("--topic", help="One topic; needs --partition.")
@click.option("--partition", type=INT32, help="One partition of --topic.")
@click.option("--all-topic-partitions", is_flag=True, help="All partitions that are not led as they should be.")
@click.option("--path-to-json-file", metavar="FILE", help='As {"partitions": [{"topic": "t", "partition": 0}]}.')
@cluster_options_with("--admin.config")
def command(
    cluster: Cluster,
    election_type: str,
    topic: str | None,
    partition: int | None,
    all_topic_partitions: bool,
    path_to_json_file: str | None,
    as_json: bool,
) -> None:
    """Choose leaders anew. Flags and output are those of kafka-leader-election.sh."""
    if [topic is not None, all_topic_partitions, path_to_json_file is not None].count(True) != 1:
        raise click.UsageError(
            "One and only one of --topic, --all-topic-partitions and --path-to-json-file is needed", click.get_current_context()
        )
    if (topic is None) != (partition is None):
        raise click.UsageError("--topic and --partition go together", click.get_current_context())
    wanted: list[TopicPartition] | None = None
    if topic is not None and partition is not None:
        wanted = [TopicPartition(topic, partition)]
    elif path_to_json_file is not None:
        wanted = list(read_partitions(path_to_json_file, "--path-to-json-file"))
    kind = election_type.upper()
    outcomes = elect_leaders(cluster, _KINDS[kind], wanted)
    _print(kind, dict(sorted(outcomes.items())), as_json)
    failed = sum(1 for refused in outcomes.values() if _failed(refused))
    if failed:
        raise Failure(f"{failed} replica(s) could not be elected: are the brokers that should lead in sync and running?")


def _failed(refused: ClientError | None) -> bool:
    return refused is not None and refused.error != Error.ELECTION_NOT_NEEDED


def _print(kind: str, outcomes: Mapping[TopicPartition, ClientError | None], as_json: bool) -> None:
    done = [str(tp) for tp, refused in outcomes.items() if refused is None]
    needless = [str(tp) for tp, refused in outcomes.items() if refused is not None and not _failed(refused)]
    lines = []
    if done:
        lines.append(f"Successfully completed leader election ({kind}) for partitions {', '.join(done)}")
    if needless:
        lines.append(f"Valid replica already elected for partitions {', '.join(needless)}")
    for tp, refused in outcomes.items():
        if _failed(refused):
            why = str(refused).removeprefix(f"No leader was elected for partition {tp}: ")
            lines.append(one_line(f"Error completing leader election ({kind}) for partition: {tp}: {why}"))
    rows = [(*tp, "ELECTED" if refused is None else refused.error.name) for tp, refused in outcomes.items()]
    print_rows(_COLUMNS, rows, as_json=as_json, lines=lines)
