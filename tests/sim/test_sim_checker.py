"""Each rule of the checker against a history that breaks it, and against one that does not."""

import pytest

from ottla.model import TopicPartition
from ottla.testing.sim.checker import RULES, check
from ottla.testing.sim.history import (
    Acknowledged,
    Appended,
    Assigned,
    Attempted,
    Committed,
    ControllerEpochWritten,
    Entry,
    OffsetCommitted,
    OffsetCommitting,
    OffsetFetched,
    OffsetRefused,
    Refused,
    Served,
    StateWritten,
    TransactionEnded,
    TransactionEnding,
)

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


def record(offset, value, producer=7, *, transactional=False):
    return Entry(offset, 0, producer, 0, transactional, None, value)


def marker(offset, outcome, producer=7):
    return Entry(offset, 0, producer, 0, True, outcome, "")


def state(leader, epoch, isr, at=1.0, controller=1):
    return StateWritten(at, TP, leader, epoch, isr, epoch, controller)


SENT = Attempted(1.0, "p", TP, ("a", "b"))
GOT = Acknowledged(2.0, "p", TP, ("a", "b"), 0)
IN_TRANSACTION = Attempted(1.0, "p", TP, ("a", "b"), "p/1")
GOOD = [record(0, "a"), record(1, "b")]
OPEN = [record(0, "a", transactional=True), record(1, "b", transactional=True)]

GOOD_RUNS = {
    "acknowledged and there": ([SENT, GOT], {TP: GOOD}),
    "not acknowledged and not there": ([SENT], {TP: []}),
    "served what is there": ([SENT, Served(3.0, "c", TP, False, ((0, "a"),))], {TP: GOOD}),
    "a new leader of the ISR": ([state(1, 0, (1, 2)), state(2, 1, (2,)), Appended(2.0, 2, TP, 1, 0, 0)], {}),
    "no leader for a while": ([state(1, 0, (1, 2)), state(-1, 1, (1,)), state(1, 2, (1,))], {}),
    "committed": (
        [
            IN_TRANSACTION,
            GOT,
            TransactionEnding(3.0, "p", "p/1", True),
            TransactionEnded(4.0, "p", "p/1", True),
            Served(5.0, "c", TP, True, ((0, "a"), (1, "b"))),
        ],
        {TP: [*OPEN, marker(2, "COMMIT")]},
    ),
    "aborted, and seen by one who reads everything": (
        [IN_TRANSACTION, GOT, TransactionEnded(4.0, "p", "p/1", False), Served(5.0, "c", TP, False, ((0, "a"),))],
        {TP: [*OPEN, marker(2, "ABORT")]},
    ),
    "a commit on its way is found or not": (
        [
            OffsetCommitting(1.0, "g", TP, 5, "x"),
            OffsetFetched(3.0, "g", TP, 2.0, -1, None),
            OffsetFetched(5.0, "g", TP, 4.0, 5, "x"),
        ],
        {},
    ),
    "a member has its partitions in two generations": (
        [Assigned(1.0, "g", 1, "m", (TP,)), Assigned(2.0, "g", 2, "n", (TP,))],
        {},
    ),
    "one batch on two brokers": (
        [Committed(1.0, "b1", TP, 0, 1, 0, 77), Committed(2.0, "b2", TP, 0, 1, 0, 77)],
        {},
    ),
    "refused what was sent before": ([Refused(1.0, "p", TP, "OUT_OF_ORDER_SEQUENCE_NUMBER (sent again)")], {}),
}

BAD_RUNS = {
    "lost: gone": ("lost", [SENT, GOT], {TP: [record(0, "a")]}),
    "lost: elsewhere": ("lost", [SENT, GOT], {TP: [record(0, "b"), record(1, "a")]}),
    "lost: partition gone": ("lost", [SENT, GOT], {}),
    "twice": ("twice", [SENT], {TP: [record(0, "a"), record(1, "a")]}),
    "twice: in two partitions": ("twice", [SENT], {TP: [record(0, "a")], OTHER: [record(0, "a")]}),
    "twice: nobody sent it": ("twice", [SENT], {TP: [record(0, "z")]}),
    "order": ("order", [SENT], {TP: [record(0, "b"), record(1, "a")]}),
    "two values: on two brokers": (
        "two values",
        [Committed(1.0, "b1", TP, 0, 1, 0, 77), Committed(2.0, "b2", TP, 0, 1, 1, 78)],
        {},
    ),
    "two values: served": ("two values", [SENT, Served(3.0, "c", TP, False, ((0, "z"),))], {TP: GOOD}),
    "two values: served what is not there": ("two values", [SENT, Served(3.0, "c", TP, False, ((9, "a"),))], {TP: GOOD}),
    "epochs: leader": ("epochs", [state(1, 3, (1,)), state(1, 2, (1,))], {}),
    "epochs: controller": ("epochs", [ControllerEpochWritten(1.0, 2), ControllerEpochWritten(2.0, 2)], {}),
    "two leaders: in the store": ("two leaders", [state(1, 1, (1, 2)), state(2, 1, (1, 2))], {}),
    "two leaders: another one writes": ("two leaders", [state(1, 1, (1, 2)), Appended(2.0, 2, TP, 1, 0, 0)], {}),
    "election": ("election", [state(1, 1, (1, 2)), state(3, 2, (3,))], {}),
    "transactions: half": (
        "transactions",
        [
            IN_TRANSACTION,
            GOT,
            Attempted(1.0, "p", OTHER, ("c",), "p/1"),
            Acknowledged(2.0, "p", OTHER, ("c",), 0),
            TransactionEnding(3.0, "p", "p/1", True),
        ],
        {TP: [*OPEN, marker(2, "COMMIT")], OTHER: [record(0, "c", transactional=True), marker(1, "ABORT")]},
    ),
    "transactions: committed though aborted": (
        "transactions",
        [
            IN_TRANSACTION,
            GOT,
            TransactionEnding(3.0, "p", "p/1", True),
            TransactionEnded(4.0, "p", "p/1", False),
        ],
        {TP: [*OPEN, marker(2, "COMMIT")]},
    ),
    "transactions: told committed, never marked": (
        "transactions",
        [IN_TRANSACTION, GOT, TransactionEnding(3.0, "p", "p/1", True), TransactionEnded(4.0, "p", "p/1", True)],
        {TP: OPEN},
    ),
    "transactions: nobody asked for the commit": ("transactions", [IN_TRANSACTION, GOT], {TP: [*OPEN, marker(2, "COMMIT")]}),
    "not committed: aborted": (
        "not committed",
        [IN_TRANSACTION, Served(5.0, "c", TP, True, ((0, "a"),))],
        {TP: [*OPEN, marker(2, "ABORT")]},
    ),
    "not committed: open": ("not committed", [IN_TRANSACTION, Served(5.0, "c", TP, True, ((0, "a"),))], {TP: OPEN}),
    "group offsets: lost": (
        "group offsets",
        [
            OffsetCommitting(1.0, "g", TP, 5, "x"),
            OffsetCommitted(2.0, "x"),
            OffsetFetched(4.0, "g", TP, 3.0, -1, None),
        ],
        {},
    ),
    "group offsets: back": (
        "group offsets",
        [
            OffsetCommitting(1.0, "g", TP, 5, "x"),
            OffsetCommitted(2.0, "x"),
            OffsetCommitting(3.0, "g", TP, 9, "y"),
            OffsetCommitted(4.0, "y"),
            OffsetFetched(6.0, "g", TP, 5.0, 5, "x"),
        ],
        {},
    ),
    "group offsets: refused and yet there": (
        "group offsets",
        [OffsetCommitting(1.0, "g", TP, 5, "x"), OffsetRefused(2.0, "x"), OffsetFetched(4.0, "g", TP, 3.0, 5, "x")],
        {},
    ),
    "group offsets: out of nowhere": ("group offsets", [OffsetFetched(4.0, "g", TP, 3.0, 5, "x")], {}),
    "two owners": ("two owners", [Assigned(1.0, "g", 1, "m", (TP,)), Assigned(2.0, "g", 1, "n", (TP,))], {}),
    "refused": ("refused", [Refused(1.0, "c", TP, "OFFSET_OUT_OF_RANGE at 5")], {}),
}


@pytest.mark.parametrize("name", GOOD_RUNS)
def test_a_good_run_breaks_nothing(name):
    assert check(*GOOD_RUNS[name]) == []


@pytest.mark.parametrize("name", BAD_RUNS)
def test_a_bad_run_is_caught_by_its_rule(name):
    rule, events, logs = BAD_RUNS[name]
    assert rule in {violation.rule for violation in check(events, logs)}


def test_every_rule_has_a_bad_run():
    assert {rule for rule, _, _ in BAD_RUNS.values()} == set(RULES)
