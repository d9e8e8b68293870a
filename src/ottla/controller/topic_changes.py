"""Topics come and grow: what is asked for, checked and laid out, then written whole and told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ottla.config import ConfigError, check_topic_settings
from ottla.controller import assignment, state, topic_rules
from ottla.controller.reign import Reign
from ottla.controller.topic_rules import NewTopic, new_id
from ottla.metadata import znodes
from ottla.metadata.image import PartitionState, TopicImage
from ottla.metadata.store import Create, NodeExists, Operation, Set
from ottla.metadata.znodes import TopicNode
from ottla.model import Error, KafkaError, TopicPartition

log = logging.getLogger("ottla.controller")

Results = dict[str, TopicImage | KafkaError]
SettingsWritten = Callable[[str, Mapping[str, str]], None]


async def create_topics(
    reign: Reign, topics: Sequence[NewTopic], validate_only: bool, settings_written: SettingsWritten
) -> Results:
    """Create each topic or say why not; each stands for itself."""
    results: Results = {}
    layouts: dict[str, TopicNode] = {}
    room = topic_rules.MAX_NEW_PARTITIONS
    for wanted in topics:
        try:
            layouts[wanted.name] = made = _lay_out(reign, wanted, room, layouts)
            room -= len(made.partitions)
        except KafkaError as error:
            results[wanted.name] = error
    if validate_only:
        return results | {name: _planned(topic) for name, topic in layouts.items()}
    if not layouts:
        return results
    created = [wanted for wanted in topics if wanted.name in layouts and wanted.name not in results]
    await _write_new(reign, created, layouts)
    for wanted in created:
        settings_written(wanted.name, wanted.config)
    new = [TopicPartition(name, partition) for name, topic in layouts.items() for partition in topic.partitions]
    reign.tell(new, new=frozenset(new))
    log.info(
        "Created %s", ", ".join(f"topic {name} with {len(topic.partitions)} partitions" for name, topic in layouts.items())
    )
    return results | {name: reign.state.image_of(name) for name in layouts}


async def _write_new(reign: Reign, created: Sequence[NewTopic], layouts: Mapping[str, TopicNode]) -> None:
    nodes = await _first_nodes(reign, created, layouts)
    writes: list[state.WriteState] = []
    for name, topic in layouts.items():
        writes += state.partitions_created(reign.state, name, topic.partitions)
    await reign.write(writes, nodes)
    for name, topic in layouts.items():
        reign.state.topics[name] = topic
        reign.state.topic_versions[name] = 0


async def _first_nodes(reign: Reign, topics: Sequence[NewTopic], layouts: Mapping[str, TopicNode]) -> list[Operation]:
    """New topics and their settings; those that an earlier topic of a name left behind are replaced."""
    left_behind = frozenset(await reign.store.children(znodes.TOPIC_CONFIGS))
    operations: list[Operation] = []
    for wanted in topics:
        path, data = f"{znodes.TOPIC_CONFIGS}/{wanted.name}", znodes.encode_config(wanted.config)
        node = layouts[wanted.name]
        operations.append(Set(path, data) if wanted.name in left_behind else Create(path, data))
        operations.append(Create(node.path, node.encode()))
    return operations


def _lay_out(reign: Reign, wanted: NewTopic, room: int, others: Mapping[str, TopicNode]) -> TopicNode:
    """The topic's node, or the reason why it may not be."""
    known = reign.state.topics
    topic_rules.check_name(wanted.name)
    if wanted.name in reign.state.deleting:
        raise KafkaError(Error.TOPIC_ALREADY_EXISTS, f"Topic '{wanted.name}' is marked for deletion.")
    if wanted.name in known or wanted.name in others:
        raise KafkaError(Error.TOPIC_ALREADY_EXISTS, f"Topic '{wanted.name}' already exists.")
    topic_rules.check_collision(wanted.name, [*known, *others])
    try:
        check_topic_settings(wanted.config.items())
    except ConfigError as problem:
        raise KafkaError(Error.INVALID_CONFIG, str(problem)) from None
    if wanted.assignment:
        topic_rules.check_assignment(wanted.assignment, reign.state.brokers)
        layout = dict(wanted.assignment)
    else:
        if wanted.partitions <= 0:
            raise KafkaError(Error.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
        topic_rules.check_new_partitions(wanted.partitions, room)
        if wanted.replication_factor <= 0:
            raise KafkaError(Error.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
        layout = assignment.assign(reign.state.racks, wanted.partitions, wanted.replication_factor, reign.random)
    return TopicNode(wanted.name, new_id(reign.random), layout)


async def create_partitions(
    reign: Reign, name: str, count: int, new_assignments: Sequence[tuple[int, ...]] | None, validate_only: bool
) -> None:
    """Grow a topic to `count` partitions."""
    topic = reign.state.topics.get(name)
    if topic is None or name in reign.state.deleting:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    existing = len(topic.partitions)
    if count < existing:
        raise KafkaError(
            Error.INVALID_PARTITIONS,
            f"The topic {name} currently has {existing} partition(s); {count} would not be an increase.",
        )
    if count == existing:
        raise KafkaError(Error.INVALID_PARTITIONS, f"Topic already has {existing} partition(s).")
    if topic.adding or topic.removing:
        raise KafkaError(Error.REASSIGNMENT_IN_PROGRESS, f"A partition reassignment is in progress for the topic '{name}'.")
    topic_rules.check_new_partitions(count - existing)
    added = _added(reign, topic, count, new_assignments)
    if validate_only:
        return
    grown = replace(topic, partitions={**topic.partitions, **added})
    version = reign.state.topic_versions[name]
    await reign.write(state.partitions_created(reign.state, name, added), [Set(grown.path, grown.encode(), version)])
    reign.state.topics[name] = grown
    reign.state.topic_versions[name] = version + 1
    new = [TopicPartition(name, partition) for partition in added]
    reign.tell(new, new=frozenset(new))
    log.info("Topic %s grew from %d to %d partitions", name, existing, count)


def _added(
    reign: Reign, topic: TopicNode, count: int, new_assignments: Sequence[tuple[int, ...]] | None
) -> dict[int, tuple[int, ...]]:
    existing = len(topic.partitions)
    if new_assignments is None:
        factor = len(topic.partitions[0])
        return assignment.assign(reign.state.racks, count - existing, factor, reign.random, existing)
    if len(new_assignments) != count - existing:
        raise KafkaError(
            Error.INVALID_REPLICA_ASSIGNMENT,
            f"Increasing by {count - existing} partitions, but {len(new_assignments)} assignments provided.",
        )
    added = {existing + at: replicas for at, replicas in enumerate(new_assignments)}
    topic_rules.check_assignment(added, reign.state.brokers, existing)
    return added


async def mark_for_deletion(reign: Reign, name: str) -> None:
    """Mark a topic first, so that a crash in between is finished by the next controller."""
    if name not in reign.state.topics:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    if name not in reign.state.deleting:
        try:
            await reign.commit([Create(f"{znodes.DELETE_TOPICS}/{name}")])
        except NodeExists:
            pass


def _planned(topic: TopicNode) -> TopicImage:
    """A topic that is only tried: it has no id."""
    partitions = {
        number: PartitionState(replicas[0], state.FIRST_LEADER_EPOCH, replicas, replicas)
        for number, replicas in topic.partitions.items()
    }
    return TopicImage(topic.name, bytes(16), partitions)
