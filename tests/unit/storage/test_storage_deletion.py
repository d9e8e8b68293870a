"""Files on their way out: when they go, and that large ones leave the page cache first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.clock import ManualClock
from ottla.storage import page_cache
from ottla.storage.deletion import DeletionQueue, remove

LARGE = 6 << 20


def test_what_waits_goes_when_its_time_has_come() -> None:
    clock = ManualClock()
    queue = DeletionQueue(clock)
    queue.add(["b"], 2000)
    queue.add(["a"], 1000)
    assert queue.due() == []
    clock.advance_ms(1000)
    assert (queue.due(), len(queue)) == (["a"], 1)
    clock.advance_ms(1000)
    assert (queue.due(), len(queue)) == (["b"], 0)


@pytest.mark.parametrize("alone", [True, False], ids=["a file", "a directory"])
def test_a_large_file_leaves_the_page_cache_before_it_is_unlinked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    path = _written(tmp_path / "topic-0" / "log", flushed=True)
    fd = os.open(path, os.O_RDONLY)
    there = []
    forget = page_cache.forget

    def noted(*asked: int) -> None:
        there.append(path.exists())
        forget(*asked)

    monkeypatch.setattr(page_cache, "forget", noted)
    try:
        remove([str(path if alone else path.parent)])
        assert there == [True] * 3
        assert not path.exists()
        if page_cache.is_cached(fd, 0, LARGE):
            pytest.skip("this file system keeps its pages")
        assert os.pread(fd, 4, LARGE - 4) == b"last"  # whoever still reads it reads on
    finally:
        os.close(fd)


def test_what_is_still_to_be_written_is_not_written_on_its_way_out(tmp_path: Path) -> None:
    fd = os.open(_written(tmp_path / "log", flushed=False), os.O_RDONLY)
    try:
        page_cache.forget(fd, 0, LARGE)
        assert page_cache.is_cached(fd, 0, LARGE)
    finally:
        os.close(fd)


def test_what_is_gone_already_is_fine(tmp_path: Path) -> None:
    remove([str(tmp_path / "gone"), str(tmp_path / "small")])
    (tmp_path / "small").write_bytes(b"x")
    remove([str(tmp_path / "small")])
    assert list(tmp_path.iterdir()) == []


def _written(path: Path, *, flushed: bool) -> Path:
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        file.write(bytes(LARGE - 4) + b"last")
        file.flush()
        if flushed:
            os.fsync(file.fileno())
    return path
