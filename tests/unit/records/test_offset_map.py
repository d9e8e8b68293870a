"""The native offset map and its twin: the same answers to everything, and the batch-wise walk the same as batch by batch."""

from __future__ import annotations

import random
from array import array
from types import ModuleType

import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.records import _offset_map_twin as twin
from ottla.records.batch import (
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    BatchHeader,
    Record,
    TimestampType,
    assemble,
    build,
    open_records,
    read_header,
    split,
)

try:
    from ottla.records import _offset_map as native
except ImportError:
    native = None  # type: ignore[assignment]

needs_native = pytest.mark.skipif(native is None, reason="the native map is not built: python setup.py build_ext --inplace")
BOTH = [pytest.param(twin, id="twin"), pytest.param(native, id="native", marks=needs_native)]
SECRET = bytes(range(16))
NOW, HORIZON = 1_700_000_000_000, 1_700_000_086_400
EVERY = (1 << 63) - 1


def area(records: list[Record], base: int = 0) -> bytes:
    return build(records, base_offset=base)[HEADER_SIZE:]


def rows(*pairs: tuple[int, bytes | None, bytes | None]) -> list[Record]:
    return [Record(offset, NOW + offset, key, value) for offset, key, value in pairs]


@needs_native
@pytest.mark.parametrize(
    ("size", "expected"), [(0, "a3817f04ba25a8e66df67214c7550293"), (1, "da87c1d86b99af44347659119b22fc45")]
)
def test_the_hash_is_siphash(size: int, expected: str) -> None:
    """The first vectors that its authors publish for 128 bits."""
    assert native.siphash(SECRET, bytes(range(size))).hex() == expected


@pytest.mark.parametrize("m", BOTH)
def test_the_last_offset_of_a_key(m: ModuleType) -> None:
    known = m.OffsetMap(1000, 0.9, SECRET)
    records = rows((5, b"a", b"1"), (6, b"b", b"2"), (7, None, b"no key"), (9, b"a", None), (10, b"", b"an empty key"))
    assert known.put_all(area(records, 5), 5, 5, 5, 0)
    assert [known.get(key) for key in (b"a", b"b", b"", b"c")] == [9, 6, 10, -1]
    assert (len(known), known.latest) == (3, 10)
    known.note(20)
    known.note(3)
    assert known.latest == 20


@pytest.mark.parametrize("m", BOTH)
def test_records_before_the_dirty_section_are_passed_over(m: ModuleType) -> None:
    known = m.OffsetMap(1000, 0.9, SECRET)
    assert known.put_all(area(rows((0, b"a", b"1"), (1, b"b", b"2"))), 0, 2, 1, 1)
    assert (known.get(b"a"), known.get(b"b")) == (-1, 1)


@pytest.mark.parametrize("m", BOTH)
def test_a_full_map_takes_the_keys_it_knows_and_stops_at_a_new_one(m: ModuleType) -> None:
    known = m.OffsetMap(4 * 24, 0.5, SECRET)  # two of four slots
    records = rows((0, b"a", b""), (1, b"b", b""), (2, b"a", b""), (3, b"c", b""), (4, b"a", b""))
    assert not known.put_all(area(records), 0, 5, 4, 0)
    assert (known.latest, known.get(b"a"), known.get(b"c")) == (2, 2, -1)


@pytest.mark.parametrize("m", BOTH)
def test_many_keys(m: ModuleType) -> None:
    """The table grows, and loses nothing by it."""
    known = m.OffsetMap(1 << 20, 0.9, SECRET)
    for first in range(0, 30_000, 100):
        keys = rows(*((first + n, b"key %d" % ((first + n) % 20_000), b"") for n in range(100)))
        assert known.put_all(area(keys, first), first, 100, 99, 0)
    assert all(known.get(b"key %d" % n) == (n + 20_000 if n < 10_000 else n) for n in range(20_000))
    assert len(known) == 20_000
    assert known.memory <= 1 << 20


@pytest.mark.parametrize("m", BOTH)
@pytest.mark.parametrize(
    ("dropping", "kept"),
    [(False, [1, 3, 4, 9]), (True, [1, 4, 9])],
)
def test_which_records_stay(m: ModuleType, dropping: bool, kept: list[int]) -> None:
    known = m.OffsetMap(1000, 0.9, SECRET)
    known.put_all(area(rows((2, b"a", b""), (3, b"b", None)), 2), 2, 2, 1, 0)
    known.note(5)
    records = rows(
        (0, b"a", b"old"), (1, b"c", b"unknown"), (2, None, b"no key"), (3, b"b", None), (4, b"d", b"x"), (9, b"a", b"later")
    )
    stays, count, newest, tombstones = known.retain(area(records), 0, NOW, 6, 9, dropping, -1)
    assert (count, newest, tombstones) == (len(kept), NOW + 9, not dropping)
    header = read_header(build(records))._replace(count=count)
    assert [one.offset for one in open_records(stays, header)] == kept


@pytest.mark.parametrize("m", BOTH)
def test_a_batch_that_stays_whole_is_not_copied(m: ModuleType) -> None:
    known = m.OffsetMap(1000, 0.9, SECRET)
    data = area(rows((0, b"a", b"1"), (1, b"b", None)))
    assert known.retain(data, 0, NOW, 2, 1, False, -1) == (None, 2, NOW + 1, True)
    stays, count, _, _ = known.retain(data, 0, NOW, 2, 1, False, HORIZON)
    header = read_header(build(rows((0, b"a", b"1"), (1, b"b", None))))._replace(base_timestamp=HORIZON)
    assert count == 2
    assert open_records(stays, header) == rows((0, b"a", b"1"), (1, b"b", None)), "the times are the same"


LAST = (1 << 63) - 1


@pytest.mark.parametrize("m", BOTH)
@pytest.mark.parametrize(
    ("base_timestamp", "horizon", "fits"),
    [
        (-1, LAST, True),  # the least difference there is
        (-2, LAST, False),
        (-LAST - 1, HORIZON, False),
        (-LAST - 1, 0, True),
        (LAST - 1, 0, True),
        (-1 - LAST + HORIZON, HORIZON, True),
    ],
)
@pytest.mark.parametrize("all_stay", [True, False])
def test_a_batch_whose_times_are_too_far_from_the_horizon_gets_none(
    m: ModuleType, base_timestamp: int, horizon: int, fits: bool, all_stay: bool
) -> None:
    records = [Record(0, base_timestamp, b"a", b"1"), Record(1, base_timestamp + 1, b"b", None)]
    data = area(records)
    known = m.OffsetMap(1000, 0.9, SECRET)
    if not all_stay:
        known.put_all(area(rows((5, b"a", b"")), 5), 5, 1, 0, 0)
    stays, count, newest, tombstones = known.retain(data, 0, base_timestamp, 2, 1, False, horizon)
    left = records if all_stay else records[1:]
    assert (count, newest, tombstones) == (len(left), base_timestamp + 1, fits)
    if all_stay and not fits:
        assert stays is None
    else:
        base = horizon if fits else base_timestamp
        assert open_records(stays, read_header(build(records))._replace(base_timestamp=base, count=count)) == left
    if m is native:
        whole, out = build(records), bytearray(1000)
        *_, why = known.filter_batches(whole, 0, len(whole), out, 0, -1, EVERY, NOW, horizon, array("q"), crc32c)
        header = read_header(out)
        assert (why, header.count, header.delete_horizon) == (m.DONE, len(left), horizon if fits else None)
        assert open_records(bytes(out[HEADER_SIZE : header.size]), header) == left


@pytest.mark.parametrize("m", BOTH)
def test_one_record_that_cannot_be_counted_from_the_horizon_is_enough(m: ModuleType) -> None:
    """The base fits, the difference of a record does not."""
    records = [Record(0, 0, b"a", b"1"), Record(1, -5, b"b", None)]
    assert m.OffsetMap(1000, 0.9, SECRET).retain(area(records), 0, 0, 2, 1, False, LAST) == (None, 2, 0, False)


@pytest.mark.parametrize("m", BOTH)
@pytest.mark.parametrize("count", [-1, -2, -(1 << 31)])
@pytest.mark.parametrize("data", [b"", area([Record(0, 0, b"a", b"1")])])
def test_a_negative_count_is_corrupt(m: ModuleType, count: int, data: bytes) -> None:
    with pytest.raises(ValueError, match="record 1 of the batch is corrupt"):
        m.OffsetMap(1000, 0.9, SECRET).put_all(data, 0, count, 0, 0)


@pytest.mark.parametrize("m", BOTH)
def test_which_stretches_hold_a_last_word(m: ModuleType) -> None:
    known = m.OffsetMap(1000, 0.9, SECRET)
    known.put_all(area(rows((10, b"a", b"1"), (11, b"b", b""), (12, b"a", b"2"), (15, b"c", b"")), 10), 10, 4, 5, 0)
    known.note(17)
    assert known.holds_any(10, 10), "before it is settled nobody knows"
    known.settle(10)
    spans = [(9, 9), (10, 10), (10, 11), (12, 12), (13, 14), (13, 15), (16, 17), (17, 18)]
    assert [known.holds_any(*span) for span in spans] == [True, False, True, True, False, True, False, True]


@pytest.mark.parametrize("m", BOTH)
@pytest.mark.parametrize("secret", [b"", b"short", bytes(17)])
def test_a_secret_has_16_bytes(m: ModuleType, secret: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        m.OffsetMap(1000, 0.9, secret)


# Both, on anything

keys = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"a longer key than eight bytes"]))
values = st.one_of(st.none(), st.binary(max_size=40))


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A row of batches as a segment holds them, some of them compacted before."""
    out, offset = b"", draw(st.integers(0, 100))
    for _ in range(draw(st.integers(1, 6))):
        found = draw(st.lists(st.tuples(keys, values, st.integers(0, 3)), max_size=6))
        base, records = offset, []
        for key, value, gap in found:
            records.append(Record(offset + gap, NOW + draw(st.integers(-5, 5)), key, value))
            offset += gap + 1
        if not records:
            records = [Record(offset, NOW, b"x", b"x")]
        kind = draw(st.sampled_from(TimestampType))
        pid = draw(st.sampled_from([-1, 7]))
        whole = build(
            records,
            base_offset=base,
            timestamp_type=kind,
            producer_id=pid,
            transactional=draw(st.sampled_from([False] * 5 + [True])),
        )
        header = read_header(whole)
        change = draw(st.sampled_from(["none", "none", "horizon", "empty"]))
        if change == "horizon":
            header = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT)
            whole = assemble(header, whole[HEADER_SIZE:])
        elif change == "empty":
            whole = assemble(header._replace(count=0, base_timestamp=-1), b"")
        out += whole
        offset = header.last_offset + 1 + draw(st.integers(0, 3))
    return out


def filtered(known: twin.OffsetMap, data: bytes, empty: set[int], now: int) -> bytes:
    """What stays of the batches, one by one, from the rules in plain words."""
    out = b""
    for position, header in split(data):
        whole = data[position : position + header.size]
        if header.is_transactional:
            break
        gone = header.delete_horizon is not None and header.delete_horizon <= now
        horizon = -1 if header.delete_horizon is not None else HORIZON
        stays, count, newest, tombstones = known.retain(
            whole[HEADER_SIZE:],
            header.base_offset,
            header.base_timestamp,
            header.count,
            header.last_offset_delta,
            gone,
            horizon,
        )
        if not count:
            if header.last_offset in empty:
                changed = header._replace(attributes=header.attributes & 0x38, base_timestamp=-1, count=0)
                out += assemble(changed, b"")
        elif stays is None:
            out += whole
        else:
            changed = header._replace(count=count)
            if tombstones and horizon >= 0:
                changed = changed._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=HORIZON)
            if not header.is_log_append_time:
                changed = changed._replace(max_timestamp=newest)
            out += assemble(changed, stays)
    return out


@needs_native
@settings(max_examples=300, deadline=None)
@given(batches(), st.integers(1, 6), st.integers(-1, 120), st.sampled_from([NOW - 10, NOW + 10]), st.booleans(), st.booleans())
def test_native_and_twin_agree_on_batches(data: bytes, slots: int, first: int, now: int, keep: bool, settled: bool) -> None:
    fast, slow = native.OffsetMap(slots * 24, 0.9, SECRET), twin.OffsetMap(slots * 24, 0.9, SECRET)
    headers: list[BatchHeader] = [header for _, header in split(data)]
    position, _, why = fast.put_batches(data, 0, len(data), -1, EVERY, first, crc32c)
    walked = 0
    for at, header in split(data):
        if header.is_transactional:
            assert why == native.SPECIAL
            break
        body = data[at + HEADER_SIZE : at + header.size]
        if not slow.put_all(body, header.base_offset, header.count, header.last_offset_delta, first):
            assert why == native.FULL
            break
        if header.last_offset >= first:
            slow.note(header.last_offset)
        walked = at + header.size
    else:
        assert why == native.DONE
    assert (position, fast.latest, len(fast)) == (walked, slow.latest, len(slow))

    empty = {header.last_offset for header in headers[::2]} if keep else set()
    if settled:
        for one in (fast, slow):
            one.settle(max(first, 0))
        spans = [(header.base_offset, header.last_offset) for header in headers]
        assert [fast.holds_any(*span) for span in spans] == [slow.holds_any(*span) for span in spans]
    out = bytearray(len(data) * 3 + 61 * len(headers))
    position, end, _, why = fast.filter_batches(
        data, 0, len(data), out, 0, -1, EVERY, now, HORIZON, array("q", sorted(empty)), crc32c
    )
    assert why in (native.DONE, native.SPECIAL)
    assert bytes(out[:end]) == filtered(slow, data, empty, now)
    again = 0
    written, small = b"", bytearray(max(header.size for header in headers) * 3 + 61)
    while True:  # an output that is too small for all of it
        again, end, _, why = fast.filter_batches(
            data, again, len(data), small, 0, -1, EVERY, now, HORIZON, array("q", sorted(empty)), crc32c
        )
        written += small[:end]
        if why != native.FULL:
            break
    assert written == filtered(slow, data, empty, now)


@needs_native
@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(keys, values), min_size=1, max_size=6), st.data())
def test_native_and_twin_agree_on_damaged_records(found: list[tuple[bytes | None, bytes | None]], data: st.DataObject) -> None:
    records = [Record(at, NOW, key, value) for at, (key, value) in enumerate(found)]
    damaged = bytearray(area(records))
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    count = len(records) + data.draw(st.sampled_from([0, 0, 0, 1, -1, 1 << 30]))
    answers = []
    for m in (native, twin):
        known = m.OffsetMap(100, 0.9, SECRET)
        answer: list[object] = []
        for call in (
            lambda known=known: known.put_all(damaged, 0, count, len(records) - 1, 0),
            lambda known=known: known.retain(damaged, 0, NOW, count, len(records) - 1, False, -1),
            lambda known=known: known.retain(damaged, 0, NOW, count, len(records) - 1, True, HORIZON),
        ):
            try:
                answer.append(call())
            except ValueError as error:
                answer.append(str(error))
        answers.append((answer, known.latest, len(known)))
    assert answers[0] == answers[1]


@needs_native
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b.__setitem__(slice(0, 8), (50).to_bytes(8, "big")), "offsets 50 to 51 between -1 and 10"),
        (lambda b: b.__setitem__(slice(0, 8), (-3).to_bytes(8, "big", signed=True)), "offsets -3"),
        (lambda b: b.__setitem__(70, b[70] ^ 1), "checksum"),
        (lambda b: b.__setitem__(slice(8, 12), (5).to_bytes(4, "big")), "length of 5"),
        (lambda b: b.__setitem__(slice(8, 12), (30).to_bytes(4, "big")), "length of 30"),
    ],
)
def test_a_batch_that_cannot_be_believed_is_refused(change, words) -> None:  # type: ignore[no-untyped-def]
    data = bytearray(build(rows((0, b"a", b"1"), (1, b"b", b"2"))))
    change(data)
    for call in (
        lambda known: known.put_batches(data, 0, len(data), -1, 10, 0, crc32c),
        lambda known: known.filter_batches(data, 0, len(data), bytearray(9999), 0, -1, 10, 0, 0, array("q"), crc32c),
    ):
        with pytest.raises(ValueError, match=words):
            call(native.OffsetMap(100, 0.9, SECRET))


@needs_native
def test_random_bytes_never_take_it_out_of_its_buffer() -> None:
    rng = random.Random(4)
    for _ in range(2000):
        data = rng.randbytes(rng.randrange(200))
        known = native.OffsetMap(100, 0.9, SECRET)
        for call in (
            lambda known=known, data=data: known.put_batches(data, 0, len(data), -1, EVERY, 0, crc32c),
            lambda known=known, data=data: known.put_all(data, 0, rng.randrange(9), 9, 0),
            lambda known=known, data=data: known.retain(data, 0, 0, rng.randrange(9), 9, True, HORIZON),
        ):
            try:
                call()
            except ValueError:
                pass
