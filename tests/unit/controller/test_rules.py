"""The controller's pure rules: elections, layouts, names, adoption."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ottla.controller import assignment, election, topic_rules
from ottla.controller.adoption import FoundLog, adopt
from ottla.metadata import znodes
from ottla.metadata.store import Create
from ottla.metadata.znodes import PartitionStateNode, TopicNode
from ottla.model import Error, KafkaError, TopicPartition

# ---- elections -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "live", "expected"),
    [
        ((1, 2, 3), {1, 2, 3}, (1, (1, 2, 3))),  # the preferred replica leads
        ((3, 1, 2), {1, 2, 3}, (3, (3, 1, 2))),  # and preferred means first, not smallest
        ((1, 2, 3), {2, 3}, (2, (2, 3))),  # a dead replica is not in sync
        ((1, 2), set(), None),
    ],
)
def test_first_leader(replicas: tuple[int, ...], live: set[int], expected: object) -> None:
    assert election.first_leader(replicas, live) == expected


@pytest.mark.parametrize(
    ("replicas", "isr", "live", "unclean", "expected"),
    [
        ((1, 2, 3), (1, 2, 3), {2, 3}, False, (2, (2, 3))),
        ((1, 2, 3), (3, 2), {2, 3}, False, (2, (3, 2))),  # assignment order decides, not the order of the ISR
        ((1, 2, 3), (1, 3), {2, 3}, False, (3, (3,))),  # 2 lives but is not in sync
        ((1, 2, 3), (1,), {2, 3}, False, None),  # rather no leader than lost records
        ((1, 2, 3), (1,), {2, 3}, True, (2, (2,))),  # unless that is allowed: then the ISR begins anew
        ((1, 2, 3), (1, 3), {2, 3}, True, (3, (3,))),  # an in-sync one goes first all the same
        ((1, 2), (1, 2), set(), True, None),
    ],
)
def test_after_failure(
    replicas: tuple[int, ...], isr: tuple[int, ...], live: set[int], unclean: bool, expected: object
) -> None:
    assert election.after_failure(replicas, isr, live, unclean) == expected


# ---- layouts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("brokers", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("partitions", [1, 6, 35])
@pytest.mark.parametrize("seed", range(3))
def test_replicas_are_spread_evenly(brokers: int, partitions: int, seed: int) -> None:
    factor = min(3, brokers)
    layout = assignment.assign(dict.fromkeys(range(brokers)), partitions, factor, Random(seed))
    assert list(layout) == list(range(partitions))
    assert all(len(set(replicas)) == factor for replicas in layout.values())
    leaders = Counter(replicas[0] for replicas in layout.values())
    assert max(leaders.values()) - min(leaders.get(broker, 0) for broker in range(brokers)) <= 1
    held = Counter(broker for replicas in layout.values() for broker in replicas)
    assert max(held.values()) - min(held.get(broker, 0) for broker in range(brokers)) <= 2 * factor


@pytest.mark.parametrize("seed", range(5))
def test_a_rack_is_used_again_only_when_all_have_a_replica(seed: int) -> None:
    racks: dict[int, str | None] = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    layout = assignment.assign(racks, 30, 3, Random(seed))
    assert all({racks[broker] for broker in replicas} == {"a", "b", "c"} for replicas in layout.values())
    four = assignment.assign(racks, 12, 4, Random(seed))
    assert all(len(set(replicas)) == 4 and len({racks[broker] for broker in replicas}) == 3 for replicas in four.values())


def test_racks_of_different_sizes() -> None:
    racks: dict[int, str | None] = {0: "a", 1: "a", 2: "a", 3: "b"}
    layout = assignment.assign(racks, 16, 2, Random(1))
    assert all(3 in replicas for replicas in layout.values()), "the only broker of rack b has one of each"


def test_grown_partitions_go_on_from_where_the_numbers_end() -> None:
    layout = assignment.assign(dict.fromkeys(range(3)), 4, 2, Random(2), first_partition=6)
    assert list(layout) == [6, 7, 8, 9]


def test_many_small_topics_do_not_pile_up_on_one_broker() -> None:
    random = Random(3)
    leaders = Counter(assignment.assign(dict.fromkeys(range(4)), 1, 1, random)[0][0] for _ in range(400))
    assert all(60 < leaders[broker] < 140 for broker in range(4))


@pytest.mark.parametrize(("brokers", "factor"), [(1, 2), (3, 4), (0, 1)])
def test_more_replicas_than_brokers(brokers: int, factor: int) -> None:
    with pytest.raises(KafkaError, match="larger than available brokers") as refusal:
        assignment.assign(dict.fromkeys(range(brokers)), 1, factor, Random(0))
    assert refusal.value.error is Error.INVALID_REPLICATION_FACTOR


# ---- names and layouts that users give -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_names_that_can_be(name: str) -> None:
    topic_rules.check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\x00", "a,b", "a:b"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(KafkaError) as refusal:
        topic_rules.check_name(name)
    assert refusal.value.error is Error.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("name", "existing", "collides"),
    [
        ("a.b", ["a_b"], True),
        ("a_b", ["a.b"], True),
        ("a.b", ["a.b"], False),
        ("a.b", ["a-b", "ab"], False),
        ("ab", ["a.b"], False),
        ("a.b_c", ["a_b.c"], True),
    ],
)
def test_names_that_share_a_metric(name: str, existing: list[str], collides: bool) -> None:
    if collides:
        with pytest.raises(KafkaError, match="collides"):
            topic_rules.check_collision(name, existing)
    else:
        topic_rules.check_collision(name, existing)


@pytest.mark.parametrize(
    ("layout", "first", "problem"),
    [
        ({0: (1, 2), 1: (2, 1)}, 0, None),
        ({3: (1,)}, 3, None),
        ({1: (1,)}, 0, "consecutive"),
        ({0: (1,), 2: (1,)}, 0, "consecutive"),
        ({0: ()}, 0, "at least one replica"),
        ({0: (1,), 1: ()}, 0, "at least one replica"),
        ({0: (1, 2), 1: (1,)}, 0, "same number"),
        ({0: (1, 1)}, 0, "Duplicate"),
        ({0: (1, 9)}, 0, "Unknown broker"),
        ({0: (-1,)}, 0, "Unknown broker"),
    ],
)
def test_layouts_given_by_hand(layout: dict[int, tuple[int, ...]], first: int, problem: str | None) -> None:
    if problem is None:
        topic_rules.check_assignment(layout, {1, 2}, first)
        return
    with pytest.raises(KafkaError, match=problem) as refusal:
        topic_rules.check_assignment(layout, {1, 2}, first)
    assert refusal.value.error is Error.INVALID_REPLICA_ASSIGNMENT


# ---- adoption ------------------------------------------------------------------------------------------------------------


def test_topics_found_on_disk_are_taken_over() -> None:
    def settings_of(name: str) -> dict[str, str]:
        return {"cleanup.policy": "compact"} if name == "b" else {}

    own, new = b"i" * 16, b"n" * 16
    found = {
        TopicPartition("b", 0): FoundLog(None, -1),
        TopicPartition("a", 2): FoundLog(own, 4),
        TopicPartition("a", 0): FoundLog(own, 1),
        TopicPartition("known", 0): FoundLog(None, 0),
    }
    adopted = adopt(found, {"known"}, 1, new, settings_of)
    assert adopted is not None
    name, operations = adopted
    assert name == "a"
    settings, topic, *states = [one for one in operations if isinstance(one, Create)]
    assert znodes.decode_config(settings.data) == {"retention.ms": "-1", "retention.bytes": "-1"}, "its own are not known"
    assert TopicNode.decode("a", topic.data) == TopicNode("a", own, {0: (1,), 1: (1,), 2: (1,)})
    assert [PartitionStateNode.decode(one.data).leader_epoch for one in states] == [2, 0, 5], "epochs go on; a gap begins anew"
    name, operations = adopt(found, {"known", "a"}, 1, new, settings_of) or ("", [])
    assert name == "b"
    settings, topic, *_ = [one for one in operations if isinstance(one, Create)]
    assert TopicNode.decode("b", topic.data).topic_id == new
    assert znodes.decode_config(settings.data) == {"cleanup.policy": "compact"}
    assert adopt(found, {"known", "a", "b"}, 1, new, settings_of) is None
