"""What a topic may be called and how it may be laid out: the checks before anything is written. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from ottla.config import BrokerConfig
from ottla.metadata.znodes import encode_id
from ottla.model import Error, KafkaError

MAX_NAME_LENGTH = 249
MAX_NEW_PARTITIONS = 10_000
"""In one request. Apache Kafka's newer controllers have this bound too: a slip of the hand must not fill a disk."""
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


@dataclass(slots=True, frozen=True)
class NewTopic:
    """A topic that somebody wants."""

    name: str
    partitions: int
    replication_factor: int
    assignment: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)


def new_id(random: Random) -> bytes:
    """A random (version 4) UUID whose text form does not begin with a dash, which command lines would take for an option."""
    while True:
        value = bytearray(random.randbytes(16))
        value[6] = value[6] & 0x0F | 0x40
        value[8] = value[8] & 0x3F | 0x80
        if not encode_id(bytes(value)).startswith("-"):
            return bytes(value)


def internal_settings(config: BrokerConfig, name: str) -> dict[str, str]:
    """What an internal topic is created with; nothing for any other topic."""
    if name not in INTERNAL_TOPICS:
        return {}
    return {
        "cleanup.policy": "compact",
        "compression.type": "producer" if name == "__consumer_offsets" else "uncompressed",
        "segment.bytes": str(config.integer(f"{internal_prefix(name)}.segment.bytes")),
    }


def internal_prefix(name: str) -> str:
    """How the broker's settings for an internal topic begin."""
    return "offsets.topic" if name == "__consumer_offsets" else "transaction.state.log"


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for a name that Kafka does not allow."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = "'.' or '..' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        problem = f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif not _LEGAL.match(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise KafkaError(Error.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def check_collision(name: str, existing: Collection[str]) -> None:
    """`a.b` and `a_b` would share a metric's name: only one of them may exist."""
    if "." not in name and "_" not in name:
        return
    folded = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == folded:
            raise KafkaError(Error.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topics: {other}")


def check_new_partitions(count: int, room: int = MAX_NEW_PARTITIONS) -> None:
    """Raise POLICY_VIOLATION for more partitions than one request may ask for, of which `room` are left."""
    if count > room:
        raise KafkaError(
            Error.POLICY_VIOLATION,
            f"Excessively large number of partitions per request: at most {MAX_NEW_PARTITIONS} are allowed.",
        )


def check_assignment(assignment: Mapping[int, Sequence[int]], brokers: Collection[int], first_partition: int = 0) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT for a layout that cannot be."""

    def refuse(problem: str) -> KafkaError:
        return KafkaError(Error.INVALID_REPLICA_ASSIGNMENT, problem)

    if sorted(assignment) != list(range(first_partition, first_partition + len(assignment))):
        raise refuse(f"Partitions should be a consecutive {first_partition}-based integer sequence")
    sizes = {len(replicas) for replicas in assignment.values()}
    if sizes == {0} or 0 in sizes:
        raise refuse("A partition needs at least one replica")
    if len(sizes) > 1:
        raise refuse("All partitions should have the same number of replicas")
    for partition, replicas in assignment.items():
        if len(set(replicas)) != len(replicas):
            raise refuse(f"Duplicate replica assignment found for partition {partition}: {list(replicas)}")
        unknown = sorted(set(replicas) - set(brokers))
        if unknown:
            raise refuse(f"Unknown broker(s) {unknown} in the assignment of partition {partition}")
