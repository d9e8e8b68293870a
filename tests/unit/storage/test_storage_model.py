"""Random lives of a log against a list: appends, rolls, reads, truncations, deletions, clean stops and crashes."""

from __future__ import annotations

import os
import shutil
import tempfile
from unittest import mock

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.clock import ManualClock
from ottla.model import TopicPartition
from ottla.records.batch import read_records, split
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from unit.storage.storage_kit import NOW, batch, view

CONFIG = LogConfig(
    segment_bytes=2500, index_interval_bytes=300, segment_index_bytes=200, segment_ms=5000, file_delete_delay_ms=0
)


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # A kill leaves the page cache alone, so nothing here needs the disk itself: thousands of syncs would only take time.
        self.patches = [mock.patch.object(os, name) for name in ("fsync", "fdatasync")]
        for patch in self.patches:
            patch.start()
        self.directory = tempfile.mkdtemp(prefix="ottla-model-")
        self.clock = ManualClock(NOW)
        self.written: list[tuple[int, int, bytes]] = []  # (first offset, count, value) of each batch
        self.start = 0
        self.sequence = 0
        self.flushed = 0
        self.open(clean=True)

    def open(self, clean: bool) -> None:
        self.log = Log.open(
            self.directory,
            TopicPartition("t", 0),
            CONFIG,
            self.clock,
            recovery_point=self.flushed,
            log_start_offset=self.start,
            clean_shutdown=clean,
        )
        self.log.high_watermark = self.log.log_end_offset

    def teardown(self) -> None:
        shutil.rmtree(self.directory)
        for patch in self.patches:
            patch.stop()

    @property
    def end(self) -> int:
        return self.log.log_end_offset

    @rule(count=st.integers(1, 6), size=st.integers(0, 350), later=st.integers(0, 1500))
    def append(self, count: int, size: int, later: int) -> None:
        self.clock.advance_ms(later)
        value = os.urandom(size)
        data = batch(count, value=value, pid=7, seq=self.sequence, timestamp=self.clock.now_ms())
        info = self.log.append_as_leader(view(data), 1)
        self.written.append((info.first_offset, count, value))
        self.sequence += count
        self.log.high_watermark = self.end

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.log.recovery_point

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.written) - 1))
        target = self.written[at][0]
        if target < self.start:
            return
        self.log.truncate_to(target)
        self.sequence -= sum(count for _, count, _ in self.written[at:])
        del self.written[at:]
        self.flushed = min(self.flushed, target)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        self.log.delete_records_before(self.start)

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.flushed = self.end
        self.open(clean=True)

    @rule(garbage=st.binary(max_size=200))
    def crash(self, garbage: bytes) -> None:
        """A kill, with half a write at the end."""
        newest = max(name for name in os.listdir(self.directory) if name.endswith(".log"))
        with open(os.path.join(self.directory, newest), "ab") as file:
            file.write(garbage)
        self.open(clean=False)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        limit = data.draw(st.integers(offset, self.end))
        most = data.draw(st.integers(1, 3000))
        piece = self.log.read(offset, most, limit, True)
        expected = [entry for entry in self.written if entry[0] + entry[1] > offset and entry[0] + entry[1] <= limit]
        assert (piece is None) == (not expected)
        if piece is not None:
            raw = piece.read()
            found = [(header.base_offset, header.count) for _, header in split(raw, cut=True)]
            assert found == [entry[:2] for entry in expected[: len(found)]]
            assert found

    @invariant()
    def everything_is_there(self) -> None:
        assert self.log.log_start_offset == self.start
        offset, found = self.start, []
        while (piece := self.log.read(offset, 1 << 20, self.end, True)) is not None:
            raw = piece.read()
            for position, header in split(raw):
                assert header.leader_epoch == 1
                found.append((header.base_offset, header.count, read_records(raw, position, header)[0].value))
                offset = header.next_offset
        assert found == [entry for entry in self.written if entry[0] + entry[1] > self.start]

    @invariant()
    def the_producer_goes_on(self) -> None:
        producer = self.log.producers.by_id.get(7)
        if producer is not None and self.written:
            assert producer.last_sequence == self.sequence - 1


LogMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLogModel = LogMachine.TestCase
