"""The quick builder makes the same bytes as the thorough one."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.records.batch import TRANSACTIONAL_BIT, ControlType, Record, build, end_transaction_marker
from ottla.records.plain import marker_batch, plain_batch

SIZES = st.one_of(st.integers(0, 70), st.sampled_from([4095, 4096, 5000]))
ROWS = st.lists(st.tuples(SIZES.map(bytes), st.one_of(st.none(), SIZES.map(bytes))), min_size=1, max_size=80)


@given(ROWS, st.integers(0, 2**62), st.booleans())
def test_the_same_bytes(rows, timestamp, transactional):
    records = [Record(at, timestamp, key, value, ()) for at, (key, value) in enumerate(rows)]
    identity = {"producer_id": 77, "producer_epoch": 3, "base_sequence": 0} if transactional else {}
    expected = build(records, transactional=transactional, **identity)
    assert plain_batch(rows, timestamp, attributes=TRANSACTIONAL_BIT if transactional else 0, **identity) == expected


def test_many_rows():
    rows = [(b"k", b"v")] * 5000
    assert plain_batch(rows, 7) == build([Record(at, 7, key, value, ()) for at, (key, value) in enumerate(rows)])


@given(st.sampled_from(ControlType), st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.integers(-1, 2**31 - 1))
def test_markers_too(outcome, producer_id, epoch, coordinator_epoch):
    about = {"producer_id": producer_id, "producer_epoch": epoch, "coordinator_epoch": coordinator_epoch, "timestamp": 5}
    assert marker_batch(outcome, **about) == end_transaction_marker(outcome, **about)
