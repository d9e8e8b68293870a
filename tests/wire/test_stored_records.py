"""The records of the internal topics, against bytes that Apache Kafka 3.9.1's own classes wrote."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.wire.apis import group_records as g
from ottla.wire.apis import transaction_records as t
from ottla.wire.schema import Data, Malformed, decode_versioned, encode_versioned, peek_version

TOPIC_ID = bytes(range(1, 17))


def member(**more: Any) -> g.MemberMetadata:
    return g.MemberMetadata(
        member_id="m", client_id="c", client_host="/h", session_timeout=10000, subscription=b"\1\2", assignment=b"\3", **more
    )


def group(**more: Any) -> g.GroupMetadataValue:
    return g.GroupMetadataValue(**({"protocol_type": "consumer", "generation": 3, "protocol": "range", "leader": "m"} | more))


def consumer(classic: g.ClassicMemberMetadata | None) -> g.ConsumerGroupMemberMetadataValue:
    return g.ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id="r",
        client_id="c",
        client_host="/h",
        subscribed_topic_names=["t"],
        subscribed_topic_regex=None,
        rebalance_timeout_ms=5,
        server_assignor="uniform",
        classic_member_metadata=classic,
    )


def partitions(*numbers: int) -> list[g.AssignedTopicPartitions]:
    return [g.AssignedTopicPartitions(topic_id=TOPIC_ID, partitions=numbers)]


def transaction(**more: Any) -> t.TransactionLogValue:
    return t.TransactionLogValue(
        producer_id=1000, producer_epoch=3, transaction_timeout_ms=60000, transaction_last_update_timestamp_ms=5, **more
    )


ONGOING = transaction(
    transaction_status=1,
    transaction_partitions=[t.TransactionPartitions(topic="t", partition_ids=(0, 4))],
    transaction_start_timestamp_ms=4,
)
EMPTY = transaction(transaction_status=0, transaction_partitions=None, transaction_start_timestamp_ms=-1)
OFFSET = g.OffsetCommitValue(offset=42, metadata="m", commit_timestamp=1000)
OFFSET_WITH_EPOCH = g.OffsetCommitValue(offset=42, metadata="m", commit_timestamp=1000, leader_epoch=5)
OFFSET_WITH_EXPIRY = g.OffsetCommitValue(offset=42, metadata="m", commit_timestamp=1000, expire_timestamp=2000)
STATIC_GROUP = group(current_state_timestamp=9, members=[member(rebalance_timeout=60000, group_instance_id="i")])
CLASSIC = g.ClassicMemberMetadata(session_timeout_ms=6, supported_protocols=[g.ClassicProtocol(name="range", metadata=b"\1")])
TOPICS = [
    g.TopicMetadata(
        topic_id=TOPIC_ID, topic_name="t", num_partitions=2, partition_metadata=[g.PartitionMetadata(partition=1, racks=["r"])]
    )
]

VECTORS = [
    (0, g.OffsetCommitKey(group="g", topic="t", partition=7), "000000016700017400000007"),
    (1, g.OffsetCommitKey(group="g", topic="t", partition=7), "000100016700017400000007"),
    (0, OFFSET, "0000000000000000002a00016d00000000000003e8"),
    (1, OFFSET_WITH_EXPIRY, "0001000000000000002a00016d00000000000003e800000000000007d0"),
    (2, OFFSET, "0002000000000000002a00016d00000000000003e8"),
    (3, OFFSET_WITH_EPOCH, "0003000000000000002a0000000500016d00000000000003e8"),
    (4, OFFSET_WITH_EPOCH, "0004000000000000002a00000005026d00000000000003e800"),
    (2, g.GroupMetadataKey(group="g"), "0002000167"),
    (
        0,
        group(leader=None, members=[member()]),
        "00000008636f6e73756d657200000003000572616e6765ffff0000000100016d00016300022f68000027100000000201020000000103",
    ),
    (
        1,
        group(members=[member(rebalance_timeout=60000)]),
        "00010008636f6e73756d657200000003000572616e676500016d0000000100016d00016300022f680000ea6000002710"
        "0000000201020000000103",
    ),
    (
        2,
        group(protocol=None, current_state_timestamp=9, members=[member(rebalance_timeout=60000)]),
        "00020008636f6e73756d657200000003ffff00016d00000000000000090000000100016d00016300022f680000ea6000002710"
        "0000000201020000000103",
    ),
    (
        3,
        STATIC_GROUP,
        "00030008636f6e73756d657200000003000572616e676500016d00000000000000090000000100016d000169"
        "00016300022f680000ea60000027100000000201020000000103",
    ),
    (
        4,
        STATIC_GROUP,
        "000409636f6e73756d6572000000030672616e6765026d000000000000000902026d02690263032f680000ea600000271003010202030000",
    ),
    (3, g.ConsumerGroupMetadataKey(group_id="g"), "0003000167"),
    (0, g.ConsumerGroupMetadataValue(epoch=4), "00000000000400"),
    (4, g.ConsumerGroupPartitionMetadataKey(group_id="g"), "0004000167"),
    (
        0,
        g.ConsumerGroupPartitionMetadataValue(topics=TOPICS),
        "0000020102030405060708090a0b0c0d0e0f100274000000020200000001020272000000",
    ),
    (5, g.ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"), "000500016700016d"),
    (0, consumer(None), "00000002720263032f68020274000000000508756e69666f726d01000100"),
    (0, consumer(CLASSIC), "00000002720263032f68020274000000000508756e69666f726d0100100100000006020672616e676502010000"),
    (0, consumer(g.ClassicMemberMetadata()), "00000002720263032f68020274000000000508756e69666f726d00"),
    (6, g.ConsumerGroupTargetAssignmentMetadataKey(group_id="g"), "0006000167"),
    (0, g.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=8), "00000000000800"),
    (7, g.ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"), "000700016700016d"),
    (
        0,
        g.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=partitions(1, 2)),
        "0000020102030405060708090a0b0c0d0e0f100300000001000000020000",
    ),
    (8, g.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"), "000800016700016d"),
    (
        0,
        g.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=3,
            previous_member_epoch=2,
            state=1,
            assigned_partitions=partitions(1),
            partitions_pending_revocation=partitions(2),
        ),
        "0000000000030000000201020102030405060708090a0b0c0d0e0f10020000000100020102030405060708090a0b0c0d0e0f1002000000020000",
    ),
    (0, t.TransactionLogKey(transactional_id="x"), "0000000178"),
    (
        0,
        ONGOING,
        "000000000000000003e800030000ea60010000000100017400000002000000000000000400000000000000050000000000000004",
    ),
    (1, ONGOING, "000100000000000003e800030000ea6001020274030000000000000004000000000000000005000000000000000400"),
    (0, EMPTY, "000000000000000003e800030000ea6000ffffffff0000000000000005ffffffffffffffff"),
    (1, EMPTY, "000100000000000003e800030000ea6000000000000000000005ffffffffffffffff00"),
]


@pytest.mark.parametrize(("version", "data", "stored"), VECTORS, ids=lambda value: getattr(value, "name", None))
def test_same_bytes_as_apache_kafka(version: int, data: Data, stored: str) -> None:
    assert encode_versioned(data, version).hex() == stored
    assert decode_versioned(type(data), bytes.fromhex(stored)) == data


def test_every_stored_kind_and_version_has_a_vector() -> None:
    """What has no oracle in Python is listed above, in every version."""
    covered = {(type(data), version) for version, data, _ in VECTORS}
    declared = {
        (cls, version)
        for module in (g, t)
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Data) and cls is not Data
        for version in range(cls.min_version, cls.max_version + 1)
    }
    assert covered == declared


def test_a_key_is_told_by_its_version() -> None:
    key = bytes.fromhex("0002000167")
    assert decode_versioned(g.GROUP_KEYS[peek_version(key)], key) == g.GroupMetadataKey(group="g")
    assert sorted(g.GROUP_KEYS) == list(range(9))


@pytest.mark.parametrize("stored", ["", "00", "0009000167", "ffff", "000200", "00020005"])
def test_what_is_not_such_a_record_is_malformed(stored: str) -> None:
    with pytest.raises(Malformed):
        decode_versioned(g.GroupMetadataKey, bytes.fromhex(stored))
