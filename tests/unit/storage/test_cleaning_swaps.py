"""A swap that goes wrong, and searches by time that meet one."""

from __future__ import annotations

import errno
import os

import pytest

from ottla.clock import ManualClock
from ottla.storage.log import Log
from unit.storage.cleaning_kit import clean, compacted
from unit.storage.storage_kit import NOW, append, batch, open_log, records


@pytest.fixture
def log(tmp_path):
    """Three segments with two keys, all but the last overwritten."""
    log = open_log(tmp_path, compacted(segment_bytes=2000))
    for number in range(90):
        append(log, batch(1, key=b"k%d" % (number % 2), timestamp=NOW + number))
    log.high_watermark = log.log_end_offset
    log.roll()
    return log


def test_indexes_that_cannot_be_read_leave_the_log_as_it_was(log: Log, monkeypatch, tmp_path):
    before = [record.offset for record in records(log)]

    size = os.path.getsize

    def no_descriptor(path):
        if ".index" in str(path):
            raise OSError(errno.EMFILE, "Too many open files")
        return size(path)

    monkeypatch.setattr(os.path, "getsize", no_descriptor)
    with pytest.raises(OSError, match="Too many"):
        clean(log, NOW + 1000)
    monkeypatch.undo()
    assert [record.offset for record in records(log)] == before
    assert not any(segment.replaced for segment in log.segments)
    assert log.search_by_time(NOW + 5)().offset == 5
    assert clean(log, NOW + 1000) is not None
    assert len(records(log)) < 10
    log.close()


def test_a_rename_that_fails_within_a_swap_is_a_failure_of_the_disk(log: Log, monkeypatch):
    rename, renames = os.rename, []

    def third_fails(old, new):
        renames.append(old)
        if len(renames) == 3:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        rename(old, new)

    monkeypatch.setattr(os, "rename", third_fails)
    with pytest.raises(OSError, match="interrupted") as failure:
        clean(log, NOW + 1000)
    assert failure.value.errno == errno.EIO, "so that the directory is given up, and the next start puts it right"
    monkeypatch.undo()
    again = open_log(log.dir, log.config, ManualClock(NOW + 1000))
    assert {record.key: record.offset for record in records(again)} == {b"k0": 88, b"k1": 89}
    again.close()


def test_a_search_that_meets_a_swap_begins_anew(log: Log, monkeypatch):
    search = log.search_by_time(NOW + 80)
    assert clean(log, NOW + 1000) is not None

    opened = os.open

    def garbage(path, *how, **more):
        if path.endswith(".timeindex") and not met:  # the index of a cleaned segment, read for entries that it no longer has
            met.append(path)
            raise ValueError("unpack requires a buffer of 12 bytes")
        return opened(path, *how, **more)

    met: list[str] = []
    monkeypatch.setattr(os, "open", garbage)
    found = search()
    assert met
    assert found is not None
    assert found.offset == 88
    log.close()
