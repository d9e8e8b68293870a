"""The steps of a reassignment, as tables."""

from __future__ import annotations

import pytest

from ottla.controller import reassignment
from ottla.controller.reassignment import Assignment
from ottla.metadata.znodes import PartitionStateNode, TopicNode
from ottla.model import NO_LEADER, Error, KafkaError

LIVE = {1, 2, 3, 4, 5, 6}


def node(isr: tuple[int, ...], leader: int = 1) -> PartitionStateNode:
    return PartitionStateNode(leader, 5, isr, 6)


@pytest.mark.parametrize(
    ("current", "isr", "leader", "target", "expected", "after"),
    [
        # all replicas move: nothing leaves before the new ones are in sync
        (Assignment((1, 2)), (1, 2), 1, (3, 4), Assignment((3, 4, 1, 2), (3, 4), (1, 2)), (1, (1, 2))),
        (Assignment((1, 2)), (1, 2), 1, (1, 3), Assignment((1, 3, 2), (3,), (2,)), (1, (1, 2))),
        (Assignment((1,)), (1,), 1, (1, 2), Assignment((1, 2), (2,), ()), (1, (1,))),  # more replicas
        # all of the target are in sync: it is complete at once
        (Assignment((1, 2, 3)), (1, 2, 3), 1, (2, 1), Assignment((2, 1), (), (3,)), (1, (1, 2))),
        (Assignment((1, 2, 3)), (1, 2, 3), 1, (2, 3), Assignment((2, 3), (), (1,)), (2, (2, 3))),  # the leader moves too
        (Assignment((1, 2)), (1, 2), 1, (2, 1), Assignment((2, 1)), (1, (1, 2))),  # another order: another preferred leader
        (Assignment((1, 2, 3)), (1, 3), 1, (1, 2), Assignment((1, 2, 3), (), (3,)), (1, (1, 3))),  # 2 must catch up first
        # over one that is under way
        (
            Assignment((3, 1, 2), (3,), (2,)), (1, 2), 1, (4, 1),
            Assignment((4, 1, 2), (4,), (2, 3)), (1, (1, 2)),
        ),  # 3 is no longer wanted
        (Assignment((3, 1), (3,), (1,)), (1,), 1, (1,), Assignment((1,), (), (3,)), (1, (1,))),  # back to the origin
        (Assignment((3, 1), (3,), (1,)), (1, 3), 3, (1,), Assignment((1,), (), (3,)), (1, (1,))),  # and the leader with it
        # those that left before are not forgotten, unless they come again
        (Assignment((3,), (), (1, 2)), (3,), 3, (3, 4), Assignment((3, 4), (4,), (1, 2)), (3, (3,))),
        (Assignment((3,), (), (1, 2)), (3,), 3, (3, 1), Assignment((3, 1), (1,), (2,)), (3, (3,))),
        # without a leader the assignment may change all the same
        (Assignment((1, 2)), (1,), NO_LEADER, (1, 3), Assignment((1, 3, 2), (3,), (2,)), (NO_LEADER, (1,))),
    ],
)  # fmt: skip
def test_the_beginning(
    current: Assignment,
    isr: tuple[int, ...],
    leader: int,
    target: tuple[int, ...],
    expected: Assignment,
    after: tuple[int, tuple[int, ...]],
) -> None:
    assignment, state = reassignment.begun(current, node(isr, leader), target, LIVE, 7)
    assert assignment == expected
    assert state == PartitionStateNode(after[0], 6, after[1], 7)
    assert set(state.isr) <= set(assignment.replicas)


def test_what_is_in_sync_may_not_all_leave() -> None:
    with pytest.raises(KafkaError, match="None of the in-sync replicas") as refusal:
        reassignment.begun(Assignment((3, 1), (3,), (1,)), node((3,), 3), (1,), LIVE, 7)
    assert refusal.value.error is Error.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(
    ("current", "isr", "leader", "live", "expected", "after"),
    [
        (Assignment((3, 4, 1, 2), (3, 4), (1, 2)), (1, 2, 3), 1, LIVE, None, None),  # 4 is awaited
        (Assignment((3, 4, 1, 2), (3, 4), (1, 2)), (1, 2, 3, 4), 1, LIVE, Assignment((3, 4), (), (1, 2)), (3, (3, 4))),
        (Assignment((3, 4, 1, 2), (3, 4), (1, 2)), (1, 4, 3), 4, LIVE, Assignment((3, 4), (), (1, 2)), (4, (4, 3))),
        (Assignment((3, 4, 1, 2), (3, 4), (1, 2)), (1, 3, 4), 1, {1, 4}, Assignment((3, 4), (), (1, 2)), (4, (3, 4))),
        (Assignment((3, 4, 1, 2), (3, 4), (1, 2)), (1, 3, 4), 1, {1}, None, None),  # nobody there could lead now
        (Assignment((1, 2), (2,), ()), (1, 2), 1, LIVE, Assignment((1, 2)), (1, (1, 2))),
        (Assignment((3,), (), (1, 2)), (3,), 3, LIVE, None, None),  # this was done before
        (Assignment((1, 2)), (1, 2), 1, LIVE, None, None),
    ],
)
def test_the_switch(
    current: Assignment,
    isr: tuple[int, ...],
    leader: int,
    live: set[int],
    expected: Assignment | None,
    after: tuple[int, tuple[int, ...]] | None,
) -> None:
    step = reassignment.switched(current, node(isr, leader), live, 7)
    assert step == (expected and after and (expected, PartitionStateNode(after[0], 6, after[1], 7)))


def test_the_end() -> None:
    assert Assignment((3,), (), (1, 2)).left == (1, 2)
    assert reassignment.forgotten(Assignment((3,), (), (1, 2))) == Assignment((3,))
    assert reassignment.forgotten(Assignment((3, 4, 1), (4,), (1, 2))) == Assignment((3, 4, 1), (4,), (1,))


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ((1, 3), None),
        ((1, 9), None),  # a replica that is there already may be dead
        ((), "Empty replica list"),
        ((1, 1), "Duplicate replica ids"),
        ((1, -1), "Invalid broker id"),
        ((1, 8), "not alive"),
    ],
)
def test_targets(target: tuple[int, ...], problem: str | None) -> None:
    if problem is None:
        reassignment.check_target(target, Assignment((1, 9)), LIVE)
        return
    with pytest.raises(KafkaError, match=problem) as refusal:
        reassignment.check_target(target, Assignment((1, 9)), LIVE)
    assert refusal.value.error is Error.INVALID_REPLICA_ASSIGNMENT


def test_the_topic_keeps_what_is_under_way() -> None:
    topic = TopicNode("t", bytes(16), {0: (1, 2), 1: (1, 2)}, adding={1: (2,)})
    moving = reassignment.with_assignments(topic, {0: Assignment((3, 1), (3,), (1, 2)), 1: Assignment((1, 2))})
    assert moving == TopicNode("t", bytes(16), {0: (3, 1), 1: (1, 2)}, {0: (3,)}, {0: (1, 2)})
    assert reassignment.assignment_of(TopicNode.decode("t", moving.encode()), 0) == Assignment((3, 1), (3,), (1, 2))
