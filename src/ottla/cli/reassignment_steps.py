"""What `ottla reassign-partitions` asks of a cluster: what stands where, how far moves are, and throttles on and off."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.cli.reassignment_plan import Move, Plan, brokers_of, follower_throttles, leader_throttles
from ottla.cli.tool import Failure
from ottla.client.admin.configs import BROKER, DELETE, TOPIC, Change, Resource, alter_configs
from ottla.client.admin.disks import Placement, alter_replica_log_dirs, describe_log_dirs
from ottla.client.admin.topics import list_reassignments
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.model import Error, TopicPartition

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
DIRECTORY_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
_PAUSE = 0.1


class PartitionState(NamedTuple):
    """How far the move of a partition is. One that does not exist has no replicas."""

    under_way: bool
    replicas: tuple[int, ...]
    wanted: tuple[int, ...]

    @property
    def done(self) -> bool:
        return not self.under_way and self.replicas == self.wanted


class DirectoryState(NamedTuple):
    """How far a move between directories is; a directory is None where the replica is not in one, or not on its way to one."""

    current: str | None
    future: str | None
    wanted: str

    @property
    def under_way(self) -> bool:
        return self.future is not None


def assignment_of(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, ...]]:
    """Where partitions are. Raises for one that does not exist."""
    wanted = list(partitions)
    topics = cluster.topics({tp.topic for tp in wanted})
    found = {}
    for tp in wanted:
        known = topics[tp.topic].partitions
        if tp.partition not in known:
            raise Failure(f"Partition {tp} does not exist: the topic has {len(known)} partitions, from 0 on.")
        found[tp] = known[tp.partition].replicas
    return found


def partition_states(cluster: Cluster, plan: Plan) -> tuple[dict[TopicPartition, PartitionState], bool]:
    """How far the moves of a plan are, and whether anything is moving in the cluster."""
    moving = list_reassignments(cluster)
    topics = cluster.topics()
    states = {}
    for tp, wanted in plan.replicas.items():
        known = topics[tp.topic].partitions.get(tp.partition) if tp.topic in topics else None
        replicas = moving[tp].replicas if tp in moving else known.replicas if known is not None else ()
        states[tp] = PartitionState(tp in moving, replicas, tuple(wanted))
    return states, bool(moving)


def directory_states(cluster: Cluster, directories: Mapping[Placement, str]) -> dict[Placement, DirectoryState]:
    """How far moves between directories are."""
    if not directories:
        return {}
    current: dict[Placement, str] = {}
    future: dict[Placement, str] = {}
    brokers = {place.broker for place in directories} & cluster.brokers().keys()
    for broker, found in describe_log_dirs(cluster, brokers, {place.partition for place in directories}).items():
        for one in found:
            for replica in one.replicas:
                (future if replica.future else current)[Placement(replica.partition, broker)] = one.path
    return {place: DirectoryState(current.get(place), future.get(place), path) for place, path in directories.items()}


def start_directory_moves(cluster: Cluster, directories: Mapping[Placement, str], timeout_ms: int) -> None:
    """Have brokers move replicas between directories. A replica that is still to come is waited for."""
    deadline = time.monotonic() + timeout_ms / 1000
    left = dict(directories)
    while True:
        outcomes = alter_replica_log_dirs(cluster, left)
        for place, refused in outcomes.items():
            if refused is None:
                del left[place]
            elif refused.error != Error.REPLICA_NOT_AVAILABLE:
                raise refused
        if not left:
            return
        if time.monotonic() >= deadline:
            late = ", ".join(map(shown, sorted(left)))
            raise Failure(f"Timed out before these moves between directories could be started: {late}")
        time.sleep(_PAUSE)


def shown(place: Placement) -> str:
    """A replica as Apache's tool calls it."""
    return f"{place.partition}-{place.broker}"


# ---- throttles -----------------------------------------------------------------------------------------------------------


def throttle(cluster: Cluster, moving: Mapping[TopicPartition, Move], rate: int) -> None:
    """Slow down these moves, and nothing else."""
    changes: dict[Resource, list[Change]] = {}
    for setting, found in ((LEADER_REPLICAS, leader_throttles(moving)), (FOLLOWER_REPLICAS, follower_throttles(moving))):
        for topic, replicas in found.items():
            changes.setdefault((TOPIC, topic), []).append(Change(setting, replicas))
    for broker in brokers_of(moving):
        changes[BROKER, str(broker)] = [Change(LEADER_RATE, str(rate)), Change(FOLLOWER_RATE, str(rate))]
    _change(cluster, changes)


def throttle_directories(cluster: Cluster, brokers: Iterable[int], rate: int) -> None:
    """Slow down moves between the directories of these brokers."""
    _change(cluster, {(BROKER, str(broker)): [Change(DIRECTORY_RATE, str(rate))] for broker in set(brokers)})


def clear_throttles(cluster: Cluster, brokers: Sequence[int], topics: Sequence[str]) -> None:
    """Take back what a move needed."""
    rates = [Change(name, None, DELETE) for name in (LEADER_RATE, FOLLOWER_RATE, DIRECTORY_RATE)]
    replicas = [Change(name, None, DELETE) for name in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
    changes: dict[Resource, list[Change]] = {(BROKER, str(broker)): rates for broker in brokers}
    _change(cluster, changes | {(TOPIC, topic): replicas for topic in topics})


def _change(cluster: Cluster, changes: Mapping[Resource, Sequence[Change]]) -> None:
    raise_any(alter_configs(cluster, changes).values())


def raise_any(outcomes: Iterable[ClientError | None]) -> None:
    """The first refusal, if there is one."""
    for refused in outcomes:
        if refused is not None:
            raise refused
