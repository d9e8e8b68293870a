"""A log: appends, reads at its tail and in its past, rolls, retention, truncation, times, transactions."""

from __future__ import annotations

import gc
import itertools
import os

import pytest

from ottla.clock import ManualClock
from ottla.model import Error, KafkaError
from ottla.records.batch import ControlType, end_transaction_marker, read_header, split
from ottla.storage.append import Origin
from ottla.storage.deletion import DeletionQueue, remove
from ottla.storage.log_config import COMPACT, LogConfig
from unit.storage.storage_kit import NOW, append, batch, headers, open_log, records, view

BATCH = len(batch(1))


def test_offsets_follow_each_other_and_the_epoch_is_stamped(tmp_path):
    log = open_log(tmp_path)
    assert append(log, batch(3)) == 0
    assert append(log, batch(2), leader_epoch=5) == 3
    assert log.log_end_offset == 5
    assert [(h.base_offset, h.leader_epoch) for h in headers(log)] == [(0, 0), (3, 5)]
    assert log.leader_epochs.entries == ((0, 0), (5, 3))


def test_a_duplicate_is_answered_and_not_written(tmp_path):
    log = open_log(tmp_path)
    append(log, batch(2, pid=7, seq=0))
    append(log, batch(1, pid=7, seq=2))
    info = log.append_as_leader(view(batch(2, pid=7, seq=0, timestamp=NOW)), 0)
    assert (info.duplicate, info.first_offset, info.last_offset, info.size) == (True, 0, 1, 0)
    assert log.log_end_offset == 3


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("remembered", [True, False])
def test_reads(tmp_path, rolled, remembered):
    """The same answers from the tail in memory and from the file."""
    log = open_log(tmp_path, LogConfig(index_interval_bytes=1))
    for _ in range(4):
        append(log, batch(5))
    size = len(batch(5))
    if rolled:
        log.roll()
    if not remembered:
        log.close()
        log = open_log(tmp_path, LogConfig(index_interval_bytes=1), clean_shutdown=True)

    def read(offset, max_bytes=1 << 20, limit=20, min_one=True):
        piece = log.read(offset, max_bytes, limit, min_one)
        return None if piece is None else (read_header(piece.read().ljust(61, b"\0")).base_offset, len(piece))

    assert read(0) == (0, 4 * size)
    assert read(7) == (5, 3 * size)
    assert read(19) == (15, size)
    assert read(20) is None
    assert read(0, limit=10) == (0, 2 * size)
    assert read(0, limit=12) == (0, 2 * size)  # a batch that reaches beyond the limit stays out
    assert read(0, limit=3) is None
    assert read(10, limit=10) is None
    assert read(0, max_bytes=size + 1) == (0, size + 1)  # cut within a batch: clients cope
    assert read(0, max_bytes=1) == (0, size)  # but the first comes whole
    assert read(0, max_bytes=1, min_one=False) is None  # or not at all
    assert read(0, max_bytes=0, min_one=False) is None
    assert read(0, limit=99) == (0, 4 * size)
    for offset in (-1, 21):
        with pytest.raises(KafkaError) as refused:
            log.read(offset, 100, 20, True)
        assert refused.value.error is Error.OFFSET_OUT_OF_RANGE


def test_a_read_stays_within_a_segment(tmp_path):
    log = open_log(tmp_path)
    append(log, batch(2))
    log.roll()
    append(log, batch(2))
    assert len(log.read(0, 1 << 20, 4, True)) == len(log.read(2, 1 << 20, 4, True)) == len(batch(2))


def test_many_small_appends_are_found_again(tmp_path):
    log = open_log(tmp_path, LogConfig(segment_bytes=20_000))
    for _ in range(1000):
        append(log, batch(2))
    assert len(log.segments) == 5
    for offset in range(0, 2000, 7):
        header = read_header(log.read(offset, 1, 2000, True).read())
        assert header.base_offset <= offset <= header.last_offset
        piece = log.read(0, 1 << 20, offset, True)
        if piece is not None:
            assert all(header.last_offset < offset for _, header in split(piece.read()))


def test_reading_after_the_segment_was_deleted(tmp_path):
    clock = ManualClock(NOW)
    log = open_log(tmp_path, LogConfig(retention_ms=0, file_delete_delay_ms=0), clock)
    append(log, batch(2))
    log.high_watermark = 2
    piece = log.read(0, 1 << 20, 2, True)
    clock.advance_ms(10)
    assert log.apply_retention(clock.now_ms()) == 1
    remove(log._trash.due())
    assert not [name for name in os.listdir(tmp_path) if name.startswith("0" * 20)]
    assert read_header(piece.read()).count == 2


# Follower


def test_a_follower_keeps_offsets_and_epochs(tmp_path):
    leader, follower = open_log(tmp_path / "l"), open_log(tmp_path / "f")
    for number in range(6):
        append(leader, batch(3, pid=7, seq=3 * number), leader_epoch=number // 2)
    piece = leader.read(0, 1 << 20, 18, True).read()
    info = follower.append_as_follower(view(piece[:-1]))  # the last one is cut off
    assert (info.first_offset, info.last_offset) == (0, 14)
    follower.append_as_follower(view(leader.read(15, 1 << 20, 18, True).read()))
    assert headers(follower) == headers(leader)
    assert follower.leader_epochs.entries == leader.leader_epochs.entries == ((0, 0), (1, 6), (2, 12))
    assert follower.producers.by_id[7].batches == leader.producers.by_id[7].batches
    for offset in range(18):  # many batches in one append are still found one by one
        assert follower.read(offset, 1, 18, True).position == leader.read(offset, 1, 18, True).position
        assert follower.read(0, 1000, offset, True) is None or len(follower.read(0, 1000, offset, True)) == len(
            leader.read(0, 1000, offset, True)
        )


def test_a_follower_refuses_what_it_has_and_accepts_a_gap(tmp_path):
    follower = open_log(tmp_path)
    follower.append_as_follower(view(batch(3, base_offset=0, leader_epoch=0)))
    with pytest.raises(KafkaError):
        follower.append_as_follower(view(batch(1, base_offset=2, leader_epoch=0)))
    follower.append_as_follower(view(batch(1, base_offset=10, leader_epoch=0)))  # compaction left a hole
    assert follower.log_end_offset == 11
    assert read_header(follower.read(5, 100, 11, True).read()).base_offset == 10


# Rolling


@pytest.mark.parametrize(
    ("config", "first", "second", "rolls"),
    [
        ({"segment_bytes": 2 * BATCH}, NOW, NOW, False),
        ({"segment_bytes": 2 * BATCH - 1}, NOW, NOW, True),
        ({"segment_ms": 1000}, NOW, NOW + 1000, False),
        ({"segment_ms": 1000}, NOW, NOW + 1001, True),
        ({"segment_ms": 1000}, NOW, NOW - 5000, False),
        ({"segment_ms": 1000}, -1, -1, True),  # no timestamps: the clock decides (it has moved by an hour)
    ],
)
def test_what_makes_a_segment_roll(tmp_path, config, first, second, rolls):
    clock = ManualClock(NOW)
    log = open_log(tmp_path, LogConfig(**config), clock)
    append(log, batch(1, timestamp=first))
    clock.advance_ms(3_600_000)
    append(log, batch(1, timestamp=second))
    assert (len(log.segments) == 2) is rolls
    if rolls:
        assert sorted(os.listdir(tmp_path)) == sorted(
            [
                *(f"{base:020d}{suffix}" for base in (0, 1) for suffix in (".log", ".index", ".timeindex")),
                f"{1:020d}.snapshot",
                "leader-epoch-checkpoint",
            ]
        )


def test_a_full_index_rolls(tmp_path):
    log = open_log(tmp_path, LogConfig(segment_index_bytes=24, index_interval_bytes=0))
    for _ in range(10):
        append(log, batch(1))
    assert [segment.base_offset for segment in log.segments] == [
        0,
        4,
        8,
    ]  # three entries: the first batch of a segment needs none


def test_a_roll_that_failed_may_have_filled_an_index(tmp_path):
    log = open_log(tmp_path, LogConfig(segment_index_bytes=24, index_interval_bytes=100))
    segment = log.segments[-1]
    now = itertools.count(NOW)
    while not segment.time_index.entries:
        append(log, batch(1, timestamp=next(now)))
    append(log, batch(1, timestamp=next(now)))
    segment.complete()  # say that what follows it failed: this is still where is written to
    assert segment.time_index.entries == segment.time_index.max_entries
    assert len(log.segments) == 1
    append(log, batch(1, timestamp=next(now)))
    assert len(log.segments) == 2


def test_offsets_too_far_for_a_segment_roll(tmp_path):
    log = open_log(tmp_path)
    log.append_as_follower(view(batch(1, base_offset=0, leader_epoch=0)))
    log.append_as_follower(view(batch(1, base_offset=2**31, leader_epoch=0)))
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]


def test_a_batch_over_the_segment_size(tmp_path):
    log = open_log(tmp_path, LogConfig(segment_bytes=100))
    with pytest.raises(KafkaError) as refused:
        append(log, batch(1, size=200))
    assert refused.value.error is Error.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 0


# Retention


def filled(tmp_path, config, *, segments=4, step=1000):
    clock = ManualClock(NOW)
    log = open_log(tmp_path, LogConfig(**config), clock)
    for number in range(segments):
        if number:
            log.roll()
        append(log, batch(1, timestamp=NOW + number * step))
    log.high_watermark = log.log_end_offset
    return log


@pytest.mark.parametrize(
    ("config", "later", "high_watermark", "left"),
    [
        ({}, 0, 4, [0, 1, 2, 3]),
        ({"retention_ms": 2500}, 4000, 4, [2, 3]),
        ({"retention_ms": 2500}, 4000, 1, [1, 2, 3]),  # never beyond the high watermark
        ({"retention_ms": 0}, 10_000, 4, [4]),  # everything: the active segment is rolled first
        ({"retention_ms": -1}, 10**12, 4, [0, 1, 2, 3]),
        ({"retention_ms": -1, "retention_bytes": 2 * BATCH}, 0, 4, [2, 3]),
        ({"retention_ms": -1, "retention_bytes": 2 * BATCH + 1}, 0, 4, [1, 2, 3]),
        ({"retention_ms": -1, "retention_bytes": 0}, 0, 4, [4]),
        ({"retention_ms": 0, "cleanup_policy": frozenset({COMPACT})}, 10_000, 4, [0, 1, 2, 3]),
    ],
)
def test_retention(tmp_path, config, later, high_watermark, left):
    log = filled(tmp_path, config)
    log.high_watermark = high_watermark
    log.apply_retention(NOW + later)
    assert [segment.base_offset for segment in log.segments] == left
    assert log.log_start_offset == left[0]
    assert log.log_end_offset == 4
    names = {name.split(".")[0] for name in os.listdir(tmp_path) if name.endswith(".log")}
    assert names == {f"{base:020d}" for base in left}


def test_deleted_segments_are_renamed_and_removed_after_their_delay(tmp_path):
    clock = ManualClock(NOW)
    trash = DeletionQueue(clock)
    log = open_log(tmp_path, LogConfig(retention_ms=0, file_delete_delay_ms=5000), clock, trash=trash)
    append(log, batch(1))
    log.high_watermark = 1
    log.apply_retention(NOW + 1)
    assert f"{0:020d}.log.deleted" in os.listdir(tmp_path)
    clock.advance_ms(4999)
    assert trash.due() == []
    clock.advance_ms(1)
    remove(trash.due())
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".deleted")]


def test_settings_change_live(tmp_path):
    log = filled(tmp_path, {"retention_ms": -1})
    log.config = LogConfig(retention_ms=0)
    assert log.apply_retention(NOW + 10_000) == 4
    assert records(log) == []
    assert append(log, batch(1)) == 4


def test_deleting_records(tmp_path):
    log = filled(tmp_path, {})
    log.delete_records_before(2)
    assert (log.log_start_offset, [segment.base_offset for segment in log.segments]) == (2, [2, 3])
    with pytest.raises(KafkaError) as refused:
        log.read(1, 100, 4, True)
    assert refused.value.error is Error.OFFSET_OUT_OF_RANGE
    with pytest.raises(KafkaError) as refused:
        log.delete_records_before(5)
    assert refused.value.error is Error.OFFSET_OUT_OF_RANGE
    log.delete_records_before(1)  # never back
    assert log.log_start_offset == 2


# Truncation


@pytest.mark.parametrize(
    ("target", "bases", "end"),
    [(9, [0, 2, 4, 6], 8), (7, [0, 2, 4, 6], 7), (6, [0, 2, 4, 6], 6), (5, [0, 2, 4], 5), (0, [0], 0)],
)
def test_truncation(tmp_path, target, bases, end):
    log = open_log(tmp_path)
    for number in range(4):
        if number:
            log.roll()
        append(log, batch(1, pid=7, seq=2 * number), leader_epoch=number)
        append(log, batch(1, pid=7, seq=2 * number + 1), leader_epoch=number)
    log.high_watermark = 8
    log.truncate_to(target)
    assert [segment.base_offset for segment in log.segments] == bases
    assert (log.log_end_offset, log.high_watermark) == (end, end)
    assert len(headers(log)) == end
    assert [epoch for epoch, start in log.leader_epochs.entries] == [n for n in range(4) if 2 * n < end]
    assert append(log, batch(1, pid=7, seq=end), leader_epoch=9) == end  # the sequence goes on where the log does
    log.close()
    again = open_log(tmp_path, clean_shutdown=True)
    assert len(headers(again)) == end + 1


def test_starting_anew_elsewhere(tmp_path):
    log = filled(tmp_path, {})
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.leader_epochs.entries) == (1000, 1000, ())
    assert append(log, batch(2), 3) == 1000
    log.truncate_to(500)  # before all that it has
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)


# Times


def test_offsets_by_time(tmp_path):
    log = open_log(tmp_path, LogConfig(index_interval_bytes=1, segment_bytes=1000))
    for number in range(30):
        append(log, batch(2, timestamp=NOW + 10 * number), leader_epoch=number // 10)
    assert len(log.segments) > 2
    assert log.search_by_time(0)()[:2] == (NOW, 0)
    for number in range(30):
        assert log.search_by_time(NOW + 10 * number)() == (NOW + 10 * number, 2 * number, number // 10)
        assert log.search_by_time(NOW + 10 * number + 1)()[:2] == (NOW + 10 * number + 1, 2 * number + 1)
    assert log.search_by_time(NOW + 292)() is None
    assert log.search_newest()() == (NOW + 291, 59, 2)
    append(log, batch(1, timestamp=NOW))
    assert log.search_newest()() == (NOW + 291, 59, 2)
    log.high_watermark = log.log_end_offset
    log.delete_records_before(7)
    assert log.search_by_time(0)()[:2] == (NOW + 31, 7)


def test_an_empty_log_has_no_times(tmp_path):
    log = open_log(tmp_path)
    assert log.search_by_time(0)() is None
    assert log.search_newest()() is None


# Transactions


def end(log, kind, pid):
    data = end_transaction_marker(kind, producer_id=pid, producer_epoch=0, coordinator_epoch=0, timestamp=NOW)
    return log.append_as_leader(view(data), 0, origin=Origin.COORDINATOR)


def test_transactions_hold_the_last_stable_offset_and_aborts_are_indexed(tmp_path):
    log = open_log(tmp_path)
    append(log, batch(2, pid=1, seq=0, transactional=True))
    append(log, batch(2, pid=2, seq=0, transactional=True))
    log.high_watermark = 4
    assert log.last_stable_offset == 0
    end(log, ControlType.ABORT, 1)
    log.roll()
    end(log, ControlType.COMMIT, 2)
    assert log.last_stable_offset == 0  # the markers are not replicated yet
    log.high_watermark = 5
    assert log.last_stable_offset == 2
    log.high_watermark = 6
    assert log.last_stable_offset == 6
    assert log.aborted_transactions(0, 6) == [(1, 0, 4, 2)]
    assert log.aborted_transactions(5, 6) == []
    log.close()
    again = open_log(tmp_path, clean_shutdown=True)
    assert again.aborted_transactions(0, 6) == [(1, 0, 4, 2)]


# The disk


def test_flush_moves_the_recovery_point(tmp_path):
    clock = ManualClock(NOW)
    log = open_log(tmp_path, LogConfig(flush_messages=3, flush_ms=1000), clock)
    assert not log.needs_flush
    assert not log.append_as_leader(view(batch(2)), 0).flush_due
    assert log.append_as_leader(view(batch(2)), 0).flush_due
    assert log.needs_flush
    job = log.flush_job()
    append(log, batch(1))
    job.run()
    log.flushed(job)
    assert log.recovery_point == 4
    assert not log.needs_flush
    clock.advance_ms(1000)
    assert log.needs_flush
    log.flush()
    assert log.recovery_point == 5
    assert log.flush_job() is None


def test_a_rolled_segment_wants_to_be_flushed(tmp_path):
    log = open_log(tmp_path)
    append(log, batch(2))
    assert not log.needs_flush
    log.roll()
    append(log, batch(1))
    assert log.needs_flush
    assert log.flush_target == 2


def test_an_io_error_is_a_storage_error_and_leaves_the_log_as_it_was(tmp_path, monkeypatch):
    told = []
    log = open_log(tmp_path, on_io_error=lambda failed, error: told.append((failed, error.errno)))
    append(log, batch(1))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(KafkaError) as refused:
            append(log, batch(1, pid=7))
    assert refused.value.error is Error.KAFKA_STORAGE_ERROR
    assert told == [(log, 28)]
    assert (log.log_end_offset, log.producers.by_id) == (1, {})
    assert append(log, batch(1)) == 1


def test_an_idle_log_holds_no_descriptor(tmp_path):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    logs = [open_log(tmp_path / str(number)) for number in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    append(logs[0], batch(1))
    assert len(os.listdir("/proc/self/fd")) == before + 1


def test_a_deleted_partition_leaves_its_name_at_once(tmp_path):
    log = open_log(tmp_path / "orders-0")
    append(log, batch(2))
    piece = log.read(0, 100, 2, True)
    path = log.rename_for_deletion()
    assert path.startswith(str(tmp_path / "orders-0."))
    assert path.endswith("-delete")
    assert os.listdir(tmp_path) == [os.path.basename(path)]
    assert read_header(piece.read()).count == 2
