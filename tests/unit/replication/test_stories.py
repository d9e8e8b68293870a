"""Replication told step by step over real logs: what leader and follower know after each fetch, and what a crash loses."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.model import BrokerUnavailable, TopicPartition
from ottla.replication.fetcher import Fetcher
from ottla.replication.leaders import Fetched, Position
from ottla.replication.partition import Partition
from unit.replication.replication_kit import DirectLeader, Node, follow, state


def test_marks_after_each_fetch(tmp_path: Path) -> None:
    """T1 to T4: the leader learns by the next fetch what the follower has; the follower by its answer what is committed."""

    async def run() -> None:
        leader, follower = Node(tmp_path, 1), Node(tmp_path, 2)
        for node in (leader, follower):
            await node.role(state(1, 0, (1, 2)))
        fetcher, _ = follow(leader, follower)
        remote = leader.partition.progress_of(2)
        assert remote is not None

        assert (leader.marks, follower.marks, remote.end) == ((0, 0), (0, 0), -1)  # T1: nothing was asked yet
        last = leader.produce(b"message1")
        assert (leader.marks, follower.marks) == ((0, 1), (0, 0))  # T2
        assert not leader.partition.committed(last)
        await fetcher.fetch_once()  # fetches from 0
        assert (leader.marks, follower.marks, remote.end) == ((0, 1), (0, 1), 0)  # T3
        await fetcher.fetch_once()  # fetches from 1
        assert (leader.marks, follower.marks, remote.end) == ((1, 1), (1, 1), 1)  # T4
        assert leader.partition.committed(last)
        assert leader.values == follower.values == [b"message1"]

    asyncio.run(run())


def test_three_replicas_the_slowest_in_sync_decides(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = [Node(tmp_path, number) for number in (1, 2, 3)]
        leader = nodes[0]
        for node in nodes:
            await node.role(state(1, 0, (1, 2, 3)))
        second, _ = follow(leader, nodes[1])
        third, _ = follow(leader, nodes[2])
        leader.produce(b"a")
        for _ in range(2):
            await second.fetch_once()
        assert leader.marks == (0, 1)
        for _ in range(2):
            await third.fetch_once()
        assert leader.marks == (1, 1)
        await second.fetch_once()
        assert [node.marks for node in nodes] == [(1, 1)] * 3

    asyncio.run(run())


class FetcherOfOld(Fetcher):
    """The planted bug: replication before leader epochs. What may not be committed goes, and nobody compares the rest."""

    def follow(self, partitions: Iterable[Partition]) -> None:
        found = list(partitions)
        for partition in found:
            partition.truncate_to(partition.log.high_watermark)
        super().follow(found)

    async def fetch_once(self) -> None:
        source = self._leader
        assert isinstance(source, DirectLeader)
        told = source.fetch

        async def without_epochs(
            changed: Mapping[TopicPartition, Position], gone: Collection[tuple[TopicPartition, bytes]]
        ) -> list[Fetched]:
            return await told({tp: replace(one, last_fetched_epoch=-1) for tp, one in changed.items()}, gone)

        source.fetch = without_epochs  # type: ignore[method-assign]
        try:
            await super().fetch_once()
        finally:
            source.fetch = told  # type: ignore[method-assign]


async def the_follower_restarts(root: Path, kind: type[Fetcher]) -> list[bytes | None]:
    """Both have message2 and the producer was told that it is committed; only the follower had not heard so when it crashed. It
    comes back, the leader crashes, and the follower leads. What it has then."""
    leader, follower = Node(root, 1), Node(root, 2)
    for node in (leader, follower):
        await node.role(state(1, 0, (1, 2)))
    fetcher, source = follow(leader, follower)
    leader.produce(b"message1")
    await fetcher.fetch_once()
    await fetcher.fetch_once()
    follower.checkpoint()
    acknowledged = leader.produce(b"message2")
    await fetcher.fetch_once()
    assert (leader.marks, follower.marks) == ((1, 2), (1, 2))

    async def crash() -> None:
        follower.crash()
        raise BrokerUnavailable("the answer never came")

    source.between = crash
    await fetcher.fetch_once()
    assert leader.partition.committed(acknowledged)

    follower.start()
    await follower.role(state(1, 0, (1, 2)))
    assert follower.marks == (1, 2)
    fetcher, source = follow(leader, follower, kind=kind)
    source.away = True
    leader.crash()
    await fetcher.fetch_once()
    await follower.role(state(2, 1, (2,), (1, 2), version=1))
    return follower.values


def test_a_follower_that_restarts_keeps_what_is_committed(tmp_path: Path) -> None:
    assert asyncio.run(the_follower_restarts(tmp_path, Fetcher)) == [b"message1", b"message2"]


def test_without_epochs_a_committed_message_would_be_lost(tmp_path: Path) -> None:
    assert asyncio.run(the_follower_restarts(tmp_path, FetcherOfOld)) == [b"message1"]


async def both_crash_and_return_in_the_other_order(root: Path, kind: type[Fetcher]) -> tuple[Node, Node]:
    """The leader alone has message2 when both crash; the follower is back first, leads, and takes message3 in its place. Then
    the old leader is back and follows. The new leader and the old one."""
    first, second = Node(root, 1), Node(root, 2)
    for node in (first, second):
        await node.role(state(1, 0, (1, 2)))
    fetcher, _ = follow(first, second)
    first.produce(b"message1")
    await fetcher.fetch_once()
    await fetcher.fetch_once()
    first.dead.add(2)
    first.partition.become(state(1, 0, (1,), (1, 2), version=1))
    first.produce(b"message2")
    assert (first.marks, second.marks) == ((2, 2), (1, 1))
    for node in (first, second):
        node.checkpoint()
        node.crash()
        node.start()

    await second.role(state(2, 1, (2,), (1, 2), version=2))
    second.produce(b"message3")
    assert second.marks == (2, 2)
    assert second.partition.log.leader_epochs.entries == ((0, 0), (1, 1))

    await first.role(state(2, 1, (2,), (1, 2), version=2))
    fetcher, _ = follow(second, first, kind=kind)
    second.produce(b"message4")
    for _ in range(4):
        await fetcher.fetch_once()
    return second, first


def test_an_old_leader_drops_what_the_new_one_does_not_have(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    new, old = asyncio.run(both_crash_and_return_in_the_other_order(tmp_path, Fetcher))
    assert new.values == old.values == [b"message1", b"message3", b"message4"]
    assert old.partition.log.leader_epochs.entries == ((0, 0), (1, 1))
    assert "below its high watermark" in caplog.text, "committed records went, and the operator is told"


def test_without_epochs_two_values_would_be_at_one_offset(tmp_path: Path) -> None:
    new, old = asyncio.run(both_crash_and_return_in_the_other_order(tmp_path, FetcherOfOld))
    assert new.values == [b"message1", b"message3", b"message4"]
    assert old.values == [b"message1", b"message2", b"message4"]


def test_leaders_that_change_fast_leave_epochs_without_records(tmp_path: Path) -> None:
    """Each led for a while, not all wrote: the logs are made one by as many fetches as there are epochs that only one knows."""

    async def run() -> None:
        one, two = Node(tmp_path, 1), Node(tmp_path, 2)
        for node in (one, two):
            await node.role(state(1, 0, (1, 2)))
        fetcher, _ = follow(one, two)
        one.produce(b"a")
        await fetcher.fetch_once()
        # From here each believes to lead in turn, and neither hears of the other.
        await one.role(state(1, 1, (1,), (1, 2), version=1))
        one.produce(b"b1")
        await one.role(state(1, 3, (1,), (1, 2), version=3))
        one.produce(b"b3")
        await two.role(state(2, 2, (2,), (1, 2), version=2))
        two.produce(b"c2")
        await two.role(state(2, 4, (2,), (1, 2), version=4))
        await two.role(state(2, 5, (2,), (1, 2), version=5))
        two.produce(b"c5")
        await one.role(state(2, 5, (2,), (1, 2), version=5))
        fetcher, source = follow(two, one)
        while one.values != two.values:
            await fetcher.fetch_once()
            assert len(source.asked) < 8
        assert one.values == [b"a", b"c2", b"c5"]
        assert one.partition.log.leader_epochs.entries == ((0, 0), (2, 1), (5, 2))

    asyncio.run(run())
