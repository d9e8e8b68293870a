"""DescribeTopicPartitions: topics by name, in pieces of a limit, each with the cursor of the next."""

from __future__ import annotations

import pytest

from ottla import client
from ottla.client import Cluster
from ottla.model import Error
from ottla.wire.apis.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
    TopicPartitionsCursor,
)
from support.server import ServerProcess


@pytest.fixture
def names(server: ServerProcess, topic: str) -> list[str]:
    with Cluster(server.bootstrap_servers) as cluster:
        for number, count in enumerate((3, 1, 2)):
            client.create_topic(cluster, f"{topic}-{number}", count, 1)
    return [f"{topic}-{number}" for number in range(3)]


def ask(
    server: ServerProcess, names: list[str], limit: int = 2000, cursor: TopicPartitionsCursor | None = None
) -> DescribeTopicPartitionsResponse:
    topics = [DescribeTopicPartitionsTopic(name=name) for name in names]
    request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor)
    with Cluster(server.bootstrap_servers) as cluster:
        answer: DescribeTopicPartitionsResponse = cluster.ask(request)
        return answer


def test_all_at_once(server: ServerProcess, names: list[str]) -> None:
    answer = ask(server, [*reversed(names), "there-is-none"])
    assert answer.next_cursor is None
    found = {topic.name: topic for topic in answer.topics}
    assert list(found) == sorted([*names, "there-is-none"])
    assert found["there-is-none"].error_code == Error.UNKNOWN_TOPIC_OR_PARTITION
    assert [len(found[name].partitions) for name in names] == [3, 1, 2]
    one = found[names[0]].partitions[1]
    assert one.partition_index == 1
    assert [one.leader_id] == list(one.replica_nodes) == list(one.isr_nodes)
    assert set(names) <= {topic.name for topic in ask(server, []).topics}, "no names, all topics"


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_in_pieces(server: ServerProcess, names: list[str], limit: int) -> None:
    got: list[tuple[str | None, int]] = []
    cursor = None
    while True:
        answer = ask(server, names, limit, cursor)
        piece = [(topic.name, one.partition_index) for topic in answer.topics for one in topic.partitions]
        assert 0 < len(piece) <= limit
        got += piece
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert got == [(names[0], 0), (names[0], 1), (names[0], 2), (names[1], 0), (names[2], 0), (names[2], 1)]
