"""Which store a broker works over: ZooKeeper if its settings name one, else the file in its first log directory."""

from __future__ import annotations

import os

from ottla.clock import Clock
from ottla.config import BrokerConfig
from ottla.metadata.embedded import FILE_NAME, EmbeddedStore, RunBlocking
from ottla.metadata.store import Store, UnusableStore


async def open_store(config: BrokerConfig, home: str, clock: Clock, run_blocking: RunBlocking) -> Store:
    """Open the store, or raise UnusableStore with one line."""
    address = config.text("zookeeper.connect")
    if not address:
        return EmbeddedStore(os.path.join(home, FILE_NAME), run_blocking)
    try:
        from ottla.metadata.zookeeper import ZooKeeperStore  # noqa: PLC0415 - needs kazoo, which only a cluster does
    except ModuleNotFoundError as missing:
        raise UnusableStore(
            f"zookeeper.connect={address} needs the package {missing.name}: pip install ottla[cluster]"
        ) from None
    session_timeout = config.integer("zookeeper.session.timeout.ms")
    patience = config["zookeeper.connection.timeout.ms"]
    store = ZooKeeperStore(address, session_timeout, config.integer("zookeeper.max.in.flight.requests"), clock, run_blocking)
    try:
        await store.open(patience if isinstance(patience, int) else session_timeout)
    except BaseException:
        await store.close()
        raise
    return store
