"""Moving a partition to other brokers (KIP-455): an assignment with replicas that come and replicas that leave. Pure.

Guards: a replica leaves only when every replica of the target is in sync; leader and ISR are never outside the assignment. Life
of a reassignment, all of it in the topic's node, so that any controller goes on with it: `begun` adds the target's replicas to
the assignment; when all of the target are in sync, `switched` cuts assignment and ISR down to it; those that left (in
`removing`, but no longer among the replicas) delete their data; then `forgotten`. Going back is a reassignment to the origin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ottla.metadata.znodes import PartitionStateNode, TopicNode
from ottla.model import NO_LEADER, Error, KafkaError


@dataclass(slots=True, frozen=True)
class Assignment:
    """One partition's replicas, and which of them come or leave."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas at the end."""
        return tuple(one for one in self.replicas if one not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas at the beginning, as far as their order is known."""
        return tuple(one for one in self.replicas if one not in self.adding)

    @property
    def left(self) -> tuple[int, ...]:
        """Replicas that are no longer part of the partition and have their data to delete."""
        return tuple(one for one in self.removing if one not in self.replicas)

    @property
    def moving(self) -> bool:
        """Whether replicas come or leave still."""
        return bool(self.adding) or any(one in self.replicas for one in self.removing)

    @property
    def in_progress(self) -> bool:
        return bool(self.adding or self.removing)


def assignment_of(topic: TopicNode, partition: int) -> Assignment:
    """A partition's part of the topic's node."""
    return Assignment(topic.partitions[partition], topic.adding.get(partition, ()), topic.removing.get(partition, ()))


def with_assignments(topic: TopicNode, assignments: Mapping[int, Assignment]) -> TopicNode:
    """The topic's node with other assignments of some partitions."""
    adding, removing = dict(topic.adding), dict(topic.removing)
    for partition, assignment in assignments.items():
        for part, members in ((adding, assignment.adding), (removing, assignment.removing)):
            part.pop(partition, None)
            if members:
                part[partition] = members
    replicas = {partition: assignment.replicas for partition, assignment in assignments.items()}
    return replace(topic, partitions={**topic.partitions, **replicas}, adding=adding, removing=removing)


def check_target(target: Sequence[int], current: Assignment, live: Collection[int]) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT for replicas that cannot be."""

    def refuse(problem: str) -> KafkaError:
        return KafkaError(Error.INVALID_REPLICA_ASSIGNMENT, problem)

    if not target:
        raise refuse("Empty replica list specified in partition reassignment.")
    if len(set(target)) != len(target):
        raise refuse(f"Duplicate replica ids in partition reassignment replica list: {list(target)}")
    if min(target) < 0:
        raise refuse(f"Invalid broker id in replica list: {list(target)}")
    dead = sorted(set(target).difference(current.origin, live))
    if dead:
        raise refuse(f"Replica assignment has brokers that are not alive. Replica list: {list(target)}, not alive: {dead}")


def begun(
    current: Assignment, node: PartitionStateNode, target: tuple[int, ...], live: Collection[int], controller_epoch: int
) -> tuple[Assignment, PartitionStateNode]:
    """Assignment and state when a reassignment begins, over one that may be under way; complete if nothing has to be awaited.

    `live` may lead. Raises INVALID_REPLICA_ASSIGNMENT if all that is in sync would have to leave.
    """
    origin = current.origin
    replicas = (*target, *(one for one in origin if one not in target))
    leaving = tuple(one for one in origin if one not in target)
    unwanted = tuple(one for one in (*current.replicas, *current.left) if one not in replicas)
    wanted = Assignment(replicas, tuple(one for one in target if one not in origin), (*leaving, *unwanted))
    changed = None
    if wanted.moving and set(target) <= set(node.isr):
        done = replace(wanted, replicas=wanted.target, adding=())
        changed = _cut(done, node, live, controller_epoch)
        if changed is not None:
            return done, changed
    changed = _cut(wanted, node, live, controller_epoch)
    if changed is None:
        raise KafkaError(
            Error.INVALID_REPLICA_ASSIGNMENT,
            f"None of the in-sync replicas {list(node.isr)} would be left to lead the partition among {list(replicas)}.",
        )
    return wanted, changed


def switched(
    current: Assignment, node: PartitionStateNode, live: Collection[int], controller_epoch: int
) -> tuple[Assignment, PartitionStateNode] | None:
    """Assignment and state when all of the target are in sync; None while there is something to wait for."""
    if not current.moving or not set(current.target) <= set(node.isr):
        return None
    done = replace(current, replicas=current.target, adding=())
    changed = _cut(done, node, live, controller_epoch)
    return (done, changed) if changed is not None else None


def forgotten(current: Assignment) -> Assignment:
    """The assignment when those that left have no data any more."""
    return replace(current, removing=tuple(one for one in current.removing if one in current.replicas))


def _cut(
    assignment: Assignment, node: PartitionStateNode, live: Collection[int], controller_epoch: int
) -> PartitionStateNode | None:
    """The state with leader and ISR inside the assignment; None if nobody there could lead."""
    isr = tuple(one for one in node.isr if one in assignment.replicas)
    if not isr:
        return None
    leader = node.leader
    if leader != NO_LEADER and leader not in assignment.replicas:
        found = next((one for one in assignment.replicas if one in isr and one in live), None)
        if found is None:
            return None
        leader = found
    return PartitionStateNode(leader, node.leader_epoch + 1, isr, controller_epoch)
