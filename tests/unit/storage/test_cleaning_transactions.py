"""Which batches are aborted and which markers may go: by walks in short notation."""

from __future__ import annotations

import pytest

from ottla.records.batch import CONTROL_BIT, MAGIC_V2, TRANSACTIONAL_BIT, BatchHeader, ControlType
from ottla.storage.aborted import AbortedTransaction
from ottla.storage.cleaning.transactions import CleanedTransactions


def header(offset: int, pid: int, *, control: bool = False, count: int = 1) -> BatchHeader:
    attributes = TRANSACTIONAL_BIT | (CONTROL_BIT if control else 0)
    return BatchHeader(offset, 49, 0, MAGIC_V2, 0, attributes, 0, 0, 0, pid, 0, 0, count)


def aborted(pid: int, first: int, last: int) -> AbortedTransaction:
    return AbortedTransaction(pid, first, last, last + 1)


# A walk is a row of (offset, producer, what): "data" answers whether it is aborted; a marker whether nothing needs it any more.
@pytest.mark.parametrize(
    ("known", "walk"),
    [
        ([], [(0, 7, "data", False), (1, 7, "commit", False)]),
        ([], [(1, 7, "commit", True)]),  # nothing of it was met
        ([aborted(7, 0, 1)], [(0, 7, "data", True), (1, 7, "abort", False)]),
        ([aborted(7, 0, 1)], [(1, 7, "abort", True)]),
        ([aborted(7, 0, 1)], [(0, 8, "data", False), (1, 7, "abort", True), (2, 8, "commit", False)]),  # another producer
        ([aborted(7, 0, 2)], [(0, 7, "data", True), (2, 7, "abort", False), (3, 7, "data", False), (4, 7, "commit", False)]),
        ([aborted(7, 0, 2), aborted(7, 4, 6)], [(1, 7, "data", True), (2, 7, "abort", False), (3, 7, "data", False)]),
        ([aborted(7, 0, 2), aborted(7, 4, 6)], [(5, 7, "data", True), (6, 7, "abort", False)]),  # a walk that begins later
        ([aborted(7, 0, 2)], [(5, 7, "data", False), (6, 7, "commit", False)]),  # its marker lies before the walk
        ([aborted(7, 0, 9)], [(5, 7, "data", True)]),  # its marker lies behind it
        ([], [(0, 7, "data", False), (1, 7, "commit", False), (2, 7, "commit", True)]),
        ([], [(0, 7, "other", False)]),  # a control record of another kind stays
        ([aborted(7, 0, 1)], [(1, 7, "emptied", True)]),
    ],
)
def test_a_walk(known: list[AbortedTransaction], walk: list[tuple[int, int, str, bool]]) -> None:
    transactions = CleanedTransactions(known)
    for offset, pid, what, expected in walk:
        if what == "data":
            assert transactions.is_aborted(header(offset, pid)) is expected, (offset, what)
            continue
        outcome = {"commit": ControlType.COMMIT, "abort": ControlType.ABORT}.get(what)
        control = header(offset, pid, control=True, count=0 if what == "emptied" else 1)
        needless, entry = transactions.ends(control, outcome)
        assert needless is expected, (offset, what)
        assert (entry is not None) is (what == "abort" and not expected), (
            "the new index names it exactly while its data was met"
        )


def test_a_batch_without_a_transaction_is_never_aborted() -> None:
    transactions = CleanedTransactions([aborted(7, 0, 9)])
    assert not transactions.is_aborted(header(1, 7)._replace(attributes=0))
