"""Requests to the two coordinators by hand, with nothing but the errors of their answers: for what no client would send."""

from __future__ import annotations

import itertools
import time
from typing import NamedTuple

from ottla.model import Error
from ottla.records.batch import Record, build
from ottla.wire.apis.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.wire.apis.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.apis.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.apis.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.apis.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from robustness.raw import RawClient

_numbers = itertools.count()
_GROUP, _TRANSACTION = 0, 1
_PATIENCE = 10.0
# A coordinator that is just coming up, or still at the markers of the last transaction, wants to be asked again.
_AGAIN = (
    Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_COORDINATOR,
    Error.COORDINATOR_LOAD_IN_PROGRESS,
    Error.CONCURRENT_TRANSACTIONS,
)


class Producer(NamedTuple):
    """Who a transactional producer is."""

    name: str
    id: int
    epoch: int

    def older(self) -> Producer:
        return self._replace(epoch=self.epoch - 1)

    def newer(self) -> Producer:
        return self._replace(epoch=self.epoch + 1)

    def other_id(self) -> Producer:
        return self._replace(id=self.id + 1000)


class Place(NamedTuple):
    """Who a member of a group is."""

    group: str
    member: str
    generation: int


class Calls:
    """One connection, and a topic `t` of one partition that is there."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        for kind in (_GROUP, _TRANSACTION):
            self._find(kind)
        self.topic = self.fresh("t")
        self.create(self.topic)

    def _find(self, kind: int) -> None:
        """The internal topics come into being when somebody looks for a coordinator."""
        end = time.monotonic() + _PATIENCE
        while True:
            response = self.client.ask(FindCoordinatorRequest(key="any", key_type=kind), 3)
            assert isinstance(response, FindCoordinatorResponse)
            if response.error_code == Error.NONE:
                return
            assert time.monotonic() < end, f"no coordinator: {Error(response.error_code).name}"
            time.sleep(0.02)

    @staticmethod
    def fresh(prefix: str) -> str:
        return f"{prefix}-{next(_numbers)}"

    def create(self, topic: str) -> None:
        wanted = [CreatableTopic(name=topic, num_partitions=1, replication_factor=1)]
        response = self.client.ask(CreateTopicsRequest(topics=wanted, timeout_ms=10_000), 5)
        assert isinstance(response, CreateTopicsResponse)
        assert response.topics[0].error_code in (Error.NONE, Error.TOPIC_ALREADY_EXISTS)

    # Groups

    def join(
        self,
        group: str,
        member: str = "",
        *,
        instance: str | None = None,
        session_ms: int = 30_000,
        protocol_type: str = "consumer",
        protocols: tuple[str, ...] = ("range",),
        version: int = 5,
    ) -> JoinGroupResponse:
        rows = [JoinGroupRequestProtocol(name=name, metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff") for name in protocols]
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=5000,
            member_id=member,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=rows,
        )
        end = time.monotonic() + _PATIENCE
        while True:
            response = self.client.ask(request, version)
            assert isinstance(response, JoinGroupResponse)
            if response.error_code not in _AGAIN or time.monotonic() > end:
                return response
            time.sleep(0.02)

    def stable(self, instance: str | None = None) -> Place:
        """The only member of a new group, with its assignment."""
        group = self.fresh("g")
        joined = self.join(group, instance=instance)
        if joined.error_code == Error.MEMBER_ID_REQUIRED:
            joined = self.join(group, joined.member_id)
        assert joined.error_code == Error.NONE
        place = Place(group, joined.member_id, joined.generation_id)
        assert self.sync(place, instance=instance) == Error.NONE
        return place

    def sync(self, place: Place, *, instance: str | None = None, protocol: str | None = None) -> Error:
        request = SyncGroupRequest(
            group_id=place.group,
            generation_id=place.generation,
            member_id=place.member,
            group_instance_id=instance,
            protocol_type="consumer" if protocol else None,
            protocol_name=protocol,
            assignments=[SyncGroupRequestAssignment(member_id=place.member, assignment=b"")],
        )
        response = self.client.ask(request, 5 if protocol else 3)
        assert isinstance(response, SyncGroupResponse)
        return Error(response.error_code)

    def heartbeat(self, place: Place, instance: str | None = None) -> Error:
        request = HeartbeatRequest(
            group_id=place.group, generation_id=place.generation, member_id=place.member, group_instance_id=instance
        )
        response = self.client.ask(request, 3)
        assert isinstance(response, HeartbeatResponse)
        return Error(response.error_code)

    def commit(
        self, place: Place, offset: int = 1, *, metadata: str = "", topic: str | None = None, instance: str | None = None
    ) -> Error:
        row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=metadata)
        request = OffsetCommitRequest(
            group_id=place.group,
            generation_id_or_member_epoch=place.generation,
            member_id=place.member,
            group_instance_id=instance,
            topics=[OffsetCommitRequestTopic(name=topic or self.topic, partitions=[row])],
        )
        end = time.monotonic() + _PATIENCE
        while True:
            response = self.client.ask(request, 8)
            assert isinstance(response, OffsetCommitResponse)
            error = Error(response.topics[0].partitions[0].error_code)
            if error not in _AGAIN or time.monotonic() > end:
                return error
            time.sleep(0.02)

    def committed(self, group: str) -> int:
        asked = OffsetFetchRequestGroup(
            group_id=group, topics=[OffsetFetchRequestTopics(name=self.topic, partition_indexes=[0])]
        )
        end = time.monotonic() + _PATIENCE
        while True:
            response = self.client.ask(OffsetFetchRequest(groups=[asked], require_stable=True), 8)
            assert isinstance(response, OffsetFetchResponse)
            found = response.groups[0]
            if found.error_code == Error.NONE and found.topics[0].partitions[0].error_code == Error.NONE:
                return int(found.topics[0].partitions[0].committed_offset)
            assert time.monotonic() < end, f"{Error(found.error_code).name} for {_PATIENCE} s"
            time.sleep(0.02)

    # Transactions

    def init(
        self, name: str | None, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1, version: int = 4
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=producer_id, producer_epoch=epoch
        )
        end = time.monotonic() + _PATIENCE
        while True:
            response = self.client.ask(request, version)
            assert isinstance(response, InitProducerIdResponse)
            if response.error_code not in _AGAIN or time.monotonic() > end:
                return response
            time.sleep(0.02)

    def producer(self, name: str | None = None) -> Producer:
        """A transactional producer in its second life: there is an older epoch."""
        chosen = name or self.fresh("id")
        assert self.init(chosen).error_code == Error.NONE
        response = self.init(chosen)
        assert response.error_code == Error.NONE
        return Producer(chosen, response.producer_id, response.producer_epoch)

    def add(self, producer: Producer, *topics: str, version: int = 3) -> list[Error]:
        """AddPartitionsToTxn: the error of each topic's partition 0, the usual topic unless others are named."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.name,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in topics or (self.topic,)],
        )
        end = time.monotonic() + _PATIENCE
        while True:
            response = self.client.ask(request, version)
            assert isinstance(response, AddPartitionsToTxnResponse)
            found = {
                topic.name: Error(topic.results_by_partition[0].partition_error_code)
                for topic in response.results_by_topic_v3_and_below
            }
            errors = [found[name] for name in topics or (self.topic,)]
            if not set(errors) & set(_AGAIN) or time.monotonic() > end:
                return errors
            time.sleep(0.02)

    def begun(self) -> Producer:
        """A producer whose transaction has the topic's partition."""
        producer = self.producer()
        assert self.add(producer) == [Error.NONE]
        return producer

    def produce(
        self,
        producer: Producer,
        *,
        transactional: bool = True,
        sequence: int = 0,
        version: int = 9,
        named: bool = True,
        age_ms: int = 0,
    ) -> Error:
        record = Record(0, int(time.time() * 1000) - age_ms, b"k", b"v", ())
        batch = build(
            [record],
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        data = TopicProduceData(name=self.topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        name = producer.name if named else None
        response = self.client.ask(ProduceRequest(transactional_id=name, acks=-1, timeout_ms=5000, topic_data=[data]), version)
        assert isinstance(response, ProduceResponse)
        return Error(response.responses[0].partition_responses[0].error_code)

    def add_offsets(self, producer: Producer, group: str, version: int = 3) -> Error:
        request = AddOffsetsToTxnRequest(
            transactional_id=producer.name, producer_id=producer.id, producer_epoch=producer.epoch, group_id=group
        )
        response = self.client.ask(request, version)
        assert isinstance(response, AddOffsetsToTxnResponse)
        return Error(response.error_code)

    def commit_offset(
        self, producer: Producer, place: Place, *, metadata: str = "", offset: int = 1, version: int = 3
    ) -> Error:
        """TxnOffsetCommit."""
        row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=metadata)
        request = TxnOffsetCommitRequest(
            transactional_id=producer.name,
            group_id=place.group,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            generation_id=place.generation,
            member_id=place.member,
            topics=[TxnOffsetCommitRequestTopic(name=self.topic, partitions=[row])],
        )
        end = time.monotonic() + _PATIENCE
        while True:
            response = self.client.ask(request, version)
            assert isinstance(response, TxnOffsetCommitResponse)
            error = Error(response.topics[0].partitions[0].error_code)
            if error not in _AGAIN or time.monotonic() > end:
                return error
            time.sleep(0.02)

    def end(self, producer: Producer, commits: bool, version: int = 3) -> Error:
        """EndTxn; asked again while the markers of an earlier end are on their way."""
        request = EndTxnRequest(
            transactional_id=producer.name, producer_id=producer.id, producer_epoch=producer.epoch, committed=commits
        )
        end = time.monotonic() + _PATIENCE
        while True:
            response = self.client.ask(request, version)
            assert isinstance(response, EndTxnResponse)
            if response.error_code not in _AGAIN or time.monotonic() > end:
                return Error(response.error_code)
            time.sleep(0.02)
