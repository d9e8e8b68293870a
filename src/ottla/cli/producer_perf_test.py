"""`ottla producer-perf-test`: how fast records are produced. Options and lines are those of kafka-producer-perf-test.sh.

Guards: the figures are those of the client, not of this program: records are handed over in batches, and their latencies are
librdkafka's own, from the call to the acknowledgement. Only what was acknowledged is counted.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ottla import __version__
from ottla.cli.data_tool import HelpfulTool, Interruption
from ottla.cli.kafka_clients import LastMetrics, Troubles, kafka, meet_topic, open_producer
from ottla.cli.kafka_settings import Settings, producer_settings, properties_in
from ottla.cli.output import progress
from ottla.cli.perf_figures import Pace, Sent
from ottla.cli.tool import INT64, Failure, WholeNumber
from ottla.clock import SystemClock

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_AT_LEAST_ONE = WholeNumber(1, (1 << 63) - 1)
_PROPS = "--producer-props"
# Payloads are cut out of random letters beforehand: making new ones for each record would be what is measured.
_POOL = 1 << 20
_PAYLOADS = 10_000
_LETTERS = bytes(65 + number % 26 for number in range(256))

Payloads = Callable[[int, int], Sequence[bytes]]
"""The payloads of the records from a number on, so many."""


class _ManyProps(HelpfulTool):
    """A command whose --producer-props takes all the words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        collecting = False
        for word in args:
            if collecting and not word.startswith("--"):
                spread += [_PROPS, word]
            else:
                collecting = word == _PROPS
                if not collecting:
                    spread.append(word)
        return super().parse_args(ctx, spread)


@click.command("producer-perf-test", cls=_ManyProps)
@click.version_option(__version__, prog_name="ottla")
@click.option("--topic", required=True, help="The topic to produce to.")
@click.option("--num-records", required=True, type=_AT_LEAST_ONE, metavar="N", help="How many records to produce.")
@click.option("--throughput", required=True, type=float, metavar="N", help="At most so many records a second; -1 is no limit.")
@click.option("--record-size", type=WholeNumber(0, (1 << 31) - 1), metavar="BYTES", help="Records of so many random letters.")
@click.option("--payload-file", metavar="FILE", help="Records at random from the lines of a file.")
@click.option("--payload-monotonic", is_flag=True, help="Records that count: 0, 1, 2, ...")
@click.option("--payload-delimiter", default="\\n", metavar="REGEX", help="What separates records in the file.")
@click.option(
    _PROPS,
    "producer_props",
    multiple=True,
    metavar="KEY=VALUE ...",
    help="Properties of the producer, such as bootstrap.servers.",
)
@click.option("--producer.config", "producer_config", metavar="FILE", help="Its properties file; --producer-props wins.")
@click.option("--print-metrics", is_flag=True, help="Show the client's own figures at the end.")
@click.option(
    "--transactional-id",
    default="performance-producer-default-transactional-id",
    metavar="ID",
    help="The transactional id, with --transaction-duration-ms.",
)
@click.option("--transaction-duration-ms", type=INT64, default=0, metavar="MS", help="Commit a transaction after so long.")
@click.option("--json", "as_json", is_flag=True, help="The last line as a JSON object.")
def command(
    topic: str,
    num_records: int,
    throughput: float,
    record_size: int | None,
    payload_file: str | None,
    payload_monotonic: bool,
    payload_delimiter: str,
    producer_props: tuple[str, ...],
    producer_config: str | None,
    print_metrics: bool,
    transactional_id: str,
    transaction_duration_ms: int,
    as_json: bool,
) -> None:
    """Produce records as fast as it goes, and tell how fast that was."""
    if (record_size is not None) + (payload_file is not None) + payload_monotonic != 1:
        raise click.UsageError("Exactly one of --record-size, --payload-file and --payload-monotonic is required")
    if not producer_props and producer_config is None:
        raise click.UsageError("Either --producer-props or --producer.config must be specified")
    given = properties_in(producer_config, "--producer.config") | _parse_props(producer_props)
    if "bootstrap.servers" not in given:
        raise Failure("bootstrap.servers is missing: give it with --producer-props bootstrap.servers=HOST:PORT")
    if transaction_duration_ms > 0:
        given["transactional.id"] = transactional_id
    payloads = _payloads(record_size, payload_file, payload_delimiter, quiet=as_json)
    with Interruption() as interruption:
        test = _Test(topic, given, num_records, print_metrics, interruption, quiet=as_json)
        test.run(payloads, throughput, transaction_duration_ms / 1000)
        now = SystemClock().now_ms()
        click.echo(json.dumps(test.sent.figures(now)) if as_json else test.sent.total(now))
        if test.metrics is not None:
            test.metrics.show()
        interruption.end()


def _parse_props(pairs: Sequence[str]) -> Settings:
    for pair in pairs:
        if pair.count("=") == 0 or pair.endswith("=") or pair.startswith("="):
            raise Failure(f"Invalid property: {pair}")
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def _payloads(size: int | None, path: str | None, delimiter: str, *, quiet: bool) -> Payloads:
    chance = random.Random(0)
    if size is not None:
        letters = chance.randbytes(_POOL + size).translate(_LETTERS)
        different = max(1, min(_PAYLOADS, (_POOL << 6) // max(size, 1)))
        pool = [letters[at : at + size] for at in (chance.randrange(_POOL) for _ in range(different))]
        return lambda first, count: chance.choices(pool, k=count)
    if path is None:
        return lambda first, count: [b"%d" % number for number in range(first, first + count)]
    if not quiet:
        click.echo(f"Reading payloads from: {os.path.abspath(path)}")
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = re.split("\n" if delimiter == "\\n" else delimiter, file.read())
    except (OSError, UnicodeDecodeError) as problem:
        raise Failure(f"--payload-file {path} cannot be read: {problem}") from None
    except re.error as problem:
        raise Failure(f"--payload-delimiter {delimiter} is not a regular expression: {problem}") from None
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise Failure(f"--payload-file {path} is empty: it must hold at least one payload")
    if not quiet:
        click.echo(f"Number of messages read: {len(lines)}")
    encoded = [line.encode() for line in lines]
    return lambda first, count: chance.choices(encoded, k=count)


class _Test:
    """One run."""

    def __init__(
        self, topic: str, given: Settings, records: int, print_metrics: bool, interruption: Interruption, *, quiet: bool
    ) -> None:
        self._topic = topic
        self._records = records
        self._interruption = interruption
        self._quiet = quiet
        self._clock = SystemClock()
        self._troubles = Troubles()
        self._latencies: list[float] = []
        self._bytes = 0
        self.metrics = LastMetrics("producer") if print_metrics else None
        settings = producer_settings({"client.id": "perf-producer-client", **given})
        callbacks: dict[str, Any] = {"on_delivery": self._delivered}
        if self.metrics is not None:
            settings["statistics.interval.ms"] = "500"
            callbacks["stats_cb"] = self.metrics
        self._producer = open_producer(settings, self._troubles, **callbacks)
        meet_topic(self._producer, given["bootstrap.servers"], self._troubles, topic)
        self.sent = Sent(records, self._clock.now_ms())

    def run(self, payloads: Payloads, throughput: float, transaction: float) -> None:
        """Hand over all records, and wait until the last is acknowledged."""
        if transaction > 0:
            self._in_transaction(self._producer.init_transactions)
        begun = self._clock.monotonic()
        pace = Pace(throughput, begun)
        handed = 0
        open_since: float | None = None
        with progress("records acknowledged", self._records) as show:
            while handed < self._records and not self._interruption.asked:
                count = min(pace.step, self._records - handed)
                if transaction > 0 and open_since is None:
                    self._in_transaction(self._producer.begin_transaction)
                    open_since = self._clock.monotonic()
                self._hand_over([{"value": one} for one in payloads(handed, count)])
                handed += count
                if open_since is not None and self._clock.monotonic() - open_since >= transaction:
                    self._in_transaction(self._producer.commit_transaction)
                    open_since = None
                self._serve(0)
                while (wait := pace.ahead(handed, self._clock.monotonic())) > 0 and not self._interruption.asked:
                    self._serve(min(wait, 0.1))
                show(self.sent.count)
            if open_since is not None:
                self._in_transaction(self._producer.commit_transaction)
            while len(self._producer) and not self._interruption.asked:
                self._producer.flush(0.2)
                show(self.sent.count)
            self._serve(0)
        if self.metrics is not None:
            self.metrics.seen = False
            while not self.metrics.seen and not self._interruption.asked:
                self._serve(0.1)

    def _hand_over(self, messages: list[dict[str, Any]]) -> None:
        while messages and not self._interruption.asked:
            if self._producer.produce_batch(self._topic, messages) == len(messages):
                return
            full = kafka().KafkaError._QUEUE_FULL
            left = [one for one in messages if "_error" in one]
            for one in left:
                error = one.pop("_error")
                if error.code() != full:
                    raise Failure(f"A record cannot be sent: {error.str()}")
            messages = left
            self._serve(0.05)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._troubles.tell(f"A record was not acknowledged: {error.str()}")
            return
        self._latencies.append(message.latency() or 0.0)
        self._bytes += len(message)

    def _serve(self, seconds: float) -> None:
        """Hear of acknowledgements, count them, and show a window that is over."""
        self._producer.poll(seconds)
        latencies, size = [one * 1000 for one in self._latencies], self._bytes
        self._latencies.clear()
        self._bytes = 0
        self.sent.add(latencies, size)
        line = self.sent.window(self._clock.now_ms())
        if line is not None and not self._quiet:
            click.echo(line)

    def _in_transaction(self, step: Callable[[], None]) -> None:
        try:
            step()
        except kafka().KafkaException as problem:
            raise Failure(f"The transaction failed: {problem.args[0].str()}") from None
