"""Regions of files: alive as long as somebody holds them, and warm or cold."""

from __future__ import annotations

import os

import pytest

from ottla.storage.slices import FileSlice, NotCached, OpenFiles, SegmentFile
from unit.storage.storage_kit import append, batch, open_log


def test_a_file_closes_with_its_last_reference(tmp_path):
    (tmp_path / "f").write_bytes(b"0123456789")
    file = SegmentFile(str(tmp_path / "f"))
    fd = file.fd
    piece = FileSlice(file, 2, 5)
    del file
    os.unlink(tmp_path / "f")
    assert (piece.read(), len(piece)) == (b"23456", 5)
    del piece
    with pytest.raises(OSError):
        os.fstat(fd)


def test_the_files_used_last_stay_open(tmp_path):
    files = OpenFiles(capacity=2)
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode())
    first = files.get(str(tmp_path / "a"))
    assert files.get(str(tmp_path / "a")) is first
    files.get(str(tmp_path / "b"))
    files.get(str(tmp_path / "c"))
    assert files.get(str(tmp_path / "a")) is not first
    files.forget(str(tmp_path / "c"))
    (tmp_path / "c").unlink()
    with pytest.raises(FileNotFoundError):
        files.get(str(tmp_path / "c"))


def test_a_cold_range_is_noticed_and_warmed(tmp_path):
    path = str(tmp_path / "f")
    with open(path, "wb") as out:
        out.write(os.urandom(1 << 20))
        out.flush()
        os.fsync(out.fileno())
    piece = FileSlice(SegmentFile(path), 100, (1 << 20) - 200)
    assert piece.cached()
    os.posix_fadvise(piece.file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if piece.cached():
        pytest.skip("this file system keeps its pages")
    piece.warm()
    assert piece.cached()


def test_a_cold_lookup_does_not_wait(tmp_path):
    log = open_log(tmp_path)
    for _ in range(600):
        append(log, batch(1, size=1000))
    log.roll()
    log.flush()
    segment = log.segments[0]
    for suffix in (".log", ".index"):
        fd = os.open(segment.path(suffix), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    if FileSlice(segment.file, 0, segment.size).cached():
        pytest.skip("this file system keeps its pages")
    with pytest.raises(NotCached) as cold:
        log.read(300, 5000, 600, True, nowait=True)
    cold.value.warm()
    assert log.read(300, 5000, 600, True, nowait=True) is not None
