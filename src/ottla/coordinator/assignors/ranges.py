"""The `range` assignor: of each topic, consecutive partitions to each subscriber.

Guards co-partitioning: topics with as many partitions and the same subscribers are cut at the same places, so that one member
has the same numbers of all of them. Static members come first, ordered by instance id, so that a restart moves nothing.
"""

from __future__ import annotations

from ottla.coordinator.assignors.spec import Spec
from ottla.coordinator.consumer_records import Partitions


def assign_ranges(spec: Spec) -> dict[str, Partitions]:
    """A target for every member."""
    targets: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in spec.members}
    place = {member_id: number for number, member_id in enumerate(sorted(spec.members, key=lambda one: _order(spec, one)))}
    for topic_id, subscribers in spec.subscribers().items():
        each, larger = divmod(spec.topics[topic_id], len(subscribers))
        begin = 0
        for number, member_id in enumerate(sorted(subscribers, key=place.__getitem__)):
            end = begin + each + (number < larger)
            if end > begin:
                targets[member_id][topic_id] = frozenset(range(begin, end))
            begin = end
    return dict(targets)


def _order(spec: Spec, member_id: str) -> tuple[bool, str]:
    instance_id = spec.members[member_id].instance_id
    return (True, member_id) if instance_id is None else (False, instance_id)
