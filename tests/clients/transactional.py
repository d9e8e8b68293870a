"""Transactional producers of all clients behind one face, as in `adapters`: a story is told once and tried with each.

A producer that was fenced says so in each client's own words; `fenced` knows them all. Everything else that a client raises,
the test sees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest

from clients import java_client
from clients.adapters import CLIENTS, Client, Out
from clients.java_client import Java, JavaFailure
from clients.members import AioKafkaMember, ConfluentMember, KafkaPythonMember, Loop, Member
from support import java

Offsets = Mapping[tuple[str, int], int]


class Transactor(Protocol):
    """A producer with a transactional id, initialised."""

    def begin(self) -> None: ...
    def send(self, topic: str, records: Sequence[Out]) -> None:
        """Send all and wait until the broker has them."""

    def send_offsets(self, offsets: Offsets, member: Member) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None:
        """Whatever state it is in; a transaction that is open stays so."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None: ...


class _Closes:
    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class ConfluentTransactor(_Closes):
    def __init__(self, servers: str, transactional_id: str, settings: Mapping[str, Any]) -> None:
        base = {"bootstrap.servers": servers, "transactional.id": transactional_id, "log_level": 0, "linger.ms": 0}
        self._producer = confluent_kafka.Producer({**base, **settings})
        self._producer.init_transactions(30)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, records: Sequence[Out]) -> None:
        errors: list[confluent_kafka.KafkaError] = []

        def done(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
            if error is not None:
                errors.append(error)

        for one in records:
            extra = {"partition": one.partition} if one.partition is not None else {}
            self._producer.produce(topic, one.value, one.key, on_delivery=done, **extra)
        left = self._producer.flush(30)
        if errors:
            raise confluent_kafka.KafkaException(errors[0])
        assert left == 0

    def send_offsets(self, offsets: Offsets, member: Member) -> None:
        positions = [confluent_kafka.TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        self._producer.send_offsets_to_transaction(positions, member.group_metadata(), 30)

    def commit(self) -> None:
        self._producer.commit_transaction(30)

    def abort(self) -> None:
        self._producer.abort_transaction(30)

    def close(self) -> None:
        self._producer.purge()
        with contextlib.suppress(confluent_kafka.KafkaException):  # it says once more what it said before
            self._producer.flush(1)


class KafkaPythonTransactor(_Closes):
    def __init__(self, servers: str, transactional_id: str, settings: Mapping[str, Any]) -> None:
        chosen = {key.replace(".", "_"): value for key, value in settings.items()}
        self._producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id, **chosen)
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, records: Sequence[Out]) -> None:
        for future in [self._producer.send(topic, one.value, one.key, partition=one.partition) for one in records]:
            future.get(30)

    def send_offsets(self, offsets: Offsets, member: Member) -> None:
        positions = {
            kafka.TopicPartition(topic, number): kafka.OffsetAndMetadata(offset, "", -1)
            for (topic, number), offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(positions, member.group_metadata())

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(0)


class AioKafkaTransactor(_Closes):
    def __init__(self, servers: str, transactional_id: str, settings: Mapping[str, Any]) -> None:
        chosen = {key.replace(".", "_"): value for key, value in settings.items()}
        self._loop = Loop()

        async def start() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id, **chosen)
            await producer.start()
            return producer

        self._producer = self._loop.do(start())

    def begin(self) -> None:
        self._loop.do(self._producer.begin_transaction())

    def send(self, topic: str, records: Sequence[Out]) -> None:
        async def send() -> None:
            sent = [await self._producer.send(topic, one.value, one.key, partition=one.partition) for one in records]
            for future in sent:
                await future

        self._loop.do(send())

    def send_offsets(self, offsets: Offsets, member: Member) -> None:
        positions = {aiokafka.TopicPartition(topic, number): offset for (topic, number), offset in offsets.items()}
        self._loop.do(self._producer.send_offsets_to_transaction(positions, member.group_metadata()))

    def commit(self) -> None:
        self._loop.do(self._producer.commit_transaction())

    def abort(self) -> None:
        self._loop.do(self._producer.abort_transaction())

    def close(self) -> None:
        with contextlib.suppress(aiokafka.errors.KafkaError):
            self._loop.do(self._producer.stop())
        self._loop.close()


class JavaTransactor(_Closes):
    def __init__(self, servers: str, transactional_id: str, settings: Mapping[str, Any]) -> None:
        self._producer = java_client.producer(servers, {"transactional.id": transactional_id, **settings})
        self._producer.init()

    def begin(self) -> None:
        self._producer.begin()

    def send(self, topic: str, records: Sequence[Out]) -> None:
        self._producer.send(topic, list(records))

    def send_offsets(self, offsets: Offsets, member: Member) -> None:
        self._producer.send_offsets(dict(offsets), member.group_metadata())

    def commit(self) -> None:
        self._producer.commit()

    def abort(self) -> None:
        self._producer.abort()

    def close(self) -> None:
        self._producer.close()


def fenced(problem: BaseException) -> bool:
    """Whether a client says that another producer with its transactional id has taken over: for good, no retry helps."""
    if isinstance(problem, confluent_kafka.KafkaException):
        error = problem.args[0]
        # In a delivery report librdkafka says "purged" of records it did not try; the fatal error comes from the API calls.
        return bool(error.fatal()) and error.code() in (
            confluent_kafka.KafkaError._FENCED,
            confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH,
            confluent_kafka.KafkaError.PRODUCER_FENCED,
        )
    if isinstance(problem, JavaFailure):
        return problem.kind in ("ProducerFencedException", "InvalidProducerEpochException")
    return isinstance(problem, (kafka.errors.ProducerFencedError, aiokafka.errors.ProducerFenced))


_TRANSACTORS: dict[str, Callable[[str, str, Mapping[str, Any]], Transactor]] = {
    "confluent": ConfluentTransactor,
    "kafka-python": KafkaPythonTransactor,
    "aiokafka": AioKafkaTransactor,
    "java": JavaTransactor,
}
_MEMBERS: dict[str, Callable[[str, Sequence[str], str, Mapping[str, Any]], Member]] = {
    "confluent": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AioKafkaMember,
    "java": lambda servers, topics, group, settings: Java().member(servers, topics, group, settings),
}


def transactor(client: Client, servers: str, transactional_id: str, settings: Mapping[str, Any] | None = None) -> Transactor:
    return _TRANSACTORS[client.name](servers, transactional_id, settings or {})


def member(
    client: Client, servers: str, topics: Sequence[str], group: str, settings: Mapping[str, Any] | None = None
) -> Member:
    """A member of a group that remembers what it was told."""
    return _MEMBERS[client.name](servers, topics, group, settings or {})


def committed_reader(client: Client, servers: str, partitions: Sequence[tuple[str, int]]) -> Any:
    """A consumer outside of groups that reads what was committed."""
    return client.reader(servers, partitions, {"isolation.level": "read_committed"})


def uncommitted_reader(client: Client, servers: str, partitions: Sequence[tuple[str, int]]) -> Any:
    """A consumer outside of groups that reads everything; librdkafka must be told, the others do it by default."""
    return client.reader(servers, partitions, {"isolation.level": "read_uncommitted"})


FOUR = [*CLIENTS, pytest.param(Java(), marks=pytest.mark.java)]
"""All clients, as parameters of a fixture."""


def everyone() -> list[Client]:
    """All clients that this machine has."""
    return [*CLIENTS, *([] if java.missing() else [Java()])]
