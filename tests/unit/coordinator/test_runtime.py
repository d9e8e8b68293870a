"""The runtime: the state never keeps what the log refused, and a restart finds what was acknowledged."""

import asyncio
import logging
import struct

import pytest

from ottla.coordinator import record_format
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.offsets import Commit
from ottla.coordinator.records import CommittedOffset, GroupRecord, OffsetRecord, StoredGroup, StoredMember
from ottla.model import Error, KafkaError, TopicPartition
from ottla.records.batch import Record, build, split

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def start_commit(world, offset, partition=T0, group="g"):
    return asyncio.ensure_future(world.commit(group, [Commit(partition, offset)]))


async def offsets_of(world, group="g"):
    return {partition: value.offset for partition, value in (await world.groups.committed(group)).items()}


async def test_what_arrives_during_an_append_shares_the_next_one(world):
    await world.groups.partition_of("g")
    world.journal.gate.clear()
    commits = []
    for number in range(50):
        commits.append(start_commit(world, number, TopicPartition("t", number)))
        await asyncio.sleep(0)
    await world.settle()
    world.journal.gate.set()
    await asyncio.gather(*commits)
    assert len(world.journal.rows()) == 50
    assert len(world.journal.batches[0]) <= 3


async def test_a_great_operation_travels_alone(world):
    await world.groups.partition_of("g")
    world.journal.gate.clear()
    small = start_commit(world, 1)
    great = asyncio.ensure_future(
        world.commit("g", [Commit(TopicPartition("t", number), 1, metadata="x" * 4000) for number in range(100)])
    )
    late = start_commit(world, 2)
    await world.settle()
    world.journal.gate.set()
    await asyncio.gather(small, great, late)
    assert [header.count for batch in world.journal.batches[0] for _, header in split(batch)] == [1, 100, 1]


async def test_an_answer_waits_for_the_high_watermark(world):
    await world.groups.partition_of("g")
    world.journal.gate.clear()
    commit = start_commit(world, 1)
    await world.settle()
    assert not commit.done()
    world.journal.gate.set()
    assert (await commit) == {T0: Error.NONE}


async def test_a_reader_does_not_see_what_can_still_be_lost(world):
    await world.groups.partition_of("g")
    await start_commit(world, 1)
    world.journal.gate.clear()
    commit = start_commit(world, 2)
    await world.settle()
    reading = asyncio.ensure_future(offsets_of(world))
    await world.settle()
    assert not reading.done()
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    world.journal.gate.set()
    assert await reading == {T0: 1}
    with pytest.raises(KafkaError):
        await commit


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (Error.NOT_ENOUGH_REPLICAS, Error.COORDINATOR_NOT_AVAILABLE),
        (Error.REQUEST_TIMED_OUT, Error.COORDINATOR_NOT_AVAILABLE),
        (Error.UNKNOWN_TOPIC_OR_PARTITION, Error.COORDINATOR_NOT_AVAILABLE),
        (Error.NOT_LEADER_OR_FOLLOWER, Error.NOT_COORDINATOR),
        (Error.KAFKA_STORAGE_ERROR, Error.NOT_COORDINATOR),
        (Error.MESSAGE_TOO_LARGE, Error.INVALID_COMMIT_OFFSET_SIZE),
        (Error.UNKNOWN_SERVER_ERROR, Error.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_a_refused_append_is_taken_back_and_told_in_a_coordinators_words(world, refusal, told):
    await world.groups.partition_of("g")
    await start_commit(world, 1)
    world.journal.refuse = KafkaError(refusal)
    with pytest.raises(KafkaError) as refused:
        await start_commit(world, 2)
    assert refused.value.error is told
    assert await offsets_of(world) == {T0: 1}
    await start_commit(world, 3)
    assert await offsets_of(world) == {T0: 3}


async def test_what_was_built_on_a_refused_append_falls_with_it(world):
    await world.groups.partition_of("g")
    await start_commit(world, 1)
    world.journal.gate.clear()
    first = start_commit(world, 2)
    await world.settle()
    later = [start_commit(world, 3), start_commit(world, 4, T1), asyncio.ensure_future(world.groups.delete_group("g"))]
    await world.settle()
    assert (await world.groups.describe_group("g")).state == "Dead"
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    world.journal.gate.set()
    results = await asyncio.gather(first, *later, return_exceptions=True)
    assert [type(result) for result in results] == [KafkaError] * 4
    assert await offsets_of(world) == {T0: 1}
    assert (await world.groups.describe_group("g")).state == "Empty"
    await world.restart()
    assert await offsets_of(world) == {T0: 1}


async def test_a_name_that_is_used_anew_survives_the_refusal_of_its_deletion(world):
    await world.groups.partition_of("g")
    await start_commit(world, 1)
    world.journal.gate.clear()
    deletion = asyncio.ensure_future(world.groups.delete_group("g"))
    await world.settle()
    member = await world.member()
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    world.journal.gate.set()
    with pytest.raises(KafkaError):
        await deletion
    await member.heartbeat()


async def test_while_it_loads_the_coordinator_says_so(world):
    hold = asyncio.Event()

    async def offload(work):
        await hold.wait()
        work()

    world._offload = offload
    world.start()
    world.groups.elect(0)
    await world.settle()
    with pytest.raises(KafkaError) as refused:
        await world.commit("g", [Commit(T0, 1)])
    assert refused.value.error is Error.COORDINATOR_LOAD_IN_PROGRESS
    assert world.groups.list_groups() == []
    await world.groups.heartbeat("g", "m", None, 1)  # taken on trust
    asking = asyncio.ensure_future(world.groups.partition_of("g"))
    await world.settle()
    assert not asking.done()  # it is worth a moment's wait
    await world.advance(200)
    assert asking.done()
    hold.set()
    await world.settle()
    await world.commit("g", [Commit(T0, 1)])


async def test_a_load_that_fails_is_tried_again(world, caplog):
    await world.groups.partition_of("g")
    await start_commit(world, 1)
    read_all = world.journal.read_all

    def broken(partition):
        world.journal.read_all = read_all
        raise OSError("the disk is away")

    world.journal.read_all = broken
    await world.restart()
    assert "__internal-0 cannot be loaded" in caplog.text
    await world.groups.partition_of("g")
    assert await offsets_of(world) == {T0: 1}


async def test_what_may_yet_be_lost_is_not_served(world):
    await world.groups.partition_of("g")
    await start_commit(world, 1)
    uncommitted = world.journal.uncommitted = asyncio.get_running_loop().create_future()
    restarting = asyncio.ensure_future(world.restart())
    await world.settle()
    with pytest.raises(KafkaError) as refused:
        await world.groups.committed("g")
    assert refused.value.error is Error.COORDINATOR_LOAD_IN_PROGRESS
    world.journal.uncommitted = None
    uncommitted.set_result(None)
    await restarting
    assert await offsets_of(world) == {T0: 1}


async def test_a_partition_that_is_lost_while_loading_stays_lost(world):
    world.start()
    world.groups.elect(0)
    world.journal.leading = False
    world.groups.resign(0)
    await world.settle()
    with pytest.raises(KafkaError) as refused:
        await world.groups.committed("g")
    assert refused.value.error is Error.NOT_COORDINATOR


@pytest.mark.parametrize(
    "spoil",
    [
        (b"", b""),
        (b"\x00", b""),
        (b"\x00\x01\x00\x01g", b"\x00\x03"),
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x00\x03\x00"),
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x00\x63" + bytes(40)),
        (b"\x00\x02\x00\x01g", b"\x00\x03\x00\x05"),
    ],
)
async def test_a_corrupt_record_is_named_and_skipped(world, caplog, spoil):
    caplog.set_level(logging.ERROR)
    await world.groups.partition_of("g")
    await start_commit(world, 1)
    world.journal.batches[0].append(build([Record(41, 0, *spoil, ())], base_offset=41))
    await start_commit(world, 2, T1)
    await world.restart()
    assert await offsets_of(world) == {T0: 1, T1: 2}
    assert "offset 41" in caplog.text


async def test_records_of_unknown_kinds_are_left_alone(world, caplog):
    await world.groups.partition_of("g")
    world.journal.batches[0] = [build([Record(0, 0, struct.pack(">hh1s", 11, 1, b"g"), b"\x00\x00\x00\x00\x00\x01\x00", ())])]
    await world.restart()
    assert world.groups.list_groups() == []
    assert not caplog.records


MEMBER = StoredMember("m", "i", "c", "/h", 60_000, 10_000, b"sub", b"part")


@pytest.mark.parametrize(
    "record",
    [
        OffsetRecord("g", T0, CommittedOffset(5, 3, "note", 1000)),
        OffsetRecord("g", T0, CommittedOffset(5, -1, "", 1000, 2000)),
        OffsetRecord("", T0, None),
        GroupRecord("g", StoredGroup("consumer", 3, "range", "m", 1000, (MEMBER,))),
        GroupRecord("g", StoredGroup("", 1, None, None, 1000, ())),
        GroupRecord("grün", None),
    ],
)
def test_a_record_comes_back_from_its_bytes(record):
    assert record_format.decode(*record_format.encode(record)) == record


def test_the_bytes_of_a_commit_are_kafkas():
    key, value = record_format.encode(OffsetRecord("g", T1, CommittedOffset(5, 3, "m", 1000)))
    assert key == bytes.fromhex("0001 0001 67 0001 74 00000001".replace(" ", ""))
    assert value == bytes.fromhex("0003 0000000000000005 00000003 0001 6d 00000000000003e8".replace(" ", ""))


def test_the_first_version_of_a_stored_group_has_one_timeout_for_both():
    member = b"\x00\x01m\x00\x01c\x00\x02/h" + struct.pack(">i", 9000) + struct.pack(">i", 0) * 2
    value = b"\x00\x00" + b"\x00\x08consumer" + struct.pack(">i", 3) + b"\x00\x01r\x00\x01m" + struct.pack(">i", 1) + member
    record = record_format.decode(b"\x00\x02\x00\x01g", value)
    assert isinstance(record, GroupRecord)
    assert record.value is not None
    assert [(m.session_timeout_ms, m.rebalance_timeout_ms) for m in record.value.members] == [(9000, 9000)]


def test_loading_keeps_the_last_record_of_a_group():
    shard = GroupShard(0)
    for generation in (1, 2, 3):
        shard.replay(GroupRecord("g", StoredGroup("consumer", generation, "range", "m", 0, (MEMBER,))))
    assert shard.groups["g"].generation == 3
    shard.replay(GroupRecord("g", None))
    assert shard.groups == {}
