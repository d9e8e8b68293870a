"""The records of consumer groups: the very bytes that Apache Kafka 3.9.1 (KRaft mode) wrote in the same situations."""

import pytest

from ottla.coordinator import record_format
from ottla.coordinator.consumer_records import (
    ClassicProtocols,
    ConsumerMember,
    Current,
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    MemberState,
    TargetEpochRecord,
    TargetRecord,
    TopicMetadata,
    TopicsRecord,
)
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.group_state import State
from ottla.coordinator.records import GroupRecord, StoredGroup
from ottla.wire.schema import Malformed

ID = b"\x7f`\xe0D\xd4\xd2B\xe5\xb1\x0c\x83\x9b0S$["
DYNAMIC = ConsumerMember(None, None, "", "/127.0.0.1", frozenset({"t"}), None, 30_000, None)
STATIC = ConsumerMember("i", None, "", "/127.0.0.1", frozenset({"t"}), None, 30_000, None)
METADATA = b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff\x00\x00\x00\x00"
CLASSIC = ConsumerMember(
    None, None, "", "/127.0.0.1", frozenset({"t"}), None, 5_000, None, ClassicProtocols(10_000, (("range", METADATA),))
)


def parts(*numbers):
    return {ID: frozenset(numbers)}


TABLE = [
    (EpochRecord("warm", 1), b"\x00\x03\x00\x04warm", b"\x00\x00\x00\x00\x00\x01\x00"),
    (EpochRecord("warm", None), b"\x00\x03\x00\x04warm", None),
    (
        TopicsRecord("warm", {"t": TopicMetadata(ID, "t", 4)}),
        b"\x00\x04\x00\x04warm",
        b"\x00\x00\x02" + ID + b"\x02t\x00\x00\x00\x04\x01\x00\x00",
    ),
    (TopicsRecord("warm", None), b"\x00\x04\x00\x04warm", None),
    (
        MemberRecord("warm", "w", DYNAMIC),
        b"\x00\x05\x00\x04warm\x00\x01w",
        b"\x00\x00\x00\x00\x01\x0b/127.0.0.1\x02\x02t\x01\x00\x00u0\x00\x01\x00\x01\x00",
    ),
    (
        MemberRecord("s", "a", STATIC),
        b"\x00\x05\x00\x01s\x00\x01a",
        b"\x00\x00\x02i\x00\x01\x0b/127.0.0.1\x02\x02t\x01\x00\x00u0\x00\x01\x00\x01\x00",
    ),
    (
        MemberRecord("c", "m", CLASSIC),
        b"\x00\x05\x00\x01c\x00\x01m",
        b"\x00\x00\x00\x00\x01\x0b/127.0.0.1\x02\x02t\x01\x00\x00\x13\x88\x00\x01\x00 \x01\x00\x00'\x10\x02\x06range\x12"
        + METADATA
        + b"\x00\x00",
    ),
    (MemberRecord("g", "a", None), b"\x00\x05\x00\x01g\x00\x01a", None),
    (TargetEpochRecord("warm", 1), b"\x00\x06\x00\x04warm", b"\x00\x00\x00\x00\x00\x01\x00"),
    (TargetEpochRecord("warm", None), b"\x00\x06\x00\x04warm", None),
    (
        TargetRecord("warm", "w", parts(3, 1, 0, 2)),
        b"\x00\x07\x00\x04warm\x00\x01w",
        b"\x00\x00\x02" + ID + b"\x05\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00",
    ),
    (TargetRecord("g", "a", None), b"\x00\x07\x00\x01g\x00\x01a", None),
    (
        CurrentRecord("g", "a", Current(1, 1, MemberState.UNREVOKED_PARTITIONS, parts(0, 1), parts(2, 3))),
        b"\x00\x08\x00\x01g\x00\x01a",
        b"\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01\x01\x02"
        + ID
        + b"\x03\x00\x00\x00\x00\x00\x00\x00\x01\x00\x02"
        + ID
        + b"\x03\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00",
    ),
    (
        CurrentRecord("g", "b", Current(2, 0, MemberState.UNRELEASED_PARTITIONS)),
        b"\x00\x08\x00\x01g\x00\x01b",
        b"\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x02\x01\x01\x00",
    ),
    (CurrentRecord("g", "a", None), b"\x00\x08\x00\x01g\x00\x01a", None),
]


@pytest.mark.parametrize(("record", "key", "value"), TABLE, ids=lambda item: type(item).__name__)
def test_same_bytes_as_apache_kafka(record, key, value):
    assert record_format.encode(record) == (key, value)
    assert record_format.decode(key, value) == record


def test_a_pattern_comes_back():
    member = ConsumerMember(None, "r", "c", "/h", frozenset(), "t.*", 1, "range")
    record = MemberRecord("g", "m", member)
    assert record_format.decode(*record_format.encode(record)) == record


def test_a_state_that_does_not_exist():
    key, value = record_format.encode(CurrentRecord("g", "b", Current(2, 0, MemberState.STABLE)))
    with pytest.raises(Malformed, match="no state of a member"):
        record_format.decode(key, value[:10] + b"\x09" + value[11:])


# What the shard makes of them


def replayed(*records):
    shard = GroupShard(0)
    for record in records:
        shard.replay(record)
    return shard


def test_the_order_in_which_compaction_leaves_records_does_not_matter():
    records = [
        CurrentRecord("g", "a", Current(1, 0, MemberState.STABLE, parts(0))),
        TargetRecord("g", "a", parts(0)),
        MemberRecord("g", "a", STATIC),
        TargetEpochRecord("g", 1),
        EpochRecord("g", 1),
    ]
    for order in (records, records[::-1]):
        group = replayed(*order).consumer_groups["g"]
        assert (group.state.value, group.owners, group.static_ids) == ("Stable", {(ID, 0): "a"}, {"i": "a"})


CLASSIC_GROUP = GroupRecord("g", StoredGroup("consumer", 1, None, None, 0, ()))


@pytest.mark.parametrize(
    ("records", "classic", "consumer"),
    [
        ([CLASSIC_GROUP, GroupRecord("g", None), EpochRecord("g", 1)], False, True),
        ([EpochRecord("g", 1), EpochRecord("g", None), CLASSIC_GROUP], True, False),
        ([CLASSIC_GROUP, EpochRecord("g", None), MemberRecord("g", "a", None)], True, False),  # tombstones of former times
        ([EpochRecord("g", 1), GroupRecord("g", None)], False, True),
        ([EpochRecord("g", 1), CLASSIC_GROUP], True, False),
        ([CLASSIC_GROUP, EpochRecord("g", 1)], False, True),
        ([EpochRecord("g", 1), EpochRecord("g", None)], False, False),
    ],
)
def test_a_name_is_that_of_one_group(records, classic, consumer):
    shard = replayed(*records)
    assert ("g" in shard.groups, "g" in shard.consumer_groups) == (classic, consumer)


def test_everything_can_be_taken_back():
    shard = replayed(
        EpochRecord("g", 1),
        TopicsRecord("g", {"t": TopicMetadata(ID, "t", 4)}),
        MemberRecord("g", "a", STATIC),
        TargetRecord("g", "a", parts(0)),
        TargetEpochRecord("g", 1),
        CurrentRecord("g", "a", Current(1, 0, MemberState.STABLE, parts(0))),
        GroupRecord("old", StoredGroup("consumer", 1, None, None, 0, ())),
    )
    group = shard.consumer_groups["g"]

    def seen():
        return (
            group.epoch,
            dict(group.topics),
            dict(group.members),
            dict(group.target),
            group.target_epoch,
            dict(group.current),
            dict(group.owners),
            dict(group.static_ids),
            shard.consumer_groups == {"g": group},
            {name: old.state for name, old in shard.groups.items()},
        )

    before = seen()
    undo = [
        shard.apply(record)
        for record in (
            MemberRecord("g", "b", DYNAMIC),
            CurrentRecord("g", "a", None),
            MemberRecord("g", "a", None),
            MemberRecord("g", "a2", STATIC),
            CurrentRecord("g", "a2", Current(2, 1, MemberState.STABLE, parts(0, 1))),
            TopicsRecord("g", {}),
            *group.tombstones(),
            GroupRecord("g", StoredGroup("consumer", 3, None, None, 0, ())),
            GroupRecord("old", None),
            EpochRecord("old", 2),
        )
    ]
    assert (set(shard.groups), set(shard.consumer_groups)) == ({"g"}, {"old"})
    for one in reversed(undo):
        one()
    assert seen() == before
    assert shard.groups["old"].state is State.EMPTY
