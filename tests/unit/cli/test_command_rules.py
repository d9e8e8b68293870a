"""The rules of commands that need no cluster: who is meant, what a change says, who is slowed down."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ottla.cli.config_entities import CLIENTS, DEFAULT, TOPICS, USERS, Entity, entities, names, settings
from ottla.cli.config_users import Quotas
from ottla.cli.get_offsets import _by_rules
from ottla.cli.reassignment_plan import Move, brokers_of, follower_throttles, leader_throttles, moves
from ottla.cli.tool import Failure
from ottla.cli.topic_names import matching
from ottla.client.admin.topics import Reassignment
from ottla.model import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ["a", "ab", "b"]),
        ("a", ["a"]),
        ("a.*", ["a", "ab"]),
        ("a, b", ["a", "b"]),
        ("'a|b'", ["a", "b"]),
    ],
)
def test_topics_that_are_meant(text: str | None, expected: Sequence[str]) -> None:
    assert [name for name in ("a", "ab", "b") if matching(text)(name)] == expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("a", [A0, A1]),
        ("a:1", [A1]),
        ("a:", [A0, A1]),
        (":0", [A0, B0]),
        (":1-", [A1]),
        ("b:0,a:-1", [A0, B0]),
        ("a:0-1", [A0]),
        ("a:5", []),
    ],
)
def test_partitions_that_are_meant(rules: str, expected: Sequence[TopicPartition]) -> None:
    assert [tp for tp in (A0, A1, B0) if _by_rules(rules)(tp)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        (" a = 1 ,b=2", {"a": "1", "b": "2"}),
        ("a=[1,2],b=3", {"a": "1,2", "b": "3"}),
        ("a=", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("S=[iterations=5,password=p=,q],b=3", {"S": "iterations=5,password=p=,q", "b": "3"}),
    ],
)
def test_settings_that_are_added(text: str, expected: dict[str, str]) -> None:
    assert settings(text, None) == expected
    assert names(" a, b ,") == ["a", "b"]


def test_entities_in_the_order_of_their_names() -> None:
    assert entities(["users", "clients"], ["u", DEFAULT], {}, {}) == [Entity(USERS, "u"), Entity(CLIENTS, DEFAULT)]
    assert entities(["topics"], [], {}, {}) == [Entity(TOPICS, None)]
    assert entities([], [], {CLIENTS: "c", USERS: None}, {USERS: True}) == [Entity(CLIENTS, "c"), Entity(USERS, DEFAULT)]
    with pytest.raises(Failure, match="An entity type is given twice"):
        entities(["topics", "topics"], [], {}, {})


@pytest.mark.parametrize(
    ("value", "shown"),
    [(100.0, "100.0"), (0.0, "0.0"), (2.5e7, "2.5E7"), (1e7, "1.0E7"), (9999999.0, "9999999.0"), (1e-4, "1.0E-4")],
)
def test_a_quota_is_shown_as_java_shows_it(value: float, shown: str) -> None:
    assert str(Quotas({"client-id": None, "user": "u"}, {"q": value})) == (
        f"Quota configs for user-principal 'u', the default client-id are q={shown}"
    )


def test_who_is_slowed_down() -> None:
    under_way = {A1: Reassignment((1, 2, 3), (3,), (1,)), B0: Reassignment((1, 2), (2,), (1,))}
    moving = moves(under_way, {A0: [2, 3], A1: [2, 4]}, {A0: (1, 2), A1: (1, 2, 3)})
    assert moving == {
        A0: Move(frozenset({1, 2}), frozenset({3})),
        A1: Move(frozenset({1, 2}), frozenset({4})),  # 3 has nothing to give yet
        B0: Move(frozenset({1}), frozenset({2})),
    }
    assert leader_throttles(moving) == {"a": "0:1,0:2,1:1,1:2", "b": "0:1"}
    assert follower_throttles(moving) == {"a": "0:3,1:4", "b": "0:2"}
    assert brokers_of(moving) == [1, 2, 3, 4]
