"""What lies in the brokers' log directories, and moves between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.admin.grouping import by_topic
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, check, refusal
from ottla.model import Error, TopicPartition, error_of
from ottla.wire.apis.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)


class ReplicaOnDisk(NamedTuple):
    """A replica in a directory. A future one is being copied, and takes the place of the current one when it has caught up."""

    partition: TopicPartition
    size: int
    lag: int
    future: bool


class LogDir(NamedTuple):
    """A directory; `error` is NONE where it works. Sizes of its volume are -1 where the broker does not say."""

    path: str
    error: Error
    replicas: tuple[ReplicaOnDisk, ...]
    total_bytes: int
    usable_bytes: int


class Placement(NamedTuple):
    """A replica: a partition on a broker."""

    partition: TopicPartition
    broker: int


def describe_log_dirs(
    cluster: Cluster, brokers: Iterable[int] | None = None, partitions: Iterable[TopicPartition] | None = None
) -> dict[int, list[LogDir]]:
    """The directories of these brokers, or of all; with `partitions`, only what they hold of these."""
    topics = None
    if partitions is not None:
        topics = [DescribableLogDirTopic(topic=topic, partitions=numbers) for topic, numbers in by_topic(partitions).items()]
    request = DescribeLogDirsRequest(topics=topics)
    wanted = None if brokers is None else list(brokers)

    def look() -> dict[int, list[LogDir]]:
        asked = list(cluster.brokers()) if wanted is None else wanted
        answers: dict[int, DescribeLogDirsResponse] = cluster.ask_each(dict.fromkeys(asked, request))
        found = {}
        for broker, answer in answers.items():
            check(answer.error_code, f"Broker {broker} does not describe its log directories")
            found[broker] = [
                LogDir(
                    one.log_dir,
                    error_of(one.error_code),
                    tuple(
                        ReplicaOnDisk(
                            TopicPartition(topic.name, replica.partition_index),
                            replica.partition_size,
                            replica.offset_lag,
                            replica.is_future_key,
                        )
                        for topic in one.topics
                        for replica in topic.partitions
                    ),
                    one.total_bytes,
                    one.usable_bytes,
                )
                for one in answer.results
            ]
        return found

    return cluster.patiently(look)


def alter_replica_log_dirs(cluster: Cluster, targets: Mapping[Placement, str]) -> dict[Placement, ClientError | None]:
    """Begin to move replicas to these directories of their brokers; what became of each."""
    wanted: dict[int, dict[str, list[TopicPartition]]] = {}
    for place, path in targets.items():
        wanted.setdefault(place.broker, {}).setdefault(path, []).append(place.partition)
    requests = {
        broker: AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path,
                    topics=[
                        AlterReplicaLogDirTopic(name=topic, partitions=numbers) for topic, numbers in by_topic(one).items()
                    ],
                )
                for path, one in paths.items()
            ]
        )
        for broker, paths in wanted.items()
    }

    def alter() -> dict[Placement, ClientError | None]:
        found = {}
        answers: dict[int, AlterReplicaLogDirsResponse] = cluster.ask_each(requests)
        for broker, answer in answers.items():
            for topic in answer.results:
                for one in topic.partitions:
                    tp = TopicPartition(topic.topic_name, one.partition_index)
                    found[Placement(tp, broker)] = refusal(one.error_code, f"Partition {tp} was not moved on broker {broker}")
        return found

    return cluster.patiently(alter)
