"""Topics found on disk that the metadata does not know: a directory that came from another broker. Pure.

The store of a cluster of one lives in the log directory itself, so this happens when somebody starts Ottla over a directory of
Apache Kafka, whose metadata is in its ZooKeeper. Each topic found is taken over with its id and all its partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ottla.metadata import znodes
from ottla.metadata.store import Create, Operation
from ottla.metadata.znodes import PartitionStateNode, TopicNode
from ottla.model import TopicPartition


@dataclass(slots=True, frozen=True)
class FoundLog:
    """What a partition's directory tells of itself."""

    topic_id: bytes | None
    latest_epoch: int


KEEP_EVERYTHING = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The settings of an adopted topic, whose own are not known: nothing is deleted before somebody says so."""


def adopt(
    found: Mapping[TopicPartition, FoundLog],
    known: Collection[str],
    broker_id: int,
    new_topic_id: bytes,
    settings_of: Callable[[str], Mapping[str, str]],
) -> tuple[str, list[Operation]] | None:
    """The first unknown topic and what to write for it; None when all are known. `settings_of` knows the internal topics'."""
    unknown = sorted({tp.topic for tp in found if tp.topic not in known})
    if not unknown:
        return None
    name = unknown[0]
    logs = {tp.partition: log for tp, log in found.items() if tp.topic == name}
    topic_id = next((log.topic_id for log in logs.values() if log.topic_id), None) or new_topic_id
    # A gap is a partition that another broker held: it exists, empty, so that numbers and key hashing stay as they were.
    count = max(logs) + 1
    topic = TopicNode(name, topic_id, dict.fromkeys(range(count), (broker_id,)))
    operations: list[Operation] = [
        Create(f"{znodes.TOPIC_CONFIGS}/{name}", znodes.encode_config(settings_of(name) or KEEP_EVERYTHING)),
        Create(topic.path, topic.encode()),
    ]
    for partition in range(count):
        latest = logs[partition].latest_epoch if partition in logs else -1
        state = PartitionStateNode(broker_id, latest + 1, (broker_id,), 0)
        operations.append(Create(znodes.partition_state_path(name, partition), state.encode()))
    return name, operations
