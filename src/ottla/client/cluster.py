"""A cluster as a client sees it: its brokers, its topics and who leads them, and a connection to whom one has to ask.

Guards: connections for short questions come from a pool, in which nobody waits for a broker that another thread asks; a
reader borrows from it for as long as it reads (`borrow`), a producer opens its own (`connect`). A question that finds nobody
fails at once; one that meets a cluster in motion is asked again until `default.api.timeout.ms` (`patiently`). May be used from
any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from ottla.client.connection import Connection
from ottla.client.errors import PASSING, AnswerLost, BrokerUnreachable, ClientError, UnknownTopic, UnsupportedByBroker, check
from ottla.client.pool import Pool
from ottla.client.settings import Address, Settings, parse
from ottla.model import NO_LEADER, Error, KafkaError, TopicPartition
from ottla.wire.apis.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.apis.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from ottla.wire.schema import Request

_R = TypeVar("_R")
_MANY_COORDINATORS = 4  # the first version of FindCoordinator that takes more than one key
_FIRST_PAUSE = 0.005
_JUST_NOW = 0.05  # seconds: one call often asks several times
_NO_AUTO_CREATION = 4  # the first version of Metadata that can ask about a topic without creating it
GROUP, TRANSACTION = 0, 1
"""What a coordinator is asked for."""


class PartitionInfo(NamedTuple):
    """Where a partition is."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()


class TopicInfo(NamedTuple):
    """A topic and its partitions, by number. `id` is sixteen bytes, all zero where the cluster has no topic ids."""

    name: str
    id: bytes
    internal: bool
    partitions: Mapping[int, PartitionInfo]


class Cluster:
    """All brokers behind the bootstrap addresses. A context: at its end the connections are closed."""

    def __init__(self, settings: Settings | Mapping[str, object] | str, *, limits: Mapping[int, int] | None = None) -> None:
        """`settings` under Kafka's names, or `HOST:PORT`; `limits` as in `Connection`."""
        self.settings = parse(settings)
        self._limits = limits or {}
        self._pool = Pool(self._open)
        self._lock = threading.Lock()
        self._nodes: dict[int, Address] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._looked: dict[str, float] = {}

    # ---- asking ----------------------------------------------------------------------------------------------------------

    def ask(self, request: Request, broker: int | None = None, *, at_least: int = 0, at_most: int = 0x7FFF) -> Any:
        """The answer of a certain broker, or of any. Its type follows from the request's."""
        if broker is None:
            connection = self._pool.take_any((*self.settings.bootstrap, *self._known().values()))
        else:
            connection = self._pool.take(self.address_of(broker), broker)
        try:
            connection.send(request, at_least=at_least, at_most=at_most)
            return _answer(connection)
        finally:
            self._pool.give_back(connection)

    def ask_each(self, requests: Mapping[int, Request], *, at_least: int = 0) -> dict[int, Any]:
        """The answers of several brokers, by their ids; all work at the same time."""
        answers = self.try_each(requests, at_least=at_least)
        for answer in answers.values():
            if isinstance(answer, BrokerUnreachable):
                raise answer
        return answers

    def try_each(self, requests: Mapping[int, Request], *, at_least: int = 0) -> dict[int, Any]:
        """The same; a broker that is lost does not take the others' answers along: `BrokerUnreachable` stands for its own.

        For what must not be asked twice. Where a broker cannot be connected to, none is asked: that raises.
        """
        addresses = {broker: self.address_of(broker) for broker in requests}
        asked: dict[int, Connection] = {}
        found: dict[int, Any] = {}
        try:
            for broker, address in addresses.items():
                asked[broker] = self._pool.take(address, broker)
            for broker, request in requests.items():
                try:
                    asked[broker].send(request, at_least=at_least)
                except BrokerUnreachable as problem:
                    found[broker] = problem
            for broker, connection in asked.items():
                if broker not in found:
                    try:
                        found[broker] = _answer(connection)
                    except BrokerUnreachable as problem:
                        found[broker] = problem
            return found
        finally:
            for connection in asked.values():
                self._pool.give_back(connection)

    def connect(self, broker: int) -> Connection:
        """A new connection to a broker, for the caller alone."""
        return self._open(self.address_of(broker), broker)

    def borrow(self, broker: int) -> Connection:
        """A connection to a broker for the caller alone, until it is given back: one that was used before, or a new one."""
        return self._pool.take(self.address_of(broker), broker, lasting=True)

    def give_back(self, connection: Connection) -> None:
        """What was borrowed."""
        self._pool.give_back(connection)

    def patiently(self, look: Callable[[], _R], within_ms: int | None = None) -> _R:
        """Try again, within the time limit, while the cluster says that it is moving what was asked for."""
        limit = self.settings.api_timeout_ms if within_ms is None else within_ms
        deadline = time.monotonic() + limit / 1000
        longest = self.settings.retry_backoff_ms / 1000
        pause = min(_FIRST_PAUSE, longest)  # what moves has often arrived after a few milliseconds: a transaction that ends
        while True:
            try:
                return look()
            except KafkaError as refusal:
                never_reached = isinstance(refusal, BrokerUnreachable) and not self._nodes
                if refusal.error not in PASSING or never_reached or time.monotonic() >= deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, longest)

    # ---- brokers and topics ----------------------------------------------------------------------------------------------

    def address_of(self, broker: int) -> Address:
        """Where a broker listens."""
        if broker not in self._known():
            self._learn(self.metadata([]))
        known = self._known()
        if broker not in known:
            alive = ", ".join(map(str, sorted(known))) or "none"
            raise BrokerUnreachable(f"Broker {broker} is not in the cluster: brokers that are alive are {alive}.")
        return known[broker]

    def metadata(self, names: Sequence[str] | None = None) -> MetadataResponse:
        """What any broker knows of these topics, or of all, as it says it. Asking does not create a topic."""
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer: MetadataResponse = self.ask(request, at_least=_NO_AUTO_CREATION)
        return answer

    def controller(self) -> int:
        """The broker that carries out what changes the cluster."""
        controller = self.metadata([]).controller_id
        if controller < 0:
            raise ClientError(Error.NOT_CONTROLLER, "The cluster has no controller at the moment: are its brokers running?")
        return controller

    def brokers(self) -> dict[int, Address]:
        """The brokers that are alive, by id."""
        self._learn(self.patiently(lambda: self.metadata([])))
        return dict(self._known())

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicInfo]:
        """These topics, or all of them, as they are now. One that does not exist raises `UnknownTopic`."""
        wanted = None if names is None else list(names)

        def look() -> dict[str, TopicInfo]:
            answer = self.metadata(wanted)
            self._learn(answer)
            found = {}
            for topic in answer.topics:
                if topic.error_code == Error.INVALID_TOPIC_EXCEPTION:
                    raise ClientError(Error.INVALID_TOPIC_EXCEPTION, f"{topic.name!r} cannot be the name of a topic.")
                if topic.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopic(f"Topic {topic.name} does not exist: check its name, or create it.")
                check(topic.error_code, f"Topic {topic.name} cannot be looked up")
                info = _info(topic)
                found[info.name] = info
            self._topics.update(found)
            self._looked.update(dict.fromkeys(found, time.monotonic()))
            return found

        return self.patiently(look)

    def topic(self, name: str, *, fresh: bool = False) -> TopicInfo:
        """One topic, as it was when it was last looked at, or as it is now."""
        known = self._topics.get(name)
        return known if known is not None and not fresh else self.topics([name])[name]

    def leaders(self, partitions: Sequence[TopicPartition], since: float | None = None) -> dict[TopicPartition, int]:
        """Who leads these partitions now, or did up to `since` seconds ago; waits until all are led."""

        def look() -> dict[TopicPartition, int]:
            found = self._seen(partitions, _JUST_NOW if since is None else since)
            found = found or self.topics({tp.topic for tp in partitions})
            leaders = {}
            for tp in partitions:
                info = found[tp.topic].partitions.get(tp.partition)
                if info is None:
                    count = len(found[tp.topic].partitions)
                    raise UnknownTopic(f"Partition {tp} does not exist: the topic has {count} partitions, from 0 on.")
                if info.leader == NO_LEADER:
                    raise ClientError(Error.LEADER_NOT_AVAILABLE, f"Partition {tp} has no leader: are its brokers running?")
                leaders[tp] = info.leader
            return leaders

        return self.patiently(look)

    def _seen(self, partitions: Sequence[TopicPartition], seconds: float) -> dict[str, TopicInfo] | None:
        """The topics of these partitions if we heard of them and of their leaders not long ago."""
        since = time.monotonic() - seconds
        found: dict[str, TopicInfo] = {}
        for tp in partitions:
            if self._looked.get(tp.topic, 0.0) < since:
                return None
            info = found[tp.topic] = self._topics[tp.topic]
            one = info.partitions.get(tp.partition)
            if one is None or one.leader == NO_LEADER:
                return None
        return found

    def by_leader(self, partitions: Sequence[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """The partitions that each broker leads."""
        grouped: dict[int, list[TopicPartition]] = {}
        for tp, leader in self.leaders(partitions).items():
            grouped.setdefault(leader, []).append(tp)
        return grouped

    def coordinator_of(self, key: str, kind: int = GROUP) -> int:
        """The broker that coordinates a group or a transactional id, whether or not it is in use."""
        return self.coordinators([key], kind)[key]

    def coordinators(self, keys: Sequence[str], kind: int = GROUP) -> dict[str, int]:
        """The same for many; in one question, where the broker takes more than one key."""

        def look() -> dict[str, int]:
            try:
                return self._find(keys, kind)
            except UnsupportedByBroker:
                if len(keys) == 1:
                    raise
                return {key: broker for one in keys for key, broker in self._find([one], kind).items()}

        return self.patiently(look) if keys else {}

    def _find(self, keys: Sequence[str], kind: int) -> dict[str, int]:
        request = FindCoordinatorRequest(key=keys[0], key_type=kind, coordinator_keys=list(keys))
        least = _MANY_COORDINATORS if len(keys) > 1 else 1 if kind else 0
        answer: FindCoordinatorResponse = self.ask(request, at_least=least)
        found = {}
        answered: list[tuple[str, Coordinator | FindCoordinatorResponse]] = [(one.key, one) for one in answer.coordinators]
        for key, one in answered or [(keys[0], answer)]:
            what = f"transactional id {key}" if kind == TRANSACTION else f"group {key}"
            check(one.error_code, f"No coordinator for {what}", one.error_message)
            with self._lock:
                self._nodes = {**self._nodes, one.node_id: Address(one.host, one.port)}
            found[key] = one.node_id
        return found

    # ---- life ------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every shared connection; the next question opens what it needs."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- inside ----------------------------------------------------------------------------------------------------------

    def _learn(self, answer: MetadataResponse) -> None:
        with self._lock:
            self._nodes = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}

    def _known(self) -> Mapping[int, Address]:
        """The brokers as they were last heard of: replaced as a whole, never changed."""
        with self._lock:
            return self._nodes

    def _open(self, address: Address, broker: int | None) -> Connection:
        return Connection(address, self.settings, limits=self._limits, broker=broker)


def _answer(connection: Connection) -> Any:
    """The answer to what was just sent."""
    try:
        return connection.receive()
    except BrokerUnreachable as problem:
        raise AnswerLost(problem.message) from None


def as_cluster(given: Cluster | Settings | Mapping[str, object] | str) -> Cluster:
    """A cluster as it was given, or of the settings that were."""
    return given if isinstance(given, Cluster) else Cluster(given)


def _info(topic: MetadataResponseTopic) -> TopicInfo:
    partitions = {
        one.partition_index: PartitionInfo(
            one.leader_id, one.leader_epoch, tuple(one.replica_nodes), tuple(one.isr_nodes), tuple(one.offline_replicas)
        )
        for one in sorted(topic.partitions, key=lambda partition: partition.partition_index)
    }
    return TopicInfo(topic.name or "", bytes(topic.topic_id), topic.is_internal, partitions)
