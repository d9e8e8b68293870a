"""Walking over the batches of a file: chunk borders, batches larger than a chunk, old formats, damage."""

from __future__ import annotations

import os

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from ottla.storage.scan import Damage, verify, walk
from unit.storage.storage_kit import NOW, append, batch, headers, open_log, view


def written(path, *parts):
    file = path / "f.log"
    file.write_bytes(b"".join(parts))
    return os.open(file, os.O_RDWR), file.stat().st_size


@pytest.mark.parametrize(
    "sizes", [[10] * 300, [8000, 10, 8100, 10], [1 << 20, 5, (1 << 20) + 7, 3 << 20, 1], [(1 << 20) - 100, 50, 50]]
)
def test_both_walks_see_every_batch(tmp_path, sizes):
    parts = [batch(1, size=size, base_offset=number) for number, size in enumerate(sizes)]
    fd, end = written(tmp_path, *parts)
    expected, position = [], 0
    for number, part in enumerate(parts):
        expected.append((position, number))
        position += len(part)
    for found in (walk(fd, 0, end), verify(fd, 0, end)):
        assert [(at, header.base_offset) for at, header in found] == expected
    os.close(fd)


@pytest.mark.parametrize("at", [0, 500_000, (1 << 20) + 5, 2_500_000])
def test_a_flipped_bit_anywhere_in_a_large_batch_is_found(tmp_path, at):
    fd, end = written(tmp_path, batch(1), batch(1, size=3_000_000, base_offset=1))
    position = len(batch(1)) + 100 + at
    byte = os.pread(fd, 1, position)[0]
    os.pwrite(fd, bytes([byte ^ 1]), position)
    with pytest.raises(Damage) as damage:
        list(verify(fd, 0, end))
    assert damage.value.position == len(batch(1))
    os.close(fd)


def legacy(magic, offsets, compression=0):
    builder = LegacyRecordBatchBuilder(magic, compression, 1 << 20)
    for offset in offsets:
        builder.append(offset, timestamp=NOW + offset if magic else None, key=b"k", value=b"v")
    return bytes(builder.build())


@pytest.mark.parametrize("magic", [0, 1])
def test_a_directory_from_the_days_of_old_formats(tmp_path, magic):
    """Two messages of an old format, then a batch as of today."""
    (tmp_path / f"{0:020d}.log").write_bytes(legacy(magic, [0]) + legacy(magic, [1]) + batch(2, base_offset=5, leader_epoch=0))
    log = open_log(tmp_path)
    assert log.log_end_offset == 7
    assert append(log, batch(1)) == 7
    piece = log.read(1, 1 << 20, 8, True)
    assert piece.position == len(legacy(magic, [0]))
    if magic:
        assert log.search_by_time(NOW + 1)().offset == 1


def test_a_broken_old_message_is_cut(tmp_path):
    data = bytearray(legacy(1, [0]) + legacy(1, [1]))
    data[-1] ^= 1
    (tmp_path / f"{0:020d}.log").write_bytes(data)
    assert open_log(tmp_path).log_end_offset == 1


def test_a_large_batch_is_read_whole_through_the_index(tmp_path):
    log = open_log(tmp_path)
    for size in (10, 2_000_000, 10, 10):
        log.append_as_follower(view(batch(1, size=size, base_offset=log.log_end_offset, leader_epoch=0)))
    log.close()
    log = open_log(tmp_path, clean_shutdown=True)
    assert [header.base_offset for header in headers(log)] == [0, 1, 2, 3]
    assert len(log.read(1, 100, 4, True)) > 2_000_000
