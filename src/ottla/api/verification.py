"""Whether a producer may write to a partition within its transaction: only after it has told its coordinator so.

Guards against transactions that hang: records that arrive after their transaction ended would never get a marker. The first
write of a transaction to a partition is verified; those that follow find it open in the log. Where this broker is the
coordinator, looking it up and writing happen in one step of the loop, so that nothing can end the transaction in between.
Where another is, the request waits for that one's word, and a `Guard` notices a marker that comes between the question and
the write. What goes to `__consumer_offsets` waits in a queue behind which a marker may be waiting already: there only the
coordinator's word counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.api.registry import LATER, Context, answer_error
from ottla.coordinator.transaction_state import ProducerIdentity
from ottla.coordinator.transactions import TOPIC as TRANSACTIONS_TOPIC
from ottla.model import Error, KafkaError, TopicPartition
from ottla.records.batch import HEADER_SIZE, is_transactional, read_header
from ottla.replication.partition import Partition
from ottla.wire.apis.produce import ProduceRequest

# The coordinator cannot tell now: the producer shall try again, and this is the error after which it does.
_UNDECIDED: Final = frozenset(
    {
        Error.CONCURRENT_TRANSACTIONS,
        Error.COORDINATOR_LOAD_IN_PROGRESS,
        Error.COORDINATOR_NOT_AVAILABLE,
        Error.NETWORK_EXCEPTION,
        Error.NOT_COORDINATOR,
    }
)


def is_open(partition: Partition, producer: ProducerIdentity) -> bool:
    """Whether the partition has records of the producer's transaction, and no marker yet."""
    known = partition.log.producers.by_id.get(producer.producer_id)
    return known is not None and known.transaction_start >= 0 and known.epoch == producer.epoch


class Verification:
    """The word of a coordinator on another broker about some partitions, good for the writes that follow it at once."""

    def __init__(self, ctx: Context, transactional_id: str, asked: Mapping[TopicPartition, ProducerIdentity]) -> None:
        self._ctx = ctx
        self._transactional_id = transactional_id
        self._asked = asked
        self._epochs = {tp: self._leader_epoch(tp) for tp in asked}
        guards = ctx.services.guards
        self._guards = {tp: guards.hold(tp, producer.producer_id) for tp, producer in asked.items()}
        self._errors: dict[TopicPartition, Error] = {}

    async def ask(self) -> None:
        """Have the coordinator's word."""
        try:
            coordinator = self._coordinator()
        except KafkaError as problem:
            self._errors = dict.fromkeys(self._asked, problem.error)
            return
        for producer in dict.fromkeys(self._asked.values()):
            partitions = [tp for tp, asked in self._asked.items() if asked == producer]
            verify = self._ctx.services.verify_elsewhere
            self._errors |= await verify(coordinator, self._transactional_id, producer, partitions)

    def _coordinator(self) -> int:
        """Who leads the transactional id's partition now. Raises where nobody does, or where it is to be us, and is not yet."""
        image = self._ctx.image
        partition = self._ctx.services.transactions.held_elsewhere(self._transactional_id)
        topic = image.topics.get(TRANSACTIONS_TOPIC)
        state = topic.partitions.get(partition) if topic is not None and partition is not None else None
        if state is None or state.leader not in image.brokers:
            raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE)
        if state.leader == self._ctx.broker_id:
            raise KafkaError(Error.NOT_COORDINATOR)
        return state.leader

    def speaks_of(self, partition: TopicPartition, producer: ProducerIdentity) -> bool:
        """Whether the coordinator was asked about this write."""
        return self._asked.get(partition) == producer

    def check(self, partition: TopicPartition) -> None:
        """Raise unless the coordinator agreed, and nothing happened since that makes its word void."""
        error = self._errors[partition]
        if error is not Error.NONE:
            raise KafkaError(error, f"the coordinator of {self._transactional_id} says {error.name}")
        if self._guards[partition].broken:
            raise KafkaError(
                Error.INVALID_TXN_STATE, f"the transaction of {self._transactional_id} ended while {partition} was verified"
            )
        if self._leader_epoch(partition) != self._epochs[partition]:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)

    def close(self) -> None:
        """The writes are done."""
        for guard in self._guards.values():
            self._ctx.services.guards.release(guard)

    def _leader_epoch(self, tp: TopicPartition) -> int | None:
        partition = self._ctx.services.replicas.partitions.get(tp)
        return partition.leader_epoch if partition is not None else None


def verify_write(
    ctx: Context,
    transactional_id: str,
    producer: ProducerIdentity,
    partition: TopicPartition,
    *,
    knows_abortable: bool,
    verified: Verification | None = None,
) -> None:
    """Raise unless the coordinator says that the partition is in the producer's open transaction."""
    if not ctx.services.config.flag("transaction.partition.verification.enable"):
        return
    try:
        if verified is not None and verified.speaks_of(partition, producer):
            verified.check(partition)
        else:
            ctx.services.transactions.verify(transactional_id, producer, partition)
    except KafkaError as refusal:
        error = refusal.error
        if error in _UNDECIDED:
            raise KafkaError(
                Error.NOT_ENOUGH_REPLICAS,
                f"Unable to verify that {partition} is in the transaction of {transactional_id}: {refusal.message}",
            ) from None
        if error is Error.PRODUCER_FENCED:
            error = Error.INVALID_PRODUCER_EPOCH
        elif error is Error.TRANSACTION_ABORTABLE and not knows_abortable:
            error = Error.INVALID_TXN_STATE
        raise KafkaError(error, refusal.message) from None


async def verify_wherever(
    ctx: Context, transactional_id: str, producer: ProducerIdentity, partition: TopicPartition, *, knows_abortable: bool
) -> None:
    """The same for one write, wherever the coordinator is; what follows in the same step of the loop is verified."""
    if not _is_asked_elsewhere(ctx, transactional_id):
        verify_write(ctx, transactional_id, producer, partition, knows_abortable=knows_abortable)
        return
    verified = Verification(ctx, transactional_id, {partition: producer})
    try:
        await verified.ask()
        verify_write(ctx, transactional_id, producer, partition, knows_abortable=knows_abortable, verified=verified)
    finally:
        verified.close()


# Produce


def first_writes(ctx: Context, request: ProduceRequest) -> dict[TopicPartition, ProducerIdentity]:
    """The partitions of a request to which its producer writes for the first time in its transaction, where another broker
    must be asked about that."""
    asked: dict[TopicPartition, ProducerIdentity] = {}
    if not _is_asked_elsewhere(ctx, request.transactional_id or ""):
        return asked
    partitions = ctx.services.replicas.partitions
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is None or len(records) < HEADER_SIZE or not is_transactional(records):
                continue
            partition = partitions.get((topic.name, data.index))
            if partition is None or not partition.is_leader:
                continue
            header = read_header(records)
            producer = ProducerIdentity(header.producer_id, header.producer_epoch)
            if not is_open(partition, producer):
                asked[partition.tp] = producer
    return asked


def _is_asked_elsewhere(ctx: Context, transactional_id: str) -> bool:
    return (
        len(ctx.image.brokers) > 1
        and ctx.services.transactions.held_elsewhere(transactional_id) is not None
        and ctx.services.config.flag("transaction.partition.verification.enable")
    )


Produce = Callable[[Context, ProduceRequest, Verification], Any]


def produce_when_verified(
    ctx: Context, request: ProduceRequest, asked: Mapping[TopicPartition, ProducerIdentity], produce: Produce
) -> Any:
    """Carry the request out when the coordinator has spoken; the connection looks at no other request before."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:  # the frame is only lent
                data.records = memoryview(bytearray(data.records))
    ctx.services.spawn(_produce_later(ctx, request, asked, produce))
    return LATER


async def _produce_later(
    ctx: Context, request: ProduceRequest, asked: Mapping[TopicPartition, ProducerIdentity], produce: Produce
) -> None:
    verified = Verification(ctx, request.transactional_id or "", asked)
    try:
        await verified.ask()
        ctx.finish(produce(ctx, request, verified))
    except Exception as problem:
        answer_error(ctx, request, problem)
    finally:
        verified.close()
