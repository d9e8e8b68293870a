"""`ottla console-consumer`: the records of topics on standard output. Options are those of kafka-console-consumer.sh.

Guards: of a group's offsets only those are committed whose records were written out; the end is told with the number of
records, whatever ended it. `--json` writes one object a line instead.
"""

from __future__ import annotations

import os
import random
import re
import sys
from typing import TYPE_CHECKING, BinaryIO

import click

from ottla import __version__
from ottla.cli.console_deserializers import Undecodable
from ottla.cli.console_formatters import DEFAULT, Formatter, find_formatter, json_formatter
from ottla.cli.data_tool import Interruption, say
from ottla.cli.kafka_clients import BATCH, Feed, Troubles, kafka, meet, open_consumer
from ottla.cli.kafka_settings import Settings, consumer_settings, parse_pairs, properties_in
from ottla.cli.tool import INT32, Failure, OneLine, WholeNumber
from ottla.clock import SystemClock

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_LONG = WholeNumber(-(1 << 63), (1 << 63) - 1)
_COUNT = WholeNumber(-1, (1 << 31) - 1)
_FOREVER = float(1 << 31)
_MATCH_AGAIN = 300.0  # seconds between two looks for topics that match: metadata.max.age.ms of Apache's consumer


@click.command("console-consumer", cls=OneLine)
@click.version_option(__version__, prog_name="ottla")
@click.option("--bootstrap-server", required=True, metavar="HOST:PORT[,...]", help="Brokers to ask first.")
@click.option("--topic", help="The topic to consume.")
@click.option("--include", metavar="REGEX", help="Consume all topics whose whole name matches.")
@click.option("--whitelist", metavar="REGEX", hidden=True)
@click.option("--partition", type=INT32, help="Consume only this partition, from its end unless --offset says otherwise.")
@click.option("--offset", metavar="OFFSET", help="Where to begin in a partition: a number, earliest or latest.")
@click.option("--from-beginning", is_flag=True, help="Begin with the earliest record where the group has no offset yet.")
@click.option("--max-messages", type=_COUNT, default=-1, metavar="N", help="End after so many records.")
@click.option("--timeout-ms", type=_LONG, default=-1, metavar="MS", help="End when no record came for so long.")
@click.option("--group", metavar="GROUP", help="The consumer group; a new one where none is named.")
@click.option("--isolation-level", metavar="LEVEL", help="read_uncommitted (the default) or read_committed.")
@click.option("--skip-message-on-error", is_flag=True, help="Pass over a record that cannot be shown, instead of ending.")
@click.option("--formatter", metavar="CLASS", default=DEFAULT, help="How records are shown: a stock formatter of Apache's.")
@click.option(
    "--property",
    "--formatter-property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="For the formatter: print.timestamp, print.key, print.offset, print.partition, print.headers, print.value, "
    "key.separator, line.separator, headers.separator, null.literal, key.deserializer, value.deserializer, "
    "headers.deserializer.",
)
@click.option("--formatter-config", metavar="FILE", help="A properties file for the formatter; --property wins.")
@click.option("--key-deserializer", metavar="CLASS", help="How keys are read: a stock deserializer of Apache's.")
@click.option("--value-deserializer", metavar="CLASS", help="How values are read.")
@click.option("--consumer-property", multiple=True, metavar="KEY=VALUE", help="A property of the consumer.")
@click.option("--consumer.config", "consumer_config", metavar="FILE", help="Its properties file; --consumer-property wins.")
@click.option("--enable-systest-events", is_flag=True, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Write each record as a JSON object in a line.")
def command(
    bootstrap_server: str,
    topic: str | None,
    include: str | None,
    whitelist: str | None,
    partition: int | None,
    offset: str | None,
    from_beginning: bool,
    max_messages: int,
    timeout_ms: int,
    group: str | None,
    isolation_level: str | None,
    skip_message_on_error: bool,
    formatter: str,
    properties: tuple[str, ...],
    formatter_config: str | None,
    key_deserializer: str | None,
    value_deserializer: str | None,
    consumer_property: tuple[str, ...],
    consumer_config: str | None,
    enable_systest_events: bool,
    as_json: bool,
) -> None:
    """Print the records of a topic, or of all topics that match."""
    include = include if include is not None else whitelist
    if (topic is None) == (include is None):
        raise click.UsageError("Exactly one of --include/--topic is required")
    if partition is not None and topic is None:
        raise click.UsageError("The topic is required when partition is specified")
    if partition is None and offset is not None:
        raise click.UsageError("The partition is required when offset is specified")
    if from_beginning and offset is not None:
        raise click.UsageError("Options from-beginning and offset cannot be specified together")
    given = properties_in(consumer_config, "--consumer.config") | parse_pairs(consumer_property)
    groups = {one for one in (group, given.get("group.id")) if one is not None}
    if len(groups) > 1:
        raise click.UsageError(f"The group ids provided in different places do not match: {', '.join(sorted(groups))}")
    if groups and partition is not None:
        raise click.UsageError("Options group and partition cannot be specified together")
    if from_beginning and given.get("auto.offset.reset", "earliest") != "earliest":
        reset = given["auto.offset.reset"]
        raise Failure(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', please remove one option"
        )
    start = _start(offset, from_beginning)
    if isolation_level is not None:
        given["isolation.level"] = isolation_level
    chosen = properties_in(formatter_config, "--formatter-config")
    chosen |= {"key.deserializer": key_deserializer} if key_deserializer else {}
    chosen |= {"value.deserializer": value_deserializer} if value_deserializer else {}
    chosen |= parse_pairs(properties)
    output = sys.stdout.buffer
    write = json_formatter(chosen) if as_json else find_formatter(formatter, chosen, safe=output.isatty())

    settings = _settings(bootstrap_server, given, groups.pop() if groups else None, from_beginning)
    seconds = timeout_ms / 1000 if timeout_ms >= 0 else _FOREVER
    with Interruption() as interruption:
        run = _Run(settings, bootstrap_server, interruption)
        printing = _Printing(output, write, skip_message_on_error)
        begun = False
        try:
            run.begin(topic, include, partition, start)
            begun = True
            run.print_all(printing, max_messages, seconds)
        finally:
            run.consumer.close()
            if begun:
                say(f"Processed a total of {printing.count} messages")
        if enable_systest_events:
            click.echo("shutdown_complete")
        interruption.end()


def _start(offset: str | None, from_beginning: bool) -> str | int:
    if offset is None:
        return "earliest" if from_beginning else "latest"
    if offset.lower() in {"earliest", "latest"}:
        return offset.lower()
    if not offset.isascii() or not offset.isdigit():
        raise click.UsageError(
            f"The provided offset value '{offset}' is incorrect. Valid values are 'earliest', 'latest', or a non-negative long"
        )
    return int(offset)


def _settings(bootstrap: str, given: Settings, group: str | None, from_beginning: bool) -> Settings:
    defaults = {
        "client.id": "console-consumer",
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "earliest" if from_beginning else "latest",
    }
    if group is None:  # nobody will come back to this group: no offset is worth keeping
        defaults["enable.auto.commit"] = "false"
        group = f"console-consumer-{random.randrange(100_000)}"
    return consumer_settings({**defaults, **given, "bootstrap.servers": bootstrap, "group.id": group})


class _Printing:
    """Records to bytes to the output, and how many there were."""

    __slots__ = ("_output", "_skip", "_write", "count")

    def __init__(self, output: BinaryIO, write: Formatter, skip: bool) -> None:
        self._output = output
        self._write = write
        self._skip = skip
        self.count = 0

    def __call__(self, messages: list[Message]) -> bool:
        """Write them out; whether somebody still reads."""
        shown: list[bytes] = []
        try:
            for message in messages:
                self.count += 1
                try:
                    shown.append(self._write(message))
                except Undecodable as problem:
                    self._cannot(message, problem)
        finally:  # also what came before a record that ends it
            reads = self._put(b"".join(shown))
        return reads

    def _put(self, data: bytes) -> bool:
        try:
            self._output.write(data)
            self._output.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._output.fileno())  # what is left in the buffer goes nowhere
            say("Unable to write to standard out, closing consumer.")
            return False
        return True

    def _cannot(self, message: Message, problem: Undecodable) -> None:
        words = f"{message.topic()}-{message.partition()} offset {message.offset()}: {problem}"
        if not self._skip:
            raise Failure(f"Error processing message, terminating consumer process: {words}")
        say(f"Error processing message, skipping this message: {words}")


class _Run:
    """A consumer at work."""

    def __init__(self, settings: Settings, bootstrap: str, interruption: Interruption) -> None:
        self._troubles = Troubles()
        self._bootstrap = bootstrap
        self._interruption = interruption
        self._clock = SystemClock()
        self._pattern: re.Pattern[str] | None = None
        self._matching: list[str] = []
        self._look_at = 0.0
        self._stores = settings.get("enable.auto.commit") != "false"
        self.consumer: Consumer = open_consumer(settings, self._troubles)
        self._feed = Feed(self.consumer, self._troubles, interruption)

    def begin(self, topic: str | None, include: str | None, partition: int | None, start: str | int) -> None:
        """Subscribe, or take the one partition."""
        package = kafka()
        if include is not None:
            try:
                self._pattern = re.compile(include)
            except re.error as problem:
                raise Failure(f"--include {include} is not a regular expression: {problem}") from None
            self._match()
            return
        assert topic is not None
        found = meet(self.consumer, self._bootstrap, self._troubles, topic)
        if partition is None:
            self.consumer.subscribe([topic])
            return
        partitions = found.topics[topic].partitions
        if partitions and partition not in partitions:
            raise Failure(f"Topic {topic} has no partition {partition}: it has 0 to {len(partitions) - 1}")
        special = {"earliest": package.OFFSET_BEGINNING, "latest": package.OFFSET_END}
        at = start if isinstance(start, int) else special[start]
        self.consumer.assign([package.TopicPartition(topic, partition, at)])

    def print_all(self, printing: _Printing, most: int, seconds: float) -> None:
        """Until enough were printed, none came for so long, nobody reads or a signal came."""
        while most < 0 or printing.count < most:
            left = BATCH if most < 0 else min(BATCH, most - printing.count)
            messages = self._next(left, seconds)
            if not messages or not printing(messages):
                return
            if self._stores:
                self._store(messages)

    def _next(self, most: int, seconds: float) -> list[Message]:
        deadline = self._clock.monotonic() + seconds
        while True:
            left = deadline - self._clock.monotonic()
            if self._pattern is None:
                return self._feed.take(most, max(0.0, left))
            messages = self._feed.take(most, max(0.0, min(left, self._look_at - self._clock.monotonic())))
            if messages or self._interruption.asked or self._clock.monotonic() >= deadline:
                return messages
            self._match()

    def _match(self) -> None:
        """The topics whose names match as a whole, without the internal ones: Python's regular expressions are nearer to
        Java's than those that librdkafka has."""
        assert self._pattern is not None
        names = meet(self.consumer, self._bootstrap, self._troubles).topics
        found = sorted(one for one in names if not one.startswith("__") and self._pattern.fullmatch(one))
        self._look_at = self._clock.monotonic() + (_MATCH_AGAIN if found else 1.0)
        if found and found != self._matching:
            self.consumer.subscribe(found)
        self._matching = found

    def _store(self, messages: list[Message]) -> None:
        """What is written out may be committed."""
        package = kafka()
        last = {(one.topic(), one.partition()): one for one in messages}
        try:
            for message in last.values():
                self.consumer.store_offsets(message=message)
        except package.KafkaException:
            pass  # the partition was given to somebody else meanwhile, who will begin where the last commit was
