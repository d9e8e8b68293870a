"""Which replica a consumer should read from. Pure.

Kafka's classes by their names: without `replica.selector.class` everybody reads from the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def preferred(rack: str, replicas: Sequence[tuple[int, int]], rack_of: Callable[[int], str | None]) -> int:
    """The replica in the reader's rack that has most, the leader before all others; the leader where none is there.

    `replicas` are brokers with the ends of their logs, the leader first.
    """
    leader = replicas[0][0]
    near = [(end, broker) for broker, end in replicas if rack_of(broker) == rack]
    if not near or rack_of(leader) == rack:
        return leader
    return max(near)[1]
