"""Throttles of reassignments: who is named, how much may go, and who is never held up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.replication.selection import preferred
from ottla.replication.throttle import UNLIMITED, UNTHROTTLED, Rate, leader_throttle, names
from ottla.storage.log_config import LogConfig
from unit.replication.replication_kit import Node, state


@pytest.mark.parametrize(
    ("setting", "partition", "broker", "expected"),
    [
        ("", 0, 1, False),
        ("*", 0, 1, True),
        ("0:1,1:2", 0, 1, True),
        ("0:1, 1:2", 1, 2, True),
        ("0:1,1:2", 1, 1, False),
        ("10:1", 0, 1, False),
    ],
)
def test_who_is_named(setting: str, partition: int, broker: int, expected: bool) -> None:
    assert names(setting, partition, broker) is expected


def test_a_rate_over_its_windows() -> None:
    rate = Rate(number=11, size=1.0)
    assert rate.seconds_over(1000, 100.0) == 0.0
    rate.record(10_000, 100.0)
    assert rate.seconds_over(1000, 100.0) == 0.0, "ten seconds' worth, all at once"
    rate.record(2_000, 100.5)
    assert rate.seconds_over(1000, 100.5) == pytest.approx(2.0)
    assert rate.seconds_over(UNLIMITED, 100.5) == 0.0
    assert rate.seconds_over(1000, 112.0) == 0.0, "it is forgotten"


def test_only_who_is_named_and_not_in_sync_waits(tmp_path: Path) -> None:
    node = Node(tmp_path, 1, config=LogConfig(leader_replication_throttled_replicas="0:2,0:3"))
    asyncio.run(node.role(state(1, 0, (1, 2), (1, 2, 3))))
    throttle = leader_throttle(node.clock.monotonic)
    assert not throttle.active
    throttle.set_limit(10)
    assert throttle.active
    for broker in (2, 3, 4):
        throttle.record(node.partition, 1000, broker)
    assert [throttle.seconds_to_wait(node.partition, broker) > 0 for broker in (2, 3, 4)] == [False, True, False]
    assert not UNTHROTTLED.active


@pytest.mark.parametrize(
    ("racks", "expected"),
    [
        ({1: "a", 2: "b", 3: "b"}, 3),  # of those that are near, the one that has most
        ({1: "b", 2: "b", 3: "b"}, 1),  # the leader, if it is near
        ({1: "a", 2: "a", 3: None}, 1),  # nobody is near
    ],
)
def test_where_to_read_from(racks: dict[int, str | None], expected: int) -> None:
    assert preferred("b", [(1, 10), (2, 7), (3, 9)], racks.get) == expected
