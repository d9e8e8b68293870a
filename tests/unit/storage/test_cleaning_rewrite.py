"""One pass over one log: what stays, what goes and when, and that the files are those of a segment like any other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cleaning_kit import SECRET, clean, committed, compacted, everything, final_values, section_of
from storage_kit import NOW, append, headers, open_log, view

from ottla.clock import ManualClock
from ottla.records import legacy
from ottla.records.batch import ControlType, Record, build, end_transaction_marker
from ottla.records.codecs import Codec
from ottla.records.errors import CorruptRecords
from ottla.records.offset_map import OffsetMap
from ottla.storage.append import Origin
from ottla.storage.cleaning.cleaner import CleanerSettings, make_job
from ottla.storage.cleaning.rewrite import Pass
from ottla.storage.log_config import MAX_LONG

DAY = 86_400_000


class Bench:
    """A compacted log, and a clock that is moved by hand."""

    def __init__(self, directory: object, **settings: object) -> None:
        self.clock = ManualClock(NOW)
        self.directory = directory
        self.config = compacted(**settings)
        self.log = open_log(directory, self.config, self.clock)

    def put(
        self, *pairs: tuple[bytes, bytes | None], codec: Codec = Codec.NONE, pid: int = -1, seq: int = 0, txn: bool = False
    ) -> int:
        now = self.clock.now_ms()
        records = [Record(at, now, key, value) for at, (key, value) in enumerate(pairs)]
        data = build(
            records, codec=codec, producer_id=pid, producer_epoch=0 if pid >= 0 else -1,
            base_sequence=seq if pid >= 0 else -1, transactional=txn,
        )  # fmt: skip
        first = append(self.log, data)
        self.log.high_watermark = self.log.log_end_offset
        return first

    def end(self, pid: int, outcome: ControlType) -> None:
        marker = end_transaction_marker(
            outcome, producer_id=pid, producer_epoch=0, coordinator_epoch=0, timestamp=self.clock.now_ms()
        )
        self.log.append_as_leader(view(marker), 0, origin=Origin.COORDINATOR)
        self.log.high_watermark = self.log.log_end_offset

    def clean(self, **options: object) -> Pass | None:
        """Everything that was written so far lies before the active segment."""
        self.log.roll()
        return clean(self.log, self.clock.now_ms(), **options)  # type: ignore[arg-type]

    def offsets(self) -> list[int]:
        return [record.offset for record in everything(self.log)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("codec", Codec)
def test_the_last_value_of_each_key_stays_where_it_was(bench: Bench, codec: Codec) -> None:
    bench.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), codec=codec)
    bench.put((b"a", b"2"), codec=codec)
    bench.put((b"b", b"2"), (b"d", b"1"), codec=codec)
    bench.clean()
    assert bench.offsets() == [2, 3, 4, 5]
    assert final_values(everything(bench.log)) == {b"a": b"2", b"b": b"2", b"c": b"1", b"d": b"1"}
    first, *_ = headers(bench.log)
    assert (first.base_offset, first.last_offset, first.count, first.codec) == (0, 2, 1, codec), "its offsets are its own"


def test_every_offset_can_still_be_read_from(bench: Bench) -> None:
    for number in range(40):
        bench.put((b"k%d" % (number % 4), b"%d" % number))
        if number % 10 == 9:
            bench.log.roll()
    bench.clean()
    assert bench.offsets() == [36, 37, 38, 39]
    for offset in range(41):
        assert [one.offset for one in everything(bench.log, offset)] == [at for at in (36, 37, 38, 39) if at >= offset]


def test_a_batch_that_loses_nothing_is_copied_byte_for_byte(bench: Bench, tmp_path: Path) -> None:
    bench.put((b"a", b"1" * 100), (b"b", b"1" * 100), codec=Codec.ZSTD)
    bench.put((b"c", b"2" * 100))
    before = (tmp_path / f"{0:020d}.log").read_bytes()
    assert bench.clean()
    assert (tmp_path / f"{0:020d}.log").read_bytes() == before


def test_a_tombstone_waits_for_its_horizon(bench: Bench) -> None:
    bench.put((b"a", b"1"), (b"b", b"1"))
    bench.put((b"a", None))
    bench.clock.advance_ms(5000)
    bench.clean()
    assert bench.offsets() == [1, 2]
    tombstone = headers(bench.log)[-1]
    assert tombstone.delete_horizon == NOW + 5000 + DAY
    assert everything(bench.log)[-1] == Record(2, NOW, b"a", None), "its own time is what it was"
    bench.clock.advance_ms(DAY - 1)
    bench.put((b"x", b"1"))
    bench.clean()
    assert 2 in bench.offsets()
    assert headers(bench.log)[1].delete_horizon == NOW + 5000 + DAY, "the first clean sets it"
    bench.clock.advance_ms(1)
    bench.put((b"x", b"2"))
    bench.clean()
    assert bench.offsets() == [1, 4]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_retention_without_end_keeps_tombstones_and_markers_for_ever(tmp_path: Path, codec: Codec) -> None:
    bench = Bench(tmp_path, delete_retention_ms=MAX_LONG)
    bench.put((b"a", b"1"), (b"b", None), codec=codec)
    bench.put((b"a", b"2"), pid=7, txn=True)
    bench.end(7, ControlType.ABORT)
    bench.put((b"c", b"1"), pid=7, seq=1)
    for number in range(3):
        bench.put((b"x", b"%d" % number))
        bench.clean()
        bench.clock.advance_ms(DAY)
    tombstone, marker, *_ = headers(bench.log)
    assert tombstone.delete_horizon == marker.delete_horizon == MAX_LONG
    assert marker.is_control
    assert everything(bench.log)[:2] == [Record(0, NOW, b"a", b"1"), Record(1, NOW, b"b", None)], "the times are the same"


def test_a_marker_whose_time_is_too_far_from_the_horizon_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path, delete_retention_ms=MAX_LONG)
    marker = end_transaction_marker(ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=-1)
    bench.log.append_as_leader(view(marker), 0, origin=Origin.COORDINATOR)
    bench.put((b"a", b"1"))
    assert bench.clean()
    assert [(one.is_control, one.delete_horizon) for one in headers(bench.log)] == [(True, None), (False, None)]


def test_records_of_aborted_transactions_go_and_markers_follow_them(bench: Bench) -> None:
    bench.put((b"a", b"good"))
    bench.put((b"a", b"bad"), pid=7, txn=True)
    bench.end(7, ControlType.ABORT)
    bench.put((b"b", b"1"), pid=7, seq=1)
    bench.clean()
    assert bench.offsets() == [0, 3]
    assert [header.is_control for header in headers(bench.log)] == [False, True, False], (
        "the marker stays with its data's last clean"
    )
    bench.put((b"x", b"1"))
    bench.clean()
    marker = headers(bench.log)[1]
    assert marker.delete_horizon == NOW + DAY, "nothing of the transaction is left: now it waits"
    bench.clock.advance_ms(DAY)
    bench.put((b"x", b"2"))
    bench.clean()
    assert not any(header.is_control for header in headers(bench.log))
    assert [record.value for record in committed(bench.log)] == [b"good", b"1", b"2"]


def test_a_commit_marker_stays_while_data_of_its_transaction_does(bench: Bench) -> None:
    bench.put((b"a", b"1"), pid=7, txn=True)
    bench.end(7, ControlType.COMMIT)
    for round_ in range(3):
        bench.put((b"x", b"%d" % round_))
        bench.clean()
        bench.clock.advance_ms(2 * DAY)
    assert [header.is_control for header in headers(bench.log)].count(True) == 1
    again = open_log(bench.directory, bench.config, bench.clock, producer_expiration_ms=9 * DAY)
    assert again.producers.by_id[7].transaction_start == -1


def test_the_last_batch_of_a_producer_stays_without_its_records(bench: Bench) -> None:
    bench.put((b"a", b"1"), (b"b", b"1"), pid=7, seq=0)
    bench.put((b"a", b"2"), (b"b", b"2"), pid=7, seq=2)
    bench.put((b"a", b"3"), (b"b", b"3"))
    bench.clean()
    assert bench.offsets() == [4, 5]
    empty = headers(bench.log)[0]
    assert (empty.base_offset, empty.last_offset, empty.count, empty.base_sequence, empty.producer_id) == (2, 3, 0, 2, 7)
    again = open_log(bench.directory, bench.config, bench.clock)
    assert again.producers.by_id[7].last_sequence == 3


def test_only_a_marker_is_known_of_a_producer(bench: Bench) -> None:
    """Its epoch is what fences older ones: the marker stays as an empty batch when it could go."""
    bench.put((b"a", b"1"), pid=7, txn=True)
    fence = end_transaction_marker(ControlType.ABORT, producer_id=7, producer_epoch=5, coordinator_epoch=0, timestamp=NOW)
    bench.log.append_as_leader(view(fence), 0, origin=Origin.COORDINATOR)
    bench.log.high_watermark = bench.log.log_end_offset
    for round_ in range(4):
        bench.put((b"x", b"%d" % round_))
        bench.clean()
        bench.clock.advance_ms(2 * DAY)
    kept = [header for header in headers(bench.log) if header.is_control]
    assert [(header.count, header.producer_epoch) for header in kept] == [(0, 5)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_the_brokers_time_stays_the_time_of_the_batch(tmp_path: Path, codec: Codec) -> None:
    bench = Bench(tmp_path, message_timestamp_type="LogAppendTime")
    bench.put((b"a", b"1"), (b"b", b"1"), codec=codec)
    bench.clock.advance_ms(10)
    bench.put((b"a", None), codec=codec)
    bench.clean()
    assert [(one.offset, one.timestamp) for one in everything(bench.log)] == [(1, NOW), (2, NOW + 10)]
    assert all(header.is_log_append_time for header in headers(bench.log))


def test_old_formats_become_batches_with_the_same_offsets(bench: Bench) -> None:
    """Format v1, as an old broker left it: a plain message, and a compressed set with a gap."""
    plain = legacy.write_messages([Record(0, NOW, b"a", b"1")], 1)
    packed = legacy.write_messages(
        [Record(1, NOW, b"b", b"1"), Record(3, NOW, b"a", b"2"), Record(4, NOW, b"c", None)], 1, codec=Codec.GZIP
    )
    path = Path(bench.log.dir) / f"{0:020d}.log"
    bench.log.close()
    path.write_bytes(plain + packed)
    bench.log = open_log(bench.directory, bench.config, bench.clock)
    bench.log.high_watermark = bench.log.log_end_offset
    assert bench.log.log_end_offset == 5
    bench.put((b"b", b"2"))
    bench.clean()
    assert bench.offsets() == [3, 4, 5]
    assert headers(bench.log)[0].codec is Codec.GZIP


def test_a_map_that_is_too_small_cleans_in_several_passes(bench: Bench) -> None:
    for number in range(60):
        bench.put((b"k%d" % (number % 10), b"%d" % number), (b"k%d" % ((number + 5) % 10), b"%d" % number))
    expected = final_values(everything(bench.log))
    bench.log.roll()
    passes = 0
    while section_of(bench.log, NOW).end > section_of(bench.log, NOW).first_dirty:
        clean(bench.log, NOW, map_bytes=4 * 24)
        passes += 1
    assert passes > 5
    assert bench.log.cleaned_to == 120
    assert final_values(everything(bench.log)) == expected
    clean_again = clean(bench.log, NOW)
    assert clean_again is None


def test_small_segments_become_one_and_large_ones_do_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=1000)
    for number in range(20):
        bench.put((b"k%d" % (number % 15), b"x" * 60))
        bench.log.roll()
    assert bench.clean()
    sizes = [segment.size for segment in bench.log.segments]
    assert len(sizes) < 6
    assert max(sizes) <= 1000
    bench.log.close()
    again = open_log(tmp_path, bench.config, bench.clock, clean_shutdown=True)
    assert [segment.size for segment in again.segments] == sizes
    again.high_watermark = again.log_end_offset
    assert [one.offset for one in everything(again)] == list(range(5, 20))


def test_the_indexes_of_a_cleaned_segment_lead_to_its_batches(bench: Bench) -> None:
    for number in range(300):
        bench.clock.advance_ms(1000)
        bench.put((b"k%d" % (number % 100), b"x" * 50))
    bench.clean(buffer_bytes=1)
    segment = bench.log.segments[0]
    assert segment.offset_index.entries > 10
    assert segment.time_index.entries > 10
    assert segment.max_timestamp == NOW + 300_000
    for offset in range(200, 300, 7):
        assert everything(bench.log, offset)[0].offset == offset
        found = bench.log.search_by_time(NOW + 1000 * (offset + 1))()
        assert found is not None
        assert found.offset == offset
    newest = bench.log.search_newest()()
    assert newest is not None
    assert newest.offset == 299


def test_a_batch_larger_than_the_buffer(bench: Bench) -> None:
    bench.put((b"a", b"x" * 200_000), (b"b", b"y" * 300_000))
    bench.put((b"a", b"z" * 400_000), codec=Codec.SNAPPY)
    bench.clean(buffer_bytes=1)
    assert bench.offsets() == [1, 2]


def test_the_time_of_the_last_change_is_kept(bench: Bench, tmp_path: Path) -> None:
    """Retention goes by it where records have no timestamps."""
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.log.roll()
    os.utime(tmp_path / f"{0:020d}.log", (1_000_000, 1_000_000))
    assert clean(bench.log, NOW)
    assert os.path.getmtime(tmp_path / f"{0:020d}.log") == 1_000_000


def test_a_group_that_loses_everything_leaves_an_empty_segment(bench: Bench) -> None:
    bench.put((b"a", b"1"))
    bench.log.roll()
    bench.put((b"a", b"2"))
    bench.log.roll()
    bench.put((b"a", b"3"))
    bench.log.config = bench.config = compacted(segment_bytes=100)
    bench.clean()
    assert [segment.size for segment in bench.log.segments][:2] == [0, 0]
    assert bench.offsets() == [2]
    bench.log.close()
    bench.log = open_log(bench.directory, bench.config, bench.clock)
    bench.log.high_watermark = bench.log.log_end_offset
    assert bench.offsets() == [2]


@pytest.mark.parametrize(
    ("position", "change", "words"),
    [
        (80, 1, "checksum"),
        (7, 200, "offsets"),
        (8, 127, "of which"),
        (11, 255, "length|of which|checksum"),
        (16, 9, "magic|codec|corrupt|entry"),
    ],
)
def test_a_corrupt_batch_ends_the_pass_and_nothing_changes(
    bench: Bench, tmp_path: Path, position: int, change: int, words: str
) -> None:
    bench.put((b"a", b"1" * 50))
    bench.put((b"a", b"2" * 50))
    bench.log.roll()
    path = tmp_path / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[position] ^= change
    path.write_bytes(data)
    names = sorted(os.listdir(tmp_path))
    with pytest.raises(CorruptRecords, match=words) as refused:
        clean(bench.log, NOW)
    assert str(path) in str(refused.value)
    assert sorted(os.listdir(tmp_path)) == names
    assert path.read_bytes() == data


def test_a_pass_can_be_ended_from_outside(bench: Bench, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    bench.put((b"a", b"1"))
    bench.log.roll()
    spent = 0

    def spend(count: int) -> None:
        nonlocal spent
        spent += count
        if spent > count:
            raise Enough

    task = make_job(bench.log, section_of(bench.log, NOW), CleanerSettings(1, 1000, 0.9, 1, 1.0, 1), NOW)
    with pytest.raises(Enough):
        list(Pass(task, spend, OffsetMap(1000, 0.9, SECRET)).run())
    assert not [name for name in os.listdir(tmp_path) if "cleaned" in name]


def test_a_search_by_time_that_meets_a_swap_starts_again(bench: Bench) -> None:
    for number in range(100):
        bench.clock.advance_ms(1000)
        bench.put((b"k%d" % (number % 10), b"x" * 50))
    bench.log.roll()
    search = bench.log.search_by_time(NOW + 95_000)
    assert clean(bench.log, NOW)
    found = search()
    assert found is not None
    assert found.offset == 94


def test_a_reader_in_flight_keeps_its_file(bench: Bench) -> None:
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.log.roll()
    region = bench.log.read(0, 10_000, bench.log.log_end_offset, True)
    assert region is not None
    before = region.read()
    assert clean(bench.log, NOW)
    assert region.read() == before
    after = bench.log.read(0, 10_000, bench.log.log_end_offset, True)
    assert after is not None
    assert len(after.read()) < len(before)


@pytest.mark.parametrize("change", ["retention", "truncate", "delete"])
def test_what_makes_a_clean_useless_is_counted(bench: Bench, change: str) -> None:
    bench.put((b"a", b"1"))
    bench.log.roll()
    bench.put((b"a", b"2"))
    before = bench.log.removals
    if change == "retention":
        bench.log.delete_records_before(1)
    elif change == "truncate":
        bench.log.truncate_to(1)
    else:
        bench.log.rename_for_deletion()
    assert bench.log.removals > before


def test_truncation_takes_the_cleaner_point_back(bench: Bench) -> None:
    bench.put((b"a", b"1"))
    bench.put((b"b", b"2"))
    bench.clean()
    assert bench.log.cleaned_to == 2
    bench.log.truncate_to(1)
    assert bench.log.cleaned_to == 1
    bench.log.truncate_fully_and_start_at(9)
    assert bench.log.cleaned_to is None


def test_producer_snapshots_of_segments_that_went_go_too(bench: Bench, tmp_path: Path) -> None:
    for number in range(4):
        bench.put((b"a", b"%d" % number), pid=7, seq=number)
        bench.log.roll()
    assert {f"{n:020d}.snapshot" for n in (1, 2, 3, 4)} <= set(os.listdir(tmp_path))
    assert clean(bench.log, NOW)
    assert {name for name in os.listdir(tmp_path) if name.endswith(".snapshot")} == {f"{4:020d}.snapshot"}
    again = open_log(bench.directory, bench.config, bench.clock)
    assert again.producers.by_id[7].last_sequence == 3


def test_open_transactions_end_what_may_be_cleaned(bench: Bench) -> None:
    bench.put((b"a", b"1"))
    bench.log.roll()
    bench.put((b"a", b"2"), pid=7, txn=True)
    bench.log.roll()
    bench.put((b"a", b"3"))
    bench.clean()
    assert bench.log.cleaned_to == 1
    assert bench.offsets() == [0, 1, 2]
