"""Old clients say how long a committed offset is to be kept: any number must do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.testing import Broker, Error
from ottla.wire.apis.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.wire.apis.groups import FindCoordinatorRequest, FindCoordinatorResponse
from robustness.raw import RawClient, wait_until

LONGEST = 2**63 - 1


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with Broker() as broker:
        broker.create_topic("t")
        with RawClient(int(broker.bootstrap_servers.rpartition(":")[2])) as connected:
            wait_until(lambda: found_coordinator(connected))
            yield connected


def found_coordinator(client: RawClient) -> bool:
    response = client.ask(FindCoordinatorRequest(key="g"), 1)
    assert isinstance(response, FindCoordinatorResponse)
    return response.error_code == 0


def commit(client: RawClient, request: OffsetCommitRequest) -> int:
    response = client.ask(request, 3)
    assert isinstance(response, OffsetCommitResponse)
    return response.topics[0].partitions[0].error_code


@pytest.mark.parametrize("retention_ms", [-1, 0, 1000, LONGEST, -LONGEST, -LONGEST - 1])
def test_any_retention(client: RawClient, retention_ms: int) -> None:
    topic = OffsetCommitRequestTopic(
        name="t", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")]
    )
    request = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=-1, member_id="", retention_time_ms=retention_ms, topics=[topic]
    )
    wait_until(lambda: commit(client, request) != Error.COORDINATOR_LOAD_IN_PROGRESS)
    assert commit(client, request) == 0
