"""Reading the cluster's truth from the store: what a controller begins with, and who lives.

Guards: what was decided without knowing that a broker had started again is told from what was decided knowing it. A controller
takes notice of a registration by writing its node once more, as it is, before it writes anything on that ground: a partition's
state that is older than the notice was written without that knowledge, whenever the broker registered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.controller import deletion
from ottla.controller.state import ClusterState
from ottla.metadata import znodes
from ottla.metadata.image import BrokerImage, Endpoint
from ottla.metadata.store import Check, Operation, Set, Store
from ottla.metadata.znodes import BrokerNode, PartitionStateNode, TopicNode
from ottla.model import TopicPartition

_AT_ONCE = 2500


class Living(NamedTuple):
    """Who is registered."""

    brokers: dict[int, BrokerImage]
    noticed: dict[int, int]
    """When a controller took notice of each (the number of that transaction); who is missing was noticed by none."""
    notice: list[Operation]
    """What takes notice of the others; it is refused if somebody registered meanwhile."""

    def known_at(self, broker: int, moment: int) -> bool:
        """Whether what was written then was written knowing of this life of a broker. A store of one process has no moments."""
        return self.brokers[broker].epoch < 0 or (broker in self.noticed and self.noticed[broker] <= moment)


async def read_world(store: Store, controller_epoch: int, living: Living) -> ClusterState:
    """Topics, partitions, and what is marked for deletion."""
    state = ClusterState(controller_epoch, living.brokers)
    names = await store.children(znodes.TOPICS)
    for name, node in zip(names, await store.nodes([f"{znodes.TOPICS}/{name}" for name in names]), strict=True):
        if node is not None:
            state.topics[name] = TopicNode.decode(name, node.data)
            state.topic_versions[name] = node.version
    partitions = [TopicPartition(name, number) for name, topic in state.topics.items() for number in topic.partitions]
    for begin in range(0, len(partitions), _AT_ONCE):  # there may be very many, and clients are served meanwhile
        await _read_states(store, state, living, partitions[begin : begin + _AT_ONCE])
    for name in await store.children(znodes.DELETE_TOPICS):
        if name in state.topics:
            deletion.mark(state, name)
    return state


async def _read_states(store: Store, state: ClusterState, living: Living, partitions: Sequence[TopicPartition]) -> None:
    """What was never led has no state yet."""
    nodes = await store.nodes([znodes.partition_state_path(*tp) for tp in partitions])
    for tp, node in zip(partitions, nodes, strict=True):
        if node is not None:
            state.states[tp] = decoded = PartitionStateNode.decode(node.data)
            state.state_versions[tp] = node.version
            restarted = {one for one in decoded.isr if one in living.brokers and not living.known_at(one, node.modified)}
            if restarted:
                state.restarted[tp] = restarted


async def read_brokers(store: Store) -> Living:
    """Who lives, and in which life."""
    parent = await store.get(znodes.BROKER_IDS)  # before what is below it: every registration writes it (`membership`)
    brokers: dict[int, BrokerImage] = {}
    noticed: dict[int, int] = {}
    notice: list[Operation] = []
    for path, node in (await store.subtree(znodes.BROKER_IDS)).items():
        broker = BrokerNode.decode(int(path.rpartition("/")[2]), node.data)
        brokers[broker.id] = _broker_image(broker, node.created)
        if node.modified > node.created:
            noticed[broker.id] = node.modified
        elif node.created >= 0:
            notice.append(Set(path, node.data, node.version))
    if notice and parent is not None:
        notice.insert(0, Check(znodes.BROKER_IDS, parent.version))
    return Living(dict(sorted(brokers.items())), noticed, notice)


def _broker_image(broker: BrokerNode, epoch: int) -> BrokerImage:
    endpoints: dict[str, Endpoint] = {}
    for endpoint in broker.endpoints:
        name, _, address = endpoint.partition("://")
        host, _, port = address.rpartition(":")
        endpoints[name] = Endpoint(host.strip("[]"), int(port), broker.protocols.get(name, name))
    return BrokerImage(broker.id, endpoints, broker.rack, epoch)
