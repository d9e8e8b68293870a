"""The records of a consumer group as bytes: Apache Kafka's own layout, which its 3.9 reads and writes.

Guards: sets leave in order, so that equal values are equal bytes; racks of partitions, which Apache Kafka keeps beside the
topics, are not kept here. Like `record_format`, to which this belongs, a record that cannot be read is a `Malformed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.coordinator.consumer_records import (
    ClassicProtocols,
    ConsumerMember,
    ConsumerRecord,
    Current,
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    MemberState,
    Partitions,
    TargetEpochRecord,
    TargetRecord,
    TopicMetadata,
    TopicsRecord,
)
from ottla.wire.apis import group_records as wire
from ottla.wire.schema import Data, Malformed, decode_versioned, encode_versioned

FIRST_KEY = wire.ConsumerGroupMetadataKey.min_version
LAST_KEY = wire.ConsumerGroupCurrentMemberAssignmentKey.max_version


# Writing


def encode(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """A record's key and value."""
    key, value = _parts(record)
    return encode_versioned(key, key.min_version), None if value is None else encode_versioned(value, 0)


def _parts(record: ConsumerRecord) -> tuple[Data, Data | None]:
    group_id = record.group_id
    match record:
        case EpochRecord(value=epoch):
            return wire.ConsumerGroupMetadataKey(group_id=group_id), (
                None if epoch is None else wire.ConsumerGroupMetadataValue(epoch=epoch)
            )
        case TopicsRecord(value=topics):
            return wire.ConsumerGroupPartitionMetadataKey(group_id=group_id), None if topics is None else _topics(topics)
        case MemberRecord(member_id=member_id, value=member):
            key: Data = wire.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
            return key, None if member is None else _member(member)
        case TargetEpochRecord(value=epoch):
            return wire.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), (
                None if epoch is None else wire.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
            )
        case TargetRecord(member_id=member_id, value=target):
            key = wire.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
            return key, (
                None if target is None else wire.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=_partitions(target))
            )
        case CurrentRecord(member_id=member_id, value=current):
            key = wire.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
            return key, None if current is None else _current(current)


def _topics(topics: Mapping[str, TopicMetadata]) -> Data:
    return wire.ConsumerGroupPartitionMetadataValue(
        topics=[
            wire.TopicMetadata(topic_id=topic.topic_id, topic_name=topic.name, num_partitions=topic.partitions)
            for topic in sorted(topics.values(), key=lambda topic: topic.name)
        ]
    )


def _member(member: ConsumerMember) -> Data:
    classic = member.classic
    return wire.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern or "",  # as Apache Kafka writes it
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None
        if classic is None
        else wire.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[wire.ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols],
        ),
    )


def _current(current: Current) -> Data:
    return wire.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state,
        assigned_partitions=_partitions(current.assigned),
        partitions_pending_revocation=_partitions(current.pending_revocation),
    )


def _partitions(partitions: Partitions) -> list[wire.AssignedTopicPartitions]:
    return [
        wire.AssignedTopicPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions[topic_id])))
        for topic_id in sorted(partitions)
    ]


# Reading


def decode(version: int, key: bytes, value: bytes | None) -> ConsumerRecord:
    """The record of a key whose version is from FIRST_KEY to LAST_KEY."""
    return _READERS[version](key, value)


def _read_epoch(key: bytes, value: bytes | None) -> ConsumerRecord:
    group_id = decode_versioned(wire.ConsumerGroupMetadataKey, key).group_id
    return EpochRecord(group_id, None if value is None else decode_versioned(wire.ConsumerGroupMetadataValue, value).epoch)


def _read_topics(key: bytes, value: bytes | None) -> ConsumerRecord:
    group_id = decode_versioned(wire.ConsumerGroupPartitionMetadataKey, key).group_id
    if value is None:
        return TopicsRecord(group_id, None)
    kept = decode_versioned(wire.ConsumerGroupPartitionMetadataValue, value)
    topics = [TopicMetadata(topic.topic_id, topic.topic_name, topic.num_partitions) for topic in kept.topics]
    return TopicsRecord(group_id, {topic.name: topic for topic in topics})


def _read_member(key: bytes, value: bytes | None) -> ConsumerRecord:
    where = decode_versioned(wire.ConsumerGroupMemberMetadataKey, key)
    if value is None:
        return MemberRecord(where.group_id, where.member_id, None)
    kept = decode_versioned(wire.ConsumerGroupMemberMetadataValue, value)
    classic = kept.classic_member_metadata
    member = ConsumerMember(
        kept.instance_id,
        kept.rack_id,
        kept.client_id,
        kept.client_host,
        frozenset(kept.subscribed_topic_names),
        kept.subscribed_topic_regex or None,
        kept.rebalance_timeout_ms,
        kept.server_assignor,
        None
        if classic is None
        else ClassicProtocols(
            classic.session_timeout_ms, tuple((protocol.name, protocol.metadata) for protocol in classic.supported_protocols)
        ),
    )
    return MemberRecord(where.group_id, where.member_id, member)


def _read_target_epoch(key: bytes, value: bytes | None) -> ConsumerRecord:
    group_id = decode_versioned(wire.ConsumerGroupTargetAssignmentMetadataKey, key).group_id
    if value is None:
        return TargetEpochRecord(group_id, None)
    return TargetEpochRecord(
        group_id, decode_versioned(wire.ConsumerGroupTargetAssignmentMetadataValue, value).assignment_epoch
    )


def _read_target(key: bytes, value: bytes | None) -> ConsumerRecord:
    where = decode_versioned(wire.ConsumerGroupTargetAssignmentMemberKey, key)
    if value is None:
        return TargetRecord(where.group_id, where.member_id, None)
    kept = decode_versioned(wire.ConsumerGroupTargetAssignmentMemberValue, value)
    return TargetRecord(where.group_id, where.member_id, _read_partitions(kept.topic_partitions))


def _read_current(key: bytes, value: bytes | None) -> ConsumerRecord:
    where = decode_versioned(wire.ConsumerGroupCurrentMemberAssignmentKey, key)
    if value is None:
        return CurrentRecord(where.group_id, where.member_id, None)
    kept = decode_versioned(wire.ConsumerGroupCurrentMemberAssignmentValue, value)
    try:
        state = MemberState(kept.state)
    except ValueError:
        raise Malformed(f"{kept.state} is no state of a member") from None
    current = Current(
        kept.member_epoch,
        kept.previous_member_epoch,
        state,
        _read_partitions(kept.assigned_partitions),
        _read_partitions(kept.partitions_pending_revocation),
    )
    return CurrentRecord(where.group_id, where.member_id, current)


def _read_partitions(topics: Iterable[wire.AssignedTopicPartitions]) -> Partitions:
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}


_READERS = dict(
    enumerate(
        (_read_epoch, _read_topics, _read_member, _read_target_epoch, _read_target, _read_current),
        start=FIRST_KEY,
    )
)
