"""What a transaction looks like on the wire, request by request, on Ottla and on Apache Kafka 3.9.1: epochs, unstable offsets,
aborted transactions in a fetch, and the lists an operator sees. Each test holds on both (`apache` wherever Java is)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.model import Error
from ottla.wire.apis.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.wire.apis.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.wire.apis.producers import DescribeProducersRequest, DescribeProducersResponse, DescribeProducersTopic
from ottla.wire.apis.transactions import ListTransactionsRequest, ListTransactionsResponse
from robustness.coordinator_calls import Calls, Place, Producer
from robustness.raw import RawClient
from support.anchor import Broker, open_apache, open_ottla
from support.server import ServerProcess

READ_COMMITTED = 1


@pytest.fixture(scope="module", params=["ottla", pytest.param("apache", marks=[pytest.mark.java, pytest.mark.slow])])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = str(tmp_path_factory.mktemp(request.param))
    with (open_ottla if request.param == "ottla" else open_apache)(directory) as running:
        yield running


@pytest.fixture
def calls(broker: Broker) -> Iterator[Calls]:
    with RawClient(broker.port, timeout=15) as client:
        yield Calls(client)


def test_epochs_count_up(calls: Calls) -> None:
    """By one for each start, by two where a transaction was open: one fences the old producer, one is the new one's."""
    name = calls.fresh("id")
    first = calls.init(name)
    assert (first.error_code, first.producer_epoch) == (Error.NONE, 0)
    second = calls.init(name)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
    producer = Producer(name, second.producer_id, 1)
    assert calls.add(producer) == [Error.NONE]
    third = calls.init(name)
    assert (third.error_code, third.producer_id, third.producer_epoch) == (Error.NONE, first.producer_id, 3)
    assert calls.end(producer, True) == Error.PRODUCER_FENCED
    assert calls.end(producer.newer(), True) == Error.PRODUCER_FENCED
    # Asked by the producer itself, who knows its id and epoch; and once more, as if the answer had been lost.
    for _ in range(2):
        bumped = calls.init(name, producer_id=first.producer_id, epoch=3)
        assert (bumped.error_code, bumped.producer_id, bumped.producer_epoch) == (Error.NONE, first.producer_id, 4)


def offset_of(calls: Calls, group: str, stable: bool) -> tuple[Error, int]:
    topic = OffsetFetchRequestTopics(name=calls.topic, partition_indexes=[0])
    asked = OffsetFetchRequestGroup(group_id=group, topics=[topic])
    response = calls.client.ask(OffsetFetchRequest(groups=[asked], require_stable=stable), 8)
    assert isinstance(response, OffsetFetchResponse)
    found = response.groups[0].topics[0].partitions[0]
    return Error(response.groups[0].error_code or found.error_code), found.committed_offset


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_offsets_are_unstable_while_the_transaction_is_open(calls: Calls, commits: bool) -> None:
    place = Place(calls.fresh("g"), "", -1)
    assert calls.commit(place, 5) == Error.NONE
    producer = calls.begun()
    assert calls.add_offsets(producer, place.group) == Error.NONE
    assert offset_of(calls, place.group, stable=True) == (Error.NONE, 5)
    assert calls.commit_offset(producer, place, offset=9) == Error.NONE
    assert offset_of(calls, place.group, stable=True) == (Error.UNSTABLE_OFFSET_COMMIT, -1)
    assert offset_of(calls, place.group, stable=False) == (Error.NONE, 5)
    for _ in range(2):  # the second is answered when the markers are written
        assert calls.end(producer, commits) == Error.NONE
    assert calls.committed(place.group) == (9 if commits else 5)


def aborted_from(calls: Calls, offset: int, max_bytes: int = 1 << 20) -> tuple[list[tuple[int, int]], int]:
    """What a fetch from there names as aborted (producer, first offset), and the last stable offset."""
    row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        isolation_level=READ_COMMITTED,
        session_id=0,
        session_epoch=-1,
        topics=[FetchTopic(topic=calls.topic, partitions=[row])],
    )
    response = calls.client.ask(request, 11)
    assert isinstance(response, FetchResponse)
    found = response.responses[0].partitions[0]
    assert found.error_code == Error.NONE
    named = sorted((one.producer_id, one.first_offset) for one in found.aborted_transactions or ())
    return named, found.last_stable_offset


def test_a_fetch_names_the_aborted_transactions_of_its_range(broker: Broker, calls: Calls) -> None:
    """Offsets: a 0 1, marker 2; b 3, marker 4 (committed); c 5, d 6, marker of d 7, marker of c 8; e 9 (open)."""
    a, b, c, d, e = (calls.producer() for _ in range(5))

    def write(producer: Producer, sequence: int = 0) -> None:
        assert calls.add(producer) == [Error.NONE]
        assert calls.produce(producer, sequence=sequence) == Error.NONE

    def end(producer: Producer, commits: bool) -> None:
        for _ in range(2):
            assert calls.end(producer, commits) == Error.NONE

    write(a)
    write(a, 1)
    end(a, False)
    write(b)
    end(b, True)
    write(c)
    write(d)
    end(d, False)
    end(c, False)
    write(e)
    everything = sorted([(a.id, 0), (c.id, 5), (d.id, 6)])
    assert aborted_from(calls, 0) == (everything, 9)
    assert aborted_from(calls, 2) == (everything, 9), "the marker is still to be read"
    assert aborted_from(calls, 3) == (sorted([(c.id, 5), (d.id, 6)]), 9)
    assert aborted_from(calls, 8) == ([(c.id, 5)], 9)
    # One batch: what comes later need not be named. Apache Kafka looks at its sparse index only, and names what may be near.
    assert aborted_from(calls, 0, max_bytes=1)[0] == ([(a.id, 0)] if isinstance(broker, ServerProcess) else everything)
    end(e, True)
    assert aborted_from(calls, 9) == ([], 11)


def producers_of(calls: Calls) -> dict[int, tuple[int, int, int]]:
    """Producer: epoch, last sequence, where its open transaction begins."""
    asked = [DescribeProducersTopic(name=calls.topic, partition_indexes=[0])]
    response = calls.client.ask(DescribeProducersRequest(topics=asked), 0)
    assert isinstance(response, DescribeProducersResponse)
    found = response.topics[0].partitions[0].active_producers
    return {one.producer_id: (one.producer_epoch, one.last_sequence, one.current_txn_start_offset) for one in found}


def test_what_an_operator_sees(calls: Calls) -> None:
    producer = calls.begun()
    assert calls.produce(producer) == Error.NONE
    assert calls.produce(producer, sequence=1) == Error.NONE
    assert producers_of(calls) == {producer.id: (producer.epoch, 1, 0)}

    def listed(states: list[str], ids: list[int]) -> tuple[set[str], list[str]]:
        response = calls.client.ask(ListTransactionsRequest(state_filters=states, producer_id_filters=ids), 0)
        assert isinstance(response, ListTransactionsResponse)
        assert response.error_code == Error.NONE
        return {one.transactional_id for one in response.transaction_states}, list(response.unknown_state_filters)

    assert listed([], [producer.id]) == ({producer.name}, [])
    assert listed(["Ongoing"], [producer.id]) == ({producer.name}, [])
    assert listed(["Empty"], [producer.id]) == (set(), [])
    assert listed(["Nonsense", "Ongoing"], [producer.id]) == ({producer.name}, ["Nonsense"])
    assert listed([], [424242]) == (set(), [])
    for _ in range(2):
        assert calls.end(producer, True) == Error.NONE
    assert listed(["CompleteCommit"], [producer.id]) == ({producer.name}, [])
    assert producers_of(calls) == {producer.id: (producer.epoch, 1, -1)}
