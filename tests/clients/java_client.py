"""The Java client, unchanged, behind the face of the Python ones.

The JVM (JPype) lives in a process of its own: it brings signal handlers and threads that have no business in pytest's. What a
test holds are proxies of `multiprocessing`; a Java exception arrives as `JavaFailure` with the class's simple name. One such
process serves a whole run and is started when the first test asks for it.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from multiprocessing.managers import BaseManager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from clients.adapters import EARLIEST, In, Out
from clients.members import COOPERATIVE, Told
from support import java

_P = ParamSpec("_P")
_R = TypeVar("_R")
_OPTIONS = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xrs")


class JavaFailure(Exception):
    """A Java exception: the simple name of its class, then what it said."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(kind, words)
        self.kind = kind


@cache
def _jvm() -> Any:
    """The JVM of this process, which is the helper's, with the client's log switched off."""
    import jpype  # noqa: PLC0415 - in the helper only

    jpype.startJVM(*_OPTIONS, classpath=[f"{java.jars()}/*"], convertStrings=True)
    jpype.JClass("org.apache.log4j.LogManager").resetConfiguration()
    jpype.JClass("org.apache.log4j.LogManager").getRootLogger().setLevel(jpype.JClass("org.apache.log4j.Level").OFF)
    return jpype


def _java(name: str) -> Any:
    return _jvm().JClass(name)


def _translated(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Java's exceptions do not travel between processes; their names do."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        jpype = _jvm()
        try:
            return method(*args, **kwargs)
        except jpype.JException as problem:
            cause = problem.getCause() if problem.getClass().getSimpleName() == "ExecutionException" else problem
            raise JavaFailure(str(cause.getClass().getSimpleName()), str(cause.getMessage())) from None

    return call


def _properties(settings: Mapping[str, Any]) -> Any:
    properties = _java("java.util.Properties")()
    for key, value in settings.items():
        properties.put(key, str(value).lower() if isinstance(value, bool) else str(value))
    return properties


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _array(value: bytes | None) -> Any:
    return None if value is None else _jvm().JArray(_jvm().JByte)(value)


def _partition(topic: str, number: int) -> Any:
    return _java("org.apache.kafka.common.TopicPartition")(topic, number)


def _plain(partitions: Iterable[Any]) -> frozenset[tuple[str, int]]:
    return frozenset((str(one.topic()), int(one.partition())) for one in partitions)


class JavaConsumer:
    """org.apache.kafka.clients.consumer.KafkaConsumer; lives in the helper."""

    @_translated
    def __init__(self, settings: Mapping[str, Any]) -> None:
        kind = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        settings = {"key.deserializer": kind, "value.deserializer": kind, **settings}
        if settings.pop(COOPERATIVE, False):
            settings["partition.assignment.strategy"] = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
        self._consumer = _java("org.apache.kafka.clients.consumer.KafkaConsumer")(_properties(settings))
        self._told: list[Told] = []

    def _note(self, what: str, partitions: Any) -> None:
        if not partitions.isEmpty():
            self._told.append(Told(what, _plain(partitions)))

    @_translated
    def subscribe(self, topics: Sequence[str]) -> None:
        listener = _jvm().JProxy(
            "org.apache.kafka.clients.consumer.ConsumerRebalanceListener",
            dict={
                "onPartitionsAssigned": functools.partial(self._note, "assigned"),
                "onPartitionsRevoked": functools.partial(self._note, "revoked"),
                "onPartitionsLost": functools.partial(self._note, "lost"),
            },
        )
        self._consumer.subscribe(_java("java.util.ArrayList")(list(topics)), listener)

    @_translated
    def assign(self, partitions: Sequence[tuple[str, int]], offset: int) -> None:
        wanted = [_partition(*one) for one in partitions]
        self._consumer.assign(_java("java.util.ArrayList")(wanted))
        for one in wanted:
            self._consumer.seek(one, offset)

    @_translated
    def poll(self, seconds: float) -> list[In]:
        records = self._consumer.poll(_java("java.time.Duration").ofMillis(int(seconds * 1000)))
        return [
            In(
                int(one.partition()),
                int(one.offset()),
                int(one.timestamp()),
                _bytes(one.key()),
                _bytes(one.value()),
                tuple((str(header.key()), _bytes(header.value())) for header in one.headers()),
            )
            for one in records
        ]

    @_translated
    def assignment(self) -> set[tuple[str, int]]:
        return set(_plain(self._consumer.assignment()))

    def told(self) -> list[Told]:
        return list(self._told)

    @_translated
    def group_metadata(self) -> tuple[str, int, str, str | None]:
        """(group, generation, member, instance)."""
        found = self._consumer.groupMetadata()
        instance = found.groupInstanceId().orElse(None)
        return (
            str(found.groupId()),
            int(found.generationId()),
            str(found.memberId()),
            None if instance is None else str(instance),
        )

    @_translated
    def commit(self) -> None:
        self._consumer.commitSync()

    @_translated
    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._consumer.seek(_partition(topic, partition), offset)

    @_translated
    def close(self) -> None:
        self._consumer.close()


class JavaProducer:
    """org.apache.kafka.clients.producer.KafkaProducer; lives in the helper."""

    @_translated
    def __init__(self, settings: Mapping[str, Any]) -> None:
        kind = "org.apache.kafka.common.serialization.ByteArraySerializer"
        settings = {"key.serializer": kind, "value.serializer": kind, **settings}
        self._producer = _java("org.apache.kafka.clients.producer.KafkaProducer")(_properties(settings))

    @_translated
    def init(self) -> None:
        self._producer.initTransactions()

    @_translated
    def begin(self) -> None:
        self._producer.beginTransaction()

    @_translated
    def send(self, topic: str, records: Sequence[Out]) -> list[int]:
        """Send all, wait for all; the offsets."""
        make = _java("org.apache.kafka.clients.producer.ProducerRecord")
        header = _java("org.apache.kafka.common.header.internals.RecordHeader")
        box = _java("java.lang.Integer")
        long = _java("java.lang.Long")
        sent = [
            self._producer.send(
                make(
                    topic,
                    None if one.partition is None else box(one.partition),
                    None if one.timestamp is None else long(one.timestamp),
                    _array(one.key),
                    _array(one.value),
                    _java("java.util.ArrayList")([header(key, _array(value)) for key, value in one.headers]),
                )
            )
            for one in records
        ]
        self._producer.flush()
        return [int(future.get().offset()) for future in sent]

    @_translated
    def send_offsets(self, offsets: Mapping[tuple[str, int], int], group: tuple[str, int, str, str | None]) -> None:
        positions = _java("java.util.HashMap")()
        for (topic, number), offset in offsets.items():
            positions.put(
                _partition(topic, number), _java("org.apache.kafka.clients.consumer.OffsetAndMetadata")(_jvm().JLong(offset))
            )
        name, generation, member, instance = group
        optional = _java("java.util.Optional").ofNullable(instance)
        metadata = _java("org.apache.kafka.clients.consumer.ConsumerGroupMetadata")(name, generation, member, optional)
        self._producer.sendOffsetsToTransaction(positions, metadata)

    @_translated
    def commit(self) -> None:
        self._producer.commitTransaction()

    @_translated
    def abort(self) -> None:
        self._producer.abortTransaction()

    @_translated
    def close(self) -> None:
        self._producer.close(_java("java.time.Duration").ofSeconds(5))


class _Helper(BaseManager):
    """The process that holds the JVM."""


_Helper.register("JavaConsumer", JavaConsumer)
_Helper.register("JavaProducer", JavaProducer)


@cache
def _helper() -> Any:
    helper = _Helper(ctx=multiprocessing.get_context("spawn"))
    helper.start()
    owner = os.getpid()
    atexit.register(lambda: helper.shutdown() if os.getpid() == owner else None)
    return helper


def consumer(servers: str, settings: Mapping[str, Any]) -> Any:
    return _helper().JavaConsumer({"bootstrap.servers": servers, **settings})


def producer(servers: str, settings: Mapping[str, Any]) -> Any:
    return _helper().JavaProducer({"bootstrap.servers": servers, **settings})


class JavaReader:
    """A proxy with a reader's face."""

    patience = 0.1

    def __init__(self, proxy: Any) -> None:
        self._proxy = proxy

    def poll(self, seconds: float) -> list[In]:
        found: list[In] = self._proxy.poll(seconds)
        return found

    def assignment(self) -> set[tuple[str, int]]:
        found: set[tuple[str, int]] = self._proxy.assignment()
        return found

    def told(self) -> list[Told]:
        found: list[Told] = self._proxy.told()
        return found

    def group_metadata(self) -> Any:
        return self._proxy.group_metadata()

    def commit(self) -> None:
        self._proxy.commit()

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._proxy.seek(topic, partition, offset)

    def close(self) -> None:
        self._proxy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Java:
    """kafka-clients 3.9.1; a `Client` like those of `adapters`."""

    name = "java"

    def produce(self, servers: str, topic: str, records: Iterable[Out], settings: Mapping[str, Any] | None = None) -> list[int]:
        sender = producer(servers, settings or {})
        try:
            offsets: list[int] = sender.send(topic, list(records))
            return offsets
        finally:
            sender.close()

    def reader(
        self,
        servers: str,
        partitions: Sequence[tuple[str, int]],
        settings: Mapping[str, Any] | None = None,
        offset: int = EARLIEST,
    ) -> JavaReader:
        proxy = consumer(servers, settings or {})
        proxy.assign(list(partitions), offset)
        return JavaReader(proxy)

    def member(self, servers: str, topics: Sequence[str], group: str, settings: Mapping[str, Any] | None = None) -> JavaReader:
        proxy = consumer(servers, {"group.id": group, "auto.offset.reset": "earliest", **(settings or {})})
        proxy.subscribe(list(topics))
        return JavaReader(proxy)
