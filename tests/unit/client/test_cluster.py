"""The client's view of a cluster: which broker is asked in which version, and what is said where that goes wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.client.cluster import TRANSACTION, Cluster
from ottla.client.errors import BrokerUnreachable, ClientError, InvalidSetting, UnsupportedByBroker
from ottla.client.settings import Address, parse
from ottla.model import Error, TopicPartition
from ottla.testing import Broker
from ottla.wire.apis.groups import FindCoordinatorRequest, ListGroupsRequest
from ottla.wire.apis.producers import DescribeProducersRequest
from support.peers import closed_port, peer, serve


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("known", partitions=2)
        yield running


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", [("a", 1)]),
        (" a:1 , b:65535,", [("a", 1), ("b", 65535)]),
        ("[::1]:9092", [("::1", 9092)]),
    ],
)
def test_bootstrap_addresses(text: str, expected: list[tuple[str, int]]) -> None:
    assert list(parse(text).bootstrap) == expected


@pytest.mark.parametrize("text", ["", ",", "a", "a:", ":1", "a:x", "a:0", "a:65536", "a:1;b:2", "a:²", "::1:9092", "[]:1"])
def test_bootstrap_addresses_that_are_none(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"bootstrap\.servers.* HOST:PORT"):
        parse(text)


def test_an_address_is_shown_as_it_is_written() -> None:
    assert [str(Address("h", 1)), str(Address("::1", 2))] == ["h:1", "[::1]:2"]


def test_the_first_broker_that_answers_is_asked(broker: Broker) -> None:
    with Cluster(f"127.0.0.1:{closed_port()},{broker.bootstrap_servers}") as cluster:
        assert list(cluster.brokers()) == [1001]
        assert cluster.leaders([TopicPartition("known", 0)]) == {TopicPartition("known", 0): 1001}
        assert cluster.coordinator_of("x", TRANSACTION) == 1001


def test_a_question_whose_connection_is_lost_is_told_and_the_next_gets_a_new_one(broker: Broker) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        assert cluster.brokers()
        broker.faults.disconnect("Metadata")
        with pytest.raises(BrokerUnreachable, match="closed the connection"):
            cluster.metadata([])
        broker.faults.disconnect("Metadata")
        assert cluster.brokers()  # asked patiently


def test_several_brokers_are_asked_at_once_and_a_failure_leaves_no_answer_behind(broker: Broker) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        assert list(cluster.ask_each({1001: ListGroupsRequest()})) == [1001]
        cluster._nodes[7] = Address("127.0.0.1", closed_port())
        with pytest.raises(BrokerUnreachable, match="does broker 7 run"):
            cluster.ask_each({1001: ListGroupsRequest(), 7: ListGroupsRequest()})
        broker.faults.disconnect("ListGroups")
        with pytest.raises(BrokerUnreachable):
            cluster.ask_each({1001: ListGroupsRequest()})
        assert list(cluster.ask_each({1001: ListGroupsRequest()})) == [1001]


def test_an_api_or_version_that_the_broker_lacks_is_told() -> None:
    with peer(serve({18: (0, 3), 3: (0, 1)})) as port, Cluster(f"127.0.0.1:{port}") as cluster:
        with pytest.raises(
            UnsupportedByBroker, match=r"MetadataRequest is needed in version 4 to 12, it serves versions 0 to 1"
        ):
            cluster.brokers()  # below 4, asking for a topic may create it
        with pytest.raises(UnsupportedByBroker, match=r"DescribeProducersRequest .* serves none"):
            cluster.ask(DescribeProducersRequest())


def test_the_highest_version_that_both_know_is_spoken() -> None:
    seen: list[tuple[int, int]] = []
    with peer(serve({18: (0, 3), 3: (0, 7), 10: (0, 99)}, seen)) as port, Cluster(f"127.0.0.1:{port}") as cluster:
        cluster.brokers()
        with pytest.raises(BrokerUnreachable):  # this peer has no answer to it
            cluster.ask(FindCoordinatorRequest())
    assert seen == [(18, 3), (3, 7), (10, FindCoordinatorRequest.max_version)]


def test_a_broker_that_knows_only_the_oldest_api_versions() -> None:
    seen: list[tuple[int, int]] = []
    with peer(serve({18: (0, 0), 3: (0, 5)}, seen)) as port, Cluster(f"127.0.0.1:{port}") as cluster:
        assert cluster.brokers() == {1: Address("127.0.0.1", 1)}
    assert seen == [(18, 3), (18, 0), (3, 5)]


def test_an_unreachable_leader_is_told_by_its_id() -> None:
    lost = pytest.raises(
        BrokerUnreachable, match=r"Cannot connect to the broker at 127.0.0.1:1 .*broker 1 .*advertised.listeners"
    )
    with peer(serve({18: (0, 3), 3: (0, 12)})) as port, Cluster(f"127.0.0.1:{port}") as cluster, lost:
        cluster.ask(DescribeProducersRequest(), 1)


def test_patience_ends() -> None:
    def never() -> None:
        raise ClientError(Error.COORDINATOR_NOT_AVAILABLE)

    with pytest.raises(ClientError):
        Cluster({"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 50}).patiently(never)
