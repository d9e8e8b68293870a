"""A broker's place in the cluster: the nodes that all brokers expect, a number of its own, and its registration.

Guards: a broker id has one owner. A node that our own earlier process left behind (kill -9) goes when ZooKeeper ends that
session, which is waited for; one that is still there after a session's time belongs to a broker that lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ottla.clock import Clock
from ottla.metadata import znodes
from ottla.metadata.store import Create, NodeExists, NoNode, Operation, Set, Store, UnusableStore
from ottla.metadata.znodes import BrokerNode

log = logging.getLogger("ottla.metadata")

_LOOK_EVERY = 0.1
# ZooKeeper ends sessions in rounds of its tickTime, 2 or 3 seconds: a dead one may outlive its timeout by that.
_GRACE = 4.0


class NotAdmitted(UnusableStore):
    """The cluster has no place for this broker."""


async def prepare(store: Store) -> None:
    """Make the nodes that every broker expects, where they are missing."""
    nodes = [*(Create(path) for path in znodes.PERSISTENT_PATHS), Create(znodes.FEATURE, znodes.encode_feature())]
    missing = [node for node in nodes if await store.get(node.path) is None]
    try:
        if missing:
            await store.commit(missing)
    except NodeExists:
        await prepare(store)  # another broker starts too, and was faster


async def next_sequence(store: Store) -> int:
    """A number that no broker had before, from 1: how often the node was written."""
    write: Sequence[Operation] = [Set(znodes.BROKER_SEQUENCE, b"")]
    try:
        return (await store.commit(write))[0]
    except NoNode:
        await prepare(store)
        return (await store.commit(write))[0]


async def register(store: Store, node: BrokerNode, session_timeout_ms: int, clock: Clock) -> int:
    """Enter a broker among the living; its epoch. Raises NotAdmitted if another one lives under its id."""
    deadline = clock.monotonic() + session_timeout_ms / 1000 + _GRACE
    waiting = False
    while True:
        try:
            # The parent is written too, as it is: a controller that had read who lives sees that it is not so any more.
            await store.commit([Create(node.path, node.encode(), ephemeral=True), Set(znodes.BROKER_IDS, None)])
        except NodeExists:
            pass
        there = await store.get(node.path)
        if there is None:
            continue  # the other one left at this very moment
        if there.ours or not store.shared:
            return there.created
        if clock.monotonic() >= deadline:
            where = ", ".join(BrokerNode.decode(node.id, there.data).endpoints)
            raise NotAdmitted(f"broker id {node.id} is in use by another broker, at {where}: stop it, or set another broker.id")
        if not waiting:
            waiting = True
            log.warning(
                "Broker id %d is still registered: waiting up to %.0f s for ZooKeeper to end the session of our last run",
                node.id, deadline - clock.monotonic(),
            )  # fmt: skip
        await asyncio.sleep(_LOOK_EVERY)
