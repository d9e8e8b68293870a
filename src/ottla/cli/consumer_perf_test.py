"""`ottla consumer-perf-test`: how fast records are consumed. Options and lines are those of kafka-consumer-perf-test.sh.

Guards: the figures are those of the client, not of this program: records come in batches and are counted in batches.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from operator import methodcaller
from typing import TYPE_CHECKING

import click

from ottla import __version__
from ottla.cli.data_tool import Interruption, bootstrap_options, chosen_bootstrap
from ottla.cli.kafka_clients import Feed, LastMetrics, Troubles, meet, open_consumer
from ottla.cli.kafka_settings import Settings, consumer_settings, properties_in
from ottla.cli.output import progress
from ottla.cli.perf_figures import DETAIL_FIELDS, TOTAL_FIELDS, Span, detail_cells, java_date, total_cells
from ottla.cli.tool import INT32, INT64, OneLine, WholeNumber
from ottla.clock import SystemClock

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

_AT_ONCE = 10_000
_KEY = methodcaller("key")
_INTERVAL = WholeNumber(1, (1 << 63) - 1)


@click.command("consumer-perf-test", cls=OneLine)
@click.version_option(__version__, prog_name="ottla")
@bootstrap_options
@click.option("--topic", required=True, help="The topic to consume.")
@click.option("--messages", required=True, type=INT64, metavar="N", help="How many records to consume.")
@click.option("--group", metavar="GROUP", help="The consumer group; a new one where none is named.")
@click.option("--fetch-size", type=INT32, default=1024 * 1024, metavar="BYTES", help="Most of a partition in one answer.")
@click.option("--from-latest", is_flag=True, help="Begin with what comes, where the group has no offset yet.")
@click.option("--socket-buffer-size", type=INT32, default=2 * 1024 * 1024, metavar="BYTES", help="The receive buffer.")
@click.option("--consumer.config", "consumer_config", metavar="FILE", help="A properties file of the consumer.")
@click.option(
    "--timeout",
    is_flag=False,
    flag_value=10_000,
    default=10_000,
    type=INT64,
    metavar="MS",
    help="How long to wait for records.",
)
@click.option("--reporting-interval", type=_INTERVAL, default=5000, metavar="MS", help="How often --show-detailed-stats does.")
@click.option("--show-detailed-stats", is_flag=True, help="A line for each interval instead of one at the end.")
@click.option("--date-format", default="yyyy-MM-dd HH:mm:ss:SSS", metavar="PATTERN", help="How times look (SimpleDateFormat).")
@click.option("--hide-header", is_flag=True, help="No line with the names of the columns.")
@click.option("--print-metrics", is_flag=True, help="Show the client's own figures at the end.")
@click.option("--threads", type=INT32, hidden=True)
@click.option("--num-fetch-threads", type=INT32, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON objects, under the names of the columns.")
def command(
    bootstrap_server: str | None,
    broker_list: str | None,
    topic: str,
    messages: int,
    group: str | None,
    fetch_size: int,
    from_latest: bool,
    socket_buffer_size: int,
    consumer_config: str | None,
    timeout: int,
    reporting_interval: int,
    show_detailed_stats: bool,
    date_format: str,
    hide_header: bool,
    print_metrics: bool,
    threads: int | None,
    num_fetch_threads: int | None,
    as_json: bool,
) -> None:
    """Consume records as fast as it goes, and tell how fast that was."""
    try:
        java_date(0, date_format)
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint="'--date-format'") from None
    if threads is not None or num_fetch_threads is not None:
        click.echo("WARNING: option [threads] and [num-fetch-threads] have been deprecated and will be ignored by the test")
    given = properties_in(consumer_config, "--consumer.config")
    bootstrap = chosen_bootstrap(bootstrap_server, broker_list)
    given |= {
        "bootstrap.servers": bootstrap,
        "group.id": group if group is not None else f"perf-consumer-{random.randrange(100_000)}",
        "receive.buffer.bytes": str(socket_buffer_size),
        "max.partition.fetch.bytes": str(fetch_size),
        "auto.offset.reset": "latest" if from_latest else "earliest",
        "check.crcs": "false",
        "enable.auto.offset.store": "true",
    }
    if not hide_header and not as_json:
        click.echo(", ".join(DETAIL_FIELDS if show_detailed_stats else TOTAL_FIELDS))
    reporting = _Reporting(reporting_interval, date_format, show_detailed_stats, as_json)
    metrics = LastMetrics("consumer") if print_metrics else None
    with Interruption() as interruption:
        test = _Test(given, metrics, interruption)
        whole = test.run(bootstrap, topic, messages, timeout, reporting)
        if not show_detailed_stats:
            reporting.total(whole)
        if metrics is not None:
            metrics.show()
        interruption.end()


class _Reporting:
    """What is shown while it runs and at the end."""

    def __init__(self, interval_ms: int, date_format: str, detailed: bool, as_json: bool) -> None:
        self.interval_ms = interval_ms
        self._format = date_format
        self._detailed = detailed
        self._as_json = as_json

    def detail(self, part: Span, records: int, size: int) -> None:
        if self._detailed:
            self._show(DETAIL_FIELDS, detail_cells(part, records, size, self._format))

    def total(self, whole: Span) -> None:
        self._show(TOTAL_FIELDS, total_cells(whole, self._format))

    def _show(self, fields: Sequence[str], cells: Sequence[str]) -> None:
        if not self._as_json:
            click.echo(", ".join(cells))
            return
        named = zip(fields, cells, strict=True)
        click.echo(json.dumps({name: cell if name.endswith("time") else json.loads(cell) for name, cell in named}))

    def too_few(self, timeout_ms: int) -> None:
        words = (
            f"WARNING: Exiting before consuming the expected number of messages: timeout ({timeout_ms} ms) exceeded."
            " You can use the --timeout option to increase the timeout."
        )
        click.echo(words, err=self._as_json)


class _Test:
    """One run."""

    def __init__(self, given: Settings, metrics: LastMetrics | None, interruption: Interruption) -> None:
        self._interruption = interruption
        self._clock = SystemClock()
        self._troubles = Troubles()
        self._metrics = metrics
        settings = consumer_settings({"client.id": "perf-consumer-client", **given})
        callbacks = {}
        if metrics is not None:
            settings["statistics.interval.ms"] = "500"
            callbacks["stats_cb"] = metrics
        self._consumer: Consumer = open_consumer(settings, self._troubles, **callbacks)
        self._join_start = self._clock.now_ms()
        self._joining = self._joining_of_part = 0

    def run(self, bootstrap: str, topic: str, wanted: int, timeout_ms: int, reporting: _Reporting) -> Span:
        """Until enough came, or none for too long."""
        feed = Feed(self._consumer, self._troubles, self._interruption)
        meet(self._consumer, bootstrap, self._troubles, topic)
        start = self._join_start = self._clock.now_ms()
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)
        last_report = last_consumed = now = start
        records = size = told_records = told_size = 0
        with progress("records consumed", wanted) as show:
            while records < wanted and now - last_consumed <= timeout_ms and not self._interruption.asked:
                batch = feed.take(min(_AT_ONCE, wanted - records), 0.1)
                now = self._clock.now_ms()
                if not batch:
                    continue
                last_consumed = now
                records += len(batch)
                size += sum(map(len, batch)) + sum(map(len, filter(None, map(_KEY, batch))))
                show(records)
                if now - last_report >= reporting.interval_ms:
                    part = Span(last_report, now, records - told_records, size - told_size, self._joining_of_part)
                    reporting.detail(part, records, size)
                    self._joining_of_part = 0
                    last_report, told_records, told_size = now, records, size
        if records < wanted:
            reporting.too_few(timeout_ms)
        end = self._clock.now_ms()
        if self._metrics is not None:
            self._metrics.seen = False
            while not self._metrics.seen and not self._interruption.asked:
                feed.take(1, 0.1)
        self._consumer.close()
        return Span(start, end, records, size, self._joining)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        elapsed = self._clock.now_ms() - self._join_start
        self._joining += elapsed
        self._joining_of_part += elapsed

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._join_start = self._clock.now_ms()
