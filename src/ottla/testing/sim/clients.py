"""Clients of the simulation: they speak the wire protocol over links and do what Apache Kafka's clients do, as small as can be.

Everything that they ask and are told goes into the history. They never give up: what a client began before the end of a run's
load, it brings to an end after the cluster is healed, or the run has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from ottla.model import BrokerUnavailable, Error, KafkaError, TopicPartition
from ottla.network.link import Link
from ottla.records.batch import Record, build
from ottla.testing.sim.cluster import Cluster
from ottla.testing.sim.history import Acknowledged, Attempted, Event, Refused
from ottla.testing.sim.loop import Process, SimClock
from ottla.wire.apis.groups import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.apis.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.apis.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.apis.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.frame import decode_response, encode_request
from ottla.wire.schema import Request, Response

_R = TypeVar("_R", bound=Response)

CONNECT_TIMEOUT = 2.0
REQUEST_TIMEOUT = 5.0
BACK_OFF = 0.1
ACKS_ALL = -1
_GROUP, _TRANSACTION = 0, 1

PASSING = frozenset(
    {
        Error.LEADER_NOT_AVAILABLE,
        Error.NOT_LEADER_OR_FOLLOWER,
        Error.UNKNOWN_TOPIC_OR_PARTITION,
        Error.REQUEST_TIMED_OUT,
        Error.BROKER_NOT_AVAILABLE,
        Error.REPLICA_NOT_AVAILABLE,
        Error.NETWORK_EXCEPTION,
        Error.COORDINATOR_LOAD_IN_PROGRESS,
        Error.COORDINATOR_NOT_AVAILABLE,
        Error.NOT_COORDINATOR,
        Error.NOT_ENOUGH_REPLICAS,
        Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Error.NOT_CONTROLLER,
        Error.KAFKA_STORAGE_ERROR,
        Error.FENCED_LEADER_EPOCH,
        Error.UNKNOWN_LEADER_EPOCH,
        Error.OFFSET_NOT_AVAILABLE,
        Error.UNKNOWN_TOPIC_ID,
        Error.CONCURRENT_TRANSACTIONS,
        Error.LISTENER_NOT_FOUND,
    }
)
"""Errors after which Apache Kafka's clients try again."""


def error_of(code: int) -> Error:
    return Error(code)


class Client:
    """A process that asks brokers."""

    def __init__(self, cluster: Cluster, name: str, random: Random) -> None:
        self.cluster = cluster
        self.name = name
        self.random = random
        self.process = Process(name, name)
        self.clock = SimClock(cluster.loop)
        self.leaders: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self.controller = -1
        self._nodes: dict[int, tuple[str, int]] = {}
        self._links: dict[tuple[str, int], Link] = {}
        self._dialling: dict[tuple[str, int], asyncio.Lock] = {}
        self._dial = cluster.network.dial_from(self.process)
        self._correlation_id = 0
        self._coordinators: dict[tuple[int, str], int] = {}

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something as this client."""
        return self.cluster.loop.create_task(work, context=self.process.context)

    @property
    def now(self) -> float:
        return self.cluster.loop.time()

    def note(self, event: Event) -> None:
        self.cluster.history.add(event)

    # ---- asking ----------------------------------------------------------------------------------------------------------

    async def ask(
        self,
        broker: int | None,
        request: Request,
        answer: type[_R],
        version: int | None = None,
        timeout: float = REQUEST_TIMEOUT,
    ) -> _R:
        """The answer of a broker, or of any. Raises BrokerUnavailable."""
        return await self.ask_over(await self.link_to(broker), request, answer, version, timeout)

    async def ask_over(
        self,
        link: Link,
        request: Request,
        answer: type[_R],
        version: int | None = None,
        timeout: float = REQUEST_TIMEOUT,
    ) -> _R:
        """The answer that comes over one connection. Raises BrokerUnavailable."""
        if version is None:
            version = request.max_version
        self._correlation_id += 1
        frame = encode_request(request, version, self._correlation_id, self.name)
        data = await link.exchange(frame, timeout)
        _, response = decode_response(answer, bytes(data), version)
        assert isinstance(response, answer)
        return response

    async def link_to(self, broker: int | None) -> Link:
        """One connection to each broker: what is sent at the same time goes over it in its order. Raises BrokerUnavailable."""
        if broker is None:
            address = self.random.choice(self.cluster.bootstrap)
        elif broker in self._nodes:
            address = self._nodes[broker]
        else:
            raise BrokerUnavailable(f"broker {broker} is not known")
        async with self._dialling.setdefault(address, asyncio.Lock()):
            link = self._links.get(address)
            if link is None or link.closed:
                link = self._links[address] = await self._dial(*address, CONNECT_TIMEOUT)
            return link

    async def back_off(self) -> None:
        await asyncio.sleep(self.random.uniform(BACK_OFF / 2, BACK_OFF * 2))

    async def refresh(self, topics: Iterable[str]) -> None:
        """Learn who leads; nothing is learnt where nobody can be asked."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in topics], allow_auto_topic_creation=False)
        try:
            answer = await self.ask(None, request, MetadataResponse)
        except BrokerUnavailable:
            return
        self._nodes.update({one.node_id: (one.host, one.port) for one in answer.brokers})
        self.controller = answer.controller_id
        for topic in answer.topics:
            for one in topic.partitions:
                if topic.name is not None and one.error_code == Error.NONE and one.leader_id >= 0:
                    tp = TopicPartition(topic.name, one.partition_index)
                    if one.leader_epoch >= self.epochs.get(tp, -1):  # a broker that has not heard yet is not believed
                        self.leaders[tp], self.epochs[tp] = one.leader_id, one.leader_epoch

    async def leader_of(self, tp: TopicPartition) -> int:
        """Who leads; asked for as long as it takes."""
        while tp not in self.leaders:
            await self.refresh([tp.topic])
            if tp not in self.leaders:
                await self.back_off()
        return self.leaders[tp]

    async def coordinator_of(self, key: str, kind: int) -> int:
        """Who coordinates a group (0) or a transactional id (1); asked for as long as it takes."""
        while (kind, key) not in self._coordinators:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            try:
                found = (await self.ask(None, request, FindCoordinatorResponse)).coordinators[0]
            except BrokerUnavailable:
                await self.back_off()
                continue
            if found.error_code == Error.NONE:
                self._nodes[found.node_id] = (found.host, found.port)
                self._coordinators[kind, key] = found.node_id
            else:
                await self.back_off()
        return self._coordinators[kind, key]

    def forget_coordinator(self, key: str, kind: int) -> None:
        self._coordinators.pop((kind, key), None)

    async def group_coordinator(self, group: str) -> int:
        return await self.coordinator_of(group, _GROUP)

    async def transaction_coordinator(self, transactional_id: str) -> int:
        return await self.coordinator_of(transactional_id, _TRANSACTION)


class Admin(Client):
    """Makes topics."""

    async def create_topic(self, name: str, partitions: int, replicas: int, config: dict[str, str] | None = None) -> None:
        """Create a topic and wait until all of it is led."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()],
        )
        while True:
            await self.refresh([name])
            try:
                controller = self.controller if self.controller >= 0 else None
                answer = await self.ask(controller, CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
            except BrokerUnavailable:
                await self.back_off()
                continue
            error = error_of(answer.topics[0].error_code)
            if error in (Error.NONE, Error.TOPIC_ALREADY_EXISTS):
                break
            if error not in PASSING and error is not Error.INVALID_REPLICATION_FACTOR:
                raise KafkaError(error, answer.topics[0].error_message or "")
            await self.back_off()
        for number in range(partitions):
            await self.leader_of(TopicPartition(name, number))


@dataclass(slots=True)
class Batch:
    """What a producer sends at once."""

    tp: TopicPartition
    values: tuple[str, ...]
    sequence: int
    data: bytes
    sent: int = 0


class Producing(Client):
    """What producers have in common: numbering, sending in bursts, and sending again until it is known what came of it."""

    producer_id = -1
    producer_epoch = -1
    transactional_id: str | None = None
    acks = ACKS_ALL

    def __init__(self, cluster: Cluster, name: str, random: Random) -> None:
        super().__init__(cluster, name, random)
        self._sequences: dict[TopicPartition, int] = {}
        self._acknowledged: set[TopicPartition] = set()
        """The partitions that know this producer."""
        self._count = 0

    def batch(self, tp: TopicPartition, records: int) -> Batch:
        """A new batch of values that nobody had before."""
        values = []
        for _ in range(records):
            self._count += 1
            values.append(f"{self.name}:{self._count}")
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = sequence + records
        now = self.clock.now_ms()
        padding = b"k" * self.random.randrange(60)
        data = build(
            [Record(at, now, padding, value.encode()) for at, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence if self.producer_id >= 0 else -1,
            transactional=self.transactional_id is not None,
        )
        return Batch(tp, tuple(values), sequence, data)

    async def send(self, batch: Batch, link: Link) -> Error:
        """One attempt. Raises BrokerUnavailable."""
        partition = PartitionProduceData(index=batch.tp.partition, records=batch.data)
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=self.acks,
            timeout_ms=3000,
            topic_data=[TopicProduceData(name=batch.tp.topic, partition_data=[partition])],
        )
        batch.sent += 1
        answer = await self.ask_over(link, request, ProduceResponse)
        found = answer.responses[0].partition_responses[0]
        error = error_of(found.error_code)
        if error in (Error.NONE, Error.DUPLICATE_SEQUENCE_NUMBER):
            offset = found.base_offset if error is Error.NONE else -1
            if self.acks == ACKS_ALL:
                self.note(Acknowledged(self.now, self.name, batch.tp, batch.values, offset))
            return Error.NONE
        return error

    async def deliver(self, tp: TopicPartition, batches: Sequence[Batch]) -> Error:
        """Send batches of one partition until all are acknowledged, always in their order; or the error that ends it.

        What is sent at once goes over one connection, so that none of it gets there where the one before it did not. The first
        batch for a partition goes alone: a leader that does not know the producer takes any sequence for its first.
        """
        pending = list(batches)
        while pending:
            sending = pending if tp in self._acknowledged else pending[:1]
            outcomes = await self._send_at_once(tp, sending)
            left = [batch for batch, outcome in zip(sending, outcomes, strict=True) if outcome is not Error.NONE]
            for batch, outcome in zip(sending, outcomes, strict=True):
                if outcome is Error.NONE or outcome in PASSING:
                    continue
                if outcome is Error.OUT_OF_ORDER_SEQUENCE_NUMBER and batch is not left[0]:
                    continue  # the one before it did not get there
                return outcome
            pending = left + pending[len(sending) :]
            if not left:
                self._acknowledged.add(tp)
            else:
                self.leaders.pop(tp, None)
                await self.back_off()
                await self.refresh([tp.topic])
        return Error.NONE

    async def _send_at_once(self, tp: TopicPartition, batches: Sequence[Batch]) -> list[Error]:
        """One attempt for each of these; what came of them."""
        try:
            link = await self.link_to(await self.leader_of(tp))
        except BrokerUnavailable:
            return [Error.NETWORK_EXCEPTION] * len(batches)

        async def once(batch: Batch) -> Error:
            try:
                return await self.send(batch, link)
            except BrokerUnavailable:
                return Error.NETWORK_EXCEPTION

        new_task, context = self.cluster.loop.create_task, self.process.context
        return await asyncio.gather(*(new_task(once(batch), context=context) for batch in batches))

    async def init_producer(self) -> Error:
        """A new producer id, or a new epoch of a transactional one."""
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=20_000)
        while True:
            coordinator = None
            if self.transactional_id is not None:
                coordinator = await self.transaction_coordinator(self.transactional_id)
            try:
                answer = await self.ask(coordinator, request, InitProducerIdResponse)
            except BrokerUnavailable:
                error = Error.NETWORK_EXCEPTION
            else:
                error = error_of(answer.error_code)
                if error is Error.NONE:
                    self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
                    self._sequences.clear()
                    self._acknowledged.clear()
                    return error
            if error not in PASSING:
                return error
            if self.transactional_id is not None:
                self.forget_coordinator(self.transactional_id, _TRANSACTION)
            await self.back_off()


class Producer(Producing):
    """An idempotent producer with acks=all; each partition is written to in order."""

    async def produce(self, partitions: Sequence[TopicPartition], until: float, every: float) -> None:
        """Produce to these partitions until a time has come, and until all that was begun is known to be done."""
        await self.init_producer()
        while self.now < until:
            tp = self.random.choice(list(partitions))
            batches = [self.batch(tp, self.random.randint(1, 4)) for _ in range(self.random.choice((1, 1, 2, 3)))]
            for batch in batches:
                self.note(Attempted(self.now, self.name, tp, batch.values))
            error = await self.deliver(tp, batches)
            if error is not Error.NONE:
                again = all(batch.sent > 1 for batch in batches)
                self.note(Refused(self.now, self.name, tp, f"{error.name}{' (sent again)' if again else ''}"))
                await self.init_producer()
            await asyncio.sleep(self.random.expovariate(1 / every))


class Careless(Producing):
    """A producer with acks=1 that sends everything once: what it leaves on a leader that falls is not promised to anybody."""

    acks = 1

    async def produce(self, partitions: Sequence[TopicPartition], until: float, every: float) -> None:
        while self.now < until:
            tp = self.random.choice(list(partitions))
            batch = self.batch(tp, self.random.randint(1, 3))
            self.note(Attempted(self.now, self.name, tp, batch.values, promised=False))
            if await self._send_at_once(tp, [batch]) != [Error.NONE]:
                self.leaders.pop(tp, None)
            await asyncio.sleep(self.random.expovariate(1 / every))
