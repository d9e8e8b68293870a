"""A classic consumer group as data: its members, its generation, and the questions that its rules ask.

Guards the invariants between the tables: every static instance id maps to a member that exists, the leader is a member, a
pending member is not a member yet. Nothing here decides when a rebalance begins or ends (`rebalance`, `membership` do),
nothing awaits, and time comes in as an argument: `deadline` fields are seconds of the monotonic clock, None where nothing is
due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from ottla.coordinator.records import StoredGroup, StoredMember
from ottla.coordinator.subscriptions import subscribed_topics
from ottla.model import NO_TIMESTAMP, Error, KafkaError

CONSUMER = "consumer"
"""The protocol type of Kafka's own consumers, whose subscriptions the coordinator can read."""

UNKNOWN_MEMBER = ""
NO_GENERATION = -1


class State(Enum):
    """The life of a group, under the names that DescribeGroups shows."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Reply:
    """Where the answer of a parked request goes. The machine never looks inside; whoever performs the effects does."""

    __slots__ = ()


@dataclass(slots=True)
class Member:
    """One member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, in the member's order of preference."""
    assignment: bytes = b""
    awaiting_join: Reply | None = None
    awaiting_sync: Reply | None = None
    is_new: bool = False
    """It joins for the first time: it does not know its id yet, cannot send heartbeats, and so has a longer deadline."""
    deadline: float | None = None
    """When the member counts as lost; None while a request of it is parked here, which proves that it is there."""

    def heard(self, now: float) -> None:
        """The member showed a sign of life."""
        self.deadline = now + self.session_timeout_ms / 1000

    def vote(self, candidates: set[str]) -> str:
        """The candidate that this member likes best."""
        return next(name for name, _ in self.protocols if name in candidates)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class Group:
    """One group. `generation` counts completed rebalances; everything a member says is checked against it."""

    group_id: str
    state: State = State.EMPTY
    state_timestamp: int = NO_TIMESTAMP
    """Wall time of the last change of state: an empty group's offsets age from here."""
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)
    """Group instance id -> member id."""
    pending: dict[str, float] = field(default_factory=dict)
    """Member ids handed out with MEMBER_ID_REQUIRED and not come back yet -> when they lapse."""
    pending_sync: set[str] = field(default_factory=set)
    """Members that have the generation's join answer and have not sent SyncGroup yet."""
    subscribed: frozenset[str] | None = frozenset()
    """Topics that the members of this generation read; None where their subscriptions cannot be read."""
    join_deadline: float | None = None
    initial_delay_left: float | None = None
    """Seconds by which a new group's first rebalance may still be put off for late comers; None outside of it."""
    came_late: bool = False
    """Someone joined during the initial delay."""
    sync_deadline: float | None = None

    def enter(self, state: State, now_ms: int) -> None:
        self.state = state
        self.state_timestamp = now_ms

    # Members

    def add(self, member: Member) -> None:
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending.pop(member.member_id, None)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Take a member out; the leadership goes to another one."""
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self.pending_sync.discard(member_id)
        if member.instance_id is not None and self.static_ids.get(member.instance_id) == member_id:
            del self.static_ids[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename(self, member: Member, new_id: str) -> None:
        """A static member came back: it keeps its place, its order and its assignment under a new member id."""
        old_id = member.member_id
        self.members = {(new_id if key == old_id else key): value for key, value in self.members.items()}
        member.member_id = new_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member that a request speaks for. A static id that moved on to another member fences the old one."""
        if instance_id is not None:
            current = self.static_ids.get(instance_id)
            if current is None:
                raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"group {self.group_id} has no static member {instance_id}")
            if current != member_id:
                raise KafkaError(Error.FENCED_INSTANCE_ID, f"static member {instance_id} was taken over by another client")
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"group {self.group_id} has no member {member_id!r}")
        return member

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise KafkaError(Error.ILLEGAL_GENERATION, f"{self.group_id} is in generation {self.generation}, not {generation}")

    @property
    def awaiting_join(self) -> int:
        return sum(member.awaiting_join is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Everyone who is expected in the next generation is here."""
        return not self.pending and all(member.awaiting_join is not None for member in self.members.values())

    @property
    def rebalance_timeout(self) -> float:
        """Seconds that the slowest member may take to come back."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0) / 1000

    def deadlines(self) -> Iterator[float]:
        """Every moment at which something falls due."""
        yield from self.pending.values()
        for deadline in (self.join_deadline, self.sync_deadline):
            if deadline is not None:
                yield deadline
        for member in self.members.values():
            if member.deadline is not None:
                yield member.deadline

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is someone who is here to hear of it. False where nobody is."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.awaiting_join is None:
            here = next((member.member_id for member in self.members.values() if member.awaiting_join is not None), None)
            if here is None:
                return False
            self.leader = here
        return leader is not None

    # Protocols

    def common_protocols(self) -> set[str]:
        """The protocols that every member speaks."""
        spoken = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*spoken) if spoken else set()

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether someone who speaks these protocols may join."""
        names = set(names)
        if not self.members:
            return bool(protocol_type) and bool(names)
        return protocol_type == self.protocol_type and not names.isdisjoint(self.common_protocols())

    def select_protocol(self) -> str:
        """The protocol with most votes; among equals the one that was voted for first."""
        candidates = self.common_protocols()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def next_generation(self, now_ms: int) -> None:
        """The rebalance is over: fix who is in, and by which protocol they divide the work."""
        self.generation += 1
        self.pending_sync.clear()
        self.protocol = self.select_protocol() if self.members else None
        self.subscribed = self._read_subscriptions()
        self.enter(State.COMPLETING_REBALANCE if self.members else State.EMPTY, now_ms)

    def _read_subscriptions(self) -> frozenset[str] | None:
        if not self.members:
            return frozenset()
        if self.protocol_type != CONSUMER:
            return None
        return subscribed_topics(member.metadata(self.protocol) for member in self.members.values())

    def reads(self, topic: str) -> bool:
        """Whether a member reads this topic, as far as the coordinator can tell: in doubt, yes."""
        return self.subscribed is None or topic in self.subscribed

    # What the topic keeps

    def stored(self, assignments: dict[str, bytes]) -> StoredGroup:
        """This generation as a record; a member that got no assignment has an empty one."""
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            state_timestamp=self.state_timestamp,
            members=tuple(
                StoredMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol),
                    assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    @classmethod
    def revived(cls, group_id: str, stored: StoredGroup) -> Group:
        """The group that a record tells of. Its members have no deadlines yet: they count from the end of loading."""
        group = cls(
            group_id,
            state=State.STABLE if stored.members else State.EMPTY,
            state_timestamp=stored.state_timestamp,
            generation=stored.generation,
            protocol_type=stored.protocol_type or None,
            protocol=stored.protocol,
        )
        for kept in stored.members:
            group.add(
                Member(
                    kept.member_id,
                    kept.instance_id,
                    kept.client_id,
                    kept.client_host,
                    kept.rebalance_timeout_ms,
                    kept.session_timeout_ms,
                    ((stored.protocol or "", kept.subscription),),
                    kept.assignment,
                )
            )
        group.leader = stored.leader if stored.leader in group.members else next(iter(group.members), None)
        group.subscribed = group._read_subscriptions()
        return group
