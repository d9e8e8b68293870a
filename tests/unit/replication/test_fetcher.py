"""A follower and everything that its leader may answer: one partition's trouble is its own, and what is told is told once."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.controller.channels import Stamp
from ottla.model import Error, TopicPartition
from ottla.replication.fetchers import Fetchers
from ottla.replication.leaders import Fetched, Leader
from ottla.storage.log_config import LogConfig
from unit.replication.replication_kit import TP, DirectLeader, Node, batch, follow, state, topic, wait_until
from unit.storage.storage_kit import records

OTHER = TopicPartition("t", 1)


async def pair(root: Path, partitions: int = 1, config: LogConfig | None = None) -> tuple[Node, Node]:
    leader, follower = Node(root, 1, config=config), Node(root, 2, config=config)
    for node in (leader, follower):
        states = {number: state(1, 0, (1, 2)) for number in range(partitions)}
        await node.replicas.leader_and_isr(Stamp(1, 1), [topic(states)], (1, 2), ())
    return leader, follower


def test_only_what_changed_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path, 3)
        fetcher, source = follow(leader, follower)
        await fetcher.fetch_once()
        await fetcher.fetch_once()
        leader.produce(b"a")
        await fetcher.fetch_once()
        await fetcher.fetch_once()
        await fetcher.fetch_once()
        assert [sorted(changed) for changed, _ in source.asked] == [[TP, OTHER, ("t", 2)], [], [], [TP], []]

    asyncio.run(run())


def test_a_lost_session_is_told_everything_again(tmp_path: Path) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path, 2)
        fetcher, source = follow(leader, follower)
        await fetcher.fetch_once()
        leader.produce(b"a")
        source.lose_session = True
        await fetcher.fetch_once()
        await fetcher.fetch_once()
        assert sorted(source.asked[-1][0]) == [TP, OTHER]
        assert follower.values == [b"a"]

    asyncio.run(run())


def test_a_leader_that_is_away_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path)
        fetcher, source = follow(leader, follower)
        source.away = True
        for _ in range(3):
            await fetcher.fetch_once()
        leader.produce(b"a")
        source.away = False
        await fetcher.fetch_once()
        assert follower.values == [b"a"]

    caplog.set_level("INFO")
    asyncio.run(run())
    assert caplog.text.count("Cannot fetch from broker 1") == 1, "told once, not each time"
    assert caplog.text.count("Broker 1 answers again") == 1


@pytest.mark.parametrize(
    "error",
    [Error.NOT_LEADER_OR_FOLLOWER, Error.UNKNOWN_LEADER_EPOCH, Error.KAFKA_STORAGE_ERROR, Error.UNKNOWN_SERVER_ERROR],
)
def test_one_partition_rests_and_the_others_go_on(tmp_path: Path, error: Error) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path, 2)
        fetcher, source = follow(leader, follower)
        source.spoil = lambda one: replace(one, error=error) if one.tp == TP else one
        for number in (0, 1):
            leader.replicas.get("t", number).append(batch(b"x"), 1, 9)
        await fetcher.fetch_once()
        assert [delay for delay, _ in follower.timer.set] == [0.0]
        await fetcher.fetch_once()
        assert source.asked[-1][1] == ((TP, follower.partition.log.topic_id),), "the leader is told to leave it out"
        assert [len(records(follower.replicas.get("t", number).log)) for number in (0, 1)] == [0, 1]
        source.spoil = lambda one: one
        follower.timer.fire()
        await fetcher.fetch_once()
        assert follower.values == [b"x"]

    asyncio.run(run())


def test_a_fenced_follower_waits_for_word(tmp_path: Path) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path)
        fetcher, _ = follow(leader, follower)
        await leader.role(state(1, 1, (1, 2)))
        leader.produce(b"a")
        await fetcher.fetch_once()
        assert follower.timer.set == []
        assert follower.values == []
        await follower.role(state(1, 1, (1, 2)))
        fetcher.follow([follower.partition])
        await fetcher.fetch_once()
        assert follower.values == [b"a"]

    asyncio.run(run())


def test_corrupt_batches_are_not_written_and_fetched_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path)
        fetcher, source = follow(leader, follower)
        leader.produce(b"good")

        def flip(one: Fetched) -> Fetched:
            spoiled = bytearray(one.records)
            if spoiled:
                spoiled[-1] ^= 1
            return replace(one, records=memoryview(spoiled))

        source.spoil = flip
        await fetcher.fetch_once()
        assert follower.marks == (0, 0)
        source.spoil = lambda one: one
        follower.timer.fire()
        await fetcher.fetch_once()
        assert follower.values == [b"good"]

    asyncio.run(run())
    assert "Record is corrupt" in caplog.text


def test_a_leader_that_begins_beyond_our_end(tmp_path: Path) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path)
        leader.dead.add(2)
        leader.partition.become(state(1, 0, (1,), (1, 2), version=1))
        leader.produce(b"a", b"b")
        leader.produce(b"c")
        leader.partition.delete_records_before(2)
        fetcher, source = follow(leader, follower)
        for _ in range(3):
            await fetcher.fetch_once()
        assert source.questions == ["latest", "earliest"]
        assert follower.values == [b"c"]
        assert follower.partition.log.log_start_offset == 2

    asyncio.run(run())


def test_a_leader_that_begins_within_a_batch(tmp_path: Path) -> None:
    """DeleteRecords knows no bounds of batches: the follower gets the whole batch, and begins where the leader does."""

    async def run() -> None:
        leader, follower = await pair(tmp_path)
        leader.dead.add(2)
        leader.partition.become(state(1, 0, (1,), (1, 2), version=1))
        leader.produce(b"a", b"b", b"c")
        leader.partition.delete_records_before(1)
        fetcher, _ = follow(leader, follower)
        for _ in range(3):
            await fetcher.fetch_once()
        assert follower.values == leader.values == [b"b", b"c"]
        assert follower.partition.log.log_start_offset == 1
        assert follower.marks == (3, 3)

    asyncio.run(run())


def test_a_leader_that_ends_before_we_do_and_knows_no_epochs_of_ours(tmp_path: Path) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path)
        for value in (b"a", b"b", b"c"):
            follower.partition.log.append_as_leader(batch(value), 7)  # nobody knows who led in epoch 7
        follower.partition.log.high_watermark = 1
        fetcher, source = follow(leader, follower)
        for _ in range(3):
            await fetcher.fetch_once()
        assert source.questions[:3] == ["latest", "earliest", "epoch_ends"]
        assert follower.values == []
        leader.produce(b"new")
        await fetcher.fetch_once()
        assert follower.values == [b"new"]

    asyncio.run(run())


def test_the_start_of_the_log_follows_the_leaders(tmp_path: Path) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path)
        fetcher, _ = follow(leader, follower)
        leader.produce(b"a")
        leader.produce(b"b")
        for _ in range(3):
            await fetcher.fetch_once()
        leader.partition.delete_records_before(1)
        await fetcher.fetch_once()
        assert follower.partition.log.log_start_offset == 1
        assert leader.partition.low_watermark == 0
        await fetcher.fetch_once()
        assert leader.partition.low_watermark == 1

    asyncio.run(run())


def test_an_answer_to_a_question_of_before_is_thrown_away(tmp_path: Path) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path)
        fetcher, source = follow(leader, follower)
        leader.produce(b"a")

        async def another_epoch() -> None:
            await follower.role(state(1, 1, (1, 2)))
            fetcher.follow([follower.partition])

        source.between = another_epoch
        await fetcher.fetch_once()
        assert follower.values == []

    asyncio.run(run())


def test_a_log_without_epochs_is_cut_to_what_is_committed(tmp_path: Path) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path)
        log = follower.partition.log
        log.append_as_follower(batch(b"a"))
        log.append_as_follower(memoryview(bytearray(_renumbered(b"b", 1))))
        assert log.leader_epochs.latest == -1
        log.high_watermark = 1
        follow(leader, follower)
        assert follower.marks == (1, 1)

    asyncio.run(run())


def _renumbered(value: bytes, offset: int) -> bytes:
    data = bytearray(batch(value))
    data[:8] = offset.to_bytes(8, "big")
    return bytes(data)


def test_who_asks_on_has_flushed(tmp_path: Path) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path, config=LogConfig(flush_messages=1))
        fetcher, _ = follow(leader, follower)
        leader.produce(b"a")
        await fetcher.fetch_once()
        assert follower.partition.log.recovery_point == 1

    asyncio.run(run())


def test_consumers_of_a_follower_are_woken_when_it_hears_what_is_committed(tmp_path: Path) -> None:
    class Watcher:
        told = 0

        def arrived(self, size: int) -> None:
            self.told += size

        def changed(self) -> None: ...

    async def run() -> None:
        leader, follower = await pair(tmp_path)
        fetcher, _ = follow(leader, follower)
        watcher = Watcher()
        follower.partition.watchers.add(watcher)
        leader.produce(b"a")
        await fetcher.fetch_once()
        assert watcher.told == 0
        await fetcher.fetch_once()
        assert watcher.told == len(batch(b"a"))

    asyncio.run(run())


class Connections:
    """What `Fetchers` connects to."""

    def __init__(self, nodes: dict[int, Node], follower: Node) -> None:
        self.nodes = nodes
        self.follower = follower
        self.made: list[DirectLeader] = []

    def __call__(self, broker: int) -> Leader:
        source = DirectLeader(self.nodes[broker], self.follower)

        async def a_moment() -> None:
            await asyncio.sleep(0.001)

        source.between = a_moment
        self.made.append(source)
        return source


def test_fetchers_follow_the_roles(tmp_path: Path) -> None:
    async def run() -> None:
        one, two, me = Node(tmp_path, 1), Node(tmp_path, 2), Node(tmp_path, 3)
        connections = Connections({1: one, 2: two}, me)
        me.replicas.fetchers = fetchers = Fetchers(
            connections, asyncio.get_running_loop().call_later, me.replicas.look_after, count=2
        )
        everywhere = {number: state(1 + number % 2, 0, (1, 2, 3)) for number in range(4)}
        for node in (one, two, me):
            await node.replicas.leader_and_isr(Stamp(1, 1), [topic(everywhere)], (1, 2, 3), ())
        assert [fetchers.followed(TopicPartition("t", number)) for number in range(4)] == [1, 2, 1, 2]
        for number in range(4):
            (one if number % 2 == 0 else two).replicas.get("t", number).append(batch(b"%d" % number), 1, 9)
        await wait_until(lambda: all(me.replicas.get("t", n).log.log_end_offset == 1 for n in range(4)))

        moved = {number: state(2, 1, (1, 2, 3)) for number in range(3)} | {3: state(3, 1, (1, 2, 3))}
        for node in (two, me):
            await node.replicas.leader_and_isr(Stamp(1, 1), [topic(moved)], (1, 2, 3), ())
        assert [fetchers.followed(TopicPartition("t", number)) for number in range(4)] == [2, 2, 2, None]
        two.replicas.get("t", 0).append(batch(b"more"), 1, 9)
        # Broker 2 never had what broker 1 wrote: the follower drops it.
        await wait_until(lambda: [one.value for one in records(me.replicas.get("t", 0).log)] == [b"more"])
        await fetchers.stop()
        assert fetchers.followed(TP) is None

    asyncio.run(run())


def test_a_disk_that_fails_takes_the_partition_away(tmp_path: Path) -> None:
    async def run() -> None:
        leader, follower = await pair(tmp_path)
        fetcher, source = follow(leader, follower)
        leader.produce(b"a")

        def failed(_path: str, _error: OSError) -> None:
            follower.replicas.take_offline([TP])
            fetcher.forget(TP)

        follower.logs.directory_failed = failed
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, follower.partition.log.segments[-1].file.fd)
        os.close(full)
        await fetcher.fetch_once()
        assert len(fetcher) == 0
        assert follower.timer.set == []
        await fetcher.fetch_once()
        assert source.asked[-1][1], "and the leader is told that nobody reads it any more"

    asyncio.run(run())
