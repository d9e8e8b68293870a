"""The transaction coordinator: nothing counts before the log has it, and a restart carries out what was decided."""

import asyncio

import pytest

from ottla.coordinator.transaction_state import ProducerIdentity, Status
from ottla.model import Error, KafkaError, TopicPartition
from unit.coordinator.bank_kit import Bank, done

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def refused(call):
    """The error that a call ends in, at once or later."""
    with pytest.raises(KafkaError) as refusal:
        await done(call() if callable(call) else call)
    return refusal.value.error


@pytest.fixture
def bank():
    return Bank()


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_from_begin_to_end(bank, commit):
    me = await bank.producer()
    assert me == (100, 0)
    await done(bank.coordinator.add_partitions("x", me, {T0}))
    await done(bank.coordinator.add_partitions("x", me, {T1}))
    assert bank.markers == []
    await done(bank.coordinator.end("x", me, commit=commit))
    await bank.settle()
    assert sorted(bank.markers) == [(T0, 100, 0, commit), (T1, 100, 0, commit)]
    assert await bank.status() is (Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT)
    await done(bank.coordinator.end("x", me, commit=commit))  # asked again
    await bank.settle()
    assert len(bank.markers) == 2


async def test_nothing_is_answered_or_marked_before_the_log_has_it(bank):
    me = await bank.producer()
    await done(bank.coordinator.add_partitions("x", me, {T0}))
    bank.journal.gate.clear()
    ending = asyncio.ensure_future(done(bank.coordinator.end("x", me, commit=True)))
    await bank.settle()
    assert not ending.done()
    assert bank.markers == []
    assert await bank.status() is Status.ONGOING
    assert await refused(lambda: bank.coordinator.add_partitions("x", me, {T1})) is Error.CONCURRENT_TRANSACTIONS
    assert await refused(bank.producer()) is Error.CONCURRENT_TRANSACTIONS
    bank.journal.gate.set()
    await ending
    await bank.settle()
    assert bank.markers == [(T0, 100, 0, True)]


async def test_a_decision_that_the_log_refused_was_never_taken(bank):
    me = await bank.producer()
    await done(bank.coordinator.add_partitions("x", me, {T0}))
    bank.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    assert await refused(lambda: bank.coordinator.end("x", me, commit=True)) is Error.COORDINATOR_NOT_AVAILABLE
    await bank.settle()
    assert bank.markers == []
    await done(bank.coordinator.end("x", me, commit=False))
    await bank.settle()
    assert bank.markers == [(T0, 100, 0, False)]


async def test_an_id_that_the_log_refused_does_not_exist(bank):
    await bank.coordinator.partition_of("x")
    bank.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    assert await refused(bank.producer()) is Error.COORDINATOR_NOT_AVAILABLE
    assert await refused(lambda: bank.coordinator.describe("x")) is Error.TRANSACTIONAL_ID_NOT_FOUND
    assert await bank.producer() == (101, 0)


async def test_whoever_comes_next_fences_the_one_before(bank):
    old = await bank.producer()
    new = await bank.producer()
    assert new == (100, 1)
    assert await refused(lambda: bank.coordinator.add_partitions("x", old, {T0})) is Error.PRODUCER_FENCED
    await done(bank.coordinator.add_partitions("x", new, {T0}))


async def test_what_the_one_before_left_open_is_aborted_first(bank):
    old = await bank.producer()
    await done(bank.coordinator.add_partitions("x", old, {T0}))
    assert await refused(bank.producer()) is Error.CONCURRENT_TRANSACTIONS
    await bank.settle()
    assert bank.markers == [(T0, 100, 1, False)]
    assert await bank.producer() == (100, 2)


async def test_two_producers_that_come_at_once_get_different_epochs(bank):
    await bank.coordinator.partition_of("x")
    both = await asyncio.gather(bank.producer(), bank.producer(), return_exceptions=True)
    winners = [one for one in both if isinstance(one, ProducerIdentity)]
    assert len(winners) == len(set(winners)) >= 1


@pytest.mark.parametrize("commit", [True, False])
async def test_a_partition_that_cannot_take_its_marker_gets_it_later(bank, commit):
    me = await bank.producer()
    await done(bank.coordinator.add_partitions("x", me, {T0, T1}))
    bank.refuse[T1] = [Error.NOT_LEADER_OR_FOLLOWER, Error.COORDINATOR_LOAD_IN_PROGRESS]
    await done(bank.coordinator.end("x", me, commit=commit))
    await bank.settle()
    assert bank.markers == [(T0, 100, 0, commit)]
    assert await refused(lambda: bank.coordinator.add_partitions("x", me, {T0})) is Error.CONCURRENT_TRANSACTIONS
    await bank.go_on()
    await bank.go_on()
    assert bank.markers == [(T0, 100, 0, commit), (T1, 100, 0, commit)]
    assert await bank.status() is (Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT)


async def test_a_deleted_topic_needs_no_marker(bank):
    me = await bank.producer()
    await done(bank.coordinator.add_partitions("x", me, {T0, T1}))
    bank.refuse[T1] = [Error.UNKNOWN_TOPIC_OR_PARTITION]
    bank.gone.add(T1)
    await done(bank.coordinator.end("x", me, commit=True))
    await bank.settle()
    assert await bank.status() is Status.COMPLETE_COMMIT


async def test_a_fenced_coordinator_stops(bank, caplog):
    me = await bank.producer()
    await done(bank.coordinator.add_partitions("x", me, {T0}))
    bank.refuse[T0] = [Error.TRANSACTION_COORDINATOR_FENCED]
    await done(bank.coordinator.end("x", me, commit=True))
    await bank.settle()
    assert await bank.status() is Status.PREPARE_COMMIT
    assert bank.pauses == []
    assert "stops here" in caplog.text


@pytest.mark.parametrize("commit", [True, False])
async def test_a_restart_carries_out_what_was_decided(bank, commit):
    me = await bank.producer()
    await done(bank.coordinator.add_partitions("x", me, {T0, T1}))
    bank.refuse[T0] = bank.refuse[T1] = [Error.NOT_LEADER_OR_FOLLOWER] * 2
    await done(bank.coordinator.end("x", me, commit=commit))
    await bank.settle()
    bank.refuse.clear()
    assert bank.markers == []
    await bank.restart()
    await bank.settle()
    assert sorted(bank.markers) == [(T0, 100, 0, commit), (T1, 100, 0, commit)]
    assert await bank.status() is (Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT)


async def test_a_restart_leaves_an_open_transaction_open(bank):
    me = await bank.producer()
    await done(bank.coordinator.add_partitions("x", me, {T0}))
    await bank.restart()
    await done(bank.coordinator.add_partitions("x", me, {T1}))
    await done(bank.coordinator.end("x", me, commit=True))
    await bank.settle()
    assert sorted(bank.markers) == [(T0, 100, 0, True), (T1, 100, 0, True)]


async def test_a_transaction_that_is_open_for_too_long_is_aborted(bank):
    me = await bank.producer(timeout_ms=1000)
    await done(bank.coordinator.add_partitions("x", me, {T0}))
    bank.clock.advance_ms(1000)
    await bank.coordinator.abort_timed_out()
    assert await bank.status() is Status.ONGOING
    bank.clock.advance_ms(1)
    await bank.coordinator.abort_timed_out()
    await bank.settle()
    assert bank.markers == [(T0, 100, 1, False)]
    assert await refused(lambda: bank.coordinator.end("x", me, commit=True)) is Error.PRODUCER_FENCED


async def test_ids_that_nobody_uses_are_forgotten():
    bank = Bank(id_expiration_ms=1000)
    me = await bank.producer()
    bank.clock.advance_ms(999)
    await bank.coordinator.expire_ids()
    assert await bank.status() is Status.EMPTY
    bank.clock.advance_ms(1)
    await bank.coordinator.expire_ids()
    assert await refused(lambda: bank.coordinator.describe("x")) is Error.TRANSACTIONAL_ID_NOT_FOUND
    assert await refused(lambda: bank.coordinator.add_partitions("x", me, {T0})) is Error.INVALID_PRODUCER_ID_MAPPING
    await bank.restart()
    assert await refused(lambda: bank.coordinator.describe("x")) is Error.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("transactional_id", "timeout_ms", "error"),
    [
        ("", 1000, Error.INVALID_REQUEST),
        ("x", 0, Error.INVALID_TRANSACTION_TIMEOUT),
        ("x", -1, Error.INVALID_TRANSACTION_TIMEOUT),
        ("x", 900_001, Error.INVALID_TRANSACTION_TIMEOUT),
        ("x", 900_000, None),
    ],
)
async def test_what_a_producer_may_ask_for(bank, transactional_id, timeout_ms, error):
    await bank.coordinator.partition_of("x")
    asking = bank.coordinator.init_producer(transactional_id, timeout_ms, None)
    if error is None:
        await asking
    else:
        assert await refused(asking) is error


async def test_only_what_the_log_has_is_verified(bank):
    me = await bank.producer()
    verify = bank.coordinator.verify
    bank.journal.gate.clear()
    adding = asyncio.ensure_future(done(bank.coordinator.add_partitions("x", me, {T0})))
    await bank.settle()
    with pytest.raises(KafkaError) as refusal:
        verify("x", me, T0)
    assert refusal.value.error is Error.TRANSACTION_ABORTABLE
    bank.journal.gate.set()
    await adding
    verify("x", me, T0)
    with pytest.raises(KafkaError) as refusal:
        verify("y", me, T0)
    assert refusal.value.error is Error.INVALID_PRODUCER_ID_MAPPING


async def test_another_broker_is_the_coordinator(bank):
    me = await bank.producer()
    bank.journal.leading = False
    assert await refused(lambda: bank.coordinator.end("x", me, commit=True)) is Error.NOT_COORDINATOR


async def test_a_coordinator_that_resigns_sends_no_more_markers(bank):
    me = await bank.producer()
    await done(bank.coordinator.add_partitions("x", me, {T0}))
    bank.refuse[T0] = [Error.NOT_LEADER_OR_FOLLOWER]
    await done(bank.coordinator.end("x", me, commit=True))
    await bank.settle()
    bank.coordinator.resign(0)
    await bank.go_on()
    assert bank.markers == []


async def several(bank, count=3):
    """Producers with open transactions under the ids a0, a1, ..."""
    await bank.coordinator.partition_of("x")
    producers = []
    for number in range(count):
        me = await bank.coordinator.init_producer(f"a{number}", 1000, None)
        await done(bank.coordinator.add_partitions(f"a{number}", me, {T0}))
        producers.append(me)
    return producers


async def test_a_producer_that_comes_back_while_others_time_out_is_left_alone(bank):
    """The round that aborts them takes its time: what it saw at its beginning may be over."""
    producers = await several(bank)
    bank.clock.advance_ms(2000)
    bank.journal.gate.clear()
    aborting = asyncio.ensure_future(bank.coordinator.abort_timed_out())
    await bank.settle()
    committing = asyncio.ensure_future(done(bank.coordinator.end("a2", producers[2], commit=True)))
    await bank.settle()
    bank.journal.gate.set()
    await asyncio.gather(aborting, committing)
    await bank.settle()
    states = [bank.coordinator.describe(f"a{number}").status for number in range(3)]
    assert states == [Status.COMPLETE_ABORT, Status.COMPLETE_ABORT, Status.COMPLETE_COMMIT]
    ends = {producer_id: committed for _, producer_id, _, committed in bank.markers}
    assert ends == {producers[0].producer_id: False, producers[1].producer_id: False, producers[2].producer_id: True}


async def test_an_id_that_is_used_again_while_others_expire_is_kept():
    bank = Bank(id_expiration_ms=1000)
    await bank.coordinator.partition_of("x")
    for number in range(3):
        await bank.coordinator.init_producer(f"a{number}", 1000, None)
    bank.clock.advance_ms(2000)
    bank.journal.gate.clear()
    expiring = asyncio.ensure_future(bank.coordinator.expire_ids())
    await bank.settle()
    again = asyncio.ensure_future(bank.coordinator.init_producer("a2", 1000, None))
    await bank.settle()
    bank.journal.gate.set()
    me = (await asyncio.gather(expiring, again))[1]
    await done(bank.coordinator.add_partitions("a2", me, {T0}))
    assert bank.coordinator.describe("a2").status is Status.ONGOING
    assert await refused(lambda: bank.coordinator.describe("a0")) is Error.TRANSACTIONAL_ID_NOT_FOUND


async def test_the_largest_producer_id_waits_for_what_is_being_loaded(bank):
    await several(bank)
    bank.coordinator.stop()
    bank.start()
    bank.coordinator.elect(0)
    assert await bank.coordinator.highest_producer_id() == 102
