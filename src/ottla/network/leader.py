"""A leader as followers reach it: Fetch with a session, OffsetForLeaderEpoch and ListOffsets over one connection.

Guards: what changed is told once, and again only when the leader has lost the session; any failure loses it, for what was told
then is not known. Records are handed on as they lie in the connection's buffer, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ottla.model import Error, KafkaError, TopicPartition
from ottla.network.peer import Peer
from ottla.replication.leaders import EpochEnd, Fetched, Position, SessionLost
from ottla.wire.apis.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.wire.apis.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

_LATEST, _EARLIEST = -1, -2
_FIRST_EPOCH = 0
_LAST_EPOCH = 2**31 - 1
_LOST = (Error.FETCH_SESSION_ID_NOT_FOUND, Error.INVALID_FETCH_SESSION_EPOCH, Error.FETCH_SESSION_TOPIC_ID_ERROR)


@dataclass(slots=True, frozen=True)
class ReplicaFetchSettings:
    """Kafka's settings for followers, in its units."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    response_max_bytes: int = 10 << 20
    socket_timeout_ms: int = 30_000


class RemoteLeader:
    """A `Leader` over a peer."""

    def __init__(
        self,
        peer: Peer,
        replica_id: int,
        broker_epoch: Callable[[], int],
        name_of: Callable[[bytes], str | None],
        settings: ReplicaFetchSettings,
    ) -> None:
        """`name_of` finds a topic by its id."""
        self._peer = peer
        self._replica_id = replica_id
        self._broker_epoch = broker_epoch
        self._name_of = name_of
        self._settings = settings
        self._session_id = 0
        self._epoch = _FIRST_EPOCH
        self._untold = False
        self._names: dict[bytes, str] = {}

    async def fetch(
        self, changed: Mapping[TopicPartition, Position], gone: Collection[tuple[TopicPartition, bytes]]
    ) -> list[Fetched]:
        if self._untold:
            self._untold = False
            raise SessionLost
        settings = self._settings
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._replica_id, replica_epoch=self._broker_epoch()),
            max_wait_ms=settings.wait_max_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=self._asked(changed),
            forgotten_topics_data=_forgotten(gone) if self._session_id else [],
            rack_id="",
        )
        try:
            response = await self._peer.ask(request, FetchResponse, settings.socket_timeout_ms / 1000)
        except BaseException:
            self._session_id, self._epoch = 0, _FIRST_EPOCH
            raise
        if response.error_code:
            self._session_id, self._epoch = 0, _FIRST_EPOCH
            error = Error(response.error_code)
            if error in _LOST:
                raise SessionLost
            raise KafkaError(error, f"broker {self._peer.broker_id} answers {error.name} to a fetch")
        self._session_id = response.session_id
        if self._session_id:
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        else:  # it keeps no session for us: the next request must tell everything
            self._epoch, self._untold = _FIRST_EPOCH, True
        return self._fetched(response)

    def _asked(self, changed: Mapping[TopicPartition, Position]) -> list[FetchTopic]:
        topics: dict[bytes, FetchTopic] = {}
        max_bytes = self._settings.max_bytes
        for tp, position in changed.items():
            topic = topics.get(position.topic_id)
            if topic is None:
                self._names[position.topic_id] = tp.topic
                topic = topics[position.topic_id] = FetchTopic(topic_id=position.topic_id, partitions=[])
            topic.partitions.append(  # type: ignore[attr-defined]
                FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=position.current_leader_epoch,
                    fetch_offset=position.offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=max_bytes,
                )
            )
        return list(topics.values())

    def _fetched(self, response: FetchResponse) -> list[Fetched]:
        found: list[Fetched] = []
        for topic in response.responses:
            name = self._names.get(topic.topic_id) or self._name_of(topic.topic_id)
            if name is None:
                continue
            found += [_told(TopicPartition(name, data.partition_index), data) for data in topic.partitions]
        return found

    async def epoch_ends(self, asked: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, EpochEnd | Error]:
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for tp, (current, epoch) in asked.items():
            row = OffsetForLeaderPartition(partition=tp.partition, current_leader_epoch=current, leader_epoch=epoch)
            topics.setdefault(tp.topic, []).append(row)
        request = OffsetForLeaderEpochRequest(
            replica_id=self._replica_id,
            topics=[OffsetForLeaderTopic(topic=name, partitions=rows) for name, rows in topics.items()],
        )
        response = await self._peer.ask(request, OffsetForLeaderEpochResponse)
        ends: dict[TopicPartition, EpochEnd | Error] = dict.fromkeys(asked, Error.UNKNOWN_SERVER_ERROR)
        for topic in response.topics:
            for one in topic.partitions:
                found = Error(one.error_code) if one.error_code else EpochEnd(one.leader_epoch, one.end_offset)
                ends[TopicPartition(topic.topic, one.partition)] = found
        return ends

    async def earliest(self, tp: TopicPartition, current_leader_epoch: int) -> EpochEnd:
        return await self._offset(tp, current_leader_epoch, _EARLIEST)

    async def latest(self, tp: TopicPartition, current_leader_epoch: int) -> EpochEnd:
        return await self._offset(tp, current_leader_epoch, _LATEST)

    async def _offset(self, tp: TopicPartition, current_leader_epoch: int, timestamp: int) -> EpochEnd:
        row = ListOffsetsPartition(partition_index=tp.partition, current_leader_epoch=current_leader_epoch, timestamp=timestamp)
        topics = [ListOffsetsTopic(name=tp.topic, partitions=[row])]
        response = await self._peer.ask(ListOffsetsRequest(replica_id=self._replica_id, topics=topics), ListOffsetsResponse)
        for topic in response.topics:
            for one in topic.partitions:
                if one.error_code:
                    raise KafkaError(Error(one.error_code))
                return EpochEnd(one.leader_epoch, one.offset)
        raise KafkaError(Error.UNKNOWN_SERVER_ERROR, f"broker {self._peer.broker_id} did not answer for {tp}")

    def close(self) -> None:
        self._session_id, self._epoch = 0, _FIRST_EPOCH
        self._peer.close()


def _forgotten(gone: Collection[tuple[TopicPartition, bytes]]) -> list[ForgottenTopic]:
    topics: dict[bytes, list[int]] = {}
    for tp, topic_id in gone:
        topics.setdefault(topic_id, []).append(tp.partition)
    return [ForgottenTopic(topic_id=topic_id, partitions=numbers) for topic_id, numbers in topics.items()]


def _told(tp: TopicPartition, data: PartitionData) -> Fetched:
    parted = data.diverging_epoch
    return Fetched(
        tp,
        Error(data.error_code),
        data.high_watermark,
        data.log_start_offset,
        data.records or b"",
        EpochEnd(parted.epoch, parted.end_offset) if parted is not None and parted.end_offset >= 0 else None,
    )
