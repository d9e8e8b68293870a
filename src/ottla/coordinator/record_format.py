"""The group coordinator's records as bytes: Apache Kafka's own layout, in the versions that its 3.9 writes.

Guards: a record that cannot be read is a `Malformed`, for the loader to name and skip; a kind of record that is not known here
is None. An offset is written as version 3, or as version 1 where an old client asked for a retention of its own. The records of
consumer groups are `consumer_record_format`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from sys import intern

from ottla.coordinator import consumer_record_format
from ottla.coordinator.plain_offsets import PlainOffsets, key_head
from ottla.coordinator.records import CommittedOffset, GroupRecord, OffsetRecord, Record, StoredGroup, StoredMember
from ottla.model import NO_TIMESTAMP, TopicPartition
from ottla.wire.apis.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.wire.schema import decode_versioned, encode_versioned, peek_version

_OFFSET_KEY = 1
_OFFSET_VALUE = 3
_OFFSET_VALUE_WITH_EXPIRY = 1
_USUAL_VALUE = Struct(">hqihq")
"""A value of version 3 without metadata, as most are: version, offset, leader epoch, no metadata, commit time. Offsets are
committed and loaded by the hundred thousand, so this one form is written and read without the tables."""
_NUMBER = Struct(">i")
_GROUP_KEY = 2
_GROUP_VALUE = 3


def encode_all(records: Sequence[Record] | PlainOffsets) -> list[tuple[bytes, bytes | None]]:
    """The keys and values of records."""
    return records.rows() if isinstance(records, PlainOffsets) else [encode(record) for record in records]


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """A record's key and value; no value makes it a tombstone."""
    if isinstance(record, OffsetRecord):
        return _encode_offset(record)
    if not isinstance(record, GroupRecord):
        return consumer_record_format.encode(record)
    key = encode_versioned(GroupMetadataKey(group=record.group_id), _GROUP_KEY)
    return key, None if record.value is None else _encode_group(record.value)


def _encode_offset(record: OffsetRecord) -> tuple[bytes, bytes | None]:
    topic, partition = record.partition
    key = key_head(record.group_id, topic) + _NUMBER.pack(partition)
    if record.value is None:
        return key, None
    offset, leader_epoch, metadata, commit_timestamp, expire_timestamp = record.value
    if not metadata and expire_timestamp == NO_TIMESTAMP:
        return key, _USUAL_VALUE.pack(_OFFSET_VALUE, offset, leader_epoch, 0, commit_timestamp)
    value = OffsetCommitValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp=commit_timestamp,
        expire_timestamp=expire_timestamp,
    )
    return key, encode_versioned(value, _OFFSET_VALUE if expire_timestamp == NO_TIMESTAMP else _OFFSET_VALUE_WITH_EXPIRY)


def _encode_group(group: StoredGroup) -> bytes:
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.state_timestamp,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in group.members
        ],
    )
    return encode_versioned(value, _GROUP_VALUE)


def decode(key: bytes, value: bytes | None) -> Record | None:
    """The record that these bytes are; None where they are of a kind that this coordinator does not keep."""
    version = peek_version(key)
    if version <= _OFFSET_KEY:
        group_id, partition = _decode_offset_key(key)
        return OffsetRecord(group_id, partition, None if value is None else _decode_offset(value))
    if version == _GROUP_KEY:
        group_id = decode_versioned(GroupMetadataKey, key).group
        return GroupRecord(group_id, None if value is None else _decode_group(value))
    if consumer_record_format.FIRST_KEY <= version <= consumer_record_format.LAST_KEY:
        return consumer_record_format.decode(version, key, value)
    return None


def _decode_offset_key(key: bytes) -> tuple[str, TopicPartition]:
    """By hand, as they come by the million; what does not look as it should is left to the table, which says why."""
    group_end = 4 + int.from_bytes(key[2:4], "big")
    topic_end = group_end + 2 + int.from_bytes(key[group_end : group_end + 2], "big")
    if len(key) == topic_end + 4:
        topic, partition = intern(key[group_end + 2 : topic_end].decode()), int.from_bytes(key[topic_end:], "big", signed=True)
        return key[4:group_end].decode(), TopicPartition(topic, partition)
    where = decode_versioned(OffsetCommitKey, key)
    return where.group, TopicPartition(where.topic, where.partition)


def _decode_offset(data: bytes) -> CommittedOffset:
    if len(data) == _USUAL_VALUE.size:
        version, offset, leader_epoch, size, commit_timestamp = _USUAL_VALUE.unpack(data)
        if version == _OFFSET_VALUE and size == 0:
            return CommittedOffset(offset, leader_epoch, "", commit_timestamp)
    value = decode_versioned(OffsetCommitValue, data)
    return CommittedOffset(value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp)


def _decode_group(data: bytes) -> StoredGroup:
    value = decode_versioned(GroupMetadataValue, data)
    return StoredGroup(
        value.protocol_type,
        value.generation,
        value.protocol,
        value.leader,
        value.current_state_timestamp,
        tuple(
            StoredMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                # The first version had one timeout for both.
                member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout,
                member.session_timeout,
                member.subscription,
                member.assignment,
            )
            for member in value.members
        ),
    )
