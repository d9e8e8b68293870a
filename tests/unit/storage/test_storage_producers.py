"""The rules of idempotence and of open transactions, by table; and their snapshots."""

from __future__ import annotations

import pytest

from ottla.model import Error, KafkaError
from ottla.records.batch import ControlType, EndTransactionMarker, end_transaction_marker, read_header
from ottla.storage import snapshots
from ottla.storage.producers import Producers
from unit.storage.refusals import ACCEPTED, SEQUENCES
from unit.storage.storage_kit import NOW, TP, batch


def header(*, seq, epoch=0, count=1, pid=7, transactional=False):
    return read_header(batch(count, pid=pid, epoch=epoch, seq=seq, transactional=transactional))


def after(*sent):
    """Producers that have sent batches of (epoch, first sequence, count)."""
    producers, offset = Producers(TP), 100
    for epoch, seq, count in sent:
        producers.record(header(epoch=epoch, seq=seq, count=count), offset, NOW)
        offset += count
    return producers


@pytest.mark.parametrize(("sent", "epoch", "seq", "count", "expected"), SEQUENCES)
def test_sequences_and_epochs(sent, epoch, seq, count, expected):
    producers = after(*sent)
    candidate = header(epoch=epoch, seq=seq, count=count)
    if isinstance(expected, Error):
        with pytest.raises(KafkaError) as refused:
            producers.check(candidate, 200, sequences=True)
        assert refused.value.error is expected
    else:
        duplicate = producers.check(candidate, 200, sequences=True)
        assert (duplicate.first_offset - 100 if duplicate else ACCEPTED) == expected


def test_a_coordinator_writes_without_sequences():
    producers = after((0, 0, 1))
    assert producers.check(header(seq=9), 200, sequences=False) is None


def test_a_plain_write_within_a_transaction_is_refused():
    producers = Producers(TP)
    producers.record(header(seq=0, transactional=True), 100, NOW)
    with pytest.raises(KafkaError) as refused:
        producers.check(header(seq=1), 101, sequences=True)
    assert refused.value.error is Error.INVALID_TXN_STATE


def marker(kind, *, pid=7, epoch=0, coordinator_epoch=0):
    data = end_transaction_marker(
        kind, producer_id=pid, producer_epoch=epoch, coordinator_epoch=coordinator_epoch, timestamp=NOW
    )
    return read_header(data), EndTransactionMarker(kind, coordinator_epoch)


def test_the_last_stable_offset_waits_for_markers_and_for_the_high_watermark():
    producers = Producers(TP)
    assert producers.first_unstable_offset is None
    producers.record(header(seq=0, pid=7, transactional=True), 100, NOW)
    producers.record(header(seq=0, pid=8, transactional=True), 101, NOW)
    producers.record(header(seq=1, pid=7, transactional=True), 102, NOW)
    assert producers.first_unstable_offset == 100
    first = producers.record_marker(*marker(ControlType.ABORT, pid=7), 103, NOW)
    assert (first.first_offset, first.last_offset, first.aborted) == (100, 103, True)
    assert producers.stable_after(first) == 101  # the other one is still open
    assert producers.first_unstable_offset == 100  # nobody but this replica knows of the marker yet
    producers.high_watermark_moved(103)
    assert producers.first_unstable_offset == 100
    producers.high_watermark_moved(104)
    assert producers.first_unstable_offset == 101
    second = producers.record_marker(*marker(ControlType.COMMIT, pid=8), 104, NOW)
    assert not second.aborted
    assert producers.stable_after(second) == 105
    producers.high_watermark_moved(105)
    assert producers.first_unstable_offset is None


@pytest.mark.parametrize(
    ("epoch", "coordinator_epoch", "error"),
    [(1, 5, None), (2, 6, None), (0, 5, Error.INVALID_PRODUCER_EPOCH), (1, 4, Error.TRANSACTION_COORDINATOR_FENCED)],
)
def test_markers_of_zombies(epoch, coordinator_epoch, error):
    producers = Producers(TP)
    producers.record_marker(*marker(ControlType.COMMIT, epoch=1, coordinator_epoch=5), 100, NOW)
    head, end = marker(ControlType.COMMIT, epoch=epoch, coordinator_epoch=coordinator_epoch)
    if error is None:
        producers.check_marker(head, end, 101)
    else:
        with pytest.raises(KafkaError) as refused:
            producers.check_marker(head, end, 101)
        assert refused.value.error is error


def test_silent_producers_are_forgotten_unless_a_transaction_is_open():
    producers = after((0, 0, 1))
    producers.record(header(seq=0, pid=8, transactional=True), 101, NOW)
    assert producers.expire(NOW + 999, 1000) == 0
    assert producers.expire(NOW + 1000, 1000) == 1
    assert list(producers.by_id) == [8]


def test_a_snapshot_of_apache_kafka():
    """The bytes that Apache Kafka 3.9.1 wrote for one producer in an open transaction."""
    kafka = bytes.fromhex(
        "000152ee73250000000100000000000000010000000000" + "1e0000000000000024" + "0000000000"
        "0001a1e38006ad000000000000000000000024"
    )
    (producer,) = snapshots.decode(kafka)
    assert (producer.producer_id, producer.epoch, producer.last_sequence) == (1, 0, 30)
    assert (producer.transaction_start, producer.coordinator_epoch, producer.last_timestamp) == (36, 0, 0x01A1E38006AD)
    assert producer.batches[0].first_offset == 36
    assert snapshots.encode([producer]) == kafka


@pytest.mark.parametrize(
    "change", [lambda d: d[:-1], lambda d: d[:9], lambda d: b"\0\2" + d[2:], lambda d: d[:20] + b"x" + d[21:]]
)
def test_a_damaged_snapshot_is_refused(change):
    sound = snapshots.encode(list(after((0, 0, 1)).by_id.values()))
    assert len(snapshots.decode(sound)) == 1
    with pytest.raises(snapshots.CorruptSnapshot):
        snapshots.decode(change(sound))
