"""Moves of replicas, worked out: what a file asks for, and who is slowed down meanwhile. Pure, but for the file.

Guards: a plan that names a broker twice for a partition, or not as many directories as replicas, is refused whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.cli.partition_files import read_partitions
from ottla.cli.tool import Failure, read_json
from ottla.client.admin.disks import Placement
from ottla.client.admin.topics import Reassignment
from ottla.model import TopicPartition

ANY_DIRECTORY = "any"

Assignment = Mapping[TopicPartition, Sequence[int]]


class Plan(NamedTuple):
    """Where partitions are to be, and in which directories where that matters."""

    replicas: dict[TopicPartition, list[int]]
    directories: dict[Placement, str]

    @property
    def topics(self) -> list[str]:
        return sorted({tp.topic for tp in self.replicas})


class Move(NamedTuple):
    """Who has the data of a partition, and who is to get them."""

    sources: frozenset[int]
    destinations: frozenset[int]


def read_plan(path: str) -> Plan:
    """The plan of a --reassignment-json-file."""
    option = "--reassignment-json-file"
    replicas: dict[TopicPartition, list[int]] = {}
    directories: dict[Placement, str] = {}
    for tp, entry in sorted(read_partitions(path, option, "replicas").items()):
        brokers = entry["replicas"]
        if not brokers or not all(isinstance(broker, int) for broker in brokers):
            raise Failure(f"{option} {path}: partition {tp} needs a list of the ids of brokers as its replicas.")
        if len(set(brokers)) != len(brokers):
            raise Failure(f"{option} {path} names a broker twice for partition {tp}.")
        places = entry.get("log_dirs", [ANY_DIRECTORY] * len(brokers))
        if not isinstance(places, list) or len(places) != len(brokers):
            raise Failure(f"{option} {path}: partition {tp} needs as many log_dirs as it has replicas.")
        replicas[tp] = brokers
        for broker, place in zip(brokers, places, strict=True):
            if place != ANY_DIRECTORY:
                directories[Placement(tp, broker)] = str(place)
    if not replicas:
        raise Failure(f"{option} {path} names no partitions.")
    return Plan(replicas, directories)


def read_topics(path: str) -> list[str]:
    """The topics of a --topics-to-move-json-file."""
    option = "--topics-to-move-json-file"
    entries = read_json(path, option).get("topics")
    if not isinstance(entries, list) or not all(isinstance(one, dict) and isinstance(one.get("topic"), str) for one in entries):
        raise Failure(f'{option} {path} is not valid: allowed is {{"topics": [{{"topic": "NAME"}}], "version": 1}}')
    names = [one["topic"] for one in entries]
    if not names:
        raise Failure(f"{option} {path} names no topics.")
    if len(set(names)) != len(names):
        raise Failure(f"{option} {path} names a topic twice.")
    return names


def as_file(assignment: Assignment) -> dict[str, Any]:
    """The form in which a file would ask for this."""
    return {
        "version": 1,
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "replicas": list(replicas),
                "log_dirs": [ANY_DIRECTORY] * len(replicas),
            }
            for tp, replicas in sorted(assignment.items())
        ],
    }


# ---- throttles -----------------------------------------------------------------------------------------------------------


def moves(
    under_way: Mapping[TopicPartition, Reassignment], wanted: Assignment, current: Assignment
) -> dict[TopicPartition, Move]:
    """What is moving already, and what will be. Who is only now getting a partition is no source of it."""
    found = {tp: Move(frozenset(one.replicas) - frozenset(one.adding), frozenset(one.adding)) for tp, one in under_way.items()}
    for tp, replicas in wanted.items():
        sources = found[tp].sources if tp in found else frozenset(current[tp])
        found[tp] = Move(sources, frozenset(replicas) - sources)
    return found


def leader_throttles(moving: Mapping[TopicPartition, Move]) -> dict[str, str]:
    """By topic, the replicas that are slowed down in sending."""
    return _throttled((tp, broker) for tp, one in moving.items() for broker in one.sources)


def follower_throttles(moving: Mapping[TopicPartition, Move]) -> dict[str, str]:
    """By topic, the replicas that are slowed down in receiving."""
    return _throttled((tp, broker) for tp, one in moving.items() for broker in one.destinations)


def _throttled(replicas: Iterable[tuple[TopicPartition, int]]) -> dict[str, str]:
    topics: dict[str, set[str]] = {}
    for tp, broker in replicas:
        topics.setdefault(tp.topic, set()).add(f"{tp.partition}:{broker}")
    return {topic: ",".join(sorted(found)) for topic, found in topics.items()}


def brokers_of(moving: Mapping[TopicPartition, Move]) -> list[int]:
    """All that send or receive."""
    return sorted({broker for one in moving.values() for broker in one.sources | one.destinations})
