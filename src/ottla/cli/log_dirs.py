"""`ottla log-dirs`: flags and lines are those of Apache Kafka's kafka-log-dirs.sh. A client like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from ottla import __version__
from ottla.cli.output import Cell, Column, compact_json, on_terminal, print_json, print_rows
from ottla.cli.tool import Failure, OneLine, cluster_options, needed
from ottla.client.admin.disks import LogDir, describe_log_dirs
from ottla.client.cluster import Cluster
from ottla.model import Error

_COLUMNS = (
    Column("Broker", "broker"),
    Column("Directory", "logDir"),
    Column("Partition", "partition"),
    Column("Size", "size"),
    Column("Lag", "offsetLag"),
    Column("State", "state"),
)


@click.command("log-dirs", cls=OneLine)
@click.version_option(__version__, prog_name="ottla")
@click.option("--describe", is_flag=True, help="Show the directories and what lies in them.")
@click.option("--topic-list", metavar="T,T", help="Only these topics.")
@click.option("--broker-list", metavar="ID,ID", help="Only these brokers.")
@cluster_options
def command(cluster: Cluster, describe: bool, topic_list: str | None, broker_list: str | None, as_json: bool) -> None:
    """Show what lies in the log directories of brokers. Flags and output are those of kafka-log-dirs.sh."""
    needed(describe=describe or None)
    brokers = _brokers(cluster, broker_list)
    topics = None if not topic_list else set(topic_list.split(","))
    found = describe_log_dirs(cluster, brokers)
    if as_json:
        print_json(_object(found, topics))
    elif on_terminal():
        print_rows(_COLUMNS, _rows(found, topics))
    else:
        click.echo("Querying brokers for log directories information")
        click.echo(f"Received log directory information from brokers {','.join(map(str, brokers))}")
        click.echo(compact_json(_object(found, topics)))


def _brokers(cluster: Cluster, text: str | None) -> list[int]:
    alive = sorted(cluster.brokers())
    if not text:
        return alive
    try:
        wanted = [int(part) for part in text.split(",") if part]
    except ValueError:
        raise Failure(f"--broker-list {text} is not valid: allowed are ids, separated by commas") from None
    unknown = [broker for broker in wanted if broker not in alive]
    if unknown:
        gone, there = (",".join(map(str, brokers)) for brokers in (unknown, alive))
        raise Failure(f"--broker-list names brokers that are not alive: {gone}; there are {there}.")
    return sorted(set(wanted))


def _object(found: Mapping[int, Sequence[LogDir]], topics: set[str] | None) -> dict[str, Any]:
    return {
        "brokers": [
            {
                "broker": broker,
                "logDirs": [
                    {
                        "partitions": [
                            {
                                "partition": str(replica.partition),
                                "size": replica.size,
                                "offsetLag": replica.lag,
                                "isFuture": replica.future,
                            }
                            for replica in one.replicas
                            if topics is None or replica.partition.topic in topics
                        ],
                        "error": None if one.error == Error.NONE else one.error.name,
                        "logDir": one.path,
                    }
                    for one in directories
                ],
            }
            for broker, directories in found.items()
        ],
        "version": 1,
    }


def _rows(found: Mapping[int, Sequence[LogDir]], topics: set[str] | None) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for broker, directories in found.items():
        for one in directories:
            if one.error != Error.NONE:
                rows.append((broker, one.path, None, None, None, one.error.name))
            rows += [
                (broker, one.path, str(replica.partition), replica.size, replica.lag, "future" if replica.future else "current")
                for replica in sorted(one.replicas)
                if topics is None or replica.partition.topic in topics
            ]
    return rows
