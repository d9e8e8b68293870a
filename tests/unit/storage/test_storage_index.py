"""The sparse indexes: what they find, what they keep, what they refuse to believe."""

from __future__ import annotations

import os
import struct

import pytest

from ottla.storage.aborted import AbortedTransaction, TransactionIndex
from ottla.storage.index import OffsetIndex, TimeIndex

MAX = 10_485_760


def offset_index(path, entries, written):
    index = OffsetIndex(str(path / "i.index"), 100, MAX)
    index.preallocate()
    for number, entry in enumerate(entries):
        index.append(*entry)
        if number + 1 == written:
            index.write()
    return index


@pytest.mark.parametrize("written", [0, 1, 2, 3])  # entries in the file, the rest in memory
@pytest.mark.parametrize(
    ("offset", "position"),
    [(100, 0), (109, 0), (110, 4200), (119, 4200), (120, 8500), (129, 8500), (130, 13000), (10_000, 13000)],
)
def test_an_offset_is_looked_for_from_the_last_entry_at_or_below_it(tmp_path, written, offset, position):
    index = offset_index(tmp_path, [(110, 4200), (120, 8500), (130, 13000)], written)
    assert index.lookup(offset) == position


def test_many_entries_over_many_pages(tmp_path):
    entries = [(100 + 7 * n, 5000 * n) for n in range(1, 5001)]
    index = offset_index(tmp_path, entries, 0)
    for number in range(0, 5000, 97):
        offset, position = entries[number]
        assert index.lookup(offset) == position
        assert index.lookup(offset - 1) == position - 5000
        assert index.lookup(offset + 6) == position


def test_the_file_is_full_size_while_active_and_exact_when_trimmed(tmp_path):
    index = offset_index(tmp_path, [(110, 4200), (120, 8500)], 0)
    assert os.path.getsize(index.path) == MAX
    assert os.stat(index.path).st_blocks * 512 < 100_000  # sparse
    index.trim()
    with open(index.path, "rb") as file:
        assert file.read() == struct.pack(">iiii", 10, 4200, 20, 8500)
    again = OffsetIndex(index.path, 100, MAX)
    again.load(10_000)
    assert (again.entries, again.last_offset, again.last_position) == (2, 120, 8500)


def test_a_smaller_segment_index_bytes_cuts_no_entries(tmp_path):
    index = offset_index(tmp_path, [(110, 4200), (120, 8500), (130, 13000)], 0)
    index.trim()
    smaller = OffsetIndex(index.path, 100, 16)
    smaller.load(20_000)
    smaller.preallocate()
    assert [smaller.lookup(offset) for offset in (115, 125, 135)] == [4200, 8500, 13000]
    smaller.trim()
    with open(index.path, "rb") as file:
        assert file.read() == struct.pack(">iiiiii", 10, 4200, 20, 8500, 30, 13000)


def test_a_snapshot_is_not_changed_by_later_entries(tmp_path):
    index = offset_index(tmp_path, [(110, 4200), (120, 8500), (130, 13000)], 1)
    before = index.snapshot()
    for number in range(2000):  # several pages are written meanwhile
        index.append(140 + number, 14000 + number)
    assert [before.lookup(offset) for offset in (105, 115, 125, 135, 5000)] == [0, 4200, 8500, 13000, 13000]


@pytest.mark.parametrize("written", [0, 2, 3])
@pytest.mark.parametrize(("cut", "left"), [(100, 0), (110, 0), (111, 1), (120, 1), (125, 2), (130, 2), (131, 3), (500, 3)])
def test_truncation_keeps_the_entries_below(tmp_path, written, cut, left):
    entries = [(110, 4200), (120, 8500), (130, 13000)]
    index = offset_index(tmp_path, entries, written)
    index.truncate_to(cut)
    assert index.entries == left
    assert (index.last_offset, index.last_position) == ([(100, 0), *entries][left])
    index.append(140, 14000)
    assert index.lookup(139) == [(100, 0), *entries][left][1]
    assert index.lookup(140) == 14000


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\0" * 12, "multiple of 8"),
        (b"\0" * 800, "not of this segment"),  # what a kill leaves: zeros
        (struct.pack(">ii", 10, 4200) + b"\0" * 80, "not of this segment"),
        (struct.pack(">ii", 10, 99_999), "not of this segment"),  # beyond the log
        (struct.pack(">ii", -5, 4200), "not of this segment"),
    ],
)
def test_an_offset_index_that_cannot_be_right_is_refused(tmp_path, content, why):
    (tmp_path / "i.index").write_bytes(content)
    with pytest.raises(ValueError, match=why):
        OffsetIndex(str(tmp_path / "i.index"), 100, MAX).load(10_000)


def test_a_missing_index_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        OffsetIndex(str(tmp_path / "i.index"), 100, MAX).load(10_000)


def test_time_index_takes_only_rising_timestamps(tmp_path):
    index = TimeIndex(str(tmp_path / "t.timeindex"), 100, MAX)
    index.preallocate()
    for timestamp, offset in [(1000, 105), (1000, 110), (900, 115), (2000, 120)]:
        index.maybe_append(timestamp, offset)
    assert index.entries == 2
    assert [index.lookup(t) for t in (999, 1000, 1999, 2000, 9999)] == [100, 105, 105, 120, 120]
    index.trim()
    with open(index.path, "rb") as file:
        assert file.read() == struct.pack(">qiqi", 1000, 5, 2000, 20)
    assert os.path.getsize(index.path) == 24
    index.truncate_to(120)
    assert (index.last_timestamp, index.last_offset) == (1000, 105)


def test_aborted_transactions_in_kafkas_layout(tmp_path):
    """The bytes of a .txnindex that Apache Kafka 3.9.1 wrote for two aborted transactions."""
    kafka = bytes.fromhex(
        "00000000000000000001000000000000000600000000000000" + "0b000000000000000c"
        "00000000000000000001000000000000001200000000000000" + "170000000000000018"
    )
    (tmp_path / "x.txnindex").write_bytes(kafka)
    read = TransactionIndex(str(tmp_path / "x.txnindex"))
    expected = [AbortedTransaction(1, 6, 11, 12), AbortedTransaction(1, 18, 23, 24)]
    assert read.entries == expected
    written = TransactionIndex(str(tmp_path / "y.txnindex"))
    assert written.entries == []
    assert not os.path.exists(written.path)
    for transaction in expected:
        written.append(transaction)
    assert (tmp_path / "y.txnindex").read_bytes() == kafka
    written.truncate_to(23)
    assert (tmp_path / "y.txnindex").read_bytes() == kafka[:34]


@pytest.mark.parametrize(
    ("start", "end", "found", "complete"),
    [
        (0, 5, [], True),
        (0, 7, [6], True),
        (11, 13, [6], True),
        (12, 18, [], True),
        (0, 100, [6, 18], False),
        (24, 100, [], False),
    ],
)
def test_collecting_aborted_transactions(tmp_path, start, end, found, complete):
    index = TransactionIndex(str(tmp_path / "x.txnindex"))
    index.append(AbortedTransaction(1, 6, 11, 12))
    index.append(AbortedTransaction(1, 18, 23, 24))
    transactions, done = index.collect(start, end)
    assert [transaction.first_offset for transaction in transactions] == found
    assert done is complete
