"""The native kernel and its twin: one specification, two programs, the same answer to everything."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.records import _twin, batch, kernel
from ottla.records.batch import Record

try:
    from ottla.records import _kernel
except ImportError:
    _kernel = None  # type: ignore[assignment]

native = pytest.mark.skipif(_kernel is None, reason="the native kernel is not built: python setup.py build_ext --inplace")
BOTH = [pytest.param(_twin, id="twin"), pytest.param(_kernel, id="native", marks=native)]


def area(records: list[Record], base: int = 0) -> bytes:
    return batch.build(records, base_offset=base)[batch.HEADER_SIZE :]


def varint(number: int) -> bytes:
    rest = number << 1 if number >= 0 else ~(number << 1)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def record(
    *, ts: bytes = b"\0", delta: bytes = b"\0", key: bytes = b"\1", value: bytes = b"\1", headers: bytes = b"\0"
) -> bytes:
    """One record from raw parts, with the length that they make."""
    body = b"\0" + ts + delta + key + value + headers
    return varint(len(body)) + body


THREE = [Record(0, 100, b"a", b"x"), Record(1, 300, b"b", None, (("h", b"1"), ("n", None))), Record(4, 300, None, b"z" * 100)]


def test_kernel_is_the_native_one_where_it_is_built() -> None:
    assert (_kernel is not None) is kernel.NATIVE


@pytest.mark.parametrize("k", BOTH)
def test_good_records(k: ModuleType) -> None:
    data = b"??" + area(THREE) + b"!"
    start, end = 2, len(data) - 1
    assert k.check_records(data, start, end, 3) == 0
    assert k.records(data, start, end, 0, 100, 3) == [tuple(r) for r in THREE]
    assert k.records(data, start, end, 50, 1100, 3)[2][:2] == (54, 1300)
    assert k.max_timestamp(data, start, end, 100, 3) == (300, 1), "the first of two that are equally late"
    assert k.keys_present(data, start, end, 100, 2) is True
    assert k.keys_present(data, start, end, 100, 3) is False
    for wanted, expected in [(0, (0, 100)), (100, (0, 100)), (101, (1, 300)), (300, (1, 300)), (301, None)]:
        assert k.first_at_or_after(data, start, end, 100, 3, wanted) == expected


@pytest.mark.parametrize("k", BOTH)
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer(k: ModuleType, wrap: Callable[[bytes], object]) -> None:
    data = area(THREE)
    assert k.check_records(wrap(data), 0, len(data), 3) == 0
    assert len(k.records(wrap(data), 0, len(data), 0, 0, 3)) == 3


@pytest.mark.parametrize("k", BOTH)
@pytest.mark.parametrize(
    ("data", "count", "code"),
    [
        (b"", 0, 0),
        (record() * 2, 2, 0),
        (b"\x80\x80\x80\x80\x80\x01", 1, 1),  # a length of six bytes
        (b"\xff\xff\xff\xff\x1f", 1, 1),  # a length of more than 32 bits
        (b"\x80", 1, 1),  # a length that is cut
        (varint(5) + b"\0" * 5, 1, 2),  # too short for a record
        (varint(-1) + b"\0" * 5, 1, 2),
        (record() + varint(7) + b"\0" * 6, 2, 2),  # beyond the end
        (varint((1 << 31) - 1) + b"\0" * 6, 1, 2),
        (record() * 2, 3, 3),
        (b"", 1, 3),
        (record() * 2, (1 << 31) - 1, 3),
        (record() * 2, 1, 4),
        (record() * 2, 0, 4),
        (record() * 2, -1, 4),
    ],
)
def test_check_records(k: ModuleType, data: bytes, count: int, code: int) -> None:
    assert k.check_records(data, 0, len(data), count) == code
    assert code == 0 or code in kernel.FAULTS
    if code:
        with pytest.raises(ValueError):
            k.records(data, 0, len(data), 0, 0, count)


@pytest.mark.parametrize("k", BOTH)
@pytest.mark.parametrize(
    "data",
    [
        record(delta=varint(-1)),
        record(delta=varint(1)) + record(delta=varint(1)),  # the same offset twice
        record(delta=varint(1)) + record(),  # offsets that go back
        record(delta=b"\xff\xff\xff\xff\x1f"),
        record(ts=b"\xff" * 10),  # 70 bits
        record(ts=varint((1 << 63) - 1)),  # beyond 64 bits with the base
        record(key=varint(-2)),
        record(key=varint(100)),
        record(value=varint(-2)),
        record(value=varint(2) + b"a"),
        record(headers=varint(-1)),
        record(headers=varint(1)),
        record(headers=varint(1) + varint(-1) + b"\1"),  # a header without a name
        record(headers=varint(1) + b"\0" + varint(-2)),
        record(headers=varint(1 << 30)),
        record(headers=b"\0\0"),  # a byte after the headers
    ],
)
def test_records_refuses(k: ModuleType, data: bytes) -> None:
    with pytest.raises(ValueError, match="corrupt"):
        k.records(data, 0, len(data), 0, 10, 1 if data.count(b"\x0c") < 2 else 2)


KEYED = varint(1) + b"k"


@pytest.mark.parametrize("k", BOTH)
@pytest.mark.parametrize(
    ("rows", "number"),
    [
        ([record(key=KEYED, delta=varint(1))], 1),  # offsets that do not begin at 0
        ([record(key=KEYED), record(key=KEYED)], 2),  # the same offset twice
        ([record(key=KEYED), record(key=KEYED, delta=varint(2))], 2),  # a gap
        ([record(key=KEYED), record(key=KEYED, delta=varint(-1))], 2),
        ([record(key=KEYED, ts=varint((1 << 63) - 10))], 1),  # beyond 64 bits with the base
        ([record(key=KEYED, value=varint(3) + b"a")], 1),
        ([record(key=varint(9))], 1),
    ],
)
def test_keys_present_refuses_what_the_cleaner_could_not_read(k: ModuleType, rows: list[bytes], number: int) -> None:
    data = b"".join(rows)
    with pytest.raises(ValueError, match=f"record {number} of the batch is corrupt"):
        k.keys_present(data, 0, len(data), 10, len(rows))
    sound = record(key=KEYED, ts=varint((1 << 63) - 11)) + record(key=KEYED, delta=varint(1), ts=varint(-11))
    assert k.keys_present(sound, 0, len(sound), 10, 2)


@pytest.mark.parametrize("k", BOTH)
def test_an_offset_beyond_64_bits(k: ModuleType) -> None:
    data = record(delta=varint(1))
    assert k.records(data, 0, len(data), (1 << 63) - 2, 0, 1)[0][0] == (1 << 63) - 1
    with pytest.raises(ValueError):
        k.records(data, 0, len(data), (1 << 63) - 1, 0, 1)


@pytest.mark.parametrize("k", BOTH)
@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 1000), (5, 4), (1000, 1001)])
def test_an_area_outside_the_buffer(k: ModuleType, start: int, end: int) -> None:
    data = area(THREE)
    for call in (
        lambda: k.check_records(data, start, end, 1),
        lambda: k.keys_present(data, start, end, 0, 1),
        lambda: k.records(data, start, end, 0, 0, 1),
        lambda: k.max_timestamp(data, start, end, 0, 1),
        lambda: k.first_at_or_after(data, start, end, 0, 1, 0),
    ):
        with pytest.raises(ValueError):
            call()


@pytest.mark.parametrize("k", BOTH)
def test_a_header_name_that_is_not_text_survives(k: ModuleType) -> None:
    data = record(headers=varint(1) + varint(2) + b"\xff\xfe" + b"\1")
    ((*_, headers),) = k.records(data, 0, len(data), 0, 0, 1)
    assert headers[0][0].encode("utf-8", "surrogateescape") == b"\xff\xfe"


def answers(k: ModuleType, data: bytes, count: int, base: int = 7, ts: int = 1000) -> list[object]:
    """What every function says to the same input: a value, or the words of its refusal."""
    n = len(data)
    out: list[object] = []
    for call in (
        lambda: k.check_records(data, 0, n, count),
        lambda: k.keys_present(data, 0, n, ts, count),
        lambda: k.records(data, 0, n, base, ts, count),
        lambda: k.max_timestamp(data, 0, n, ts, count),
        lambda: k.first_at_or_after(data, 0, n, ts, count, ts + 5),
    ):
        try:
            out.append(call())
        except ValueError as error:
            out.append(str(error))
    return out


@native
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(-1, 5))
def test_both_agree_on_noise(data: bytes, count: int) -> None:
    assert answers(_kernel, data, count) == answers(_twin, data, count)


@native
@pytest.mark.parametrize("seed", range(4))
def test_both_agree_on_mutations(seed: int) -> None:
    rng = random.Random(seed)
    extremes = [0, 1, 0x7F, 0x80, 0xFF, 0x0F]
    agreed: set[str] = set()
    for _ in range(4000):
        count = rng.randint(1, 5)
        data = bytearray(
            area(
                [
                    Record(
                        i,
                        1000 + rng.randint(-50, 50),
                        rng.choice([None, b"", b"key"]),
                        rng.choice([None, b"v" * rng.randint(0, 150)]),
                        tuple((f"h{j}", rng.choice([None, b"x"])) for j in range(rng.randint(0, 2))),
                    )
                    for i in range(count)
                ]
            )
        )
        for _ in range(rng.randint(0, 3)):
            kind = rng.random()
            at = rng.randrange(len(data)) if data else 0
            if kind < 0.6 and data:
                data[at] = rng.choice(extremes) if rng.random() < 0.6 else rng.randrange(256)
            elif kind < 0.8:
                del data[at : at + rng.randint(1, 4)]
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 10))
        asked = count if rng.random() < 0.8 else rng.choice([0, -1, count + 1, 1 << 40])
        ts = rng.choice([1000, (1 << 63) - 20, -(1 << 63) + 20])
        base = rng.choice([7, (1 << 63) - 2])
        mine, theirs = answers(_kernel, bytes(data), asked, base, ts), answers(_twin, bytes(data), asked, base, ts)
        assert mine == theirs, (bytes(data).hex(), asked, base, ts)
        agreed.add(str(theirs[0]))
    assert {"0", "1", "2", "3", "4"} <= agreed, "the mutations reach every kind of fault"


@native
def test_a_large_area_gives_up_the_interpreter_and_says_the_same() -> None:
    data = area([Record(i, i, b"k", b"v" * 100) for i in range(3000)])
    assert len(data) > 65536
    assert _kernel.check_records(data, 0, len(data), 3000) == 0
    assert _kernel.check_records(data, 0, len(data), 2999) == 4
    assert answers(_kernel, data, 3000) == answers(_twin, data, 3000)


@pytest.mark.parametrize("k", BOTH)
@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192])
def test_plain_records(k: ModuleType, size: int) -> None:
    rows: list[tuple[bytes, bytes | None]] = [(b"k" * size, b"v" * size), (b"", b""), (b"gone", None)] * 30
    made = k.plain_records(rows, 61)
    assert made[:61] == bytes(61)
    assert made[61:] == area([Record(at, 0, key, value) for at, (key, value) in enumerate(rows)])


@pytest.mark.parametrize("k", BOTH)
@pytest.mark.parametrize("row", [("k", b"v"), (b"k", "v"), (None, b"v")])
def test_plain_records_are_bytes(k: ModuleType, row: tuple[object, object]) -> None:
    with pytest.raises(TypeError):
        k.plain_records([row], 0)
