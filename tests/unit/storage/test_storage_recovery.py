"""After a crash: what is cut, what is rebuilt, what is reported, and what is left alone."""

from __future__ import annotations

import logging
import os
import shutil

import pytest

from ottla.clock import ManualClock
from ottla.records.batch import ControlType, end_transaction_marker
from ottla.storage.append import Origin
from ottla.storage.log_config import LogConfig
from unit.storage.storage_kit import NOW, append, batch, headers, open_log, records, view

CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=200)
SIZE = len(batch(2, pid=7, size=100))


def written(tmp_path, count=40):
    """A log of several segments, as a kill leaves it."""
    log = open_log(tmp_path, CONFIG)
    for number in range(count):
        append(log, batch(2, pid=7, seq=2 * number, size=100, timestamp=NOW + number), leader_epoch=number // 15)
    assert len(log.segments) > 3
    return log


def reopened(tmp_path, **options):
    return open_log(tmp_path, CONFIG, **options)


def files(tmp_path, suffix):
    return sorted(path for path in tmp_path.iterdir() if path.name.endswith(suffix))


def contents(tmp_path, suffix):
    return {path.name: path.read_bytes() for path in files(tmp_path, suffix)}


def test_a_kill_loses_nothing_that_was_written(tmp_path):
    before = written(tmp_path)
    after = reopened(tmp_path)
    assert headers(after) == headers(before)
    assert after.leader_epochs.entries == before.leader_epochs.entries
    assert after.producers.by_id[7].batches == before.producers.by_id[7].batches
    assert after.recovery_point == 0  # nothing was flushed
    assert append(after, batch(1, pid=7, seq=80)) == 80


def test_rebuilt_indexes_are_the_same_as_written_ones(tmp_path):
    written(tmp_path / "a").close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for suffix in (".index", ".timeindex"):
        for path in files(tmp_path / "b", suffix):
            path.unlink()
    reopened(tmp_path / "b").close()
    for suffix in (".log", ".index", ".timeindex"):
        assert contents(tmp_path / "a", suffix) == contents(tmp_path / "b", suffix)


@pytest.mark.parametrize("cut", [1, 11, 12, 16, 60, 61, SIZE - 20])
@pytest.mark.parametrize("fill", [0, 1])
def test_a_torn_tail_is_cut(tmp_path, cut, fill, caplog):
    written(tmp_path)
    last = files(tmp_path, ".log")[-1]
    os.truncate(last, last.stat().st_size - SIZE + cut)
    if fill:  # a file system that allocated the blocks but lost their content
        os.truncate(last, last.stat().st_size + 5000)
    with caplog.at_level(logging.WARNING, "ottla.storage"):
        log = reopened(tmp_path)
    assert log.log_end_offset == 78
    assert len(headers(log)) == 39
    assert last.name in caplog.text
    assert "(offset 78)" in caplog.text
    assert append(log, batch(1, pid=7, seq=78)) == 78
    assert len(headers(log)) == 40


@pytest.mark.parametrize("at", [5, 8, 16, 20, 30, 61, 150])
def test_a_damaged_middle_is_reported_and_the_log_is_cut_there(tmp_path, at, caplog):
    written(tmp_path)
    victim = files(tmp_path, ".log")[1]
    base = int(victim.stem)
    with open(victim, "r+b") as file:
        file.seek(2 * SIZE + at)
        byte = file.read(1)[0]
        file.seek(2 * SIZE + at)
        file.write(bytes([byte ^ 0x55]))
    with caplog.at_level(logging.WARNING, "ottla.storage"):
        log = reopened(tmp_path)
    assert log.log_end_offset == base + 4
    assert f"{victim}: damaged at byte {2 * SIZE}" in caplog.text
    assert len(files(tmp_path, ".log")) == 2
    assert append(log, batch(1, pid=7, seq=base + 4)) == base + 4


def test_a_clean_stop_is_not_scanned(tmp_path):
    written(tmp_path).close()
    first = files(tmp_path, ".log")[0]
    with open(first, "r+b") as file:  # damage that only a scan would notice
        file.seek(100)
        file.write(b"xxxx")
    assert reopened(tmp_path, clean_shutdown=True).log_end_offset == 80


def test_nothing_below_the_recovery_point_is_scanned(tmp_path):
    log = written(tmp_path)
    log.flush()
    first = files(tmp_path, ".log")[0]
    with open(first, "r+b") as file:
        file.seek(100)
        file.write(b"xxxx")
    assert reopened(tmp_path, recovery_point=80).log_end_offset == 80


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "odd", "zeros"])
def test_missing_and_damaged_indexes_are_rebuilt(tmp_path, clean, which, suffix, damage):
    written(tmp_path / "a").close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    victim = files(tmp_path / "b", suffix)[which]
    if damage == "missing":
        victim.unlink()
    elif damage == "odd":
        victim.write_bytes(victim.read_bytes() + b"\1")
    else:
        os.truncate(victim, 10_485_720)
    log = open_log(tmp_path / "b", CONFIG, clean_shutdown=clean, recovery_point=80)
    assert len(headers(log)) == 40
    for number in range(0, 40, 3):
        assert log.search_by_time(NOW + number + 1)().offset == 2 * number + 1
    log.close()
    assert contents(tmp_path / "a", suffix) == contents(tmp_path / "b", suffix)


def test_a_tail_that_a_clean_mark_hides_is_found_anyway(tmp_path):
    written(tmp_path).close()
    last = files(tmp_path, ".log")[-1]
    os.truncate(last, last.stat().st_size - 5)
    assert reopened(tmp_path, clean_shutdown=True).log_end_offset == 78


def test_an_index_without_a_log_is_removed(tmp_path):
    written(tmp_path).close()
    (tmp_path / f"{999:020d}.index").write_bytes(b"")
    (tmp_path / f"{999:020d}.timeindex").write_bytes(b"")
    reopened(tmp_path, clean_shutdown=True)
    assert not list(tmp_path.glob(f"{999:020d}*"))


def test_leftovers_of_deletions_and_cleanings_are_removed(tmp_path):
    written(tmp_path).close()
    for name in (f"{0:020d}.log.deleted", f"{5:020d}.log.cleaned", f"{5:020d}.index.cleaned", f"{9:020d}.snapshot.deleted"):
        (tmp_path / name).write_bytes(b"x")
    log = reopened(tmp_path, clean_shutdown=True)
    assert len(headers(log)) == 40
    assert not [name for name in os.listdir(tmp_path) if name.endswith((".deleted", ".cleaned"))]


def test_a_swap_is_completed(tmp_path):
    """A cleaned segment that was to take the place of the first two."""
    log = written(tmp_path)
    log.close()
    first, second = files(tmp_path, ".log")[:2]
    joined = first.read_bytes() + second.read_bytes()
    (tmp_path / f"{0:020d}.log.swap").write_bytes(joined)
    after = reopened(tmp_path, clean_shutdown=True)
    assert first.read_bytes() == joined
    assert not second.exists()
    assert len(headers(after)) == 40


def test_a_swap_that_was_still_being_prepared_is_undone(tmp_path):
    log = written(tmp_path)
    log.close()
    (tmp_path / f"{0:020d}.log.swap").write_bytes(b"half")
    (tmp_path / f"{0:020d}.log.cleaned").write_bytes(b"ha")
    assert len(headers(reopened(tmp_path, clean_shutdown=True))) == 40


# Producers


def test_a_snapshot_is_written_at_each_roll_and_at_the_end(tmp_path):
    log = written(tmp_path)
    bases = [segment.base_offset for segment in log.segments[1:]]
    assert [int(path.stem) for path in files(tmp_path, ".snapshot")] == bases
    log.close()
    assert [int(path.stem) for path in files(tmp_path, ".snapshot")] == [*bases, 80]


@pytest.mark.parametrize("stop", ["clean", "kill"])
@pytest.mark.parametrize("snapshots", ["kept", "lost", "corrupt"])
def test_producers_survive(tmp_path, stop, snapshots):
    log = written(tmp_path)
    if stop == "clean":
        log.close()
    for path in files(tmp_path, ".snapshot"):
        if snapshots == "lost":
            path.unlink()
        elif snapshots == "corrupt":
            path.write_bytes(path.read_bytes()[:-3])
    after = reopened(tmp_path, clean_shutdown=stop == "clean")
    for number in range(36, 40):  # a client repeats all that went unanswered
        info = after.append_as_leader(view(batch(2, pid=7, seq=2 * number, size=100)), 0)
        assert (info.duplicate, info.first_offset) == (True, 2 * number)
    assert append(after, batch(1, pid=7, seq=80)) == 80


def test_expired_producers_are_not_loaded(tmp_path):
    written(tmp_path).close()
    later = ManualClock(NOW + 10**9)
    assert not open_log(tmp_path, CONFIG, later, clean_shutdown=True).producers.by_id


@pytest.mark.parametrize("clean", [True, False])
def test_open_transactions_and_aborted_ones_survive(tmp_path, clean):
    log = open_log(tmp_path)
    append(log, batch(2, pid=1, seq=0, transactional=True))
    append(log, batch(2, pid=2, seq=0, transactional=True))
    marker = end_transaction_marker(ControlType.ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=3, timestamp=NOW)
    log.append_as_leader(view(marker), 0, origin=Origin.COORDINATOR)
    if clean:
        log.close()
    after = open_log(tmp_path, clean_shutdown=clean)
    after.high_watermark = 5
    assert after.last_stable_offset == 2
    assert after.aborted_transactions(0, 5) == [(1, 0, 4, 2)]
    assert after.producers.by_id[2].transaction_start == 2
    assert after.producers.by_id[1].coordinator_epoch == 3


# The start


def test_the_log_start_comes_back_from_its_checkpoint(tmp_path):
    log = written(tmp_path)
    log.close()
    after = reopened(tmp_path, clean_shutdown=True, log_start_offset=7)
    assert (after.log_start_offset, records(after)[0].offset) == (7, 7)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "checkpoints", [{"log_start_offset": 500}, {"recovery_point": 500}, {"log_start_offset": 500, "recovery_point": 500}]
)
def test_checkpoints_of_an_earlier_topic_delete_nothing(tmp_path, checkpoints, clean):
    log = written(tmp_path)
    if clean:
        log.close()
    producer = log.producers.by_id[7].batches
    after = reopened(tmp_path, clean_shutdown=clean, **checkpoints)
    assert (after.log_start_offset, after.log_end_offset, len(headers(after))) == (0, 80, 40)
    assert after.producers.by_id[7].batches == producer
    assert after.leader_epochs.entries == ((0, 0), (1, 30), (2, 60))
    if not clean:
        assert after.recovery_point == 0  # nothing says that any of it was flushed
    assert append(after, batch(1)) == 80


def test_all_is_read_where_the_recovery_point_cannot_be_of_this_log(tmp_path, caplog):
    written(tmp_path)
    first = files(tmp_path, ".log")[0]
    with open(first, "r+b") as file:
        file.seek(2 * SIZE + 100)
        file.write(b"xxxx")
    assert reopened(tmp_path, recovery_point=500).log_end_offset == 4
    assert "before its checkpointed start 0 or recovery point 500" in caplog.text


def test_a_log_without_segments_begins_at_its_start(tmp_path):
    after = reopened(tmp_path, log_start_offset=500)
    assert (after.log_start_offset, after.log_end_offset) == (500, 500)


def test_preallocated_files(tmp_path):
    config = LogConfig(preallocate=True, segment_bytes=10_000)
    log = open_log(tmp_path, config)
    append(log, batch(1))
    assert files(tmp_path, ".log")[0].stat().st_size == 10_000
    again = open_log(tmp_path, config)
    assert again.log_end_offset == 1
    append(again, batch(1))
    again.close()
    assert files(tmp_path, ".log")[0].stat().st_size == 2 * len(batch(1))
