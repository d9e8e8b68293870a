"""The rules of a transaction, by table: who may do what in which state."""

import pytest

from ottla.coordinator import transaction_format, transaction_state
from ottla.coordinator.transaction_format import TransactionRecord
from ottla.coordinator.transaction_state import ProducerIdentity, Status, Transaction
from ottla.model import Error, KafkaError, TopicPartition
from ottla.wire.apis.transaction_records import TransactionLogValue, TransactionPartitions
from ottla.wire.schema import Malformed, encode_versioned

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
LAST = 2**15 - 1
NOW = 1_000_000
ME = ProducerIdentity(9, 5)
ALL = [Status.EMPTY, Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT]


def txn(status=Status.EMPTY, **changes):
    partitions = frozenset({T0, T1}) if status in (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT) else frozenset()
    return Transaction("x", 9, 5, 60_000, status, partitions, NOW - 100, NOW - 50)._replace(**changes)


def refusal(call, *args, **kwargs):
    with pytest.raises(KafkaError) as refused:
        call(*args, **kwargs)
    return refused.value.error


def test_a_new_id_starts_in_epoch_0():
    assert transaction_state.begin("x", 7, 1000, NOW) == Transaction("x", 7, 0, 1000, updated_ms=NOW)


@pytest.mark.parametrize("status", [Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT])
@pytest.mark.parametrize(
    ("current", "expected", "identity", "last_epoch"),
    [
        ({}, None, (9, 6), -1),  # another producer takes over
        ({}, (9, 5), (9, 6), 5),  # the same one wants its next epoch
        ({"last_producer_epoch": 4}, (9, 4), (9, 5), 4),  # it did not hear the answer the first time
        ({"producer_epoch": LAST - 1}, None, (77, 0), -1),  # the epochs are used up: a new id
        ({"producer_epoch": LAST - 1}, (9, LAST - 1), (77, 0), LAST - 1),
        ({"producer_epoch": 0, "last_producer_id": 3, "last_producer_epoch": LAST - 1}, (3, LAST - 1), (9, 0), LAST - 1),
    ],
)
def test_taking_over(status, current, expected, identity, last_epoch):
    current = txn(status, **current)
    got = transaction_state.initialise(current, 500, expected and ProducerIdentity(*expected), 77, NOW)
    assert got.identity == identity
    assert got.last_producer_epoch == last_epoch
    assert (got.status, got.timeout_ms, got.partitions, got.updated_ms) == (Status.EMPTY, 500, frozenset(), NOW)


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        ({}, (8, 5)),  # another producer id
        ({}, (9, 4)),  # an older epoch
        ({}, (9, 6)),  # an epoch that nobody got
        ({"last_producer_id": 3, "last_producer_epoch": 2}, (3, 2)),  # the id before, but its epochs were not used up
    ],
)
def test_a_producer_that_was_taken_over_is_fenced(current, expected):
    assert (
        refusal(transaction_state.initialise, txn(**current), 500, ProducerIdentity(*expected), 77, NOW)
        is Error.PRODUCER_FENCED
    )


def test_an_open_transaction_is_aborted_first_in_an_epoch_that_fences():
    got = transaction_state.initialise(txn(Status.ONGOING), 500, None, 77, NOW)
    assert (got.status, got.identity, got.partitions) == (Status.PREPARE_ABORT, (9, 6), frozenset({T0, T1}))


def test_fencing_works_in_the_last_epoch_too():
    got = transaction_state.initialise(txn(Status.ONGOING, producer_epoch=LAST - 1), 500, None, 77, NOW)
    assert got.identity == (9, LAST)
    after = transaction_state.complete(got, NOW)
    assert transaction_state.initialise(after, 500, None, 77, NOW).identity == (77, 0)


@pytest.mark.parametrize("status", [Status.PREPARE_COMMIT, Status.PREPARE_ABORT])
def test_while_a_transaction_ends_everyone_waits(status):
    current = txn(status)
    assert refusal(transaction_state.initialise, current, 500, None, 77, NOW) is Error.CONCURRENT_TRANSACTIONS
    assert refusal(transaction_state.add_partitions, current, ME, {T2}, NOW) is Error.CONCURRENT_TRANSACTIONS
    assert refusal(transaction_state.verify, current, ME, T0) is Error.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("status", [Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT])
def test_the_first_partition_begins_a_transaction(status):
    got = transaction_state.add_partitions(txn(status), ME, {T2}, NOW)
    assert (got.status, got.partitions, got.started_ms, got.updated_ms) == (Status.ONGOING, {T2}, NOW, NOW)


def test_more_partitions_join_an_open_one():
    got = transaction_state.add_partitions(txn(Status.ONGOING), ME, {T1, T2}, NOW)
    assert (got.status, got.partitions, got.started_ms, got.updated_ms) == (Status.ONGOING, {T0, T1, T2}, NOW - 100, NOW)
    assert transaction_state.add_partitions(txn(Status.ONGOING), ME, {T1}, NOW) is None


@pytest.mark.parametrize("status", ALL)
@pytest.mark.parametrize(
    ("speaker", "error"),
    [((8, 5), Error.INVALID_PRODUCER_ID_MAPPING), ((9, 4), Error.PRODUCER_FENCED), ((9, 6), Error.PRODUCER_FENCED)],
)
def test_only_the_present_producer_may_speak(status, speaker, error):
    speaker = ProducerIdentity(*speaker)
    current = txn(status)
    assert refusal(transaction_state.add_partitions, current, speaker, {T0}, NOW) is error
    assert refusal(transaction_state.end, current, speaker, commit=True, now_ms=NOW) is error
    assert refusal(transaction_state.end, current, speaker, commit=False, now_ms=NOW) is error
    assert refusal(transaction_state.verify, current, speaker, T0) is error


@pytest.mark.parametrize(
    ("status", "commit", "outcome"),
    [
        (Status.ONGOING, True, Status.PREPARE_COMMIT),
        (Status.ONGOING, False, Status.PREPARE_ABORT),
        (Status.COMPLETE_COMMIT, True, None),  # asked again: the answer was lost
        (Status.COMPLETE_ABORT, False, None),
        (Status.COMPLETE_COMMIT, False, Error.INVALID_TXN_STATE),
        (Status.COMPLETE_ABORT, True, Error.INVALID_TXN_STATE),
        (Status.PREPARE_COMMIT, True, Error.CONCURRENT_TRANSACTIONS),
        (Status.PREPARE_ABORT, False, Error.CONCURRENT_TRANSACTIONS),
        (Status.PREPARE_COMMIT, False, Error.INVALID_TXN_STATE),
        (Status.PREPARE_ABORT, True, Error.INVALID_TXN_STATE),
        (Status.EMPTY, True, Error.INVALID_TXN_STATE),
        (Status.EMPTY, False, Error.INVALID_TXN_STATE),
    ],
)
def test_ending(status, commit, outcome):
    if isinstance(outcome, Error):
        assert refusal(transaction_state.end, txn(status), ME, commit=commit, now_ms=NOW) is outcome
        return
    got = transaction_state.end(txn(status), ME, commit=commit, now_ms=NOW)
    assert (got and got.status) is outcome
    if got is not None:
        assert got.partitions == {T0, T1}


@pytest.mark.parametrize(
    ("prepared", "completed"),
    [(Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT), (Status.PREPARE_ABORT, Status.COMPLETE_ABORT)],
)
def test_completing(prepared, completed):
    got = transaction_state.complete(txn(prepared), NOW)
    assert (got.status, got.partitions, got.updated_ms, got.identity) == (completed, frozenset(), NOW, ME)


@pytest.mark.parametrize("status", ALL)
@pytest.mark.parametrize(("age", "over"), [(60_000, False), (60_001, True)])
def test_only_open_transactions_time_out(status, age, over):
    got = transaction_state.time_out(txn(status, started_ms=NOW - age), NOW)
    if status is Status.ONGOING and over:
        assert (got.status, got.identity) == (Status.PREPARE_ABORT, (9, 6))
    else:
        assert got is None


@pytest.mark.parametrize("status", ALL)
@pytest.mark.parametrize(("age", "over"), [(999, False), (1000, True)])
def test_only_ids_at_rest_are_forgotten(status, age, over):
    at_rest = status in (Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)
    assert transaction_state.has_expired(txn(status, updated_ms=NOW - age), 1000, NOW) is (at_rest and over)


def test_a_partition_outside_of_the_transaction_is_not_written_to():
    transaction_state.verify(txn(Status.ONGOING), ME, T0)
    for current in (txn(Status.ONGOING), txn(Status.EMPTY), txn(Status.COMPLETE_COMMIT)):
        assert refusal(transaction_state.verify, current, ME, T2) is Error.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("status", ALL)
def test_records_come_back_as_they_were(status):
    record = TransactionRecord("x", txn(status))
    assert transaction_format.decode(*transaction_format.encode(record)) == record


@pytest.mark.parametrize("status", ALL)
@pytest.mark.parametrize(
    "partitions", [set(), {T0}, {T2, T0, TopicPartition("\u00fc" * 40, 7), TopicPartition("a", 2**31 - 1)}]
)
def test_values_are_those_of_the_table(status, partitions):
    current = txn(status, partitions=frozenset(partitions))
    topics = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    expected = TransactionLogValue(
        producer_id=9,
        producer_epoch=5,
        transaction_timeout_ms=60_000,
        transaction_status=status.code,
        transaction_partitions=None
        if status is Status.EMPTY
        else [TransactionPartitions(topic=topic, partition_ids=numbers) for topic, numbers in topics.items()],
        transaction_last_update_timestamp_ms=NOW - 50,
        transaction_start_timestamp_ms=NOW - 100,
    )
    assert transaction_format.encode(TransactionRecord("x", current))[1] == encode_versioned(expected, 0)


def test_a_tombstone_and_unknown_things():
    key, value = transaction_format.encode(TransactionRecord("x", None))
    assert value is None
    assert transaction_format.decode(key, None) == TransactionRecord("x", None)
    assert transaction_format.decode(b"\0\x05" + key[2:], b"") is None
    _, sound = transaction_format.encode(TransactionRecord("x", txn(Status.ONGOING)))
    broken = bytearray(sound)
    broken[2 + 8 + 2 + 4] = 99  # the status
    with pytest.raises(Malformed):
        transaction_format.decode(key, bytes(broken))
