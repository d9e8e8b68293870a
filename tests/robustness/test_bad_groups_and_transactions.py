"""Requests to the coordinators that are wrong in one way each, and the error that Apache Kafka 3.9.1 answers: so do we.

Every row was taken from the original and is checked against it again wherever Java is (`apache`). What a row expects is the
error of the last request; whatever came before it was fine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from ottla.model import Error
from ottla.wire.apis.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ottla.wire.apis.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from ottla.wire.apis.producers import DescribeProducersRequest, DescribeProducersResponse, DescribeProducersTopic
from ottla.wire.apis.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from robustness.coordinator_calls import Calls, Place, Producer
from robustness.raw import RawClient, wait_until
from support.anchor import Broker, open_apache, open_ottla

SETTINGS = {"group.max.size": 2, "transaction.max.timeout.ms": 120_000, "auto.create.topics.enable": "false"}
ALONE = -1
"""The generation of somebody who is in no group."""


@pytest.fixture(scope="module", params=["ottla", pytest.param("apache", marks=[pytest.mark.java, pytest.mark.slow])])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = str(tmp_path_factory.mktemp(request.param))
    with (open_ottla if request.param == "ottla" else open_apache)(directory, SETTINGS) as running:
        yield running


@pytest.fixture
def calls(broker: Broker) -> Iterator[Calls]:
    with RawClient(broker.port, timeout=15) as client:
        yield Calls(client)


class Case(NamedTuple):
    says: str
    ask: Callable[[Calls], Error]
    answer: Error


def _wrong(place: Place, generation: int) -> Place:
    return place._replace(generation=place.generation + generation)


def _leave(calls: Calls, group: str, member: str, instance: str | None = None) -> Error:
    who = [MemberIdentity(member_id=member, group_instance_id=instance)]
    response = calls.client.ask(LeaveGroupRequest(group_id=group, members=who), 4)
    assert isinstance(response, LeaveGroupResponse)
    return Error(response.error_code or response.members[0].error_code)


def _delete(calls: Calls, group: str) -> Error:
    response = calls.client.ask(DeleteGroupsRequest(groups_names=[group]), 2)
    assert isinstance(response, DeleteGroupsResponse)
    return Error(response.results[0].error_code)


def _forget(calls: Calls, group: str, topic: str) -> Error:
    row = OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    response = calls.client.ask(OffsetDeleteRequest(group_id=group, topics=[row]), 0)
    assert isinstance(response, OffsetDeleteResponse)
    return Error(response.error_code or response.topics[0].partitions[0].error_code)


def _full(calls: Calls) -> Error:
    """Two members are in a group of at most two; a third asks."""
    first = calls.stable("one")
    with RawClient(calls.client.sock.getpeername()[1], timeout=15) as connection, ThreadPoolExecutor(1) as thread:
        second = Calls(connection)
        joining = thread.submit(second.join, first.group, instance="two")
        wait_until(lambda: calls.heartbeat(first, "one") == Error.REBALANCE_IN_PROGRESS)
        assert calls.join(first.group, first.member, instance="one").error_code == Error.NONE
        assert joining.result(15).error_code == Error.NONE
        return Error(calls.join(first.group, instance="three").error_code)


def _fenced_instance(calls: Calls, ask: Callable[[Place], Error]) -> Error:
    """Another member has taken the instance id over; the first one asks."""
    first = calls.stable("me")
    assert calls.join(first.group, instance="me").error_code == Error.NONE
    return ask(first)


GROUPS = [
    Case("heartbeat of an older generation", lambda c: c.heartbeat(_wrong(c.stable(), -1)), Error.ILLEGAL_GENERATION),
    Case("heartbeat of a later generation", lambda c: c.heartbeat(_wrong(c.stable(), 1)), Error.ILLEGAL_GENERATION),
    Case("heartbeat of a stranger", lambda c: c.heartbeat(c.stable()._replace(member="who")), Error.UNKNOWN_MEMBER_ID),
    Case("heartbeat in no group", lambda c: c.heartbeat(Place(c.fresh("g"), "who", 1)), Error.UNKNOWN_MEMBER_ID),
    Case("heartbeat without a group id", lambda c: c.heartbeat(Place("", "who", 1)), Error.INVALID_GROUP_ID),
    Case(
        "heartbeat of a static member that was replaced",
        lambda c: _fenced_instance(c, lambda place: c.heartbeat(place, "me")),
        Error.FENCED_INSTANCE_ID,
    ),
    Case("heartbeat with an instance id of nobody", lambda c: c.heartbeat(c.stable(), "nobody"), Error.UNKNOWN_MEMBER_ID),
    Case("sync of an older generation", lambda c: c.sync(_wrong(c.stable(), -1)), Error.ILLEGAL_GENERATION),
    Case("sync of a stranger", lambda c: c.sync(c.stable()._replace(member="who")), Error.UNKNOWN_MEMBER_ID),
    Case("sync with another protocol", lambda c: c.sync(c.stable(), protocol="sticky"), Error.INCONSISTENT_GROUP_PROTOCOL),
    Case("sync without a group id", lambda c: c.sync(Place("", "who", 1)), Error.INVALID_GROUP_ID),
    Case("leave of a stranger", lambda c: _leave(c, c.stable().group, "who"), Error.UNKNOWN_MEMBER_ID),
    Case("leave of no group", lambda c: _leave(c, c.fresh("g"), "who"), Error.UNKNOWN_MEMBER_ID),
    Case(
        "leave of a static member that was replaced",
        lambda c: _fenced_instance(c, lambda place: _leave(c, place.group, place.member, "me")),
        Error.FENCED_INSTANCE_ID,
    ),
    Case("join without a group id", lambda c: Error(c.join("").error_code), Error.INVALID_GROUP_ID),
    Case(
        "join with a short session",
        lambda c: Error(c.join(c.fresh("g"), session_ms=5).error_code),
        Error.INVALID_SESSION_TIMEOUT,
    ),
    Case(
        "join with a long session",
        lambda c: Error(c.join(c.fresh("g"), session_ms=1_800_001).error_code),
        Error.INVALID_SESSION_TIMEOUT,
    ),
    Case(
        "join without protocols",
        lambda c: Error(c.join(c.fresh("g"), protocols=(), version=3).error_code),
        Error.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case(
        "join without a protocol type",
        lambda c: Error(c.join(c.fresh("g"), protocol_type="", version=3).error_code),
        Error.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case(
        "join with another protocol type",
        lambda c: Error(c.join(c.stable().group, protocol_type="connect").error_code),
        Error.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case(
        "join with other protocols",
        lambda c: Error(c.join(c.stable().group, protocols=("mine",)).error_code),
        Error.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case("join as a stranger", lambda c: Error(c.join(c.stable().group, "who").error_code), Error.UNKNOWN_MEMBER_ID),
    Case("join no group as somebody", lambda c: Error(c.join(c.fresh("g"), "who").error_code), Error.UNKNOWN_MEMBER_ID),
    Case("join a full group", _full, Error.GROUP_MAX_SIZE_REACHED),
    Case("commit of an older generation", lambda c: c.commit(_wrong(c.stable(), -1)), Error.ILLEGAL_GENERATION),
    Case("commit of a later generation", lambda c: c.commit(_wrong(c.stable(), 1)), Error.ILLEGAL_GENERATION),
    Case("commit of a stranger", lambda c: c.commit(c.stable()._replace(member="who")), Error.UNKNOWN_MEMBER_ID),
    Case(
        "commit from outside into a group with members",
        lambda c: c.commit(Place(c.stable().group, "", ALONE)),
        Error.UNKNOWN_MEMBER_ID,
    ),
    Case("commit of a member of no group", lambda c: c.commit(Place(c.fresh("g"), "who", 1)), Error.ILLEGAL_GENERATION),
    Case("commit without a group id", lambda c: c.commit(Place("", "who", 1)), Error.ILLEGAL_GENERATION),
    Case(
        "commit of a static member that was replaced",
        lambda c: _fenced_instance(c, lambda place: c.commit(place, instance="me")),
        Error.FENCED_INSTANCE_ID,
    ),
    Case("commit for no topic", lambda c: c.commit(c.stable(), topic="nowhere"), Error.UNKNOWN_TOPIC_OR_PARTITION),
    Case("commit with large metadata", lambda c: c.commit(c.stable(), metadata="m" * 4096), Error.NONE),
    Case(
        "commit with too large metadata", lambda c: c.commit(c.stable(), metadata="m" * 4097), Error.OFFSET_METADATA_TOO_LARGE
    ),
    Case("deletion of a group with members", lambda c: _delete(c, c.stable().group), Error.NON_EMPTY_GROUP),
    Case("deletion of no group", lambda c: _delete(c, c.fresh("g")), Error.GROUP_ID_NOT_FOUND),
    Case("deletion without a group id", lambda c: _delete(c, ""), Error.GROUP_ID_NOT_FOUND),
    Case("deletion of offsets of no group", lambda c: _forget(c, c.fresh("g"), c.topic), Error.GROUP_ID_NOT_FOUND),
]


def _again(calls: Calls, name: str, producer_id: int, epoch: int, version: int = 4) -> Error:
    return Error(calls.init(name, producer_id=producer_id, epoch=epoch, version=version).error_code)


def _init_of(calls: Calls, who: Callable[[Producer], Producer], version: int = 4) -> Error:
    """InitProducerId of somebody who says who it is."""
    producer = who(calls.producer())
    return _again(calls, producer.name, producer.id, producer.epoch, version)


def _ended(calls: Calls, *ends: bool) -> Error:
    """A transaction that is ended several times: the last answer."""
    producer = calls.begun()
    assert calls.produce(producer) == Error.NONE
    for commits in ends[:-1]:
        assert calls.end(producer, commits) == Error.NONE
    return calls.end(producer, ends[-1])


def _with_offsets(
    calls: Calls, who: Callable[[Producer], Producer], place: Callable[[Place], Place], metadata: str = ""
) -> Error:
    """TxnOffsetCommit of a member whose group is in the transaction."""
    at = calls.stable()
    producer = calls.begun()
    assert calls.add_offsets(producer, at.group) == Error.NONE
    return calls.commit_offset(who(producer), place(at), metadata=metadata)


def _without_offsets(calls: Calls) -> Error:
    return calls.commit_offset(calls.begun(), calls.stable())


def _verify(calls: Calls, producer: Producer, version: int = 4) -> Error:
    """A broker asks whether a partition is in the transaction."""
    row = AddPartitionsToTxnTransaction(
        transactional_id=producer.name,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name=calls.topic, partitions=[0])],
    )
    response = calls.client.ask(AddPartitionsToTxnRequest(transactions=[row]), version)
    assert isinstance(response, AddPartitionsToTxnResponse)
    assert response.error_code == Error.NONE
    return Error(response.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code)


def _mark(calls: Calls, producer: Producer, topic: str, coordinator_epoch: int = 0) -> Error:
    row = WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
        coordinator_epoch=coordinator_epoch,
    )
    response = calls.client.ask(WriteTxnMarkersRequest(markers=[row]), 1)
    assert isinstance(response, WriteTxnMarkersResponse)
    return Error(response.markers[0].topics[0].partitions[0].error_code)


def _stale_marker(calls: Calls) -> Error:
    producer = calls.begun()
    assert calls.produce(producer) == Error.NONE
    assert calls.end(producer, True) == Error.NONE
    # A coordinator of epoch 7 has been here; one of epoch 6 comes late.
    calls.topic, before = calls.fresh("t"), calls.topic
    try:
        calls.create(calls.topic)
        assert calls.add(producer) == [Error.NONE]
        assert calls.produce(producer) == Error.NONE
        assert _mark(calls, producer, calls.topic, 7) == Error.NONE
        return _mark(calls, producer, calls.topic, 6)
    finally:
        calls.topic = before


def _described(calls: Calls, name: str) -> Error:
    response = calls.client.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0)
    assert isinstance(response, DescribeTransactionsResponse)
    return Error(response.transaction_states[0].error_code)


def _producers_of(calls: Calls, topic: str, partition: int = 0) -> Error:
    asked = [DescribeProducersTopic(name=topic, partition_indexes=[partition])]
    response = calls.client.ask(DescribeProducersRequest(topics=asked), 0)
    assert isinstance(response, DescribeProducersResponse)
    return Error(response.topics[0].partitions[0].error_code)


def _produced_after_end(calls: Calls) -> Error:
    producer = calls.begun()
    assert calls.produce(producer) == Error.NONE
    for _ in range(2):  # the second is answered when the markers are written: until then the partition's transaction is open
        assert calls.end(producer, True) == Error.NONE
    return calls.produce(producer, sequence=1)


def _gap(calls: Calls) -> Error:
    producer = calls.begun()
    assert calls.produce(producer) == Error.NONE
    return calls.produce(producer, sequence=7)


def _plain_write_in_a_transaction(calls: Calls) -> Error:
    producer = calls.begun()
    assert calls.produce(producer) == Error.NONE
    return calls.produce(producer, transactional=False, sequence=1)


def _stale_write(calls: Calls) -> Error:
    """The producer with the current epoch has written to the partition; the one before it comes late."""
    producer = calls.begun()
    assert calls.produce(producer) == Error.NONE
    return calls.produce(producer.older())


def _nobody(calls: Calls) -> Producer:
    return Producer(calls.fresh("id"), 424242, 0)


TRANSACTIONS = [
    Case("init without a name", lambda c: Error(c.init("").error_code), Error.INVALID_REQUEST),
    Case("init with no time", lambda c: Error(c.init(c.fresh("id"), 0).error_code), Error.INVALID_TRANSACTION_TIMEOUT),
    Case("init with negative time", lambda c: Error(c.init(c.fresh("id"), -1).error_code), Error.INVALID_TRANSACTION_TIMEOUT),
    Case("init with all the time there is", lambda c: Error(c.init(c.fresh("id"), 120_000).error_code), Error.NONE),
    Case("init with more", lambda c: Error(c.init(c.fresh("id"), 120_001).error_code), Error.INVALID_TRANSACTION_TIMEOUT),
    Case("init with an id but no epoch", lambda c: _again(c, c.fresh("id"), 5, -1), Error.INVALID_REQUEST),
    Case("init with an epoch but no id", lambda c: _again(c, c.fresh("id"), -1, 5), Error.INVALID_REQUEST),
    Case("init as who it is", lambda c: _init_of(c, lambda p: p), Error.NONE),
    Case("init as an older epoch", lambda c: _init_of(c, Producer.older), Error.PRODUCER_FENCED),
    Case("init as an older epoch, asked the old way", lambda c: _init_of(c, Producer.older, 3), Error.INVALID_PRODUCER_EPOCH),
    Case("init as a later epoch", lambda c: _init_of(c, Producer.newer), Error.PRODUCER_FENCED),
    Case("init as another producer", lambda c: _init_of(c, Producer.other_id), Error.PRODUCER_FENCED),
    Case("init as somebody of an unknown name", lambda c: _again(c, c.fresh("id"), 424242, 3), Error.NONE),
    Case("add by an unknown name", lambda c: c.add(_nobody(c))[0], Error.INVALID_PRODUCER_ID_MAPPING),
    Case("add by another producer", lambda c: c.add(c.producer().other_id())[0], Error.INVALID_PRODUCER_ID_MAPPING),
    Case("add by an older epoch", lambda c: c.add(c.producer().older())[0], Error.PRODUCER_FENCED),
    Case(
        "add by an older epoch, the old way", lambda c: c.add(c.producer().older(), version=1)[0], Error.INVALID_PRODUCER_EPOCH
    ),
    Case("add by a later epoch", lambda c: c.add(c.producer().newer())[0], Error.PRODUCER_FENCED),
    Case("add without a name", lambda c: c.add(c.producer()._replace(name=""))[0], Error.INVALID_REQUEST),
    Case("add of no topic", lambda c: c.add(c.producer(), "nowhere")[0], Error.UNKNOWN_TOPIC_OR_PARTITION),
    Case(
        "add of a topic beside one that is not",
        lambda c: c.add(c.producer(), c.topic, "nowhere")[0],
        Error.OPERATION_NOT_ATTEMPTED,
    ),
    Case("verify what is in", lambda c: _verify(c, c.begun()), Error.NONE),
    Case("verify what is not", lambda c: _verify(c, c.producer()), Error.TRANSACTION_ABORTABLE),
    Case("verify what is not, the new way", lambda c: _verify(c, c.producer(), 5), Error.TRANSACTION_ABORTABLE),
    Case("verify for an older epoch", lambda c: _verify(c, c.begun().older()), Error.PRODUCER_FENCED),
    Case("verify for an unknown name", lambda c: _verify(c, _nobody(c)), Error.INVALID_PRODUCER_ID_MAPPING),
    Case("write without the partition in the transaction", lambda c: c.produce(c.producer()), Error.INVALID_TXN_STATE),
    Case("the same, the new way", lambda c: c.produce(c.producer(), version=11), Error.TRANSACTION_ABORTABLE),
    Case("write after the end", _produced_after_end, Error.INVALID_TXN_STATE),
    Case("write by an older epoch", _stale_write, Error.INVALID_PRODUCER_EPOCH),
    Case("write by an older epoch, the first one", lambda c: c.produce(c.begun().older()), Error.INVALID_PRODUCER_EPOCH),
    Case("write by another producer", lambda c: c.produce(c.begun().other_id()), Error.INVALID_PRODUCER_ID_MAPPING),
    Case("write by an unknown name", lambda c: c.produce(_nobody(c)), Error.INVALID_PRODUCER_ID_MAPPING),
    Case(
        "write without saying the name",
        lambda c: c.produce(c.begun(), named=False),
        Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    Case("write that begins late", lambda c: c.produce(c.begun(), sequence=7), Error.NONE),
    Case("write with a gap in the sequence", _gap, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),
    Case("a plain write in a transaction", _plain_write_in_a_transaction, Error.INVALID_TXN_STATE),
    Case("end of nothing", lambda c: c.end(c.producer(), True), Error.INVALID_TXN_STATE),
    Case("abort of nothing", lambda c: c.end(c.producer(), False), Error.INVALID_TXN_STATE),
    Case("end by an unknown name", lambda c: c.end(_nobody(c), True), Error.INVALID_PRODUCER_ID_MAPPING),
    Case("end by another producer", lambda c: c.end(c.begun().other_id(), True), Error.INVALID_PRODUCER_ID_MAPPING),
    Case("end by an older epoch", lambda c: c.end(c.begun().older(), True), Error.PRODUCER_FENCED),
    Case("end by an older epoch, the old way", lambda c: c.end(c.begun().older(), True, 1), Error.INVALID_PRODUCER_EPOCH),
    Case("end by a later epoch", lambda c: c.end(c.begun().newer(), True), Error.PRODUCER_FENCED),
    Case("end without a name", lambda c: c.end(c.begun()._replace(name=""), True), Error.INVALID_REQUEST),
    Case("commit, and again", lambda c: _ended(c, True, True), Error.NONE),
    Case("abort, and again", lambda c: _ended(c, False, False), Error.NONE),
    Case("abort after the commit", lambda c: _ended(c, True, False), Error.INVALID_TXN_STATE),
    Case("commit after the abort", lambda c: _ended(c, False, True), Error.INVALID_TXN_STATE),
    Case("offsets of a group without id", lambda c: c.add_offsets(c.begun(), ""), Error.NONE),
    Case("offsets by an unknown name", lambda c: c.add_offsets(_nobody(c), "g"), Error.INVALID_PRODUCER_ID_MAPPING),
    Case("offsets by an older epoch", lambda c: c.add_offsets(c.begun().older(), "g"), Error.PRODUCER_FENCED),
    Case("offsets without a name", lambda c: c.add_offsets(c.begun()._replace(name=""), "g"), Error.INVALID_REQUEST),
    Case("commit of offsets", lambda c: _with_offsets(c, lambda p: p, lambda g: g), Error.NONE),
    Case(
        "commit of offsets of no member",
        lambda c: _with_offsets(c, lambda p: p, lambda g: Place(g.group, "", ALONE)),
        Error.NONE,
    ),
    Case(
        "commit of offsets of an older generation",
        lambda c: _with_offsets(c, lambda p: p, lambda g: _wrong(g, -1)),
        Error.ILLEGAL_GENERATION,
    ),
    Case(
        "commit of offsets of a stranger",
        lambda c: _with_offsets(c, lambda p: p, lambda g: g._replace(member="who")),
        Error.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "commit of offsets by an older epoch",
        lambda c: _with_offsets(c, Producer.older, lambda g: g),
        Error.INVALID_PRODUCER_EPOCH,
    ),
    Case(
        "commit of offsets with too large metadata",
        lambda c: _with_offsets(c, lambda p: p, lambda g: g, "m" * 4097),
        Error.OFFSET_METADATA_TOO_LARGE,
    ),
    Case("commit of offsets of a group that is not in the transaction", _without_offsets, Error.INVALID_TXN_STATE),
    Case("marker for no topic", lambda c: _mark(c, c.producer(), "nowhere"), Error.UNKNOWN_TOPIC_OR_PARTITION),
    Case("marker of an older coordinator", _stale_marker, Error.TRANSACTION_COORDINATOR_FENCED),
    Case("description of an unknown name", lambda c: _described(c, c.fresh("id")), Error.TRANSACTIONAL_ID_NOT_FOUND),
    Case("description without a name", lambda c: _described(c, ""), Error.INVALID_REQUEST),
    Case("producers of no topic", lambda c: _producers_of(c, "nowhere"), Error.UNKNOWN_TOPIC_OR_PARTITION),
    Case("producers of no partition", lambda c: _producers_of(c, c.topic, 9), Error.UNKNOWN_TOPIC_OR_PARTITION),
]


@pytest.mark.parametrize("case", GROUPS, ids=[case.says for case in GROUPS])
def test_groups(calls: Calls, case: Case) -> None:
    assert case.ask(calls).name == case.answer.name


@pytest.mark.parametrize("case", TRANSACTIONS, ids=[case.says for case in TRANSACTIONS])
def test_transactions(calls: Calls, case: Case) -> None:
    assert case.ask(calls).name == case.answer.name
