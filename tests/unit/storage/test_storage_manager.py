"""The logs of a broker: locks, owners, restarts, deletions, checkpoints."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from ottla.clock import ManualClock
from ottla.model import TopicPartition
from ottla.storage import checkpoints, epochs
from ottla.storage.deletion import remove
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.manager import LogManager, StorageStartError
from unit.storage.storage_kit import NOW, TP, append, batch, headers

ID = bytes(range(16))


def broken(*_):
    raise OSError(5, "Input/output error")


def manager(*dirs, clock=None, broker_id=1, cluster_id="cluster", **options):
    made = LogManager(
        [str(path) for path in dirs], clock or ManualClock(NOW), broker_id=broker_id, cluster_id=cluster_id, **options
    )
    made.load()
    return made


def test_a_directory_is_used_by_one_broker(tmp_path):
    first = manager(tmp_path)
    with pytest.raises(StorageStartError, match=r"locked by another broker.*log\.dirs"):
        manager(tmp_path)
    first.shutdown()
    manager(tmp_path).shutdown()


def test_another_process_is_kept_out_too(tmp_path):
    first = manager(tmp_path)
    code = (
        "import sys; from ottla.clock import SystemClock; from ottla.storage.manager import *\n"
        "try: LogManager([sys.argv[1]], SystemClock(), broker_id=1, cluster_id='cluster')\n"
        "except StorageStartError as error: print(error)"
    )
    answer = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "locked by another broker" in answer.stdout
    first.shutdown()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cluster_id": "other"}, r"is of cluster cluster, but this broker is in cluster other;"),
        ({"broker_id": 2}, r"is of broker 1, but broker\.id is 2; set broker\.id=1"),
    ],
)
def test_a_directory_of_another_broker_is_refused(tmp_path, change, words):
    manager(tmp_path).shutdown()
    with pytest.raises(StorageStartError, match=words):
        manager(tmp_path, **change)
    manager(tmp_path).shutdown()  # and the lock was given back


def test_the_cluster_id_may_come_later(tmp_path):
    early = LogManager([str(tmp_path)], ManualClock(NOW), broker_id=1, cluster_id=None)
    assert early.stored_cluster_id() is None
    early.claim("abc")
    assert early.stored_cluster_id() == "abc"
    early.shutdown()


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageStartError, match="cannot use the data directory"):
        manager(tmp_path / "file" / "data")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("meta.properties", "version=1\n", r"meta\.properties: version 1 .* repair the file"),
        (
            "recovery-point-offset-checkpoint",
            "nonsense",
            "recovery-point-offset-checkpoint: .* recover every log from its start",
        ),
        ("orders-0/partition.metadata", "version: 7\n", r"cannot open .*orders-0.*partition\.metadata: version 7"),
    ],
)
def test_a_file_that_cannot_be_understood_ends_the_start_with_one_line(tmp_path, file, text, words):
    first = manager(tmp_path)
    first.create(TP, topic_id=ID)
    first.shutdown()
    sound = (tmp_path / file).read_text()
    (tmp_path / file).write_text(text)
    with pytest.raises(StorageStartError, match=words) as refused:
        manager(tmp_path)
    assert "\n" not in str(refused.value)
    (tmp_path / file).write_text(sound)
    manager(tmp_path).shutdown()  # and the lock was given back


def test_clean_restart(tmp_path):
    first = manager(tmp_path)
    log = first.create(TP, LogConfig(segment_bytes=500), ID)
    for number in range(20):
        append(log, batch(1, pid=7, seq=number))
    log.high_watermark = 20
    log.delete_records_before(2)
    first.shutdown()
    assert sorted(os.listdir(tmp_path)) == [
        ".kafka_cleanshutdown",
        ".lock",
        "cleaner-offset-checkpoint",
        "log-start-offset-checkpoint",
        "meta.properties",
        "orders-0",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ]
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 20\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\norders 0 2\n"
    second = manager(tmp_path)
    log = second.logs[TP]
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point, log.topic_id) == (2, 20, 20, ID)
    assert second.read_high_watermarks() == {TP: 20}
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    second.shutdown()


def test_restart_after_a_crash(tmp_path):
    first = manager(tmp_path)
    log = first.create(TP, topic_id=ID)
    append(log, batch(3))
    log.flush()
    for write in first.recovery_point_writes():
        write()
    append(log, batch(3))
    first.abandon()
    second = manager(tmp_path)
    assert len(headers(second.logs[TP])) == 2
    assert second.logs[TP].recovery_point == 3
    second.shutdown()


def test_topic_settings_are_asked_for(tmp_path):
    first = manager(tmp_path)
    first.create(TP)
    first.shutdown()
    second = LogManager([str(tmp_path)], ManualClock(NOW), broker_id=1, cluster_id="cluster", recovery_threads=3)
    second.load(lambda topic: LogConfig(retention_ms=len(topic)))
    assert second.logs[TP].config.retention_ms == len("orders")
    second.shutdown()


def test_partitions_spread_over_the_directories(tmp_path):
    made = manager(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    for number in range(6):
        made.create(TopicPartition("t", number))
    assert [len(made.logs_in(path)) for path in made.dirs] == [2, 2, 2]
    made.delete(TopicPartition("t", 0))
    made.create(TopicPartition("u", 0))
    assert [len(made.logs_in(path)) for path in made.dirs] == [2, 2, 2]
    made.shutdown()
    again = manager(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert len(again.logs) == 6
    again.shutdown()


def test_a_partition_in_two_directories_is_an_error(tmp_path):
    for name in "ab":
        one = manager(tmp_path / name)
        one.create(TP)
        one.shutdown()
    with pytest.raises(StorageStartError, match="move one of them away"):
        manager(tmp_path / "a", tmp_path / "b")


def test_a_deleted_topic_may_come_back_at_once(tmp_path):
    clock = ManualClock(NOW)
    made = manager(tmp_path, clock=clock)
    append(made.create(TP, LogConfig(file_delete_delay_ms=1000), ID), batch(2))
    made.delete(TP)
    again = made.create(TP, topic_id=bytes(16))
    assert (again.log_end_offset, again.topic_id) == (0, bytes(16))
    assert len(list(tmp_path.glob("orders-0.*-delete"))) == 1
    assert made.due_deletions() == []
    clock.advance_ms(1000)
    remove(made.due_deletions())
    assert not list(tmp_path.glob("*-delete"))
    made.shutdown()


def recreated(tmp_path, count):
    """Records deleted up to 40, all of it checkpointed; the topic deleted, created anew, and `count` records acknowledged."""
    made = manager(tmp_path)
    log = made.create(TP, topic_id=ID)
    append(log, batch(50))
    log.high_watermark = 50
    log.delete_records_before(40)
    log.flush()
    for write in made.checkpoint_writes():
        write()
    made.delete(TP)
    return made, lambda: [append(made.create(TP, topic_id=bytes(16)), batch(1)) for _ in range(count)]


def test_checkpoints_of_a_deleted_topic_do_not_wipe_its_successor(tmp_path):
    made, produce = recreated(tmp_path, 10)
    produce()
    made.abandon()
    log = manager(tmp_path).logs[TP]
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point, len(headers(log))) == (0, 10, 0, 10)


def test_checkpoints_after_a_deletion_forget_the_partition(tmp_path):
    made, produce = recreated(tmp_path, 60)  # more than the earlier topic had: only the checkpoints could tell
    for write in made.checkpoint_writes():
        write()
    produce()
    made.abandon()
    log = manager(tmp_path).logs[TP]
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 60, 0)


def test_a_start_forgets_the_checkpoints_of_partitions_that_are_gone(tmp_path):
    made, _ = recreated(tmp_path, 0)
    made.abandon()
    second = manager(tmp_path)
    for _ in range(60):
        append(second.create(TP), batch(1))
    second.abandon()
    log = manager(tmp_path).logs[TP]
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 60, 0)


def test_an_older_checkpoint_never_replaces_a_newer_one(tmp_path):
    made = manager(tmp_path)
    made.create(TP)
    (late,) = made.recovery_point_writes()
    made.delete(TP)
    (newer,) = made.recovery_point_writes()
    newer()
    late()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n0\n"
    made.abandon()


def test_a_checkpoint_that_failed_half_way_is_written_again(tmp_path, monkeypatch):
    made = manager(tmp_path)
    made.create(TP)
    made.recovery_point_writes()[0]()
    before = made.recovery_point_writes()[0]
    made.logs[TP].recovery_point = 7
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "sync_directory", broken)  # the new file is in place already
        with pytest.raises(OSError, match="Input/output"):
            made.recovery_point_writes()[0]()
    before()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 0\n"
    made.abandon()


def test_renamed_partitions_reach_the_disk(tmp_path, monkeypatch):
    made = manager(tmp_path / "a", tmp_path / "b")
    made.create(TP)
    synced = []
    monkeypatch.setattr(checkpoints, "sync_directory", synced.append)
    made.sync_directories()
    assert synced == []
    made.delete(TP)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "sync_directory", broken)
        with pytest.raises(OSError, match="Input/output"):
            made.sync_directories()
    made.sync_directories()  # what failed is tried again
    made.sync_directories()
    assert synced == [str(tmp_path / "a")]
    made.abandon()


def test_the_directory_of_another_topic_id_is_set_aside(tmp_path, caplog):
    first = manager(tmp_path)
    for name in ("same", "other", "unknown"):
        append(first.create(TopicPartition(name, 0), topic_id=ID), batch(3))
    append(first.create(TopicPartition("nameless", 0)), batch(3))
    first.shutdown()
    clock = ManualClock(NOW)
    second = LogManager([str(tmp_path)], clock, broker_id=1, cluster_id="cluster")
    second.load(expected_ids={"same": ID, "other": bytes(16), "nameless": ID})
    assert sorted(tp.topic for tp in second.logs) == ["nameless", "same", "unknown"]
    assert f"{tmp_path}/other-0 is of topic id" in caplog.text
    assert "other" not in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert second.create(TopicPartition("other", 0), topic_id=bytes(16)).log_end_offset == 0
    assert len(list(tmp_path.glob("other-0.*-delete"))) == 1
    clock.advance_ms(60_000)
    remove(second.due_deletions())
    assert not list(tmp_path.glob("*-delete"))
    second.shutdown()


def test_a_deletion_that_a_crash_interrupted_is_finished(tmp_path):
    clock = ManualClock(NOW)
    first = manager(tmp_path, clock=clock)
    first.create(TP)
    first.delete(TP)
    first.abandon()
    second = manager(tmp_path, clock=clock)
    assert second.logs == {}
    clock.advance_ms(60_000)
    remove(second.due_deletions())
    assert not list(tmp_path.glob("*-delete"))
    second.shutdown()


def test_strange_directories_are_left_alone(tmp_path, caplog):
    (tmp_path / "lost+found").mkdir()
    manager(tmp_path).shutdown()
    assert "lost+found is not the directory of a partition" in caplog.text
    assert (tmp_path / "lost+found").exists()


def test_housekeeping(tmp_path):
    clock = ManualClock(NOW)
    made = manager(tmp_path, clock=clock, producer_expiration_ms=5000)
    log = made.create(TP, LogConfig(flush_ms=100, retention_ms=1000))
    append(log, batch(2, pid=7, seq=0))
    log.high_watermark = 2
    assert made.flush_jobs() == []
    clock.advance_ms(100)
    ((flushed, job),) = made.flush_jobs()
    job.run()
    flushed.flushed(job)
    assert log.recovery_point == 2
    clock.advance_ms(5000)
    assert made.check_retention() == 1
    assert made.expire_producers() == 1
    for write in made.log_start_writes() + made.high_watermark_writes({TP: 1}):
        write()
    assert made.read_high_watermarks() == {TP: 1}
    made.shutdown()


def test_a_log_that_cannot_be_flushed_does_not_hold_up_the_others(tmp_path, monkeypatch, caplog):
    made = manager(tmp_path)
    logs = [made.create(TopicPartition("t", number), LogConfig(flush_messages=1)) for number in range(3)]
    for log in logs:
        append(log, batch(1))
    with monkeypatch.context() as patched:
        patched.setattr(logs[1].leader_epochs, "_unwritten", True)
        patched.setattr(epochs, "write_epochs", broken)
        assert [log for log, _ in made.flush_jobs()] == [logs[0], logs[2]]
    assert "t-1: cannot be flushed now" in caplog.text
    assert [log for log, _ in made.flush_jobs()] == logs
    made.abandon()


def test_a_log_whose_flush_failed_leaves_no_clean_mark(tmp_path, monkeypatch):
    made = manager(tmp_path)
    log = made.create(TP)
    append(log, batch(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        with pytest.raises(OSError, match="Input/output"):
            log.flush()
    made.shutdown()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 0\n"


def test_a_log_that_cannot_be_closed_leaves_no_clean_mark(tmp_path, monkeypatch):
    made = manager(tmp_path)
    append(made.create(TP), batch(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        made.shutdown()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    manager(tmp_path).shutdown()


def test_a_thousand_empty_partitions_are_cheap(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    made = manager(tmp_path)
    for number in range(1000):
        made.create(TopicPartition("t", number))
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the lock
    made.abandon()


def test_a_cleaner_point_beyond_the_end_of_a_log_that_was_cut_is_not_believed(tmp_path):
    made = manager(tmp_path)
    log = made.create(TP)
    append(log, batch(5))
    log.cleaned_to = 10
    for write in made.checkpoint_writes():
        write()
    made.abandon()
    again = manager(tmp_path)
    assert again.logs[TP].cleaned_to == 5
    again.abandon()


@pytest.mark.parametrize("last", [False, True])
def test_a_disk_that_fails_while_its_logs_are_opened(tmp_path, monkeypatch, last):
    paths = [str(tmp_path / "a"), str(tmp_path / "b")][: 1 if last else 2]
    made = LogManager(paths, ManualClock(NOW), broker_id=1, cluster_id="c")
    tps = [TopicPartition("t", number) for number in range(len(paths))]
    for tp in tps:
        append(made.create(tp), batch(1))
    bad = os.path.dirname(made.logs[tps[-1]].dir)
    made.abandon()
    opened = Log.open

    def failing(path, *args, **options):
        if path.startswith(bad):
            raise OSError(errno.EIO, "the disk is broken", path)
        return opened(path, *args, **options)

    monkeypatch.setattr(Log, "open", failing)
    again = LogManager(paths, ManualClock(NOW), broker_id=1, cluster_id="c")
    if last:
        with pytest.raises(StorageStartError):
            again.load()
    else:
        again.load()
        assert (list(again.logs), again.offline_dirs, again.dirs) == (
            [tps[0]],
            {bad},
            [os.path.dirname(again.logs[tps[0]].dir)],
        )
    again.abandon()


def test_retention_waits_for_logs_in_hand(tmp_path):
    made = manager(tmp_path, default_config=LogConfig(retention_ms=1))
    log = made.create(TP)
    append(log, batch(1))
    log.high_watermark = log.log_end_offset
    made._clock.advance_ms(100)
    assert made.check_retention(busy={TP}) == 0
    assert made.check_retention() == 1
    made.abandon()
