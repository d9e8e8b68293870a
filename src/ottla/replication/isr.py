"""The rules of replication, pure: what counts as committed, who is in sync, who may join.

A leader knows its followers only by their fetches. What a follower asks for next is what it has; when it last had all that
there was is when it was last caught up. Time is in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from ottla.model import NO_LEADER, UNKNOWN_EPOCH, UNKNOWN_OFFSET, Error, TopicPartition
from ottla.replication.gathering import Answering

NEVER = float("-inf")


@dataclass(slots=True)
class LastAsked:
    """When a follower asked last, and in which of its lives: one for all partitions of its fetch session, of which it names
    only those that changed."""

    at: float
    broker_epoch: int = -1
    """Which life of the follower it was: it changes with the follower's session with the store, and its fetches go on."""
    answering: Answering = field(default_factory=Answering)


@dataclass(slots=True)
class Progress:
    """How far a follower has come, as its fetches tell the leader."""

    broker: int
    end: int = UNKNOWN_OFFSET
    """Where its log ends: the offset it asked for last. Unknown until it has asked this leader."""
    caught_up_at: float = NEVER
    """When it last had all that the leader had."""
    start: int = UNKNOWN_OFFSET
    """Where its log begins."""
    fetched_at: float = NEVER
    leader_end: int = UNKNOWN_OFFSET
    """Where the leader's log ended when the follower last asked: who asks for that the next time had it all back then."""
    asked: LastAsked | None = None

    @property
    def broker_epoch(self) -> int:
        """Which life of the follower asked last."""
        return -1 if self.asked is None else self.asked.broker_epoch

    def fetched(self, offset: int, start: int, leader_end: int, asked: LastAsked) -> None:
        """The follower asks for `offset`, while the leader's log ends at `leader_end`."""
        now = asked.at
        if offset >= leader_end:
            self.caught_up_at = max(self.caught_up_at, now)
        elif offset >= self.leader_end:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.end = offset
        self.start = start
        self.fetched_at = now
        self.leader_end = max(self.leader_end, leader_end)
        self.asked = asked

    def left_behind(self) -> None:
        """The leader's log grows beyond what the follower has: until it last asked, it had all there was."""
        if self.asked is not None:
            self.caught_up_at = max(self.caught_up_at, self.asked.at)

    def begin_epoch(self, in_sync: bool, leader_end: int, now: float) -> None:
        """The same leader goes on in a new epoch: who is in the ISR counts as caught up, and gets its time anew."""
        self.caught_up_at = self.fetched_at = now if in_sync else NEVER
        self.leader_end = leader_end

    def caught_up(self, leader_end: int, now: float, max_lag: float) -> bool:
        """Whether it has all there is, or had it not longer ago than `replica.lag.time.max.ms`."""
        return self.end == leader_end or now - self.caught_up_at <= max_lag


def new_follower(broker: int, in_sync: bool, now: float) -> Progress:
    """A follower that a new leader has not heard of yet: in the ISR it counts as caught up, and has its time to show it."""
    return Progress(broker, caught_up_at=now if in_sync else NEVER)


def high_watermark(
    leader_end: int,
    followers: Iterable[Progress],
    maximal_isr: Collection[int],
    current: int,
    about_to_join: Callable[[Progress], bool] | None = None,
) -> int:
    """The offset up to which every in-sync replica has the log. It never moves back.

    The maximal ISR holds replicas whose addition was proposed, for it may be true already, and those whose removal was
    proposed, for it may never come true. Others do not hold it up, unless they are about to join: if it ran ahead of them, they
    never could.
    """
    committed = leader_end
    for follower in followers:
        if follower.end < committed and (
            follower.broker in maximal_isr or (about_to_join is not None and about_to_join(follower))
        ):
            committed = follower.end
    return committed if committed > current else current


def may_join(follower: Progress, committed: int, epoch_start: int) -> bool:
    """Whether a follower has all that is committed, and something of this epoch's beginning: its log cannot part any more."""
    return follower.end >= committed and follower.end >= epoch_start


def out_of_sync(
    isr: Collection[int], leader: int, followers: Mapping[int, Progress], leader_end: int, now: float, max_lag: float
) -> frozenset[int]:
    """The members of the ISR that have not kept up. One that is no replica any more has not either."""
    late = set()
    for member in isr:
        follower = followers.get(member)
        if member != leader and (follower is None or not follower.caught_up(leader_end, now, max_lag)):
            late.add(member)
    return frozenset(late)


def needed_in_sync(min_insync_replicas: int, replicas: int) -> int:
    """How many must be in sync for acks=all: a setting beyond the number of replicas means all of them."""
    return min(min_insync_replicas, replicas)


@dataclass(slots=True, frozen=True)
class IsrProposal:
    """A leader's wish for another ISR; it counts when the controller has written it."""

    tp: TopicPartition
    topic_id: bytes
    leader_epoch: int
    isr: tuple[int, ...]
    version: int
    """The version of the partition's state that the leader knows: the compare of the compare-and-set."""
    broker_epochs: Mapping[int, int] = field(default_factory=dict)
    """Which life of each member the leader has seen; one that is missing or -1 is not known."""


@dataclass(slots=True, frozen=True)
class IsrOutcome:
    """The partition's state as it is now, or why nothing was written."""

    error: Error
    leader: int = NO_LEADER
    leader_epoch: int = UNKNOWN_EPOCH
    isr: tuple[int, ...] = ()
    version: int = -1


class Verdict(Enum):
    """What a leader does about the answer to its proposal."""

    TAKE = auto()
    """The state that came with it counts from now on."""
    DROP = auto()
    """It was not written, and will not be: what was committed before counts, and another proposal may be made."""
    WAIT = auto()
    """The controller knows something that we do not: nothing more is proposed until it has told us."""
    RETRY = auto()
    """It may or may not have been written: the same again."""


_WAIT_ON = frozenset(
    {
        Error.UNKNOWN_TOPIC_OR_PARTITION,
        Error.UNKNOWN_TOPIC_ID,
        Error.FENCED_LEADER_EPOCH,
        Error.INVALID_UPDATE_VERSION,
        Error.INVALID_REQUEST,
        Error.NEW_LEADER_ELECTED,
    }
)


def judge(outcome: IsrOutcome, leader_epoch: int, version: int) -> Verdict:
    """What to do about an answer, knowing the partition in `leader_epoch` and `version`.

    Only INELIGIBLE_REPLICA and OPERATION_NOT_ATTEMPTED promise that no controller, past or future, has written the proposal.
    """
    if outcome.error in (Error.NONE, Error.INVALID_UPDATE_VERSION) and outcome.leader_epoch == leader_epoch:
        known = outcome.version < version or (outcome.version == version and outcome.error is not Error.NONE)
        return Verdict.WAIT if known else Verdict.TAKE
    if outcome.error in (Error.OPERATION_NOT_ATTEMPTED, Error.INELIGIBLE_REPLICA):
        return Verdict.DROP
    return Verdict.WAIT if outcome.error is Error.NONE or outcome.error in _WAIT_ON else Verdict.RETRY
