"""What consumers put into the opaque bytes of JoinGroup and SyncGroup; brokers look at it only to describe groups."""

from __future__ import annotations

from ottla.wire.schema import Data, Struct, array, bytes_, int32, string


class TopicPartitions(Struct):
    topic = string()
    partitions = array(int32())


class ConsumerProtocolSubscription(Data, versions="0-3"):
    """What a member wants to read.

    v1: partitions it owns.
    v2: generation in which it owned them.
    v3: rack.
    """

    topics = array(string())
    user_data = bytes_(nullable=True, default=None)
    owned_partitions = array(TopicPartitions, since=1)
    generation_id = int32(since=2, default=-1)
    rack_id = string(since=3, nullable=True, default=None)


class ConsumerProtocolAssignment(Data, versions="0-3"):
    """What a member is to read.

    v1 to v3 differ from v0 in nothing.
    """

    assigned_partitions = array(TopicPartitions)
    user_data = bytes_(nullable=True, default=None)
