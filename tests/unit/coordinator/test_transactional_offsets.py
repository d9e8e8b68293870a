"""Offsets committed in transactions: seen when the transaction commits, never when it aborts, also over a restart."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.coordinator.appending import Writer
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.offsets import Commit
from ottla.coordinator.records import CommittedOffset, OffsetRecord
from ottla.model import Error, KafkaError, TopicPartition
from ottla.records.batch import split

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ANN, BOB = Writer(7, 0), Writer(8, 2)


async def offsets_of(world, stable=False):
    found = await world.groups.committed("g", stable=stable)
    return {partition: value and value.offset for partition, value in found.items()}


async def commit(world, writer, partition, offset):
    return await world.commit_in_transaction("g", writer, [Commit(partition, offset)])


async def end(world, writer, *, committed):
    written = world.groups.end_transaction(0, writer, 5, committed=committed)
    if written is not None:
        await written


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("restart", ["never", "while open", "after the end"])
async def test_a_transaction_decides_what_becomes_of_its_offsets(world, committed, restart):
    await world.groups.partition_of("g")
    await world.commit("g", [Commit(T0, 1)])
    assert await commit(world, ANN, T0, 10) == {T0: Error.NONE}
    assert await commit(world, ANN, T1, 20) == {T1: Error.NONE}
    if restart == "while open":
        await world.restart()
    assert await offsets_of(world) == {T0: 1}
    assert await offsets_of(world, stable=True) == {T0: None, T1: None}
    await end(world, ANN, committed=committed)
    if restart == "after the end":
        await world.restart()
    expected = {T0: 10, T1: 20} if committed else {T0: 1}
    assert await offsets_of(world) == expected
    assert await offsets_of(world, stable=True) == expected


async def test_a_marker_ends_only_its_own_producers_transaction(world):
    await world.groups.partition_of("g")
    await commit(world, ANN, T0, 10)
    await commit(world, BOB, T1, 20)
    await end(world, BOB, committed=True)
    assert await offsets_of(world, stable=True) == {T0: None, T1: 20}


@pytest.mark.parametrize("restart", [False, True])
async def test_a_later_commit_outside_of_transactions_stands(world, restart):
    await world.groups.partition_of("g")
    await commit(world, ANN, T0, 10)
    await world.commit("g", [Commit(T0, 11)])
    if restart:
        await world.restart()
    await end(world, ANN, committed=True)
    assert await offsets_of(world) == {T0: 11}


async def test_each_transaction_has_batches_of_its_own_under_its_producer(world):
    await world.groups.partition_of("g")
    world.journal.gate.clear()
    plain = [asyncio.ensure_future(world.commit("g", [Commit(T0, n)])) for n in range(2)]
    await asyncio.sleep(0)
    inside = [asyncio.ensure_future(commit(world, writer, T1, 5)) for writer in (ANN, BOB)]
    await asyncio.sleep(0)
    ended = asyncio.ensure_future(end(world, ANN, committed=True))
    await asyncio.sleep(0)
    plain.append(asyncio.ensure_future(world.commit("g", [Commit(T0, 9)])))
    await world.settle()
    world.journal.gate.set()
    await asyncio.gather(*plain, *inside, ended)
    headers = [header for batch in world.journal.batches[0] for _, header in split(batch)]
    assert [(h.producer_id, h.is_transactional, h.is_control) for h in headers] == [
        (-1, False, False),
        (-1, False, False),
        (7, True, False),
        (8, True, False),
        (7, True, True),
        (-1, False, False),
    ]


async def test_a_refused_marker_leaves_the_transaction_open(world):
    await world.groups.partition_of("g")
    await commit(world, ANN, T0, 10)
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    with pytest.raises(KafkaError):
        await end(world, ANN, committed=True)
    assert await offsets_of(world, stable=True) == {T0: None}
    await end(world, ANN, committed=True)
    assert await offsets_of(world, stable=True) == {T0: 10}


async def test_a_refused_commit_leaves_nothing_pending(world):
    await world.groups.partition_of("g")
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    with pytest.raises(KafkaError):
        await commit(world, ANN, T0, 10)
    assert await offsets_of(world, stable=True) == {}


@pytest.mark.parametrize(
    ("identity", "error"),
    [
        ({}, None),  # an old client names no member: its transactional id fences it
        ({"member_id": "nobody", "generation": 1}, Error.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, Error.UNKNOWN_MEMBER_ID),
        ({"instance_id": "nobody", "generation": 1}, Error.UNKNOWN_MEMBER_ID),
        ({"member_id": "it", "generation": 5}, Error.ILLEGAL_GENERATION),
        ({"member_id": "it", "generation": 1}, None),
    ],
)
async def test_members_are_checked(world, make_stable, identity, error):
    (member,) = await make_stable(world, 1)
    if identity.get("member_id") == "it":
        identity = {**identity, "member_id": member.id}
    committing = world.commit_in_transaction("g", ANN, [Commit(T0, 10)], **identity)
    if error is None:
        assert await committing == {T0: Error.NONE}
    else:
        with pytest.raises(KafkaError) as refusal:
            await committing
        assert refusal.value.error is error


async def test_a_generation_without_a_group_is_refused(world):
    await world.groups.partition_of("g")
    with pytest.raises(KafkaError) as refusal:
        await world.commit_in_transaction("g", ANN, [Commit(T0, 1)], generation=3, member_id="m")
    assert refusal.value.error is Error.ILLEGAL_GENERATION


async def test_a_group_with_an_open_transaction_does_not_expire(make_world):
    world = make_world(offsets_retention_ms=1000)
    await world.groups.partition_of("g")
    await world.commit("g", [Commit(T0, 1), Commit(T1, 1)])
    await commit(world, ANN, T0, 10)
    world.clock.advance_ms(5000)
    await world.groups.expire_offsets()
    assert await offsets_of(world, stable=True) == {T0: None}
    await end(world, ANN, committed=True)
    assert await offsets_of(world) == {T0: 10}


async def test_offsets_of_a_deleted_topic_do_not_come_back_with_the_commit(world):
    await world.groups.partition_of("g")
    await commit(world, ANN, T0, 10)
    await world.groups.partitions_deleted([T0])
    await end(world, ANN, committed=True)
    assert await offsets_of(world) == {}


async def test_who_stands_behind_a_refused_write_is_told_to_try_again(world):
    """Nothing is wrong with a commit that was queued behind a marker of an old epoch."""
    await world.groups.partition_of("g")
    world.journal.gate.clear()
    first = asyncio.ensure_future(end(world, ANN, committed=True))
    await asyncio.sleep(0)
    behind = asyncio.ensure_future(world.commit("h", [Commit(T0, 1)]))
    await world.settle()
    world.journal.refuse = KafkaError(Error.INVALID_PRODUCER_EPOCH)
    world.journal.gate.set()
    outcomes = await asyncio.gather(first, behind, return_exceptions=True)
    assert [outcome.error for outcome in outcomes] == [Error.INVALID_PRODUCER_EPOCH, Error.COORDINATOR_NOT_AVAILABLE]


async def test_a_deleted_group_does_not_come_back_with_the_commit(world):
    await world.groups.partition_of("g")
    await commit(world, ANN, T0, 10)
    await world.groups.delete_group("g")
    await end(world, ANN, committed=True)
    assert await offsets_of(world) == {}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "inside", "commit", "abort", "tombstone"]),
        st.sampled_from([1, 2]),
        st.sampled_from([T0, T1]),
    ),
    max_size=12,
)


def look(shard):
    return dict(shard.offsets.of("g")), shard.pending.of("g")


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(0, 12))
def test_taking_back_restores_and_replay_agrees(steps, kept):
    """Apply everything, take the tail back: as if only the head had been applied, or replayed."""
    numbers = itertools.count(1)
    changes = [(kind, producer, partition, CommittedOffset(next(numbers))) for kind, producer, partition in steps]

    def do(shard, take, change):
        kind, producer, partition, value = change
        if kind in ("commit", "abort"):
            return shard.end_transaction(producer, kind == "commit")
        record = OffsetRecord("g", partition, None if kind == "tombstone" else value)
        return take(record, producer if kind == "inside" else -1)

    applied, head, replayed = GroupShard(0), GroupShard(0), GroupShard(0)
    undo = [do(applied, applied.apply, change) for change in changes]
    for one in reversed(undo[kept:]):
        one()
    for change in changes[:kept]:
        do(head, head.apply, change)
        do(replayed, replayed.replay, change)
    assert look(applied) == look(head) == look(replayed)
