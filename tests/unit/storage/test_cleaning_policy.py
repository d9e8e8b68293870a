"""What of a log may be cleaned, which log is first, which segments become one: by table."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from cleaning_kit import compacted

from ottla.storage.cleaning.policy import Section, Source, cleanable, filthiest, groups, must_roll, worth_cleaning

NOW = 1_000_000


@dataclass
class Seg:
    base_offset: int
    size: int = 100
    first_timestamp: int = 1000
    max_timestamp: int = 1000
    modified_ms: int = 0

    def age_timestamp(self) -> int:
        return self.max_timestamp if self.max_timestamp >= 0 else self.modified_ms


LOG = [Seg(0), Seg(10), Seg(20), Seg(30)]  # the last one is active; the log ends at 40


@pytest.mark.parametrize(
    ("cleaned_to", "stable", "expected"),
    [
        (None, 40, Section(0, 30, 0, 300)),  # never cleaned: everything but the active segment
        (0, 40, Section(0, 30, 0, 300)),
        (20, 40, Section(20, 30, 200, 100)),
        (15, 40, Section(15, 30, 200, 200)),  # a pass that ended within a segment: it counts on both sides, as in Apache Kafka
        (30, 40, Section(30, 30, 300, 0)),  # nothing dirty
        (None, 25, Section(0, 20, 0, 200)),  # not the segment that the last stable offset lies in
        (None, 20, Section(0, 20, 0, 200)),
        (20, 5, Section(20, 20, 200, 0)),  # the stable offset lies before what was cleaned
        (41, 40, Section(0, 30, 0, 300, misplaced=True)),  # beyond the log's end: it starts anew
        (40, 40, Section(40, 30, 400, 0)),
    ],
)
def test_the_dirty_section(cleaned_to, stable, expected):
    found = cleanable(
        LOG, compacted(), cleaned_to=cleaned_to, log_start_offset=0, log_end_offset=40, last_stable_offset=stable, now_ms=NOW
    )
    assert found == expected


def test_a_cleaner_point_before_the_log_starts_anew_at_its_start():
    found = cleanable(
        LOG[1:], compacted(), cleaned_to=3, log_start_offset=12, log_end_offset=40, last_stable_offset=40, now_ms=NOW
    )
    assert (found.first_dirty, found.misplaced) == (12, True)


@pytest.mark.parametrize(
    ("ages", "lag", "end"),
    [
        ((900, 500, 100), 0, 30),
        ((900, 500, 100), 300, 20),
        ((900, 500, 100), 600, 10),
        ((900, 500, 100), 1000, 0),
        ((900, 100, 500), 300, 10),  # the first that is too young ends it, whatever follows
    ],
)
def test_the_minimal_lag_keeps_young_segments_from_being_cleaned(ages, lag, end):
    segments = [Seg(10 * at, max_timestamp=NOW - age) for at, age in enumerate(ages)] + [Seg(30)]
    config = compacted(min_compaction_lag_ms=lag)
    found = cleanable(
        segments, config, cleaned_to=None, log_start_offset=0, log_end_offset=40, last_stable_offset=40, now_ms=NOW
    )
    assert found.end == end


@pytest.mark.parametrize(("age", "end"), [(299, 0), (300, 30)])
def test_the_minimal_lag_of_records_without_a_time_counts_from_the_last_write(age, end):
    segments = [Seg(0, max_timestamp=-1, modified_ms=NOW - age), Seg(30)]
    config = compacted(min_compaction_lag_ms=300)
    found = cleanable(
        segments, config, cleaned_to=None, log_start_offset=0, log_end_offset=40, last_stable_offset=40, now_ms=NOW
    )
    assert found.end == end


@pytest.mark.parametrize(
    ("first_timestamps", "cleaned_to", "overdue"),
    [
        ((NOW - 600, NOW - 50, NOW - 10), None, True),
        ((NOW - 400, NOW - 50, NOW - 10), None, False),
        ((NOW - 600, NOW - 50, NOW - 10), 10, False),  # the old one is clean
        ((-1, NOW - 50, NOW - 10), None, False),  # no timestamp, no deadline
    ],
)
def test_the_maximal_lag_forces_a_clean(first_timestamps, cleaned_to, overdue):
    segments = [Seg(10 * at, first_timestamp=first) for at, first in enumerate(first_timestamps)] + [Seg(30)]
    config = compacted(max_compaction_lag_ms=500, min_cleanable_dirty_ratio=1.0)
    found = cleanable(
        segments, config, cleaned_to=cleaned_to, log_start_offset=0, log_end_offset=40, last_stable_offset=40, now_ms=NOW
    )
    assert found.overdue is overdue
    assert worth_cleaning(found, config) is overdue


@pytest.mark.parametrize(
    ("section", "ratio", "worth"),
    [
        (Section(0, 10, 0, 100), 0.5, True),
        (Section(5, 10, 50, 50), 0.5, False),  # as in Apache Kafka it must be more
        (Section(5, 10, 49, 51), 0.5, True),
        (Section(10, 10, 100, 0), 0.0, False),
        (Section(0, 10, 0, 0), 0.0, False),
        (Section(5, 10, 99, 1, overdue=True), 0.5, True),
        (Section(10, 10, 100, 0, overdue=True), 0.5, False),
    ],
)
def test_when_a_clean_is_worth_it(section, ratio, worth):
    assert worth_cleaning(section, compacted(min_cleanable_dirty_ratio=ratio)) is worth


def test_the_filthiest_log_is_first_and_one_that_failed_is_last():
    half, most, all_of_it = Section(5, 10, 50, 50), Section(5, 10, 10, 90), Section(0, 10, 0, 100)
    assert filthiest([("a", half, 0), ("b", most, 0)]) == ("b", most)
    assert filthiest([("a", half, 0), ("b", most, 0), ("c", all_of_it, 1)]) == ("b", most)
    assert filthiest([("c", all_of_it, 1)]) == ("c", all_of_it)
    assert filthiest([]) is None


@pytest.mark.parametrize(
    ("size", "first", "lag", "rolls"),
    [
        (100, NOW - 600, 500, True),
        (100, NOW - 400, 500, False),
        (0, NOW - 600, 500, False),
        (100, NOW - 600, (1 << 63) - 1, False),
    ],
)
def test_an_active_segment_that_is_overdue_is_rolled(size, first, lag, rolls):
    assert must_roll(Seg(0, size, first), compacted(max_compaction_lag_ms=lag), NOW) is rolls


def source(base: int, size: int = 100, index: int = 8, times: int = 12) -> Source:
    return Source(base, size, index, times)


@pytest.mark.parametrize(
    ("sources", "end", "sizes"),
    [
        ([], 0, []),
        ([source(0)], 10, [1]),
        ([source(0), source(10), source(20)], 30, [3]),
        ([source(0, 600), source(10, 500), source(20, 400)], 30, [1, 2]),  # not more than segment.bytes
        ([source(0, 2000), source(10)], 30, [1, 1]),  # one that is too large already stays alone
        ([source(0, index=90), source(10, index=20)], 20, [1, 1]),  # nor more than an index holds
        ([source(0, times=90), source(10, times=20)], 20, [1, 1]),
        ([source(0), source(10)], 1 << 31, [2]),  # offsets up to 2^31-1 after the base
        ([source(0), source(10)], (1 << 31) + 1, [1, 1]),
        ([source(0), source(10, 0)], 1 << 33, [2]),  # an empty one has no offsets
        ([source(at, 1, 0, 0) for at in range(250)], 250, [100, 100, 50]),  # the renames of one turn of the loop
    ],
)
def test_groups(sources, end, sizes):
    found = groups(sources, end=end, segment_bytes=1000, index_bytes=100)
    assert [len(group) for group in found] == sizes
    assert [one for group in found for one in group] == sources
