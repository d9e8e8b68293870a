"""`ottla verifiable-consumer`: consumes as a member of a group, and tells each step as a line of JSON. As
kafka-verifiable-consumer.sh.

Guards: offsets are committed after their records were told, and the commit is told too; the last line is written also after a
signal, when the group has been left.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ottla import __version__
from ottla.cli.data_tool import HelpfulTool, Interruption, bootstrap_options, chosen_bootstrap
from ottla.cli.dump_output import java_text
from ottla.cli.kafka_clients import Feed, Troubles, kafka, meet, open_consumer
from ottla.cli.kafka_settings import Settings, consumer_settings, properties_in
from ottla.cli.tool import INT32, WholeNumber
from ottla.cli.verifiable_producer import tell

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

_INT = WholeNumber(-(1 << 31), (1 << 31) - 1)
_AT_ONCE = 500  # max.poll.records
_FOREVER = float(1 << 31)
_RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"


@click.command("verifiable-consumer", cls=HelpfulTool)
@click.version_option(__version__, prog_name="ottla")
@bootstrap_options
@click.option("--topic", required=True, help="The topic to consume.")
@click.option("--group-id", required=True, metavar="GROUP", help="The consumer group.")
@click.option(
    "--group-protocol",
    type=click.Choice(["classic", "consumer"], case_sensitive=False),
    default="classic",
    help="The protocol of the group.",
)
@click.option("--group-remote-assignor", metavar="NAME", help="The assignor, in the consumer protocol.")
@click.option("--group-instance-id", metavar="ID", help="The name of a static member.")
@click.option("--max-messages", type=_INT, default=-1, metavar="N", help="End after so many records; -1 is never.")
@click.option("--session-timeout", type=INT32, default=30_000, metavar="MS", help="The session timeout (30000).")
@click.option("--verbose", is_flag=True, help="Tell every record.")
@click.option("--enable-autocommit", is_flag=True, help="Leave commits to the client.")
@click.option("--reset-policy", default="earliest", metavar="POLICY", help="earliest, latest or none.")
@click.option("--assignment-strategy", default=_RANGE, metavar="CLASS", help="The assignor, in the classic protocol.")
@click.option("--consumer.config", "consumer_config", metavar="FILE", help="A properties file of the consumer; options win.")
def command(
    bootstrap_server: str | None,
    broker_list: str | None,
    topic: str,
    group_id: str,
    group_protocol: str,
    group_remote_assignor: str | None,
    group_instance_id: str | None,
    max_messages: int,
    session_timeout: int,
    verbose: bool,
    enable_autocommit: bool,
    reset_policy: str,
    assignment_strategy: str,
    consumer_config: str | None,
) -> None:
    """Consume as a member of a group, and tell each step as a line of JSON."""
    bootstrap = chosen_bootstrap(bootstrap_server, broker_list)
    given = properties_in(consumer_config, "--consumer.config")
    given |= {
        "bootstrap.servers": bootstrap,
        "group.id": group_id,
        "enable.auto.commit": str(enable_autocommit).lower(),
        "enable.auto.offset.store": "true",
        "auto.offset.reset": reset_policy,
        "session.timeout.ms": str(session_timeout),
    }
    if group_protocol == "consumer":
        given["group.protocol"] = "consumer"
        given |= {"group.remote.assignor": group_remote_assignor} if group_remote_assignor else {}
    else:
        given["partition.assignment.strategy"] = assignment_strategy
    given |= {"group.instance.id": group_instance_id} if group_instance_id else {}
    with Interruption() as interruption:
        _Run(given, topic, verbose, not enable_autocommit, interruption).run(bootstrap, max_messages)
        interruption.end()


class _Run:
    """A member of a group, until it has enough."""

    def __init__(self, given: Settings, topic: str, verbose: bool, commits: bool, interruption: Interruption) -> None:
        self._topic = topic
        self._verbose = verbose
        self._commits = commits
        self._interruption = interruption
        self._troubles = Troubles()
        self._consumer: Consumer = open_consumer(consumer_settings(given), self._troubles)

    def run(self, bootstrap: str, most: int) -> None:
        meet(self._consumer, bootstrap, self._troubles)
        feed = Feed(self._consumer, self._troubles, self._interruption)
        tell("startup_complete")
        sys.stdout.flush()
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)
        consumed = 0
        try:
            while (most < 0 or consumed < most) and not self._interruption.asked:
                messages = feed.take(_AT_ONCE if most < 0 else min(_AT_ONCE, most - consumed), _FOREVER)
                if messages:
                    consumed += len(messages)
                    self._received(messages)
                sys.stdout.flush()
        finally:
            self._consumer.close()
            tell("shutdown_complete")
            sys.stdout.flush()

    def _received(self, messages: list[Message]) -> None:
        partitions: dict[tuple[str, int], list[Message]] = {}
        for message in messages:
            partitions.setdefault((message.topic() or "", message.partition() or 0), []).append(message)
        summaries = []
        for (topic, partition), records in partitions.items():
            if self._verbose:
                for one in records:
                    facts = {"key": _text(one.key()), "value": _text(one.value())}
                    tell("record_data", **facts, topic=topic, partition=partition, offset=one.offset())
            place = {"topic": topic, "partition": partition, "count": len(records)}
            summaries.append({**place, "minOffset": records[0].offset(), "maxOffset": records[-1].offset()})
        tell("records_consumed", count=len(messages), partitions=summaries)
        if self._commits:
            self._commit({place: (records[-1].offset() or 0) + 1 for place, records in partitions.items()})

    def _commit(self, offsets: dict[tuple[str, int], int]) -> None:
        package = kafka()
        told = [{"topic": topic, "partition": partition, "offset": offset} for (topic, partition), offset in offsets.items()]
        wanted = [package.TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        try:
            self._consumer.commit(offsets=wanted, asynchronous=False)
        except package.KafkaException as problem:
            tell("offsets_committed", offsets=told, error=problem.args[0].str(), success=False)
        else:
            tell("offsets_committed", offsets=told, success=True)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        tell("partitions_assigned", partitions=_places(partitions))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        tell("partitions_revoked", partitions=_places(partitions))


def _places(partitions: list[TopicPartition]) -> list[dict[str, object]]:
    return [{"topic": one.topic, "partition": one.partition} for one in partitions]


def _text(data: bytes | None) -> str | None:
    return None if data is None else java_text(data)
