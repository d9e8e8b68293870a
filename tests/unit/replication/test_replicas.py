"""The controller's word: fenced by both epochs, taken partition by partition, in one go for many."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from ottla.controller.channels import Channel, Stamp, Stop
from ottla.metadata.image import BrokerImage, MetadataUpdate, PartitionState, TopicImage
from ottla.model import LEADER_DURING_DELETE, NO_LEADER, Error, KafkaError, TopicPartition
from ottla.replication.partition import Partition
from ottla.storage.log_config import LogConfig
from unit.replication.replication_kit import TP, Node, state, topic

STAMP = Stamp(1, 3)


class Following:
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []

    def follow(self, partitions: Iterable[Partition]) -> None:
        self.calls.append(("follow", [one.tp for one in partitions]))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        self.calls.append(("forget", list(partitions)))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, 1)


def told(node: Node, states: dict[int, PartitionState], stamp: Stamp = STAMP, **more: object) -> dict[TopicPartition, Error]:
    new = more.get("new", ())
    return dict(asyncio.run(node.replicas.leader_and_isr(stamp, [topic(states)], (1, 2), new)))  # type: ignore[arg-type]


def test_it_is_a_channel(node: Node) -> None:
    channel: Channel = node.replicas
    assert channel is node.replicas


def test_partitions_exist_while_the_controller_says_so(node: Node) -> None:
    replicas = node.replicas
    mine = {0: state(1, 0, (1,)), 1: state(2, 0, (2,))}
    assert told(node, mine) == {}
    update = MetadataUpdate(1, {1: BrokerImage(1, {})}, [topic(mine)])
    asyncio.run(replicas.update_metadata(STAMP, update))
    assert list(replicas.partitions) == [TP]
    assert replicas.get("t", 0).is_leader
    for name, number, error in [
        ("t", 1, Error.NOT_LEADER_OR_FOLLOWER),
        ("t", 2, Error.UNKNOWN_TOPIC_OR_PARTITION),
        ("ghost", 0, Error.UNKNOWN_TOPIC_OR_PARTITION),
    ]:
        with pytest.raises(KafkaError) as refusal:
            replicas.get(name, number)
        assert refusal.value.error is error
    kept = replicas.get("t", 0)
    told(node, mine)
    assert replicas.get("t", 0) is kept
    deleted: list[list[TopicPartition]] = []
    replicas.deleted = deleted.append
    assert asyncio.run(replicas.stop_replicas(STAMP, [Stop(TP, 0, delete=True)])) == {}
    assert not replicas.partitions
    assert TP not in node.logs.logs
    assert not kept.is_leader
    assert deleted == [], "it may only have moved"
    gone = TopicImage("t", topic(mine).topic_id, {n: state(LEADER_DURING_DELETE, 0, (1,)) for n in (0, 1)})
    asyncio.run(replicas.update_metadata(STAMP, MetadataUpdate(1, update.brokers, [gone])))
    assert deleted == [[TopicPartition("t", 0), TopicPartition("t", 1)]]
    with pytest.raises(KafkaError):
        replicas.get("t", 1)


@pytest.mark.parametrize(
    ("stamp", "error"),
    [
        (Stamp(1, 2), Error.STALE_CONTROLLER_EPOCH),
        (Stamp(1, 3, 100), Error.STALE_BROKER_EPOCH),
        (Stamp(1, 3, 101), None),
        (Stamp(1, 3, 102), None),
        (Stamp(1, 4), None),
    ],
)
def test_who_may_speak(node: Node, stamp: Stamp, error: Error | None) -> None:
    told(node, {0: state(1, 4, (1,))})
    for word in (
        node.replicas.leader_and_isr(stamp, [topic({0: state(2, 9, (1, 2))})], (1, 2), ()),
        node.replicas.update_metadata(stamp, MetadataUpdate(1, {})),
        node.replicas.stop_replicas(stamp, [Stop(TP, 9, delete=True)]),
    ):
        if error is None:
            asyncio.run(word)  # type: ignore[arg-type]
            continue
        with pytest.raises(KafkaError) as refusal:
            asyncio.run(word)  # type: ignore[arg-type]
        assert refusal.value.error is error
    assert (TP in node.replicas.partitions) is (error is not None)


def test_an_older_epoch_is_ignored_and_a_newer_version_is_not(node: Node) -> None:
    told(node, {0: state(1, 4, (1,), (1, 2), version=7)})
    assert told(node, {0: state(2, 3, (1, 2), version=9)}) == {TP: Error.STALE_CONTROLLER_EPOCH}
    assert node.partition.is_leader
    assert told(node, {0: state(1, 4, (1, 2), version=6)}) == {}
    assert node.partition.state.isr == (1,)
    assert told(node, {0: state(1, 4, (1, 2), version=8)}) == {}
    assert node.partition.state.isr == (1, 2)


def test_roles_start_and_stop_fetching_in_one_go(node: Node) -> None:
    node.replicas.fetchers = following = Following()
    states = {number: state(2, 0, (1, 2)) for number in range(3)}
    told(node, states)
    following.calls.clear()
    roles: list[tuple[TopicPartition, bool]] = []
    node.replicas.role_changed = lambda tp, leads: roles.append((tp, leads))
    told(node, {0: state(2, 1, (1, 2)), 1: state(3, 1, (1, 2, 3)), 2: state(1, 1, (1, 2))})
    parts = [TopicPartition("t", number) for number in range(3)]
    assert following.calls == [("forget", [parts[2]]), ("follow", parts[:2])]
    assert roles == [(parts[0], False), (parts[1], False), (parts[2], True)]
    following.calls.clear()
    told(node, {0: state(NO_LEADER, 2, (1, 2))})
    assert following.calls == [("forget", [parts[0]])]
    following.calls.clear()
    told(node, {1: state(3, 1, (1, 3), (1, 2, 3), version=1)})
    assert following.calls == [], "the same leader in the same epoch: nothing to begin anew"
    asyncio.run(node.replicas.stop_replicas(STAMP, [Stop(parts[1], 1, delete=False)]))
    assert following.calls == [("forget", [parts[1]])]
    assert parts[1] in node.logs.logs, "its data stays"
    assert parts[1] in node.replicas.high_watermarks(), "and so does what is known of it"


def test_a_stop_that_comes_late(node: Node) -> None:
    told(node, {0: state(1, 4, (1,))})
    found = asyncio.run(node.replicas.stop_replicas(STAMP, [Stop(TP, 3, delete=True)]))
    assert found == {TP: Error.FENCED_LEADER_EPOCH}
    assert node.partition.is_leader
    for epoch in (-1, -2, 4):
        told(node, {0: state(1, 4, (1,))})
        assert asyncio.run(node.replicas.stop_replicas(STAMP, [Stop(TP, epoch, delete=False)])) == {}
        assert not node.replicas.partitions


def test_another_topic_of_the_same_name(node: Node) -> None:
    told(node, {0: state(1, 0, (1,))})
    other = TopicImage("t", b"another".ljust(16, b"."), {0: state(1, 5, (1,))})
    found = asyncio.run(node.replicas.leader_and_isr(STAMP, [other], (1,), ()))
    assert found == {TP: Error.INCONSISTENT_TOPIC_ID}


def test_a_partition_that_may_lie_where_nobody_can_look(node: Node) -> None:
    node.logs.offline_dirs.add("/failed")
    assert told(node, {0: state(1, 0, (1,))}) == {TP: Error.KAFKA_STORAGE_ERROR}
    assert TP in node.replicas.offline
    found = asyncio.run(node.replicas.stop_replicas(STAMP, [Stop(TP, 0, delete=True)]))
    assert found == {TP: Error.KAFKA_STORAGE_ERROR}
    one = TopicPartition("t", 1)
    assert told(node, {1: state(1, 0, (1,))}, new=[one]) == {}, "a new one lies nowhere yet"


def test_changed_settings_reach_the_logs(node: Node) -> None:
    told(node, {0: state(1, 0, (1,)), 1: state(1, 0, (1,))})
    node.config = LogConfig(retention_ms=2)
    node.replicas.config_changed("t")
    assert [node.replicas.get("t", number).log.config.retention_ms for number in (0, 1)] == [2, 2]


def test_shrinking_looks_at_all_that_are_led(node: Node) -> None:
    told(node, {0: state(1, 0, (1, 2)), 1: state(1, 0, (1,)), 2: state(2, 0, (1, 2))})
    node.clock.advance_ms(31_000)
    node.replicas.shrink_isrs(node.clock.monotonic())
    assert [(proposal.tp.partition, proposal.isr) for _, proposal in node.proposals] == [(0, (1,))]


def test_nothing_runs_on_when_it_is_stopped(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.replication.replicas._FEW_EPOCHS", 0)

    async def story() -> None:
        await node.replicas.leader_and_isr(STAMP, [topic({n: state(1, 0, (1,)) for n in range(3)})], (1, 2), ())
        assert len(asyncio.all_tasks()) == 2, "epochs wait to be written"
        node.replicas.stop()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(story())
