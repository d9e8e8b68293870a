"""Transactions in a log: a reader that goes by the aborted lists sees what was committed, and is told of nothing else."""

import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.records.batch import ControlType, end_transaction_marker, read_marker, split
from ottla.storage.append import Origin
from ottla.storage.log_config import LogConfig
from unit.storage.storage_kit import NOW, batch, open_log, view

PRODUCERS = [1, 2, 3]
STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "write", "write", "plain", "commit", "abort"]), st.sampled_from(PRODUCERS)),
    min_size=1,
    max_size=60,
)


class Story:
    """A log written by several producers, and what a reader has to find in it."""

    def __init__(self, directory, steps):
        config = LogConfig(segment_bytes=2000, index_interval_bytes=150)
        self.log = open_log(directory, config)
        self.sequence = dict.fromkeys(PRODUCERS, 0)
        self.open = {}
        self.aborted = []
        """Producer, first offset, marker's offset."""
        self.committed = set()
        for kind, producer in steps:
            getattr(self, kind)(producer)

    def _append(self, data, origin=Origin.CLIENT):
        info = self.log.append_as_leader(view(data), 0, origin=origin)
        self.log.high_watermark = self.log.log_end_offset
        return info.first_offset

    def plain(self, _producer):
        self.committed.add(self._append(batch(1, size=40)))

    def write(self, producer):
        data = batch(1, pid=producer, seq=self.sequence[producer], transactional=True, size=40)
        self.sequence[producer] += 1
        self.open.setdefault(producer, []).append(self._append(data))

    def _end(self, producer, outcome):
        marker = end_transaction_marker(outcome, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=NOW)
        return self._append(marker, Origin.COORDINATOR)

    def commit(self, producer):
        self._end(producer, ControlType.COMMIT)
        self.committed.update(self.open.pop(producer, ()))

    def abort(self, producer):
        at = self._end(producer, ControlType.ABORT)
        if producer in self.open:
            self.aborted.append((producer, self.open.pop(producer)[0], at))

    @property
    def stable(self):
        return min((offsets[0] for offsets in self.open.values()), default=self.log.log_end_offset)


def read_committed(log, start, max_bytes):
    """What a consumer with isolation.level=read_committed makes of the answers, as clients do it."""
    seen, offset = set(), start
    while (region := log.read(offset, max_bytes, log.last_stable_offset, True)) is not None:
        named = sorted((one.first_offset, one.producer_id) for one in log.aborted_within(region, offset))
        data, skipped = region.read(), set()
        for position, header in split(data, cut=True):
            while named and named[0][0] <= header.last_offset:
                skipped.add(named.pop(0)[1])
            if header.is_control:
                if read_marker(data, position, header).type is ControlType.ABORT:
                    skipped.discard(header.producer_id)
            elif header.producer_id not in skipped or not header.is_transactional:
                seen.add(header.base_offset)
            offset = header.next_offset
    return seen


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 60), st.sampled_from([150, 400, 1000, 10_000]), st.booleans())
def test_a_reader_sees_what_was_committed_and_nothing_else(steps, start, max_bytes, reopened):
    with tempfile.TemporaryDirectory() as directory:
        story = Story(directory, steps)
        log = story.log
        if reopened:
            log.close()
            log = open_log(directory, log.config)
            log.high_watermark = log.log_end_offset
        assert log.last_stable_offset == story.stable
        start = min(start, log.log_end_offset)
        expected = {offset for offset in story.committed if start <= offset < story.stable}
        assert {offset for offset in read_committed(log, start, max_bytes) if offset >= start} == expected
        log.close()


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 60), st.sampled_from([150, 400, 1000, 10_000]))
def test_a_fetch_names_the_aborted_transactions_of_its_range(steps, start, max_bytes):
    with tempfile.TemporaryDirectory() as directory:
        story = Story(directory, steps)
        start = min(start, story.log.log_end_offset)
        region = story.log.read(start, max_bytes, story.log.last_stable_offset, True)
        if region is not None:
            end = max(header.next_offset for _, header in split(region.read(), cut=True))
            named = {tuple(one)[:3] for one in story.log.aborted_within(region, start)}
            assert named == {one for one in story.aborted if one[2] >= start and one[1] < end}
        story.log.close()


@pytest.mark.parametrize("steps", [[("write", 1), ("abort", 1)] * 3])
def test_the_list_ends_with_the_region(tmp_path, steps):
    """The planted case: three aborted transactions, and a fetch that has room for one."""
    story = Story(tmp_path, steps)
    region = story.log.read(0, 200, story.log.last_stable_offset, True)
    assert [tuple(one)[:3] for one in story.log.aborted_within(region, 0)] == [(1, 0, 1)]
    story.log.close()


def test_the_last_stable_offset_is_never_before_the_start(tmp_path):
    story = Story(tmp_path, [("write", 1), ("write", 1), ("plain", 1), ("plain", 1)])
    story.log.delete_records_before(3)
    assert (story.log.log_start_offset, story.log.last_stable_offset) == (3, 3)
    story.log.close()
