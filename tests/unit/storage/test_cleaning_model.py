"""Any mix of writes, deletes, transactions, rolls, cleans, crashes and restarts keeps every guarantee of compaction.

A model remembers all that was written. After each step three readers look at the log: one from the start, one from the start
that reads committed data, one at the head. Crashes come at any named step of a clean, and leave what kill -9 would leave.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field

import pytest
from cleaning_kit import clean, committed, compacted, everything, final_values
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from storage_kit import NOW, TP, view

from ottla.clock import ManualClock
from ottla.records import _offset_map_twin
from ottla.records.batch import ControlType, Record, build, end_transaction_marker
from ottla.records.codecs import Codec
from ottla.records.offset_map import OffsetMap
from ottla.storage.append import Origin
from ottla.storage.cleaning import faults
from ottla.storage.log import Log

RETENTION_MS = 1000
KEYS = [b"a", b"b", b"c", b"d"]
STEPS = [step for step in faults.STEPS if step != "group-told"]


class Crash(BaseException):
    """The process is gone: nothing that would tidy up runs."""


@dataclass
class Written:
    """A record as the model remembers it."""

    record: Record
    written_ms: int
    producer: int = -1
    outcome: str = "committed"  # or open, aborted


@dataclass
class Sender:
    """A producer as the model knows it."""

    pid: int
    epoch: int = 0
    sequence: int = 0
    last_offset: int = -1
    open: list[Written] = field(default_factory=list)
    in_transaction: bool = False


class Compaction(RuleBasedStateMachine):
    """One log, and the model beside it."""

    twin = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="cleaning-")
        self.clock = ManualClock(NOW)
        self.written: list[Written] = []
        self.number = 0
        self.cleaned_to: int | None = None
        self.start = 0
        self.senders = {pid: Sender(pid) for pid in (1, 2, 3)}
        self.crashes: list[str] = []

    @initialize(codec=st.sampled_from([Codec.NONE, Codec.ZSTD, Codec.GZIP]), segment=st.sampled_from([400, 2000]))
    def begin(self, codec: Codec, segment: int) -> None:
        self.codec = codec
        self.config = compacted(segment_bytes=segment, delete_retention_ms=RETENTION_MS)
        self.log = self.open(clean=True)

    def open(self, *, clean: bool) -> Log:
        path = os.path.join(self.directory, "orders-0")
        point = 0 if not hasattr(self, "log") else self.log.recovery_point
        for segment in self.log.segments if hasattr(self, "log") else ():
            segment.forget_file()  # a new process has no file open
        log = Log.open(
            path, TP, self.config, self.clock, clean_shutdown=clean, recovery_point=point, log_start_offset=self.start,
            producer_expiration_ms=1 << 40,
        )  # fmt: skip
        log.high_watermark = log.log_end_offset
        log.cleaned_to = self.cleaned_to
        return log

    def teardown(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def append(self, rows: list[tuple[bytes, bytes | None]], sender: Sender | None, transactional: bool) -> None:
        now = self.clock.now_ms()
        if (
            sender and sender.sequence and sender.last_offset < self.start
        ):  # its records were deleted, and its sequence with them
            sender.epoch, sender.sequence = sender.epoch + 1, 0
        batch = build(
            [Record(at, now + at, key, value) for at, (key, value) in enumerate(rows)],
            codec=self.codec,
            producer_id=sender.pid if sender else -1,
            producer_epoch=sender.epoch if sender else -1,
            base_sequence=sender.sequence if sender else -1,
            transactional=transactional,
        )
        first = self.log.append_as_leader(view(batch), 0).first_offset
        self.log.high_watermark = self.log.log_end_offset
        for at, (key, value) in enumerate(rows):
            one = Written(Record(first + at, now + at, key, value), now, sender.pid if sender else -1)
            self.written.append(one)
            if transactional and sender:
                one.outcome = "open"
                sender.open.append(one)
        if sender:
            sender.sequence += len(rows)
            sender.last_offset = first + len(rows) - 1
            sender.in_transaction |= transactional

    def value(self, deleted: bool) -> bytes | None:
        self.number += 1
        return None if deleted else b"value %d" % self.number

    # What happens to a log

    @rule(
        keys=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=5),
        pid=st.sampled_from([None, 3]),
        times=st.integers(1, 3),
    )
    def write(self, keys: list[tuple[bytes, bool]], pid: int | None, times: int) -> None:
        for _ in range(times):
            self.append([(key, self.value(deleted)) for key, deleted in keys], self.senders[pid] if pid else None, False)

    @rule(keys=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=3), pid=st.sampled_from([1, 2]))
    def write_in_transaction(self, keys: list[tuple[bytes, bool]], pid: int) -> None:
        self.append([(key, self.value(deleted)) for key, deleted in keys], self.senders[pid], True)

    @rule(pid=st.sampled_from([1, 2]), commit=st.booleans())
    def end_transaction(self, pid: int, commit: bool) -> None:
        sender = self.senders[pid]
        if not sender.in_transaction:
            return
        marker = end_transaction_marker(
            ControlType.COMMIT if commit else ControlType.ABORT,
            producer_id=pid, producer_epoch=sender.epoch, coordinator_epoch=0, timestamp=self.clock.now_ms(),
        )  # fmt: skip
        self.log.append_as_leader(view(marker), 0, origin=Origin.COORDINATOR)
        self.log.high_watermark = self.log.log_end_offset
        for one in sender.open:
            one.outcome = "committed" if commit else "aborted"
        sender.open, sender.in_transaction = [], False

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(milliseconds=st.sampled_from([1, RETENTION_MS // 2, RETENTION_MS + 10]))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance_ms(milliseconds)

    @rule(small_map=st.booleans())
    def clean(self, small_map: bool) -> None:
        kind = _offset_map_twin.OffsetMap if self.twin else OffsetMap
        clean(self.log, self.clock.now_ms(), map_bytes=72 if small_map else 1 << 20, offset_map=kind)
        self.cleaned_to = self.log.cleaned_to

    @rule()
    def grow_old(self) -> None:
        """Everything is cleaned once, and again when delete markers and the ends of transactions may go."""
        self.log.roll()
        self.clean(False)
        self.clock.advance_ms(RETENTION_MS + 10)
        self.log.roll()
        self.append([(KEYS[0], self.value(False))], None, False)
        self.log.roll()
        self.clean(False)

    @precondition(lambda self: len(self.log.segments) > 1)
    @rule(step=st.sampled_from(STEPS))
    def crash_while_cleaning(self, step: str) -> None:
        def reach(name: str) -> None:
            if name == step:
                raise Crash(name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(faults, "reach", reach)
            try:
                clean(self.log, self.clock.now_ms())
            except Crash:
                if step == "checkpointed":
                    self.cleaned_to = self.log.cleaned_to
                self.crashes.append(step)
        self.log = self.open(clean=False)

    @rule()
    def crash(self) -> None:
        self.log = self.open(clean=False)

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = self.open(clean=True)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        stable = self.log.last_stable_offset
        self.start = max(self.start, self.start + int((stable - self.start) * share * 0.3))
        self.log.delete_records_before(self.start)
        self.start = self.log.log_start_offset

    # What must hold

    @invariant()
    def readers_see_what_they_may_expect(self) -> None:
        if not hasattr(self, "log"):
            return
        live = [one for one in self.written if one.record.offset >= self.start]
        by_offset = {one.record.offset: one for one in live}
        seen = everything(self.log)
        assert [one.offset for one in seen] == sorted({one.offset for one in seen}), "in order, each once"
        for record in seen:
            assert record == by_offset[record.offset].record, "what was written, where it was written"
        end = self.log.log_end_offset
        assert end >= max((one.record.offset + 1 for one in self.written), default=0), "offsets are never used again"

        head = self.log.segments[-1].base_offset
        expected = [one.record for one in live if one.record.offset >= head]
        assert everything(self.log, max(head, self.start)) == expected, "the head is whole"

        stable = self.log.last_stable_offset
        good = [one for one in live if one.outcome == "committed" and one.record.offset < stable]
        final = committed(self.log)
        assert {one.offset for one in final} <= {one.record.offset for one in good}, "nothing aborted, nothing open"
        assert final_values(final) == final_values([one.record for one in good])
        last = {one.record.key: one for one in good}
        now = self.clock.now_ms()
        for one in last.values():
            if one.record.value is None and one.written_ms + RETENTION_MS > now:
                assert one.record in final, "a delete marker stays for delete.retention.ms"

    @invariant()
    def producers_are_remembered(self) -> None:
        if not hasattr(self, "log"):
            return
        for sender in self.senders.values():
            if sender.last_offset >= self.start:  # a producer whose records were deleted may be forgotten with them
                known = self.log.producers.by_id[sender.pid]
                assert known.last_sequence == sender.sequence - 1
                assert (known.transaction_start >= 0) == sender.in_transaction


class CompactionWithTheTwin(Compaction):
    """The same over the map in Python."""

    twin = True


_MANY = bool(os.environ.get("OTTLA_SOAK"))
_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
_BUDGET = settings(
    max_examples=3000 if _MANY else 150, stateful_step_count=50 if _MANY else 30, deadline=None, suppress_health_check=_CHECKS
)

TestCompaction = pytest.mark.soak(pytest.mark.timeout(1800)(Compaction.TestCase))
TestCompaction.settings = _BUDGET
TestCompactionWithTheTwin = pytest.mark.soak(pytest.mark.timeout(1800)(CompactionWithTheTwin.TestCase))
TestCompactionWithTheTwin.settings = settings(_BUDGET, max_examples=300 if _MANY else 30)
