"""The server-side assignors: everything is assigned once, evenly, and with as little moving as that allows."""

import random

import pytest

from ottla.coordinator.assignors import ASSIGNORS, RANGE, UNIFORM, MemberSpec, Spec
from ottla.coordinator.assignors.ranges import assign_ranges
from ottla.coordinator.assignors.uniform import assign_uniformly
from ottla.coordinator.consumer_records import flat

A, B, C = b"a", b"b", b"c"


def spec(members, **topics):
    """Members as `name: (topics, partitions that it has)`; topics as `name=partitions`."""
    return Spec(
        {
            name: MemberSpec(
                frozenset(topic.encode() for topic in subscribed),
                {topic.encode(): frozenset(numbers) for topic, numbers in has.items()},
            )
            for name, (subscribed, has) in members.items()
        },
        {name.encode(): count for name, count in topics.items()},
    )


def plain(result):
    return {
        member: {topic.decode(): sorted(numbers) for topic, numbers in sorted(parts.items())}
        for member, parts in sorted(result.items())
    }


@pytest.mark.parametrize(
    ("members", "topics", "expected"),
    [
        ({"x": ("a", {})}, {"a": 3}, {"x": {"a": [0, 1, 2]}}),
        ({"x": ("a", {}), "y": ("a", {})}, {"a": 1}, {"x": {"a": [0]}, "y": {}}),  # one gets nothing
        # A second member comes: the first keeps what is its share.
        ({"x": ("a", {"a": {0, 1, 2, 3}}), "y": ("a", {})}, {"a": 4}, {"x": {"a": [0, 1]}, "y": {"a": [2, 3]}}),
        # One of three went: the others keep theirs and divide the rest.
        ({"x": ("a", {"a": {4, 5}}), "y": ("a", {"a": {0, 1}})}, {"a": 6}, {"x": {"a": [2, 4, 5]}, "y": {"a": [0, 1, 3]}}),
        # The place for one more than the quota stays where it is.
        ({"x": ("a", {"a": {0}}), "y": ("a", {"a": {1, 2}})}, {"a": 3}, {"x": {"a": [0]}, "y": {"a": [1, 2]}}),
        # A topic grew, another is gone.
        ({"x": ("a", {"a": {0}, "z": {0}}), "y": ("a", {"a": {1}})}, {"a": 4}, {"x": {"a": [0, 2]}, "y": {"a": [1, 3]}}),
        # Two have the same partition: one keeps it.
        ({"x": ("a", {"a": {0, 1}}), "y": ("a", {"a": {1}})}, {"a": 2}, {"x": {"a": [0]}, "y": {"a": [1]}}),
        # Different subscriptions: who can read only one topic gets all of it that balance wants.
        ({"x": ("a", {}), "y": ("ab", {})}, {"a": 2, "b": 2}, {"x": {"a": [0, 1]}, "y": {"b": [0, 1]}}),
        # By way of y: x gives to y, y to z.
        (
            {"x": ("a", {"a": {0, 1, 2}}), "y": ("ab", {"b": {0, 1}}), "z": ("b", {"b": {2}})},
            {"a": 3, "b": 3},
            {"x": {"a": [0, 1]}, "y": {"a": [2], "b": [0]}, "z": {"b": [1, 2]}},
        ),
        ({"x": ("", {}), "y": ("a", {})}, {"a": 2}, {"x": {}, "y": {"a": [0, 1]}}),  # its topic does not exist
    ],
)
def test_uniform(members, topics, expected):
    assert plain(assign_uniformly(spec(members, **topics))) == expected


@pytest.mark.parametrize(
    ("members", "topics", "expected"),
    [
        # The same numbers of both topics to the same member.
        (
            {"x": ("ab", {}), "y": ("ab", {})},
            {"a": 3, "b": 3},
            {"x": {"a": [0, 1], "b": [0, 1]}, "y": {"a": [2], "b": [2]}},
        ),
        ({"x": ("a", {}), "y": ("ab", {})}, {"a": 2, "b": 2}, {"x": {"a": [0]}, "y": {"a": [1], "b": [0, 1]}}),
        ({"x": ("a", {}), "y": ("a", {})}, {"a": 1}, {"x": {"a": [0]}, "y": {}}),
    ],
)
def test_range(members, topics, expected):
    assert plain(assign_ranges(spec(members, **topics))) == expected


def test_range_orders_static_members_by_instance():
    def assigned(first, second):
        members = {
            "dynamic": MemberSpec(frozenset({A})),
            first: MemberSpec(frozenset({A}), instance_id="i1"),
            second: MemberSpec(frozenset({A}), instance_id="i2"),
        }
        return assign_ranges(Spec(members, {A: 3}))

    before, after = assigned("m7", "m3"), assigned("m1", "m9")  # both restarted under new member ids
    assert (before["m7"], before["m3"], before["dynamic"]) == ({A: {0}}, {A: {1}}, {A: {2}})
    assert (after["m1"], after["m9"], after["dynamic"]) == (before["m7"], before["m3"], before["dynamic"])


def random_spec(rng, targets=None):
    topics = {name: rng.randrange(1, 9) for name in (A, B, C)[: rng.randrange(1, 4)]}
    same = rng.random() < 0.4
    members = {}
    for number in range(rng.randrange(1, 7)):
        name = f"m{number}"
        subscribed = frozenset(topics) if same else frozenset(rng.sample(sorted(topics), rng.randrange(1, len(topics) + 1)))
        members[name] = MemberSpec(subscribed, (targets or {}).get(name, {}))
    read = frozenset().union(*(member.topics for member in members.values()))
    return Spec(members, {name: count for name, count in topics.items() if name in read})


@pytest.mark.parametrize("name", [UNIFORM, RANGE])
@pytest.mark.parametrize("seed", range(40))
def test_every_partition_goes_to_one_subscriber(name, seed):
    rng = random.Random(seed)
    targets = {}
    for _ in range(6):  # a life of changes: what was assigned is what the next assignment begins with
        group = random_spec(rng, targets)
        targets = ASSIGNORS[name](group)
        assert set(targets) == set(group.members)
        given = [partition for parts in targets.values() for partition in flat(parts)]
        wanted = [(topic, number) for topic, count in group.topics.items() for number in range(count)]
        assert sorted(given) == sorted(wanted)
        for member, parts in targets.items():
            assert set(parts) <= group.members[member].topics


def cost(loads):
    return sum(load * load for load in loads)


def best_cost(group):
    """The smallest sum of squares, found by trying everything."""
    partitions = [(topic, number) for topic, count in group.topics.items() for number in range(count)]
    states = {tuple(0 for _ in group.members)}
    for topic, _ in partitions:
        states = {
            tuple(load + (place == index) for place, load in enumerate(state))
            for state in states
            for index, member in enumerate(group.members.values())
            if topic in member.topics
        }
    return min(cost(state) for state in states)


@pytest.mark.parametrize("seed", range(60))
def test_uniform_is_as_even_as_can_be(seed):
    rng = random.Random(seed)
    targets = {}
    for _ in range(3):
        group = random_spec(rng, targets)
        targets = assign_uniformly(group)
        loads = [sum(map(len, parts.values())) for parts in targets.values()]
        assert cost(loads) == best_cost(group)


@pytest.mark.parametrize("seed", range(20))
def test_uniform_moves_nothing_without_a_reason(seed):
    group = random_spec(random.Random(seed))
    once = assign_uniformly(group)
    again = Spec({name: MemberSpec(member.topics, once[name]) for name, member in group.members.items()}, group.topics)
    assert assign_uniformly(again) == once


def test_uniform_moves_only_what_a_new_member_needs():
    members = {f"m{number}": MemberSpec(frozenset({A})) for number in range(9)}
    before = assign_uniformly(Spec(members, {A: 90}))
    members = {name: MemberSpec(frozenset({A}), before[name]) for name in members} | {"new": MemberSpec(frozenset({A}))}
    after = assign_uniformly(Spec(members, {A: 90}))
    assert all(after[name][A] <= before[name][A] for name in before)
    assert len(after["new"][A]) == 9
