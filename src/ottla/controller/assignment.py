"""Where the replicas of a new partition go: spread evenly over brokers, and over racks where they are known. Pure.

Leaders go round the brokers from a random start, so that many small topics do not pile up on the first; the further replicas
are shifted against each other, so that the load of a failed broker spreads over all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from ottla.model import Error, KafkaError


def assign(
    brokers: Mapping[int, str | None], partitions: int, replication_factor: int, random: Random, first_partition: int = 0
) -> dict[int, tuple[int, ...]]:
    """Replicas for `partitions` partitions, numbered from `first_partition`."""
    if replication_factor > len(brokers):
        raise KafkaError(
            Error.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available brokers: {len(brokers)}.",
        )
    order = _by_alternating_racks(brokers)
    count = len(order)
    start = random.randrange(count)
    shift = random.randrange(count)
    result: dict[int, tuple[int, ...]] = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % count == 0:
            shift += 1
        leader_at = (partition + start) % count
        replicas = [order[leader_at]]
        racks = {brokers[replicas[0]]}
        candidates = [order[(leader_at + 1 + (shift + step) % (count - 1)) % count] for step in range(count - 1)]
        # A rack is used again only when every rack has a replica; a broker without a rack counts as a rack of its own.
        for distinct_rack in (True, False):
            for broker in candidates:
                if len(replicas) == replication_factor:
                    break
                rack = brokers[broker]
                if broker in replicas or (distinct_rack and rack is not None and rack in racks):
                    continue
                replicas.append(broker)
                racks.add(rack)
        result[partition] = tuple(replicas)
    return result


def _by_alternating_racks(brokers: Mapping[int, str | None]) -> list[int]:
    """Brokers ordered so that neighbours are in different racks as far as possible."""
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(brokers):
        racks.setdefault(brokers[broker], []).append(broker)
    columns = [racks[rack] for rack in sorted(racks, key=lambda name: name or "")]
    depth = max(len(column) for column in columns)
    return [column[row] for row in range(depth) for column in columns if row < len(column)]
