"""Committed offsets: who may commit, what is kept, for how long, and what a restart finds."""

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator import _offset_rows_twin, record_format
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.group_state import Group, State
from ottla.coordinator.membership import Join, Leaver
from ottla.coordinator.offsets import Commit, expired
from ottla.coordinator.plain_offsets import PlainOffsets
from ottla.coordinator.records import CommittedOffset, OffsetRecord
from ottla.model import Error, KafkaError, TopicPartition
from ottla.wire.apis.consumer_protocol import ConsumerProtocolSubscription
from ottla.wire.schema import encode_versioned

try:
    from ottla.coordinator import _offset_rows
except ImportError:
    _offset_rows = None

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
READS_T = (("range", encode_versioned(ConsumerProtocolSubscription(topics=["t"]), 1)),)
DAY = 24 * 3600 * 1000


async def offsets_of(world, group="g"):
    return {partition: value.offset for partition, value in (await world.groups.committed(group)).items()}


async def commit(world, offset=1, partition=T0, group="g", **who):
    """What the group coordinator says to one committed offset."""
    await world.groups.partition_of(group)
    try:
        return (await world.commit(group, [Commit(partition, offset)], **who))[partition]
    except KafkaError as refused:
        return refused.error


async def test_a_commit_is_seen_at_once_by_everyone_and_after_a_restart(world):
    await world.groups.partition_of("g")
    await world.commit("g", [Commit(T0, 5, 3, "note"), Commit(U0, 7)])
    kept = dict(await world.groups.committed("g"))
    assert kept == {
        T0: CommittedOffset(5, 3, "note", world.clock.now_ms()),
        U0: CommittedOffset(7, -1, "", world.clock.now_ms()),
    }
    await world.restart()
    assert await world.groups.committed("g") == kept
    assert (await world.groups.describe_group("g")).state == "Empty"


async def test_the_last_commit_wins(world):
    for offset in (5, 9, 3):
        await commit(world, offset)
    assert await offsets_of(world) == {T0: 3}
    await world.restart()
    assert await offsets_of(world) == {T0: 3}


@pytest.mark.parametrize(
    ("who", "error"),
    [
        ({"generation": 2, "member_id": "MEMBER"}, Error.NONE),
        ({"generation": 1, "member_id": "MEMBER"}, Error.ILLEGAL_GENERATION),
        ({"generation": 3, "member_id": "MEMBER"}, Error.ILLEGAL_GENERATION),
        ({"generation": -1, "member_id": "MEMBER"}, Error.ILLEGAL_GENERATION),
        ({"generation": 2, "member_id": "nobody"}, Error.UNKNOWN_MEMBER_ID),
        ({"generation": 2, "member_id": "MEMBER", "instance_id": "x"}, Error.UNKNOWN_MEMBER_ID),
        ({}, Error.UNKNOWN_MEMBER_ID),  # a group with members takes nothing from strangers
    ],
)
async def test_only_members_of_the_generation_commit(world, make_stable, who, error):
    member, _ = await make_stable(world, 2)
    who = {key: member.id if value == "MEMBER" else value for key, value in who.items()}
    assert await commit(world, **who) is error
    assert await offsets_of(world) == ({T0: 1} if error is Error.NONE else {})


async def test_commits_during_a_rebalance(world, make_stable):
    first, second = await make_stable(world, 2)
    first.start_join()
    await world.settle()
    assert await commit(world, generation=2, member_id=second.id) is Error.NONE  # it may still save what it did
    await second.rejoin()
    assert await commit(world, generation=3, member_id=second.id) is Error.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("who", "error"),
    [
        ({}, Error.NONE),
        ({"member_id": "anyone"}, Error.NONE),
        ({"generation": 0, "member_id": "anyone"}, Error.ILLEGAL_GENERATION),
    ],
)
async def test_clients_without_a_group_store_offsets_too(world, who, error):
    assert await commit(world, **who) is error


async def test_too_much_metadata_spoils_only_its_own_partition(make_world):
    world = make_world(offset_metadata_max_bytes=10)
    await world.groups.partition_of("g")
    commits = [Commit(T0, 1, metadata="x" * 11), Commit(T1, 2, metadata="x" * 10), Commit(U0, 3, metadata=None)]
    results = await world.commit("g", commits)
    assert results == {T0: Error.OFFSET_METADATA_TOO_LARGE, T1: Error.NONE, U0: Error.NONE}
    assert await offsets_of(world) == {T1: 2, U0: 3}


async def test_offsets_of_topics_that_are_read_cannot_be_deleted(world, make_stable):
    (member,) = await make_stable(world, 1, protocols=READS_T)
    for partition in (T0, U0):
        await commit(world, 1, partition, generation=1, member_id=member.id)
    results = await world.groups.delete_offsets("g", [T0, U0, T1])
    assert results == {T0: Error.GROUP_SUBSCRIBED_TO_TOPIC, U0: Error.NONE, T1: Error.GROUP_SUBSCRIBED_TO_TOPIC}
    assert await offsets_of(world) == {T0: 1}
    await member.leave()
    assert await world.groups.delete_offsets("g", [T0, T1]) == {T0: Error.NONE, T1: Error.NONE}
    await world.restart()
    assert await offsets_of(world) == {}


@pytest.mark.parametrize(("protocol_type", "error"), [("connect", Error.NON_EMPTY_GROUP), (None, Error.GROUP_ID_NOT_FOUND)])
async def test_offsets_that_cannot_be_deleted_at_all(world, make_stable, protocol_type, error):
    await world.groups.partition_of("g")
    if protocol_type is not None:
        await make_stable(world, 1, protocol_type=protocol_type)
    with pytest.raises(KafkaError) as refused:
        await world.groups.delete_offsets("g", [T0])
    assert refused.value.error is error


async def test_only_an_empty_group_can_be_deleted(world, make_stable):
    (member,) = await make_stable(world, 1)
    await commit(world, generation=1, member_id=member.id)
    with pytest.raises(KafkaError) as refused:
        await world.groups.delete_group("g")
    assert refused.value.error is Error.NON_EMPTY_GROUP
    await member.leave()
    await world.groups.delete_group("g")
    with pytest.raises(KafkaError) as refused:
        await world.groups.delete_group("g")
    assert refused.value.error is Error.GROUP_ID_NOT_FOUND
    for _ in range(2):
        assert (await world.groups.describe_group("g")).state == "Dead"
        assert await offsets_of(world) == {}
        assert world.groups.list_groups() == []
        await world.restart()


async def test_a_deleted_group_takes_commits_in_flight_with_it(world):
    await commit(world)
    world.journal.gate.clear()
    tasks = [asyncio.ensure_future(world.commit("g", [Commit(T1, 2)]))]
    await world.settle()
    tasks.append(asyncio.ensure_future(world.groups.delete_group("g")))
    await world.settle()
    world.journal.gate.set()
    await asyncio.gather(*tasks)
    await world.restart()
    assert await offsets_of(world) == {}


async def test_offsets_of_deleted_topics_go(world):
    for partition in (T0, T1, U0):
        await commit(world, 1, partition)
    await world.groups.partitions_deleted([T0, T1, TopicPartition("never", 0)])
    assert await offsets_of(world) == {U0: 1}
    await world.restart()
    assert await offsets_of(world) == {U0: 1}


def group(state, protocol_type, *, emptied=-1, subscribed=frozenset()):
    return Group("g", state=state, protocol_type=protocol_type, state_timestamp=emptied, subscribed=subscribed)


@pytest.mark.parametrize(
    ("kept_in", "gone"),
    [
        (group(State.EMPTY, None), {T0}),  # only offsets are stored here: by the age of the commit
        (group(State.EMPTY, "consumer", emptied=6 * DAY), set()),  # empty since a day: all stay
        (group(State.EMPTY, "consumer", emptied=0), {T0, T1}),  # empty since a week: all go, however young
        (group(State.EMPTY, "consumer"), {T0}),  # an old record does not say since when
        (group(State.STABLE, "consumer", subscribed=frozenset("t")), set()),
        (group(State.STABLE, "consumer", subscribed=frozenset("u")), {T0}),
        (group(State.STABLE, "consumer", subscribed=None), set()),  # what is read cannot be told
        (group(State.STABLE, "connect"), set()),
        (group(State.PREPARING_REBALANCE, "consumer", subscribed=frozenset("u")), set()),
    ],
)
def test_what_is_too_old(kept_in, gone):
    offsets = {T0: CommittedOffset(1, commit_timestamp=0), T1: CommittedOffset(1, commit_timestamp=5 * DAY)}
    assert set(expired(kept_in, offsets, 7 * DAY, 7 * DAY)) == gone


@pytest.mark.parametrize(("now", "gone"), [(999, False), (1000, True)])
def test_a_retention_of_its_own_goes_before_the_brokers(now, gone):
    offsets = {T0: CommittedOffset(1, commit_timestamp=0, expire_timestamp=1000)}
    assert (expired(group(State.EMPTY, "consumer", emptied=0), offsets, now, 7 * DAY) == [T0]) is gone


async def test_expiry_removes_offsets_and_then_the_group(make_world):
    world = make_world(offsets_retention_ms=10_000, offsets_retention_check_interval_ms=1_000)
    world.groups.start()
    await commit(world, 1, T0)
    await world.advance(6_000)
    await commit(world, 1, T1)
    await world.advance(5_000)
    assert await offsets_of(world) == {T1: 1}
    await world.advance(6_000)
    assert world.groups.list_groups() == []
    await world.restart()
    assert world.groups.list_groups() == []


async def test_a_member_to_be_keeps_its_group_from_expiring(make_world):
    world = make_world(offsets_retention_ms=1)
    await world.groups.partition_of("g")
    pending = await world.groups.join(
        Join("g", "", None, "c", "/h", 6_000, 6_000, "consumer", (("range", b""),), member_id_required=True)
    )
    await world.groups.expire_offsets()
    assert [group.group_id for group in world.groups.list_groups()] == ["g"]
    await world.groups.leave("g", [Leaver(pending.member_id)])
    await world.groups.expire_offsets()
    assert world.groups.list_groups() == []


def plain_row(partition, offset, leader_epoch):
    return struct.pack(">iqiBB", partition, offset, leader_epoch, 1, 0)


ROWS = st.lists(st.builds(plain_row, st.integers(-1, 9), st.integers(-(2**63), 2**63 - 1), st.integers(-1, 2**31 - 1)))


@pytest.mark.skipif(_offset_rows is None, reason="the native kernel is not built: python setup.py build_ext --inplace")
@given(st.binary(max_size=9), ROWS.map(b"".join), st.integers(0, 2**62))
def test_the_native_rows_are_the_twins(head, rows, now_ms):
    made, expected = [], []
    for out, k in ((made, _offset_rows), (expected, _offset_rows_twin)):
        k.append_rows(out, head, rows, now_ms)
        k.append_rows(out, head + b"2", rows, now_ms)
    assert made == expected
    table, other = {TopicPartition("t", 0): CommittedOffset(1)}, {TopicPartition("t", 0): CommittedOffset(1)}
    _offset_rows.put_into(table, "t", rows, now_ms)
    _offset_rows_twin.put_into(other, "t", rows, now_ms)
    assert table == other
    assert [*map(hash, table)] == [*map(hash, other)], "or nobody finds them"
    assert {*map(type, table)} == {TopicPartition}
    assert {*map(type, table.values())} == {CommittedOffset}


def test_plain_offsets_are_the_records_of_a_commit():
    topics = [("t", plain_row(0, 5, 3) + plain_row(4000, 2**40, -1)), ("ü", plain_row(1, 0, 0))]
    offsets = PlainOffsets("grün", topics, 1000)
    assert offsets.rows() == [record_format.encode(record) for record in offsets.records()]
    for row, record in zip(offsets.rows(), offsets.records(), strict=True):
        assert record_format.decode(*row) == record
    for pending in (False, True):
        shard, other = GroupShard(0), GroupShard(0)
        if pending:
            for one in (shard, other):
                one.take([OffsetRecord("grün", TopicPartition("t", 0), CommittedOffset(9))], 7)
        shard.take(offsets)
        undo = other.apply_all(offsets)
        assert shard.offsets.of("grün") == other.offsets.of("grün")
        assert [*shard.offsets.of("grün").items()] == [(record.partition, record.value) for record in offsets.records()]
        assert all(isinstance(partition, TopicPartition) for partition in shard.offsets.of("grün"))
        shard.end_transaction(7, True)
        assert shard.offsets.of("grün")[TopicPartition("t", 0)].offset == 5  # a newer commit has overtaken what was pending
        undo()
        assert other.offsets.of("grün") == {}
