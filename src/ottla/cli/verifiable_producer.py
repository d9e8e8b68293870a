"""`ottla verifiable-producer`: numbers as records, and each step as a line of JSON. As kafka-verifiable-producer.sh.

Guards: a line says what happened, in the order in which it did; the last two are written also after a signal.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from ottla import __version__
from ottla.cli.data_tool import HelpfulTool, Interruption, bootstrap_options, chosen_bootstrap
from ottla.cli.kafka_clients import Troubles, drain, meet, open_producer
from ottla.cli.kafka_settings import producer_settings, properties_in
from ottla.cli.output import compact_json
from ottla.cli.perf_figures import Pace
from ottla.cli.tool import WholeNumber
from ottla.clock import SystemClock

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_INT = WholeNumber(-(1 << 31), (1 << 31) - 1)
_LONG = WholeNumber(-(1 << 63), (1 << 63) - 1)
_POSITIVE = WholeNumber(1, (1 << 31) - 1)
# The exceptions that Apache's producer raises, by librdkafka's names for the errors; readers of these lines compare the class.
_EXCEPTIONS: Final = {
    "_MSG_TIMED_OUT": "TimeoutException",
    "_TIMED_OUT": "TimeoutException",
    "REQUEST_TIMED_OUT": "TimeoutException",
    "_UNKNOWN_TOPIC": "UnknownTopicOrPartitionException",
    "UNKNOWN_TOPIC_OR_PART": "UnknownTopicOrPartitionException",
    "TOPIC_EXCEPTION": "InvalidTopicException",
    "_INVALID_ARG": "InvalidTopicException",
    "MSG_SIZE_TOO_LARGE": "RecordTooLargeException",
    "NOT_ENOUGH_REPLICAS": "NotEnoughReplicasException",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "NotEnoughReplicasAfterAppendException",
    "NOT_LEADER_FOR_PARTITION": "NotLeaderOrFollowerException",
    "TOPIC_AUTHORIZATION_FAILED": "TopicAuthorizationException",
    "INVALID_RECORD": "InvalidRecordException",
}


def tell(name: str, **facts: object) -> None:
    """A line of JSON: when, what, and what there is to say about it."""
    sys.stdout.write(compact_json({"timestamp": SystemClock().now_ms(), "name": name, **facts}) + "\n")


@click.command("verifiable-producer", cls=HelpfulTool)
@click.version_option(__version__, prog_name="ottla")
@bootstrap_options
@click.option("--topic", required=True, help="The topic to produce to.")
@click.option("--max-messages", type=_INT, default=-1, metavar="N", help="End after so many records; -1 is never.")
@click.option("--throughput", type=_INT, default=-1, metavar="N", help="At most so many records a second; -1 is no limit.")
@click.option("--acks", type=WholeNumber(-1, 1), default=-1, metavar="ACKS", help="Which acknowledgement is asked for.")
@click.option("--producer.config", "producer_config", metavar="FILE", help="A properties file of the producer.")
@click.option("--message-create-time", type=_LONG, default=-1, metavar="MS", help="The timestamp of the first record.")
@click.option("--value-prefix", type=_INT, metavar="N", help="Put this number and a dot before each value.")
@click.option("--repeating-keys", type=_POSITIVE, metavar="N", help="Give records keys: 0 to N-1, again and again.")
def command(
    bootstrap_server: str | None,
    broker_list: str | None,
    topic: str,
    max_messages: int,
    throughput: int,
    acks: int,
    producer_config: str | None,
    message_create_time: int,
    value_prefix: int | None,
    repeating_keys: int | None,
) -> None:
    """Produce numbers, and tell each step as a line of JSON."""
    bootstrap = chosen_bootstrap(bootstrap_server, broker_list)
    given = {"bootstrap.servers": bootstrap, "acks": str(acks), "retries": "0"}
    given |= properties_in(producer_config, "--producer.config")
    prefix = "" if value_prefix is None else f"{value_prefix}."
    with Interruption() as interruption:
        run = _Run(topic, interruption, message_create_time)
        troubles = Troubles()
        producer = open_producer(producer_settings(given), troubles, on_delivery=run.delivered)
        meet(producer, given["bootstrap.servers"], troubles)
        began = SystemClock().monotonic()
        tell("startup_complete")
        sys.stdout.flush()
        run.produce(producer, max_messages, Pace(throughput, began), prefix, repeating_keys)
        drain(producer, interruption)
        elapsed = max(SystemClock().monotonic() - began, 0.001)
        tell("shutdown_complete")
        tell("tool_data", sent=run.sent, acked=run.acked, target_throughput=throughput, avg_throughput=run.acked / elapsed)
        sys.stdout.flush()
        interruption.end()


class _Run:
    """What was sent, and what came of it."""

    def __init__(self, topic: str, interruption: Interruption, create_time: int) -> None:
        self.sent = 0
        self.acked = 0
        self._topic = topic
        self._interruption = interruption
        self._clock = SystemClock()
        self._create_time = create_time
        self._started = self._clock.now_ms()

    def produce(self, producer: Producer, most: int, pace: Pace, prefix: str, keys: int | None) -> None:
        while (most < 0 or self.sent < most) and not self._interruption.asked:
            key = None if keys is None else str(self.sent % keys)
            self._send(producer, key, f"{prefix}{self.sent}")
            self.sent += 1
            producer.poll(0)
            while (wait := pace.ahead(self.sent, self._clock.monotonic())) > 0 and not self._interruption.asked:
                producer.poll(min(wait, 0.1))
                sys.stdout.flush()

    def _send(self, producer: Producer, key: str | None, value: str) -> None:
        while True:
            try:
                producer.produce(self._topic, value, key, timestamp=max(0, self._create_time))  # 0 is now
                break
            except BufferError:
                producer.poll(0.1)
            except Exception as problem:  # a record that librdkafka refuses at once
                self._failed(key, value, problem.args[0] if problem.args else problem)
                break
        if self._create_time >= 0:
            self._create_time += self._clock.now_ms() - self._started

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        key, value = _text(message.key()), _text(message.value())
        if error is not None:
            self._failed(key, value, error)
            return
        self.acked += 1
        place = {"offset": message.offset(), "topic": message.topic(), "partition": message.partition()}
        tell("producer_send_success", key=key, value=value, **place)

    def _failed(self, key: str | None, value: str | None, error: KafkaError | Exception) -> None:
        name = "" if isinstance(error, Exception) else error.name()
        kind = f"errors.{_EXCEPTIONS[name]}" if name in _EXCEPTIONS else "KafkaException"
        words = str(error) if isinstance(error, Exception) else error.str()
        exception = f"class org.apache.kafka.common.{kind}"
        tell("producer_send_error", topic=self._topic, key=key, value=value, exception=exception, message=words)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")
