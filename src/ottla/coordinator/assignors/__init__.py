"""The server-side assignors: who shall have which partition. Pure: a `Spec` in, a target for every member out.

`UNIFORM` spreads evenly and moves as little as it can; `RANGE` gives the same numbers of several topics to the same member.
Both give every partition of a subscribed topic to exactly one of its subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla.coordinator.assignors.ranges import assign_ranges
from ottla.coordinator.assignors.spec import MemberSpec, Spec
from ottla.coordinator.assignors.uniform import assign_uniformly
from ottla.coordinator.consumer_records import Partitions

__all__ = ["ASSIGNORS", "RANGE", "UNIFORM", "MemberSpec", "Spec"]

UNIFORM = "uniform"
RANGE = "range"

ASSIGNORS: Mapping[str, Callable[[Spec], dict[str, Partitions]]] = {UNIFORM: assign_uniformly, RANGE: assign_ranges}
