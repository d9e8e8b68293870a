"""One member's way to its target, step by step."""

import pytest

from ottla.coordinator.consumer_reconciliation import reconcile
from ottla.coordinator.consumer_records import Current, MemberState

T, U = b"t", b"u"
STABLE, UNREVOKED, UNRELEASED = MemberState


def parts(*numbers):
    return {T: frozenset(numbers)} if numbers else {}


def step(current, target, *, epoch=2, owned=None, owners=None):
    return reconcile(current, epoch, target, owned, lambda partition: (owners or {}).get(partition[1]), "me")


@pytest.mark.parametrize(
    ("current", "target", "owned", "owners", "expected"),
    [
        # A new member gets what is free, and waits for the rest.
        (Current(), parts(0, 1), {}, {}, Current(2, 0, STABLE, parts(0, 1))),
        (Current(), parts(0, 1), {}, {1: "you"}, Current(2, 0, UNRELEASED, parts(0))),
        (Current(), parts(0), {}, {0: "you"}, Current(2, 0, UNRELEASED)),
        # Giving up comes first: no new partition, no new epoch.
        (Current(1, 0, STABLE, parts(0, 1)), parts(1, 2), None, {}, Current(1, 1, UNREVOKED, parts(1), parts(0))),
        (Current(1, 0, STABLE, parts(0, 1)), parts(1, 2), parts(0, 1), {}, Current(1, 1, UNREVOKED, parts(1), parts(0))),
        # Who says at once that it does not hold them has nothing to give up.
        (Current(1, 0, STABLE, parts(0, 1)), parts(1, 2), parts(1), {}, Current(2, 1, STABLE, parts(1, 2))),
        # It has not said that it gave up, or still holds one of them.
        (Current(1, 1, UNREVOKED, parts(1), parts(0)), parts(1, 2), None, {}, None),
        (Current(1, 1, UNREVOKED, parts(1), parts(0)), parts(1, 2), parts(0, 1), {}, None),
        # It gave up: on to the target, be it that others have not.
        (Current(1, 1, UNREVOKED, parts(1), parts(0)), parts(1, 2), parts(1), {}, Current(2, 1, STABLE, parts(1, 2))),
        (
            Current(1, 1, UNREVOKED, parts(1), parts(0)),
            parts(1, 2),
            parts(1),
            {2: "you"},
            Current(2, 1, UNRELEASED, parts(1)),
        ),
        # What it gave up shall be its own again.
        (Current(1, 1, UNREVOKED, parts(1), parts(0)), parts(0, 1), parts(1), {0: "me"}, Current(2, 1, STABLE, parts(0, 1))),
        # A newer target asks for more: another step, in the next epoch.
        (Current(1, 1, UNREVOKED, parts(1), parts(0)), parts(2), parts(1), {}, Current(2, 1, UNREVOKED, {}, parts(1))),
        # Others gave up, all or some of it, or nothing.
        (Current(2, 1, UNRELEASED, parts(1)), parts(1, 2, 3), None, {}, Current(2, 2, STABLE, parts(1, 2, 3))),
        (Current(2, 1, UNRELEASED, parts(1)), parts(1, 2, 3), None, {3: "you"}, Current(2, 2, UNRELEASED, parts(1, 2))),
        (Current(2, 1, UNRELEASED, parts(1)), parts(1, 2), None, {2: "you"}, None),
        # While it waited, the target moved on.
        (Current(1, 0, UNRELEASED, parts(1)), parts(0), None, {}, Current(1, 1, UNREVOKED, {}, parts(1))),
        # Nothing to do.
        (Current(2, 1, STABLE, parts(1)), parts(1), None, {}, None),
        (Current(1, 0, STABLE, parts(1)), parts(1), None, {}, Current(2, 1, STABLE, parts(1))),
    ],
)
def test_a_step(current, target, owned, owners, expected):
    after = step(current, target, owned=owned, owners=owners)
    if expected is None:
        assert after is current
    else:
        assert after == expected


def test_topics_are_told_apart():
    current = Current(1, 0, STABLE, {T: frozenset({0}), U: frozenset({0})})
    after = step(current, {U: frozenset({0, 1})}, owned=None)
    assert after == Current(1, 1, UNREVOKED, {U: frozenset({0})}, {T: frozenset({0})})
