"""Three Python clients behind one small face, so that a story is told once and tried with each.

Nothing is configured but what a test asks for, under Kafka's own names ("compression.type"): a client that is given no settings
runs with its defaults. An adapter only translates; when a client raises, the test sees it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import aiokafka
import confluent_kafka
import kafka

Headers = tuple[tuple[str, bytes | None], ...]
EARLIEST = 0


@dataclass(slots=True, frozen=True)
class Out:
    """A record to be sent."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None


@dataclass(slots=True, frozen=True)
class In:
    """A record as a consumer saw it."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Reader(Protocol):
    """A consumer, in a group or on its own."""

    patience: float
    """How long one poll should be while the group changes."""

    def poll(self, seconds: float) -> list[In]:
        """What has come within that time."""

    def assignment(self) -> set[tuple[str, int]]: ...
    def commit(self) -> None: ...
    def seek(self, topic: str, partition: int, offset: int) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None: ...


class Client(Protocol):
    """A client library."""

    name: str

    def produce(self, servers: str, topic: str, records: Iterable[Out], settings: Mapping[str, Any] | None = None) -> list[int]:
        """Send all, wait for all; the offsets the broker gave (-1 where it was not asked)."""

    def reader(
        self,
        servers: str,
        partitions: Sequence[tuple[str, int]],
        settings: Mapping[str, Any] | None = None,
        offset: int = EARLIEST,
    ) -> Reader:
        """A consumer of these partitions, from `offset` on, in no group."""

    def member(self, servers: str, topics: Sequence[str], group: str, settings: Mapping[str, Any] | None = None) -> Reader:
        """A consumer that subscribes, and begins where the group has not been at the start."""


def read(reader: Reader, count: int, seconds: float = 20) -> list[In]:
    """Exactly `count` records; fails with what came where that is too few or too many."""
    records: list[In] = []
    end = time.monotonic() + seconds
    while len(records) < count and time.monotonic() < end:
        records += reader.poll(0.2)
    assert len(records) == count, f"{len(records)} records came, not {count}"
    return records


class Following:
    """A consumer that is polled in a thread of its own, as members of a group are: none waits for another.

    A consumer is touched by its own thread only; what others see of it is as of the end of its last poll.
    """

    def __init__(self, open_reader: Callable[[], Reader]) -> None:
        self.records: list[In] = []
        self._reader = open_reader()
        self._assigned: set[tuple[str, int]] = set()
        self._stop = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            while not self._stop:
                self.records += self._reader.poll(self._reader.patience)
                self._assigned = self._reader.assignment()
        except BaseException as problem:
            self._failure = problem

    def assignment(self) -> set[tuple[str, int]]:
        """What the consumer has; fails where it has failed."""
        if self._failure is not None:
            raise self._failure
        return self._assigned

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop = True
        self._thread.join(10)
        self._reader.close()


class _Closes:
    patience = 0.1

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Confluent:
    """confluent-kafka, which is librdkafka."""

    name = "confluent"

    def produce(self, servers: str, topic: str, records: Iterable[Out], settings: Mapping[str, Any] | None = None) -> list[int]:
        offsets: list[int] = []
        errors: list[confluent_kafka.KafkaError] = []

        def done(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is not None:
                errors.append(error)
            else:
                offset = message.offset()
                offsets.append(-1 if offset is None or offset < 0 else offset)

        producer = confluent_kafka.Producer({"bootstrap.servers": servers, **(settings or {})})
        for one in records:
            extra = {"timestamp": one.timestamp} if one.timestamp is not None else {}
            if one.partition is not None:
                extra["partition"] = one.partition
            producer.produce(topic, one.value, one.key, headers=list(one.headers), on_delivery=done, **extra)
        left = producer.flush(30)
        if errors:
            raise confluent_kafka.KafkaException(errors[0])
        assert left == 0
        return offsets

    def reader(
        self,
        servers: str,
        partitions: Sequence[tuple[str, int]],
        settings: Mapping[str, Any] | None = None,
        offset: int = EARLIEST,
    ) -> Reader:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "unused", **(settings or {})})
        consumer.assign([confluent_kafka.TopicPartition(topic, number, offset) for topic, number in partitions])
        return _ConfluentReader(consumer)

    def member(self, servers: str, topics: Sequence[str], group: str, settings: Mapping[str, Any] | None = None) -> Reader:
        base = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer({**base, **(settings or {})})
        consumer.subscribe(list(topics))
        return _ConfluentReader(consumer)


class _ConfluentReader(_Closes):
    def __init__(self, consumer: confluent_kafka.Consumer) -> None:
        self._consumer = consumer

    def poll(self, seconds: float) -> list[In]:
        records = []
        message = self._consumer.poll(seconds)
        while message is not None:
            error = message.error()
            if error is None:
                headers = tuple(message.headers() or ())
                stamp = message.timestamp()[1]
                records.append(In(message.partition(), message.offset(), stamp, message.key(), message.value(), headers))
            elif not error.retriable() and error.code() != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise confluent_kafka.KafkaException(error)
            message = self._consumer.poll(0) if len(records) < 500 else None
        return records

    def assignment(self) -> set[tuple[str, int]]:
        return {(one.topic, one.partition) for one in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._consumer.seek(confluent_kafka.TopicPartition(topic, partition, offset))

    def close(self) -> None:
        self._consumer.close()


def _underscored(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key.replace(".", "_"): value for key, value in (settings or {}).items()}


class KafkaPython:
    """kafka-python."""

    name = "kafka-python"

    def produce(self, servers: str, topic: str, records: Iterable[Out], settings: Mapping[str, Any] | None = None) -> list[int]:
        producer = kafka.KafkaProducer(bootstrap_servers=servers, **_underscored(settings))
        try:
            sent = [
                producer.send(topic, one.value, one.key, list(one.headers), partition=one.partition, timestamp_ms=one.timestamp)
                for one in records
            ]
            return [future.get(30).offset for future in sent]
        finally:
            producer.close(10)

    def reader(
        self,
        servers: str,
        partitions: Sequence[tuple[str, int]],
        settings: Mapping[str, Any] | None = None,
        offset: int = EARLIEST,
    ) -> Reader:
        consumer = kafka.KafkaConsumer(bootstrap_servers=servers, **_underscored(settings))
        wanted = [kafka.TopicPartition(topic, number) for topic, number in partitions]
        consumer.assign(wanted)
        for one in wanted:
            consumer.seek(one, offset)
        return _KafkaPythonReader(consumer)

    def member(self, servers: str, topics: Sequence[str], group: str, settings: Mapping[str, Any] | None = None) -> Reader:
        consumer = kafka.KafkaConsumer(
            *topics, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", **_underscored(settings)
        )
        return _KafkaPythonReader(consumer)


class _KafkaPythonReader(_Closes):
    patience = 2.0  # kafka-python 3.0 loses an assignment that arrives between two polls, so there should be few of them

    def __init__(self, consumer: kafka.KafkaConsumer) -> None:
        self._consumer = consumer

    def poll(self, seconds: float) -> list[In]:
        return _flat(self._consumer.poll(timeout_ms=int(seconds * 1000)))

    def assignment(self) -> set[tuple[str, int]]:
        return {(one.topic, one.partition) for one in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit()

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._consumer.seek(kafka.TopicPartition(topic, partition), offset)

    def close(self) -> None:
        self._consumer.close()


class AioKafka:
    """aiokafka; readers live on an event loop in a thread of their own, as they would in an application."""

    name = "aiokafka"

    def produce(self, servers: str, topic: str, records: Iterable[Out], settings: Mapping[str, Any] | None = None) -> list[int]:
        async def send() -> list[int]:
            async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, **_underscored(settings)) as producer:
                sent = [
                    await producer.send(
                        topic,
                        one.value,
                        one.key,
                        partition=one.partition,
                        timestamp_ms=one.timestamp,
                        headers=list(one.headers),
                    )
                    for one in records
                ]
                results = await asyncio.gather(*sent)
                return [-1 if result is None else result.offset for result in results]

        return asyncio.run(send())

    def reader(
        self,
        servers: str,
        partitions: Sequence[tuple[str, int]],
        settings: Mapping[str, Any] | None = None,
        offset: int = EARLIEST,
    ) -> Reader:
        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, **_underscored(settings))
            wanted = [aiokafka.TopicPartition(topic, number) for topic, number in partitions]
            consumer.assign(wanted)
            await consumer.start()
            for one in wanted:
                consumer.seek(one, offset)
            return consumer

        return _AioKafkaReader(start)

    def member(self, servers: str, topics: Sequence[str], group: str, settings: Mapping[str, Any] | None = None) -> Reader:
        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                *topics, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", **_underscored(settings)
            )
            await consumer.start()
            return consumer

        return _AioKafkaReader(start)


class _AioKafkaReader(_Closes):
    def __init__(self, start: Callable[[], Coroutine[Any, Any, aiokafka.AIOKafkaConsumer]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._consumer = self._do(start())

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def poll(self, seconds: float) -> list[In]:
        return _flat(self._do(self._consumer.getmany(timeout_ms=int(seconds * 1000))))

    def assignment(self) -> set[tuple[str, int]]:
        return {(one.topic, one.partition) for one in self._consumer.assignment()}

    def commit(self) -> None:
        self._do(self._consumer.commit())

    def seek(self, topic: str, partition: int, offset: int) -> None:
        async def seek() -> None:
            self._consumer.seek(aiokafka.TopicPartition(topic, partition), offset)

        self._do(seek())

    def close(self) -> None:
        try:
            self._do(self._consumer.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()


def _flat(batches: Mapping[Any, Iterable[Any]]) -> list[In]:
    """kafka-python and aiokafka name the fields of a record alike."""
    return [
        In(one.partition, one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
        for batch in batches.values()
        for one in batch
    ]


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka())
BY_NAME = {client.name: client for client in CLIENTS}
