"""`ottla get-offsets`: flags and lines are those of Apache Kafka's kafka-get-offsets.sh. A client like any other."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import click

from ottla import __version__
from ottla.cli.output import Column, one_line, print_rows
from ottla.cli.tool import Failure, OneLine, cluster_options
from ottla.cli.topic_names import matching
from ottla.client.admin.offsets import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP, try_offsets
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.model import TopicPartition

_TIMES = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL,
    "latest-tiered": LATEST_TIERED,
}
_COLUMNS = (Column("Topic", "topic"), Column("Partition", "partition"), Column("Offset", "offset"))
_RULE = re.compile(r"(?P<topic>[^:,]*)(?::(?:(?P<one>[0-9]+)|(?P<from>[0-9]*)-(?P<to>[0-9]*))?)?")

Meant = Callable[[TopicPartition], object]


@click.command("get-offsets", cls=OneLine)
@click.version_option(__version__, prog_name="ottla")
@click.option("--topic-partitions", metavar="RULES", help="As TOPIC:N,TOPIC:FROM-TO: patterns with a number or a range.")
@click.option("--topic", help="A regular expression, several separated by commas; all topics if not given.")
@click.option("--partitions", metavar="N,N", help="Only these partitions.")
@click.option("--time", "time_", default="latest", metavar="TIME", help="latest, earliest, max-timestamp, or milliseconds.")
@click.option("--exclude-internal-topics", is_flag=True, help="Leave internal topics out.")
@cluster_options
def command(
    cluster: Cluster,
    topic_partitions: str | None,
    topic: str | None,
    partitions: str | None,
    time_: str,
    exclude_internal_topics: bool,
    as_json: bool,
) -> None:
    """Show where partitions end, where they begin, or the offset of what was written at a time or later.

    Partitions that have no such offset are left out. Flags and output are those of kafka-get-offsets.sh.
    """
    if topic_partitions is not None and (topic is not None or partitions is not None):
        raise click.UsageError("--topic-partitions cannot be used with --topic or --partitions", click.get_current_context())
    time = _time(time_)
    meant = _by_rules(topic_partitions) if topic_partitions is not None else _by_lists(topic, partitions)
    wanted = sorted(
        tp
        for name, found in cluster.topics().items()
        if not (exclude_internal_topics and found.internal)
        for tp in (TopicPartition(name, number) for number in found.partitions)
        if meant(tp)
    )
    if not wanted:
        raise Failure("No partition is meant by these filters: `ottla topics --list` shows the topics that there are.")
    rows: list[tuple[str, int, int]] = []
    for tp, found_offset in sorted(try_offsets(cluster, dict.fromkeys(wanted, time)).items(), key=lambda item: item[0]):
        if isinstance(found_offset, ClientError):
            click.echo(one_line(f"Skip getting offsets for topic-partition {tp} due to error: {found_offset}"), err=True)
        elif found_offset.offset >= 0:
            rows.append((*tp, found_offset.offset))
    print_rows(_COLUMNS, rows, as_json=as_json, lines=(f"{name}:{number}:{offset}" for name, number, offset in rows))


def _time(text: str) -> int:
    """A moment in milliseconds, or the number that stands for a place in the log."""
    try:
        return _TIMES[text] if text in _TIMES else int(text)
    except ValueError:
        raise Failure(f"--time {text} is not valid: allowed are {', '.join(_TIMES)}, and milliseconds since 1970") from None


def _by_lists(topic: str | None, partitions: str | None) -> Meant:
    name_meant = matching(topic)
    try:
        numbers = {int(part) for part in partitions.split(",") if part} if partitions else None
    except ValueError:
        raise Failure(f"--partitions {partitions} is not valid: allowed are numbers, separated by commas") from None
    return lambda tp: name_meant(tp.topic) and (numbers is None or tp.partition in numbers)


def _by_rules(text: str) -> Meant:
    """Any of the rules: a range leaves out its end, and an end that is not given does not bind."""
    rules: Sequence[Meant] = [_rule(part) for part in text.split(",") if part]
    return lambda tp: any(rule(tp) for rule in rules)


def _rule(text: str) -> Meant:
    match = _RULE.fullmatch(text)
    if match is None:
        raise Failure(f"--topic-partitions {text} is not valid: allowed is TOPIC:N or TOPIC:FROM-TO")
    name_meant = matching(match["topic"] or None, "--topic-partitions")
    if match["one"]:
        only = int(match["one"])
        return lambda tp: tp.partition == only and name_meant(tp.topic)
    first, end = int(match["from"] or 0), int(match["to"]) if match["to"] else None
    return lambda tp: tp.partition >= first and (end is None or tp.partition < end) and name_meant(tp.topic)
