"""Producers and consumers of confluent-kafka for the commands: opened, met for the first time, and their troubles in words.

Guards: a command that cannot reach its cluster says so at once, instead of waiting for what will not come; a passing trouble is
told once and waited out, as Apache's clients do; librdkafka's own log lines never reach the terminal. The package is imported
here, when a command runs: its help works without.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.data_tool import Interruption, say
from ottla.cli.kafka_settings import NO_SUCH, Settings
from ottla.cli.tool import Failure
from ottla.clock import SystemClock

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer
    from confluent_kafka.admin._metadata import ClusterMetadata


PATIENCE = 30.0
"""Seconds in which a broker must have answered for the first time."""

_CREATION = 5.0  # seconds that a topic may take to come into being by itself
_GLANCE = 0.2
_ERROR = methodcaller("error")
BATCH = 1000
"""How many records are taken from a consumer at once."""


def kafka() -> Any:
    """The package, or what to install."""
    try:
        import confluent_kafka  # noqa: PLC0415 - help and completion do without it
    except ImportError:
        raise Failure('confluent-kafka is not installed: pip install "ottla[cli]"') from None
    return confluent_kafka


class Troubles:
    """What a client reports of its connections: each kind once on stderr, and whether no broker could be reached."""

    __slots__ = ("_told", "all_down", "last", "refused")

    def __init__(self) -> None:
        self.all_down = False
        self.last = ""
        self.refused = ""
        self._told: set[str] = set()

    def __call__(self, error: KafkaError) -> None:
        codes = kafka().KafkaError
        if error.code() == codes._ALL_BROKERS_DOWN:
            self.all_down = True
        elif error.code() in {codes._AUTHENTICATION, codes._SSL, codes.SASL_AUTHENTICATION_FAILED}:
            self.refused = _words(error)
        else:
            self.last = _words(error)

    def tell(self, words: str) -> None:
        """Say something that does not end the command, but not again and again."""
        if words not in self._told:
            self._told.add(words)
            say(words)


def _words(error: KafkaError) -> str:
    """What librdkafka says, without the names of its threads and its timings."""
    text = error.str()
    if ": " in text and "://" in text.split(": ", 1)[0]:
        text = text.split(": ", 1)[1]
    elif "/bootstrap: " in text:
        text = text.split("/bootstrap: ", 1)[1]
    return text.split(" (after ", 1)[0]


def open_producer(settings: Mapping[str, str], troubles: Troubles, **callbacks: Any) -> Producer:
    """A producer; nothing is connected yet."""
    producer: Producer = _open(kafka().Producer, dict(settings), troubles, callbacks)
    return producer


def open_consumer(settings: Mapping[str, str], troubles: Troubles, **callbacks: Any) -> Consumer:
    """A consumer; nothing is connected yet."""
    consumer: Consumer = _open(kafka().Consumer, dict(settings), troubles, callbacks)
    return consumer


def _open(kind: Callable[[dict[str, Any]], Any], settings: Settings, troubles: Troubles, extra: dict[str, Any]) -> Any:
    package = kafka()
    while True:
        try:
            return kind({"log_level": 0, **settings, "error_cb": troubles, **extra})
        except (package.KafkaException, ValueError, TypeError) as problem:
            error = problem.args[0] if problem.args else problem
            words = error.str() if isinstance(error, package.KafkaError) else str(error)
            unknown = NO_SUCH.search(words)
            if unknown is None or unknown[1] not in settings:
                raise Failure(f"The client cannot be made: {words}") from None
            del settings[unknown[1]]
            troubles.tell(f"WARNING: setting {unknown[1]} means nothing to librdkafka and is left out")


def meet(client: Producer | Consumer, bootstrap: str, troubles: Troubles, topic: str | None = None) -> ClusterMetadata:
    """What the cluster knows of a topic, or of all; a `Failure` where nobody answers."""
    package = kafka()
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE
    while True:
        try:
            found: ClusterMetadata = (
                client.list_topics(topic=topic, timeout=_GLANCE) if topic else client.list_topics(timeout=_GLANCE)
            )
            return found
        except package.KafkaException as problem:
            error = problem.args[0]
            if error.code() not in {
                package.KafkaError._TRANSPORT,
                package.KafkaError._TIMED_OUT,
                package.KafkaError._ALL_BROKERS_DOWN,
            }:
                raise Failure(f"The cluster at {bootstrap} does not answer: {_words(error)}") from None
        _serve(client)
        if troubles.refused:
            raise Failure(f"The cluster at {bootstrap} does not take us: {troubles.refused}")
        if troubles.all_down or clock.monotonic() > deadline:
            why = f" ({troubles.last})" if troubles.last else ""
            raise Failure(f"No broker can be reached at {bootstrap}{why}: is it running, and is the address right?")


def _serve(client: Producer | Consumer) -> None:
    """Let the client call back. A consumer has nothing to hand out yet: it has not subscribed."""
    client.poll(0)


def meet_topic(client: Producer, bootstrap: str, troubles: Troubles, topic: str) -> int:
    """The number of partitions of a topic that is to be written to. It may come into being by being asked for."""
    clock = SystemClock()
    deadline = clock.monotonic() + _CREATION
    while True:
        found = meet(client, bootstrap, troubles, topic).topics[topic]
        if found.partitions and found.error is None:
            return len(found.partitions)
        codes = kafka().KafkaError
        passing = {codes.UNKNOWN_TOPIC_OR_PART, codes.LEADER_NOT_AVAILABLE}
        if found.error is not None and found.error.code() not in passing:
            raise Failure(f"Topic {topic} cannot be written to: {found.error.str()}")
        if clock.monotonic() > deadline:
            raise Failure(f"Topic {topic} does not exist: create it with ottla topics --create --topic {topic}")
        client.poll(_GLANCE)


def drain(producer: Producer, interruption: Interruption) -> None:
    """Wait until what was handed over is acknowledged or given up; a signal that comes meanwhile ends the wait."""
    asked = interruption.times
    while len(producer) and interruption.times == asked:
        producer.flush(_GLANCE)
    if len(producer):
        say(f"WARNING: {len(producer)} records were not acknowledged yet: whether they were written is not known")


class Feed:
    """The records of a consumer, in batches; its troubles are told or end the command."""

    __slots__ = ("_consumer", "_interruption", "_troubles")

    def __init__(self, consumer: Consumer, troubles: Troubles, interruption: Interruption) -> None:
        self._consumer = consumer
        self._troubles = troubles
        self._interruption = interruption

    def take(self, most: int, seconds: float) -> list[Message]:
        """What there is, up to `most` records: the first is waited for, but not beyond `seconds` or a signal."""
        clock = SystemClock()
        deadline = clock.monotonic() + seconds
        while not self._interruption.asked:
            left = deadline - clock.monotonic()
            first = self._consumer.poll(max(0.0, min(_GLANCE, left)))
            if self._troubles.refused:
                raise Failure(f"The cluster does not take us: {self._troubles.refused}")
            if first is not None:
                rest = self._consumer.consume(most - 1, 0) if most > 1 else []
                batch = [first, *rest]
                if any(map(_ERROR, batch)):
                    batch = [one for one in batch if not self._is_trouble(one)]
                if batch:
                    return batch
            if left <= 0:
                break
        return []

    def _is_trouble(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return False
        codes = kafka().KafkaError
        if error.code() == codes.UNKNOWN_TOPIC_OR_PART:
            self._troubles.tell(f"WARNING: {error.str()}: waiting for it to be created")
        elif error.fatal() or error.code() in {
            codes._AUTO_OFFSET_RESET,
            codes.GROUP_AUTHORIZATION_FAILED,
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes._AUTHENTICATION,
            codes.INVALID_GROUP_ID,
            codes.INVALID_TOPIC_EXCEPTION,
            codes.INVALID_SESSION_TIMEOUT,
        }:
            raise Failure(error.str())
        else:
            self._troubles.tell(f"WARNING: {error.str()}")
        return True


class LastMetrics:
    """The last figures that librdkafka told of itself, for --print-metrics."""

    __slots__ = ("_kind", "_last", "seen")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._last = "{}"
        self.seen = False

    def __call__(self, told: str) -> None:
        self._last = told
        self.seen = True

    def show(self) -> None:
        """Names and values below each other, as Apache's tools show those of its clients."""
        told = json.loads(self._last)
        tags = f"{{client-id={told.get('client_id', '')}}}"
        rows = {
            f"{self._kind}-metrics:{name}:{tags}": value
            for name, value in sorted(told.items())
            if isinstance(value, int | float)
        }
        width = max(map(len, rows), default=0)
        click.echo(f"\n{'Metric Name':<{width}}   Value")
        for name, value in rows.items():
            click.echo(f"{name:<{width}} : {f'{value:.3f}' if isinstance(value, float) else value}")
