"""What an assignor is told: the members, what they subscribe to and have, and how many partitions each topic has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.coordinator.consumer_records import Partitions


@dataclass(slots=True, frozen=True)
class MemberSpec:
    """One member."""

    topics: frozenset[bytes]
    """Ids of the topics that it subscribes to and that exist."""
    assigned: Partitions = field(default_factory=dict)
    """Its target so far: an assignor that moves little begins with it."""
    instance_id: str | None = None


@dataclass(slots=True, frozen=True)
class Spec:
    """The whole group. `topics` tells the number of partitions of each topic id that a member subscribes to."""

    members: Mapping[str, MemberSpec]
    topics: Mapping[bytes, int]

    @property
    def is_homogeneous(self) -> bool:
        """Everyone subscribes to the same topics."""
        return len({member.topics for member in self.members.values()}) <= 1

    def subscribers(self) -> dict[bytes, list[str]]:
        """The members of each topic, in the order of `members`."""
        subscribers: dict[bytes, list[str]] = {}
        for member_id, member in self.members.items():
            for topic_id in member.topics:
                subscribers.setdefault(topic_id, []).append(member_id)
        return subscribers
