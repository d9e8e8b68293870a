"""Members of groups with what they were told: every assignment and revocation in order, under one face for all clients.

`adapters` has consumers that only read. The stories here need more: which partitions a member had to give up, the place in the
group that a transaction's offsets are committed under, and assignors by name. Used through `Following`, one thread per member.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import aiokafka
import aiokafka.abc
import confluent_kafka
import kafka
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from clients.adapters import In

Partitions = frozenset[tuple[str, int]]
COOPERATIVE = "cooperative"
"""A setting of this module's own: the member brings its client's cooperative assignor and no other."""


class Told(NamedTuple):
    """One callback of the client: "assigned", "revoked" or "lost"."""

    what: str
    partitions: Partitions


class Member(Protocol):
    """A consumer in a group."""

    patience: float

    def poll(self, seconds: float) -> list[In]: ...
    def assignment(self) -> set[tuple[str, int]]: ...
    def told(self) -> list[Told]:
        """All callbacks so far that named a partition."""

    def commit(self) -> None: ...
    def group_metadata(self) -> Any:
        """What this client's producer wants to know of the group."""

    def close(self) -> None: ...


class Watched:
    """The part that all members share."""

    patience = 0.1

    def __init__(self) -> None:
        self._told: list[Told] = []

    def told(self) -> list[Told]:
        return list(self._told)

    def note(self, what: str, partitions: Iterable[Any]) -> None:
        named = frozenset((str(one.topic), int(one.partition)) for one in partitions)
        if named:
            self._told.append(Told(what, named))


def _common(servers: str, group: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", **settings}


class ConfluentMember(Watched):
    def __init__(self, servers: str, topics: Sequence[str], group: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        chosen = _common(servers, group, settings)
        if chosen.pop(COOPERATIVE, False):
            chosen["partition.assignment.strategy"] = "cooperative-sticky"
        self.consumer = confluent_kafka.Consumer({"log_level": 0, **chosen})
        self.consumer.subscribe(
            list(topics),
            on_assign=lambda _, partitions: self.note("assigned", partitions),
            on_revoke=lambda _, partitions: self.note("revoked", partitions),
            on_lost=lambda _, partitions: self.note("lost", partitions),
        )

    def poll(self, seconds: float) -> list[In]:
        records = []
        message = self.consumer.poll(seconds)
        while message is not None:
            error = message.error()
            if error is None:
                records.append(
                    In(message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(), ())
                )
            elif error.fatal() or error.code() == confluent_kafka.KafkaError._FATAL:
                raise confluent_kafka.KafkaException(error)
            message = self.consumer.poll(0) if len(records) < 500 else None
        return records

    def assignment(self) -> set[tuple[str, int]]:
        return {(one.topic, one.partition) for one in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def group_metadata(self) -> Any:
        return self.consumer.consumer_group_metadata()

    def close(self) -> None:
        self.consumer.close()


class _KafkaPythonListener(kafka.ConsumerRebalanceListener):
    def __init__(self, member: Watched) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._member.note("assigned", assigned)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._member.note("revoked", revoked)

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._member.note("lost", lost)


class KafkaPythonMember(Watched):
    patience = 2.0  # kafka-python 3.0 loses an assignment that arrives between two polls, so there should be few of them

    def __init__(self, servers: str, topics: Sequence[str], group: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        chosen = _common(servers, group, settings)
        if chosen.pop(COOPERATIVE, False):
            chosen["partition.assignment.strategy"] = [CooperativeStickyAssignor]
        self.consumer = kafka.KafkaConsumer(**{key.replace(".", "_"): value for key, value in chosen.items()})
        self.consumer.subscribe(list(topics), listener=_KafkaPythonListener(self))

    def poll(self, seconds: float) -> list[In]:
        return flat(self.consumer.poll(timeout_ms=int(seconds * 1000)))

    def assignment(self) -> set[tuple[str, int]]:
        return {(one.topic, one.partition) for one in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit()

    def group_metadata(self) -> Any:
        return self.consumer.group_metadata()

    def close(self) -> None:
        self.consumer.close()


class _AioKafkaListener(aiokafka.abc.ConsumerRebalanceListener):
    def __init__(self, member: Watched) -> None:
        self._member = member

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._member.note("assigned", assigned)

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._member.note("revoked", revoked)


class Loop:
    """An event loop in a thread, for a client that wants one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class AioKafkaMember(Watched):
    def __init__(self, servers: str, topics: Sequence[str], group: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        chosen = {key.replace(".", "_"): value for key, value in _common(servers, group, settings).items()}
        self._group = group
        self._loop = Loop()

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(**chosen)
            consumer.subscribe(list(topics), listener=_AioKafkaListener(self))
            await consumer.start()
            return consumer

        self.consumer = self._loop.do(start())

    def poll(self, seconds: float) -> list[In]:
        return flat(self._loop.do(self.consumer.getmany(timeout_ms=int(seconds * 1000))))

    def assignment(self) -> set[tuple[str, int]]:
        return {(one.topic, one.partition) for one in self.consumer.assignment()}

    def commit(self) -> None:
        self._loop.do(self.consumer.commit())

    def group_metadata(self) -> Any:
        return self._group

    def close(self) -> None:
        try:
            self._loop.do(self.consumer.stop())
        finally:
            self._loop.close()


def flat(batches: Mapping[Any, Iterable[Any]]) -> list[In]:
    """kafka-python and aiokafka name the fields of a record alike."""
    return [In(one.partition, one.offset, one.timestamp, one.key, one.value, ()) for batch in batches.values() for one in batch]


class Attending:
    """A member that is polled in a thread of its own, as members of a group are: none waits for another.

    The client is touched by its own thread only, commits included; what others see of it is as of the end of its last poll.
    """

    def __init__(self, open_member: Callable[[], Member]) -> None:
        self.records: list[In] = []
        self.failure: BaseException | None = None
        self._open = open_member
        self._member: Member | None = None
        self._assigned: set[tuple[str, int]] = set()
        self._told: list[Told] = []
        self._stop = False
        self._thread = threading.Thread(target=self._attend, daemon=True)
        self._thread.start()

    def _attend(self) -> None:
        try:
            member = self._member = self._open()
            while not self._stop:
                self.records += member.poll(member.patience)
                self._assigned, self._told = member.assignment(), member.told()
        except BaseException as problem:
            self.failure = problem

    def assignment(self) -> set[tuple[str, int]]:
        """What the member has; fails where it has failed."""
        if self.failure is not None:
            raise self.failure
        return self._assigned

    def told(self) -> list[Told]:
        return list(self._told)

    def close(self) -> None:
        """As the client closes: a dynamic member leaves, a static one goes silently."""
        self._stop = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the member's thread hangs"
        if self._member is not None:
            member, self._member = self._member, None
            member.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def until(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    """Wait until the condition holds; fails with what was waited for."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"after {seconds} s still not: {what}"
        time.sleep(0.02)
