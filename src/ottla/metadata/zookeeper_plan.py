"""From a transaction of ours to one of ZooKeeper's, and from its results back. Pure.

Guards: ZooKeeper makes no parents and removes no subtrees, so both are written out as steps of the same transaction, from facts
that were read before (which parents are missing, what lies below). Where such a fact was no longer true the plan was stale:
read again, plan again. Every other refusal is the caller's, with the path of the operation that met it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, RolledBackError, RuntimeInconsistency
from kazoo.protocol import serialization
from kazoo.security import OPEN_ACL_UNSAFE

from ottla.metadata.store import BadVersion, Check, Create, Delete, NodeExists, NoNode, Operation, Set, StoreError, parents

_EPHEMERAL, _SEQUENTIAL = 1, 2
_ERRORS: Mapping[type[Exception], type[StoreError]] = {
    NodeExistsError: NodeExists,
    NoNodeError: NoNode,
    BadVersionError: BadVersion,
}


class Stale(Exception):
    """The tree changed between reading and writing: plan again."""


@dataclass(slots=True, frozen=True)
class Step:
    """One request of the transaction; `operation` is the index of what it stands for, None for what was added for its sake."""

    request: Any
    path: str
    operation: int | None


def wanted_parents(operations: Iterable[Operation]) -> dict[int, set[str]]:
    """The paths, by depth, of which the plan must know whether they exist."""
    made = {one.path for one in operations if isinstance(one, Create)}
    found: dict[int, set[str]] = {}
    for one in operations:
        if isinstance(one, Create):
            for depth, parent in enumerate(parents(one.path)):
                if parent not in made:
                    found.setdefault(depth, set()).add(parent)
    return found


def plan(
    operations: Sequence[Operation], missing: set[str], below: Mapping[str, Sequence[str]], at: Callable[[str], str]
) -> list[Step]:
    """The steps in order: `missing` parents are made, what is `below` a node (deepest first) goes first; `at` adds a root."""
    steps: list[Step] = []
    absent = set(missing)
    for index, one in enumerate(operations):
        if isinstance(one, Create):
            for parent in parents(one.path):
                if parent in absent:
                    absent.discard(parent)
                    steps.append(Step(_create(at(parent), b"", 0), parent, None))
            absent.discard(one.path)
            flags = (_EPHEMERAL if one.ephemeral else 0) | (_SEQUENTIAL if one.sequential else 0)
            steps.append(Step(_create(at(one.path), one.data, flags), one.path, index))
        elif isinstance(one, Set):
            steps.append(Step(serialization.SetData(at(one.path), one.data, one.version), one.path, index))
        elif isinstance(one, Delete):
            for path in below.get(one.path, ()):
                steps.append(Step(serialization.Delete(at(path), -1), path, None))
                absent.add(path)
            absent.add(one.path)
            steps.append(Step(serialization.Delete(at(one.path), one.version), one.path, index))
        else:
            assert isinstance(one, Check)
            steps.append(Step(serialization.CheckVersion(at(one.path), one.version), one.path, index))
    return steps


def _create(path: str, data: bytes, flags: int) -> Any:
    """A node without content has none at all, as Apache Kafka makes it: an empty one it would try to parse."""
    return serialization.Create(path, data or None, OPEN_ACL_UNSAFE, flags)


def versions(operations: Sequence[Operation], steps: Sequence[Step], results: Sequence[Any]) -> list[int]:
    """What `commit` answers; raises the StoreError of the operation that was refused, or Stale."""
    found = [0] * len(operations)
    for step, result in zip(steps, results, strict=True):
        if isinstance(result, RolledBackError | RuntimeInconsistency):
            continue  # not the one that failed
        if isinstance(result, Exception):
            raise _refusal(step, operations, result)
        if isinstance(result, serialization.ZnodeStat) and step.operation is not None:
            found[step.operation] = result.version
    return found


def _refusal(step: Step, operations: Sequence[Operation], problem: Exception) -> Exception:
    creating = step.operation is not None and isinstance(operations[step.operation], Create)
    parent_went = creating and isinstance(problem, NoNodeError)
    if step.operation is None or parent_went or isinstance(problem, NotEmptyError):
        return Stale(step.path)
    refusal = _ERRORS.get(type(problem))
    return refusal(step.path) if refusal is not None else problem
