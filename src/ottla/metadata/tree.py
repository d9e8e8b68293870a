"""The tree of nodes that a store of one process keeps in memory: transactions are staged here, then applied. Pure.

Guards: `stage` changes nothing and refuses what the tree does not allow; `apply` takes over what was staged whole. Sequence
numbers under a parent only rise, also after their nodes are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.metadata.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Set,
    parents,
)


@dataclass(slots=True)
class Staged:
    """What a transaction would change (None: removed), the new versions, and which of the nodes are ephemeral."""

    nodes: dict[str, Node | None] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    ephemeral: set[str] = field(default_factory=set)


class Tree:
    """All nodes by path, and what lies below each."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = dict(nodes)
        self._children: dict[str, set[str]] = {}
        self._numbers: dict[str, int] = {}
        for path in self._nodes:
            self._link(path)

    def get(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def children(self, path: str) -> list[str]:
        return sorted(self._children.get(path, ()))

    def below(self, path: str) -> dict[str, Node]:
        """Every node below `path`."""
        return {child: self._nodes[child] for child in self._paths_below(path)}

    def _paths_below(self, path: str) -> Iterator[str]:
        pending = [path]
        while pending:
            parent = pending.pop()
            for name in sorted(self._children.get(parent, ())):
                child = f"{parent}/{name}"
                yield child
                pending.append(child)

    def stage(self, operations: Sequence[Operation], created: int = -1) -> Staged:
        """What the operations would change, or the StoreError of the first that may not be; `created` is their number."""
        staged = Staged()
        nodes = staged.nodes

        def current(path: str) -> Node | None:
            return nodes[path] if path in nodes else self._nodes.get(path)

        for operation in operations:
            path = operation.path
            if isinstance(operation, Create) and operation.sequential:
                path += f"{self._next_number(path, nodes):010d}"
            node = current(path)
            if isinstance(operation, Create):
                if node is not None:
                    raise NodeExists(path)
                for parent in parents(path):
                    if current(parent) is None:
                        nodes[parent] = Node(b"", 0, created, modified=created)
                nodes[path] = Node(operation.data, 0, created, modified=created)
                if operation.ephemeral:
                    staged.ephemeral.add(path)
                staged.versions.append(0)
                continue
            if node is None:
                raise NoNode(path)
            if operation.version not in (ANY_VERSION, node.version):
                raise BadVersion(path)
            if isinstance(operation, Set):
                nodes[path] = Node(operation.data or b"", node.version + 1, node.created, modified=created)
                staged.versions.append(node.version + 1)
            elif isinstance(operation, Delete):
                below = [*self._paths_below(path), *(one for one in nodes if one.startswith(path + "/"))]
                nodes.update(dict.fromkeys((*below, path)))
                staged.versions.append(0)
            else:
                assert isinstance(operation, Check)
                staged.versions.append(0)
        return staged

    def apply(self, staged: Staged) -> None:
        """Take over what was staged, with nothing in between."""
        for path, node in staged.nodes.items():
            if node is None:
                self._unlink(path)
            else:
                self._nodes[path] = node
                self._link(path)

    def _next_number(self, path: str, staged: Mapping[str, Node | None]) -> int:
        """The number that a sequential node at `path` gets."""
        parent, _, name = path.rpartition("/")
        siblings = {
            *self._children.get(parent, ()),
            *(one.rpartition("/")[2] for one in staged if one.startswith(parent + "/")),
        }
        numbers = (one[len(name) :] for one in siblings if one.startswith(name))
        highest = max((int(number) for number in numbers if number.isdecimal()), default=-1)
        number = max(highest + 1, self._numbers.get(path, 0))
        self._numbers[path] = number + 1
        return number

    def _link(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self._children.setdefault(parent, set()).add(name)

    def _unlink(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self._nodes.pop(path, None)
        self._children.get(parent, set()).discard(name)
        self._children.pop(path, None)
