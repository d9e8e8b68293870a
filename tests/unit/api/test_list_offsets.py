"""Where a log ends, as a leader that has just begun tells it: not before it knows what the leader before it told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.broker import Broker as RealBroker
from ottla.model import Error
from ottla.testing import Broker
from ottla.wire.apis.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic
from robustness.raw import RawClient
from unit.api.test_follower_fetch import share
from unit.replication.replication_kit import NOW, batch

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
FOLLOWER, CONSUMER = 2, -1
RECORDS = 3


@pytest.fixture
def begun() -> Iterator[Broker]:
    """Leads in a new epoch, with records of which it does not know yet that its follower has them."""
    with Broker() as broker:
        broker.create_topic("t", partitions=1)
        share(broker)
        broker.run_on_loop(lambda real: real.services.replicas.get("t", 0).append(batch(*[b"v"] * RECORDS), 1, 10))
        share(broker, epochs=1)
        yield broker


def list_one(broker: Broker, timestamp: int, version: int, replica: int = CONSUMER) -> tuple[Error, int]:
    asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
    request = ListOffsetsRequest(replica_id=replica, topics=[asked])
    with RawClient(int(broker.bootstrap_servers.rpartition(":")[2])) as client:
        answer = client.ask(request, version)
    assert isinstance(answer, ListOffsetsResponse)
    found = answer.topics[0].partitions[0]
    return Error(found.error_code), found.offset


@pytest.mark.parametrize(
    ("timestamp", "version", "replica", "expected"),
    [
        (LATEST, 5, CONSUMER, (Error.OFFSET_NOT_AVAILABLE, -1)),
        (LATEST, 4, CONSUMER, (Error.LEADER_NOT_AVAILABLE, -1)),  # what older clients know
        (NOW, 9, CONSUMER, (Error.OFFSET_NOT_AVAILABLE, -1)),  # it is there, but not known to be committed
        (MAX_TIMESTAMP, 9, CONSUMER, (Error.OFFSET_NOT_AVAILABLE, -1)),
        (EARLIEST, 9, CONSUMER, (Error.NONE, 0)),
        (LATEST, 9, FOLLOWER, (Error.NONE, RECORDS)),
    ],
)
def test_a_leader_that_has_just_begun(
    begun: Broker, timestamp: int, version: int, replica: int, expected: tuple[Error, int]
) -> None:
    assert list_one(begun, timestamp, version, replica) == expected


def test_it_tells_the_end_when_it_knows_as_much_as_it_began_with(begun: Broker) -> None:
    def caught_up(real: RealBroker) -> None:
        real.services.replicas.get("t", 0).log.high_watermark = RECORDS

    begun.run_on_loop(caught_up)
    assert list_one(begun, LATEST, 9) == (Error.NONE, RECORDS)
    assert list_one(begun, NOW + 1, 9) == (Error.NONE, -1)
