"""Offsets in logs: their ends, and by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.client.admin.grouping import by_topic
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, UnknownTopic, refusal
from ottla.model import NO_LEADER, Error, TopicPartition
from ottla.wire.apis.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""Timestamps that ask for a place in the log."""

ISOLATION = {"read_uncommitted": 0, "read_committed": 1}
_ONE_OFFSET = 1  # the first version of ListOffsets that finds the record and not its segment
_ISOLATION = 2
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}


class Found(NamedTuple):
    """A place in a log: -1 where nothing is."""

    offset: int
    timestamp: int


class _UnknownToLeader(ClientError):
    """Metadata lists a partition that its leader does not know: one of the two has yet to hear of its making, or its end."""

    def __init__(self, message: str) -> None:
        super().__init__(Error.LEADER_NOT_AVAILABLE, message)  # passes: metadata that is asked again knows better


def list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], isolation: str = "read_uncommitted"
) -> dict[TopicPartition, int]:
    """The offset of the first record that is at least as late, or of an end (`EARLIEST`, `LATEST`); -1 where no record is."""
    return {tp: found.offset for tp, found in find_offsets(cluster, times, isolation).items()}


def find_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], isolation: str = "read_uncommitted"
) -> dict[TopicPartition, Found]:
    """The same, with the timestamp of the record where it was asked for by time."""

    def look() -> dict[TopicPartition, Found]:
        found = {}
        for tp, one in _ask(cluster, cluster.by_leader(list(times)), times, isolation).items():
            if isinstance(one, UnknownTopic):
                raise _UnknownToLeader(one.message)
            if isinstance(one, ClientError):
                raise one
            found[tp] = one
        return found

    try:
        return cluster.patiently(look)
    except _UnknownToLeader as still:
        raise UnknownTopic(still.message) from None


def try_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], isolation: str = "read_uncommitted"
) -> dict[TopicPartition, Found | ClientError]:
    """The same, once: for a partition that cannot be asked, why. A partition without a leader is not waited for."""
    topics = cluster.topics(sorted({tp.topic for tp in times}))
    found: dict[TopicPartition, Found | ClientError] = {}
    leaders: dict[int, list[TopicPartition]] = {}
    for tp in times:
        leader = topics[tp.topic].partitions[tp.partition].leader
        if leader == NO_LEADER:
            found[tp] = ClientError(Error.LEADER_NOT_AVAILABLE, f"Partition {tp} has no leader: are its brokers running?")
        else:
            leaders.setdefault(leader, []).append(tp)
    return found | _ask(cluster, leaders, times, isolation)


def _ask(
    cluster: Cluster, leaders: Mapping[int, Sequence[TopicPartition]], times: Mapping[TopicPartition, int], isolation: str
) -> dict[TopicPartition, Found | ClientError]:
    requests = {
        leader: ListOffsetsRequest(
            replica_id=-1,
            isolation_level=ISOLATION[isolation],
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=number, timestamp=times[TopicPartition(topic, number)])
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(partitions).items()
            ],
        )
        for leader, partitions in leaders.items()
    }
    least = max((_SINCE.get(time, 0) for time in times.values()), default=0)
    least = max(least, _ISOLATION if ISOLATION[isolation] else _ONE_OFFSET)
    answers: dict[int, ListOffsetsResponse] = cluster.ask_each(requests, at_least=least)
    found: dict[TopicPartition, Found | ClientError] = {}
    for answer in answers.values():
        for topic in answer.topics:
            for one in topic.partitions:
                tp = TopicPartition(topic.name, one.partition_index)
                refused = refusal(one.error_code, f"The offsets of partition {tp} are not known")
                if refused is not None and refused.error is Error.UNKNOWN_TOPIC_OR_PARTITION:
                    refused = UnknownTopic(refused.message)
                found[tp] = refused or Found(one.offset, one.timestamp)
    return found
