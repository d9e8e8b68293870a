"""How a member gets from what it has to what it shall have, one heartbeat at a time.

    Stable --new target--> UnrevokedPartitions --it gave them up--> UnreleasedPartitions --others gave theirs up--> Stable

Guards the promise of the whole protocol: a partition is given to a member only when no other member holds it or has yet to give
it up, and a member goes to a new epoch only when it has given up what it must. Steps that have nothing to wait for are skipped.
Pure: one function, values in, a value out.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.coordinator.consumer_records import NO_PARTITIONS, Current, MemberState, Partitions, overlap

OwnerOf = Callable[[tuple[bytes, int]], str | None]
"""Who holds a partition, or has yet to give it up."""

_NONE: frozenset[int] = frozenset()


def reconcile(
    current: Current,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    owner_of: OwnerOf,
    member_id: str,
) -> Current:
    """The member's next step. `owned` is what it says it holds, None where it does not say."""
    if current.is_reconciled_to(target_epoch):
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or overlap(current.pending_revocation, owned):
            return current
        # It gave up what it was asked to. Should the newest target ask for more, that is another step, in the next epoch.
        return _next(current, current.epoch + 1, target_epoch, target, owned, owner_of, member_id)
    return _next(current, current.epoch, target_epoch, target, owned, owner_of, member_id)


def _next(
    current: Current,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    owner_of: OwnerOf,
    member_id: str,
) -> Current:
    keep: dict[bytes, frozenset[int]] = {}
    revoke: dict[bytes, frozenset[int]] = {}
    for topic_id, numbers in current.assigned.items():
        wanted = target.get(topic_id, _NONE)
        _add(keep, topic_id, numbers & wanted)
        _add(revoke, topic_id, numbers - wanted)
    if revoke and (owned is None or overlap(revoke, owned)):
        return current.moved_to(epoch, MemberState.UNREVOKED_PARTITIONS, keep, revoke)
    unreleased = False
    assigned = dict(keep)
    for topic_id, numbers in target.items():
        missing = numbers - keep.get(topic_id, _NONE)
        free = frozenset(number for number in missing if owner_of((topic_id, number)) in (None, member_id))
        unreleased |= len(free) < len(missing)
        _add(assigned, topic_id, keep.get(topic_id, _NONE) | free)
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    if (current.epoch, current.state, current.assigned) == (target_epoch, state, assigned):
        return current  # it still waits for the same partitions
    return current.moved_to(target_epoch, state, assigned, NO_PARTITIONS)


def _add(partitions: dict[bytes, frozenset[int]], topic_id: bytes, numbers: frozenset[int]) -> None:
    if numbers:
        partitions[topic_id] = numbers
