"""A ZooKeeper that gives up dead sessions fast, and a look into its tree."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from kazoo.client import KazooClient

from support.kafka import ZooKeeper

SESSION_MS = 1000
"""What brokers ask for in tests: as short as this ZooKeeper allows."""


class QuickZooKeeper(ZooKeeper):
    """Looks after sessions every half second, so that they may be as short as `SESSION_MS`."""

    def properties(self) -> Mapping[str, object]:
        return {**super().properties(), "tickTime": SESSION_MS // 2}


@contextlib.contextmanager
def looking_at(zookeeper: ZooKeeper, root: str = "") -> Iterator[KazooClient]:
    """A client of ZooKeeper's own."""
    client = KazooClient(zookeeper.address + root)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def dump(client: KazooClient, path: str = "/") -> dict[str, tuple[bytes | None, bool]]:
    """Every node below `path`: its content, and whether it is ephemeral."""
    found: dict[str, tuple[bytes | None, bool]] = {}
    for name in client.get_children(path):
        child = f"{path.rstrip('/')}/{name}"
        if child != "/zookeeper":
            data, stat = client.get(child)
            found[child] = (data, stat.ephemeralOwner != 0)
            found |= dump(client, child)
    return found
