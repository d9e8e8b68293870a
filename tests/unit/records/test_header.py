"""A batch's header in C and in Python: one specification, two programs."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records import _header_twin, batch
from ottla.records.batch import HEADER_SIZE, BatchHeader, CorruptRecords, crc_ok, read_header

try:
    from ottla.records import _header
except ImportError:
    _header = None  # type: ignore[assignment]

native = pytest.mark.skipif(_header is None, reason="the native kernel is not built: python setup.py build_ext --inplace")
BOTH = [pytest.param(_header_twin, id="twin"), pytest.param(_header, id="native", marks=native)]
INT16, INT32 = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def test_what_is_native_is_used() -> None:
    assert batch.header_at is (_header_twin if _header is None else _header).header_at


@native
@given(st.binary(max_size=90), st.integers(-3, 90))
def test_any_bytes_are_read_alike(data: bytes, pos: int) -> None:
    for given_bytes in (data, bytearray(data), memoryview(data)):
        found = _header.header_at(BatchHeader, given_bytes, pos)
        expected = _header_twin.header_at(BatchHeader, data, pos)
        assert (found, hash(found)) == (expected, hash(expected))
        assert type(found) is (type(None) if not 0 <= pos <= len(data) - HEADER_SIZE else BatchHeader)


@pytest.mark.parametrize("k", BOTH)
def test_what_is_sealed_is_a_sound_header(k: ModuleType) -> None:
    @given(st.binary(max_size=40), st.integers(1, 2**31 - 1), INT64, INT64, INT16, INT32, INT16)
    def check(records: bytes, count: int, time: int, producer_id: int, epoch: int, sequence: int, attributes: int) -> None:
        made = bytearray(b"\xee" * HEADER_SIZE + records)
        k.seal(made, count, time, producer_id, epoch, sequence, attributes)
        size = HEADER_SIZE + len(records) - batch.LOG_OVERHEAD
        header = read_header(made)
        assert header._replace(crc=0) == BatchHeader(
            0, size, -1, batch.MAGIC_V2, 0, attributes, count - 1, time, time, producer_id, epoch, sequence, count
        )
        assert crc_ok(made, 0, header)
        assert made[HEADER_SIZE:] == records

    check()


@pytest.mark.parametrize("k", BOTH)
def test_there_must_be_room_for_a_header(k: ModuleType) -> None:
    for size in (0, HEADER_SIZE - 1):
        with pytest.raises(ValueError):
            k.seal(bytearray(size), 1, 0, 0, 0, 0, 0)
    for pos in (-1, 1):
        data = bytearray(16)
        with pytest.raises(ValueError):
            k.number(data, pos, 1, 1)
        assert not any(data)


@pytest.mark.parametrize("k", BOTH)
def test_a_number_changes_nothing_else(k: ModuleType) -> None:
    @given(st.binary(min_size=20, max_size=40), st.integers(0, 4), INT64, INT32)
    def check(data: bytes, pos: int, base_offset: int, leader_epoch: int) -> None:
        changed = bytearray(data)
        k.number(memoryview(changed), pos, base_offset, leader_epoch)
        expected = bytearray(data)
        expected[pos : pos + 8] = base_offset.to_bytes(8, "big", signed=True)
        expected[pos + 12 : pos + 16] = leader_epoch.to_bytes(4, "big", signed=True)
        assert changed == expected

    check()


def test_a_header_that_is_cut_says_so() -> None:
    with pytest.raises(CorruptRecords, match="a batch header needs 61 bytes, 60 are there"):
        read_header(bytes(61), 1)


@pytest.mark.parametrize("k", BOTH)
def test_what_cannot_be_written_is_not_numbered(k: ModuleType) -> None:
    with pytest.raises((TypeError, BufferError)):
        k.number(bytes(20), 0, 1, 1)
