"""What a log does when the disk or the kernel refuses: no append fails after its write, no flush is claimed that was not."""

from __future__ import annotations

import errno
import os
import threading
from struct import Struct

import pytest

from ottla.clock import ManualClock
from ottla.model import Error, KafkaError
from ottla.records.batch import ControlType, end_transaction_marker
from ottla.storage import epochs, snapshots
from ottla.storage.append import Origin
from ottla.storage.log_config import LogConfig
from unit.storage.storage_kit import NOW, append, batch, headers, open_log, view

REAL_OPEN = os.open
REAL_FTRUNCATE = os.ftruncate


def refuse(patched, *suffixes, error=errno.EMFILE):
    """Files with these endings cannot be opened."""

    def opened(path, *rest, **named):
        if str(path).endswith(suffixes):
            raise OSError(error, os.strerror(error), path)
        return REAL_OPEN(path, *rest, **named)

    patched.setattr(os, "open", opened)


def failing(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def no_smaller(fd, size):
    """What becomes of an index that is trimmed, and of no other."""
    if size < os.fstat(fd).st_size:
        failing()
    REAL_FTRUNCATE(fd, size)


# Indexes


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_cannot_be_written_fails_no_append(tmp_path, monkeypatch, caplog, suffix):
    log = open_log(tmp_path, LogConfig(index_interval_bytes=1))
    with monkeypatch.context() as patched:
        refuse(patched, suffix)
        offsets = [append(log, batch(1, timestamp=NOW + n)) for n in range(1200)]  # several pages of entries
    assert offsets == list(range(1200))
    assert caplog.text.count("cannot be written") == 1
    for _ in range(2):
        append(log, batch(1, timestamp=NOW + 1200))
    assert [header.base_offset for header in headers(log)] == list(range(1202))
    assert [log.search_by_time(NOW + n)().offset for n in (3, 600, 1199)] == [3, 600, 1199]
    log.close()
    again = open_log(tmp_path, LogConfig(index_interval_bytes=1), clean_shutdown=True)
    assert [again.search_by_time(NOW + n)().offset for n in (3, 600, 1199)] == [3, 600, 1199]


def test_an_index_that_was_written_in_part_is_written_again(tmp_path, monkeypatch):
    log = open_log(tmp_path, LogConfig(index_interval_bytes=1))
    for n in range(100):
        append(log, batch(1, timestamp=NOW + n))
    real, calls = os.pwrite, []

    def short(fd, data, position):
        calls.append(position)
        return real(fd, data[: len(data) // 2 or 1], position)

    index = log.segments[-1].offset_index
    monkeypatch.setattr(os, "pwrite", short)
    index.write()
    monkeypatch.undo()
    assert len(calls) > 1
    with open(index.path, "rb") as file:
        content = file.read(8 * index.entries)
    assert [int.from_bytes(content[at : at + 4], "big") for at in range(0, len(content), 8)] == list(range(1, 100))


def test_an_aborted_transaction_that_cannot_be_indexed_waits(tmp_path, monkeypatch, caplog):
    log = open_log(tmp_path)
    marker = [
        end_transaction_marker(ControlType.ABORT, producer_id=p, producer_epoch=0, coordinator_epoch=3, timestamp=NOW)
        for p in (1, 2)
    ]
    for producer in (1, 2):
        append(log, batch(2, pid=producer, transactional=True))
    with monkeypatch.context() as patched:
        refuse(patched, ".txnindex", error=errno.ENOSPC)
        assert log.append_as_leader(view(marker[0]), 0, origin=Origin.COORDINATOR).first_offset == 4
    assert ".txnindex: cannot be written" in caplog.text
    expected = [(1, 0, 4, 2)]
    assert log.aborted_transactions(0, 5) == expected
    log.close()
    after = open_log(tmp_path, clean_shutdown=True)
    assert after.aborted_transactions(0, 5) == expected
    after.append_as_leader(view(marker[1]), 0, origin=Origin.COORDINATOR)
    after.close()
    assert open_log(tmp_path, clean_shutdown=True).aborted_transactions(0, 6) == [*expected, (2, 2, 5, 6)]


def test_leader_epochs_that_cannot_be_written_wait_for_the_flush(tmp_path, monkeypatch, caplog):
    log = open_log(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(epochs, "write_epochs", failing)
        assert append(log, batch(1, pid=7, seq=0), leader_epoch=3) == 0
        with pytest.raises(OSError, match="No space"):
            log.flush()
    assert log.append_as_leader(view(batch(1, pid=7, seq=0)), 3).duplicate  # all of the append came to pass
    assert "leader-epoch-checkpoint: cannot be written" in caplog.text
    assert log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 1
    assert epochs.LeaderEpochs(str(tmp_path)).entries == ((3, 0),)


# Rolls


@pytest.mark.parametrize("what", ["log", "index", "timeindex", "snapshot", "truncate"])
def test_a_roll_that_fails_leaves_the_log_usable(tmp_path, monkeypatch, what):
    log = open_log(tmp_path, LogConfig(index_interval_bytes=1))
    for n in range(5):
        append(log, batch(1, pid=7, seq=n))
    with monkeypatch.context() as patched:
        if what == "snapshot":
            patched.setattr(snapshots, "write", failing)
        elif what == "truncate":
            patched.setattr(os, "ftruncate", no_smaller)
        else:
            refuse(patched, f"5.{what}")
        with pytest.raises(OSError, match=r"No space|Too many"):
            log.roll()
        with pytest.raises(OSError, match=r"No space|Too many"):
            log.roll()
    assert len(log.segments) == 1
    assert not list(tmp_path.glob(f"{5:020d}.*"))  # recovery would take it for the beginning of another segment
    assert append(log, batch(1, pid=7, seq=5)) == 5
    assert [header.base_offset for header in headers(log)] == list(range(6))
    after = open_log(tmp_path)
    assert (after.log_end_offset, len(headers(after))) == (6, 6)
    log.roll()
    assert append(log, batch(1, pid=7, seq=6)) == 6
    assert [one.base_offset for one in log.segments] == [0, 6]
    assert len(headers(log)) == 7


def test_an_append_whose_roll_fails_is_refused_and_may_be_repeated(tmp_path, monkeypatch):
    log = open_log(tmp_path, LogConfig(segment_bytes=200))
    for n in range(2):
        append(log, batch(1, pid=7, seq=n))
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "write", failing)
        with pytest.raises(KafkaError) as refused:
            append(log, batch(1, pid=7, seq=2))
    assert refused.value.error is Error.KAFKA_STORAGE_ERROR
    assert append(log, batch(1, pid=7, seq=2)) == 2
    assert [one.base_offset for one in log.segments] == [0, 2]


@pytest.mark.parametrize("fails", [False, True])
def test_rolling_an_empty_segment(tmp_path, monkeypatch, fails):
    log = open_log(tmp_path)
    append(log, batch(5))
    log.roll()
    if fails:
        with monkeypatch.context() as patched:
            refuse(patched, "5.index")
            with pytest.raises(OSError, match="Too many"):
                log.roll()
    else:
        log.roll()
    assert [one.base_offset for one in log.segments] == [0, 5]
    assert append(log, batch(1)) == 5
    assert len(headers(open_log(tmp_path))) == 2


# Flushes


def test_a_failed_sync_holds_the_recovery_point_for_good(tmp_path, monkeypatch, caplog):
    log = open_log(tmp_path, LogConfig(flush_messages=1))
    append(log, batch(1))
    log.flush()
    append(log, batch(1))
    failed, overlapping = log.flush_job(), log.flush_job()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                failed.run()
    assert log.flush_failed
    assert caplog.text.count("could not be brought to the disk") == 1
    assert f"{0:020d}.log could not" in caplog.text
    overlapping.run()  # the kernel reports a lost page once: this one succeeds, and proves nothing
    log.flushed(overlapping)
    append(log, batch(1))
    assert log.flush_job() is None
    assert log.recovery_point == 1
    for step in (log.flush, log.close):
        with pytest.raises(OSError, match="an earlier flush failed"):
            step()


def test_a_file_that_cannot_be_opened_for_a_flush_is_no_loss(tmp_path, monkeypatch):
    log = open_log(tmp_path)
    append(log, batch(1))
    log.roll()
    job = log.flush_job()
    with monkeypatch.context() as patched:
        refuse(patched, ".index")
        with pytest.raises(OSError, match="Too many"):
            job.run()
    assert (log.flush_failed, log.recovery_point) == (False, 0)
    log.flush()
    assert log.recovery_point == 1


@pytest.mark.parametrize(
    ("config", "flushed", "due"),
    [
        (LogConfig(flush_messages=1), 0, True),
        (LogConfig(flush_messages=10), 0, True),  # the flush that its first copy waits for may be under way
        (LogConfig(flush_messages=1), 1, True),
        (LogConfig(flush_messages=1), 2, False),
        (LogConfig(), 0, False),
    ],
)
def test_a_duplicate_waits_for_the_flush_of_its_first_copy(tmp_path, config, flushed, due):
    log = open_log(tmp_path, config)
    append(log, batch(2, pid=7, seq=0))
    log.recovery_point = flushed
    info = log.append_as_leader(view(batch(2, pid=7, seq=0)), 0)
    assert (info.duplicate, info.flush_due) == (True, due)


# Searches by time, while the log goes on


def searched_log(tmp_path):
    clock = ManualClock(NOW)
    log = open_log(tmp_path, LogConfig(index_interval_bytes=1, retention_ms=1000), clock)
    for n in range(60):
        append(log, batch(1, timestamp=NOW + n))
        if n in (19, 39):
            log.roll()
    log.high_watermark = 60
    return log, clock


def more(log):
    for n in range(3000):
        append(log, batch(1, timestamp=NOW + 100 + n))


def rolled(log):
    more(log)
    log.roll()


def retired(log):
    more(log)
    log.high_watermark = log.log_end_offset
    log._drop_oldest(len(log.segments) - 1, "test")


@pytest.mark.parametrize("meanwhile", [more, rolled, retired])
def test_a_search_sees_the_log_as_it_was(tmp_path, meanwhile):
    log, _ = searched_log(tmp_path)
    searches = {n: log.search_by_time(NOW + n) for n in (45, 59, 60, 150)}
    newest = log.search_newest()
    meanwhile(log)
    assert {n: found.offset if (found := search()) else None for n, search in searches.items()} == {
        45: 45,
        59: 59,
        60: None,
        150: None,
    }
    assert newest()[:2] == (NOW + 59, 59)


@pytest.mark.parametrize("name", ["offset_index", "time_index"])
def test_a_page_of_the_index_is_written_in_the_middle_of_a_search(tmp_path, name):
    log, _ = searched_log(tmp_path)
    index = getattr(log.segments[-1], name)
    real = index._entry

    class Interrupted(Struct):
        def unpack_from(self, buffer, at):
            index.write()
            return real.unpack_from(buffer, at)

    index._entry = Interrupted(real.format)
    search = log.search_by_time(NOW + 45)
    assert search().offset == 45
    assert not index._pending  # it did happen


def test_a_search_passes_over_what_retention_took(tmp_path):
    log, clock = searched_log(tmp_path)
    by_time, newest = log.search_by_time(NOW), log.search_newest()
    clock.advance_ms(1030)
    assert log.apply_retention(clock.now_ms()) == 1
    assert by_time()[:2] == (NOW + 20, 20)
    assert newest()[:2] == (NOW + 59, 59)


def test_a_search_that_begins_while_another_is_thrown_away(tmp_path, monkeypatch):
    """What is thrown away last refers to a file, and closing that lets the loop's thread in between."""
    log, _ = searched_log(tmp_path)
    thrown_away = [log.search_by_time(NOW + 45)]
    rolled(log)
    real, begun = os.close, []

    def close(fd):
        begun.append(log.search_by_time(NOW + 3090))
        real(fd)

    monkeypatch.setattr(os, "close", close)
    thrown_away.clear()
    monkeypatch.undo()
    assert [search().offset for search in begun] == [3050]


def test_searches_in_threads_while_the_loop_appends(tmp_path):
    log = open_log(tmp_path, LogConfig(index_interval_bytes=1, segment_bytes=100_000))
    append(log, batch(1, timestamp=NOW))
    wrong: list[object] = []
    searches: list[tuple[int, object]] = []
    done = threading.Event()

    def search():
        while not done.is_set() or searches:
            if not searches:
                continue
            expected, run = searches.pop()
            try:
                found = run()
                if found is None or found.offset != expected:
                    wrong.append((expected, found))
            except Exception as error:
                wrong.append((expected, error))

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(1, 4000):
        append(log, batch(1, timestamp=NOW + n))
        if n % 5 == 0:
            searches += [(n // 2, log.search_by_time(NOW + n // 2)), (n, log.search_newest())]
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
