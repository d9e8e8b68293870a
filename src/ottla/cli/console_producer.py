"""`ottla console-producer`: lines of standard input as records. Options and defaults are those of kafka-console-producer.sh.

Guards: every line that was read is sent before the end, also after Ctrl-C; what could not be delivered is told, one line each.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ottla import __version__
from ottla.cli.console_reader import LineReader, Outgoing
from ottla.cli.data_tool import Interruption, bootstrap_options, chosen_bootstrap, say
from ottla.cli.kafka_clients import Troubles, drain, meet_topic, open_producer
from ottla.cli.kafka_settings import Settings, parse_pairs, producer_settings, properties_in
from ottla.cli.tool import INT32, INT64, Failure, OneLine
from ottla.clock import SystemClock

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_LINE_READERS = ("kafka.tools.ConsoleProducer$LineMessageReader", "org.apache.kafka.tools.LineMessageReader")
# Which property an option sets, and what holds where neither the option nor a property says anything.
_OPTIONS = {
    "timeout": ("linger.ms", "1000"),
    "request_required_acks": ("acks", "-1"),
    "request_timeout_ms": ("request.timeout.ms", "1500"),
    "message_send_max_retries": ("retries", "3"),
    "retry_backoff_ms": ("retry.backoff.ms", "100"),
    "socket_buffer_size": ("send.buffer.bytes", "102400"),
    "max_memory_bytes": ("buffer.memory", "33554432"),
    "batch_size": ("batch.size", "16384"),
    "max_partition_memory_bytes": ("batch.size", "16384"),
    "metadata_expiry_ms": ("metadata.max.age.ms", "300000"),
    "max_block_ms": ("max.block.ms", "60000"),
}


@click.command("console-producer", cls=OneLine)
@click.version_option(__version__, prog_name="ottla")
@bootstrap_options
@click.option("--topic", required=True, help="The topic to produce to.")
@click.option("--sync", is_flag=True, help="Wait for each record to be acknowledged before the next is sent.")
@click.option(
    "--compression-codec",
    is_flag=False,
    flag_value="gzip",
    metavar="[CODEC]",
    help="none, gzip, snappy, lz4 or zstd; gzip where only the option stands.",
)
@click.option("--batch-size", type=INT32, metavar="BYTES", help="Bytes of a batch (16384).")
@click.option("--message-send-max-retries", type=INT32, metavar="N", help="How often a record is tried again (3).")
@click.option("--retry-backoff-ms", type=INT64, metavar="MS", help="How long to wait before trying again (100).")
@click.option("--timeout", type=INT64, metavar="MS", help="How long a record may wait for others to fill a batch (1000).")
@click.option("--request-required-acks", metavar="ACKS", help="Which acknowledgement is asked for: -1 or all, 1, 0 (-1).")
@click.option("--request-timeout-ms", type=INT32, metavar="MS", help="How long a broker may take to acknowledge (1500).")
@click.option("--metadata-expiry-ms", type=INT64, metavar="MS", help="How old metadata may be (300000).")
@click.option("--max-block-ms", type=INT64, metavar="MS", help="How long to wait for room in the buffer (60000).")
@click.option("--max-memory-bytes", type=INT64, metavar="BYTES", help="Room for records that wait (33554432).")
@click.option("--max-partition-memory-bytes", type=INT32, metavar="BYTES", help="Another name of --batch-size, and stronger.")
@click.option("--socket-buffer-size", type=INT32, metavar="BYTES", help="The send buffer of a connection (102400).")
@click.option("--line-reader", metavar="CLASS", default=_LINE_READERS[0], help="How lines are read: Apache's line reader.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="For the line reader: parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, "
    "headers.key.separator, null.marker, ignore.error.",
)
@click.option("--reader-config", metavar="FILE", help="A properties file for the line reader; --property wins.")
@click.option("--producer-property", multiple=True, metavar="KEY=VALUE", help="A property of the producer.")
@click.option("--producer.config", "producer_config", metavar="FILE", help="Its properties file; --producer-property wins.")
def command(
    bootstrap_server: str | None,
    broker_list: str | None,
    topic: str,
    sync: bool,
    compression_codec: str | None,
    line_reader: str,
    properties: tuple[str, ...],
    reader_config: str | None,
    producer_property: tuple[str, ...],
    producer_config: str | None,
    **options: object,
) -> None:
    """Read lines from standard input and produce each as a record."""
    bootstrap = chosen_bootstrap(bootstrap_server, broker_list)
    if line_reader not in _LINE_READERS:
        raise click.BadParameter(f"{line_reader} is not here: allowed is {_LINE_READERS[0]}", param_hint="'--line-reader'")
    reader = LineReader.of(properties_in(reader_config, "--reader-config") | parse_pairs(properties))
    given = properties_in(producer_config, "--producer.config") | parse_pairs(producer_property)
    given |= {"bootstrap.servers": bootstrap, "compression.type": compression_codec or "none"}
    for name, (key, default) in _OPTIONS.items():
        if options[name] is not None:
            given[key] = str(options[name])
        else:
            given.setdefault(key, default)
    with Interruption() as interruption:
        _Sending(topic, given, sync, interruption).run(reader)
        interruption.end()


class _Sending:
    """One run: lines in, records out."""

    def __init__(self, topic: str, given: Settings, sync: bool, interruption: Interruption) -> None:
        self._topic = topic
        self._sync = sync
        self._patience = int(given["max.block.ms"]) / 1000 if given["max.block.ms"].isdigit() else 60.0
        self._interruption = interruption
        self._clock = SystemClock()
        troubles = Troubles()
        settings = producer_settings({"client.id": "console-producer", **given})
        self._producer: Producer = open_producer(settings, troubles, on_delivery=self._delivered)
        meet_topic(self._producer, given["bootstrap.servers"], troubles, topic)

    def run(self, reader: LineReader) -> None:
        """Until the input ends, or a signal comes; then send what is left."""
        try:
            for number, line in enumerate(_lines(self._interruption), 1):
                self._send(Outgoing(None, line.encode(), []) if reader.plain else reader.record(line, number))
        finally:
            drain(self._producer, self._interruption)

    def _send(self, record: Outgoing) -> None:
        deadline = self._clock.monotonic() + self._patience
        while True:
            try:
                self._producer.produce(self._topic, record.value, record.key, headers=record.headers or None)
                break
            except BufferError:
                self._producer.poll(0.1)
                if self._clock.monotonic() > deadline:
                    raise Failure(
                        f"There was no room in the buffer for {self._patience:g} s: does the cluster answer?"
                    ) from None
            except Exception as problem:  # a record that librdkafka refuses at once, such as one that is too large
                if self._sync:
                    raise Failure(f"The record cannot be sent: {problem}") from None
                self._tell_failed(record.key, record.value, str(problem))
                return
        if self._sync:
            self._producer.flush()
        else:
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        if self._sync:
            raise Failure(f"The record was not acknowledged: {error.str()}")
        self._tell_failed(message.key(), message.value(), error.str())

    def _tell_failed(self, key: bytes | None, value: bytes | None, words: str) -> None:
        key_size, value_size = ("null" if data is None else f"{len(data)} bytes" for data in (key, value))
        say(f"Error when sending message to topic {self._topic} with key: {key_size}, value: {value_size} with error: {words}")


def _lines(interruption: Interruption) -> Iterator[str]:
    """Lines without their ends, which may be any of three; with a prompt where a person types."""
    prompt = sys.stdin.isatty() and sys.stdout.isatty()
    text = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace", newline=None)
    while True:
        if prompt:
            click.echo(">", nl=False)
        line = interruption.waiting_for(text.readline)
        if not line:
            return
        yield line.removesuffix("\n")
