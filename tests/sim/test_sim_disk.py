"""What a power cut takes: only what was not synced."""

import os
from random import Random

import pytest

from ottla.storage.checkpoints import read_epochs, sync_file, write_atomically, write_epochs
from ottla.testing.sim.disk import Disk


@pytest.mark.parametrize("seed", range(20))
def test_a_segment_keeps_what_was_synced(tmp_path, seed):
    path = tmp_path / "t-0" / "00000000000000000000.log"
    path.parent.mkdir()
    disk = Disk(Random(seed))
    with disk.installed():
        path.write_bytes(b"a" * 1000)
        sync_file(str(path))
        with open(path, "ab") as file:
            file.write(b"b" * 500)
        disk.power_cut(str(tmp_path))
    content = path.read_bytes()
    assert content[:1000] == b"a" * 1000
    assert len(content) <= 1500
    assert content[1000:].rstrip(b"\0") == b"b" * len(content[1000:].rstrip(b"\0"))


def test_something_is_lost_sooner_or_later(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    sizes = set()
    for seed in range(20):
        disk = Disk(Random(seed))
        with disk.installed():
            path.write_bytes(b"b" * 500)
            disk.power_cut(str(tmp_path))
        sizes.add(path.stat().st_size)
    assert len(sizes) > 5


def test_what_was_cut_off_is_not_safe_any_more(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    shortest = 1000
    for seed in range(30):
        disk = Disk(Random(seed))
        with disk.installed():
            path.write_bytes(b"a" * 1000)
            sync_file(str(path))
            os.truncate(path, 200)
            with open(path, "ab") as file:
                file.write(b"b" * 800)
            disk.power_cut(str(tmp_path))
        shortest = min(shortest, path.stat().st_size)
    assert 200 <= shortest < 1000


def test_a_small_file_that_was_written_with_a_sync_stays(tmp_path):
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    for seed in range(10):
        disk = Disk(Random(seed))
        with disk.installed():
            write_atomically(path, b"old")
            write_atomically(path, b"new")
            assert disk.power_cut(str(tmp_path)) == []


def test_a_small_file_that_was_not_synced_may_be_what_it_was(tmp_path):
    path = str(tmp_path / "leader-epoch-checkpoint")
    found = set()
    for seed in range(20):
        disk = Disk(Random(seed))
        with disk.installed():
            write_epochs(path, [(0, 0)])
            sync_file(path)
            write_epochs(path, [(0, 0), (1, 10)])
            disk.power_cut(str(tmp_path))
        found.add(len(read_epochs(path)))
    assert found == {1, 2}


def test_the_real_calls_come_back():
    before = os.fsync, os.truncate
    with Disk(Random(0)).installed():
        assert os.fsync is not before[0]
    assert (os.fsync, os.truncate) == before
