"""Who this broker is, and which topics its directories bring along: what is settled before it registers.

Guards: a broker id and a cluster id, once given, stay with the directories. Topics that lie in the directories and that the
metadata does not know are taken over where the metadata are this broker's own; a shared store is the truth about topics for
everybody, and what it does not know is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

from ottla.config import BrokerConfig
from ottla.controller.adoption import FoundLog, adopt
from ottla.controller.topic_rules import internal_settings, new_id
from ottla.metadata import membership, znodes
from ottla.metadata.store import Create, NodeExists, Store, in_pieces
from ottla.metadata.znodes import TopicNode
from ottla.storage import checkpoints
from ottla.storage.manager import LogManager

log = logging.getLogger("ottla.broker")


async def identify(
    config: BrokerConfig, store: Store, logs: LogManager, random: Random, run_blocking: Callable[..., Awaitable[Any]]
) -> tuple[int, str]:
    """Our broker id and cluster id: from the settings, from an earlier start, or new."""
    metas = [meta for path in logs.dirs if (meta := checkpoints.read_meta_properties(path)) is not None]
    wanted = config.integer("broker.id")
    stored = metas[0].broker_id if metas else -1
    if wanted >= 0:
        broker_id = wanted
    elif stored >= 0:
        broker_id = stored
    else:
        number = await membership.next_sequence(store) if store.shared else 1
        broker_id = config.integer("reserved.broker.max.id") + number
    logs.broker_id = broker_id
    cluster_id = await _cluster_id(store, logs, random)
    await run_blocking(logs.claim, cluster_id)
    return broker_id, cluster_id


async def _cluster_id(store: Store, logs: LogManager, random: Random) -> str:
    while True:
        node = await store.get(znodes.CLUSTER_ID)
        if node is not None:
            return znodes.decode_cluster_id(node.data)
        chosen = logs.stored_cluster_id() or znodes.encode_id(new_id(random))
        try:
            await store.commit([Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(chosen))])
        except NodeExists:
            continue  # another broker starts too, and was faster
        return chosen


async def topic_ids(store: Store) -> dict[str, bytes]:
    """The topics that the metadata knows, and their ids."""
    names = await store.children(znodes.TOPICS)
    nodes = await store.nodes([f"{znodes.TOPICS}/{name}" for name in names])
    return {
        name: TopicNode.decode(name, node.data).topic_id for name, node in zip(names, nodes, strict=True) if node is not None
    }


async def adopt_logs(config: BrokerConfig, store: Store, logs: LogManager, broker_id: int, random: Random) -> None:
    """Take over topics that lie in the directories and are not in our metadata."""
    if store.shared:
        return
    settings_of = partial(internal_settings, config)
    found = {tp: FoundLog(one.topic_id, one.leader_epochs.latest) for tp, one in logs.logs.items()}
    while adopted := adopt(found, await store.children(znodes.TOPICS), broker_id, new_id(random), settings_of):
        name, operations = adopted
        for piece in in_pieces(operations):
            await store.commit(piece)
        log.warning(
            "Found topic %s in the data directory without metadata: taken over with default settings, but kept for ever "
            "(retention.ms=-1, retention.bytes=-1) until you set its retention",
            name,
        )
