"""Who may commit offsets for a group, and the short way of those commits that nearly all are.

Guards: a client that is a member commits only in the generation or epoch in which it is one; who is none only for a group that
has none either. Plain commits come thousands of times a second, so this is apart from what happens to groups more seldom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.clock import Clock
from ottla.coordinator import consumer_membership, membership
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.group_state import Group, State
from ottla.coordinator.plain_offsets import PlainOffsets
from ottla.coordinator.rebalance import Turn
from ottla.coordinator.runtime import Runtime
from ottla.model import Error, KafkaError
from ottla.wire.plain_commit import PlainCommit


class Commits:
    """Those of all groups of one coordinator."""

    def __init__(self, clock: Clock, runtime: Runtime[GroupShard], turn: Callable[[], Turn]) -> None:
        """`turn` makes what the rules of classic groups decide with."""
        self._clock = clock
        self._runtime = runtime
        self._turn = turn

    def plain(self, commit: PlainCommit, *, knows_epochs: bool) -> asyncio.Future[None] | None:
        """Offsets without metadata, which are never refused for themselves: None where they are safe."""
        group_id = commit.group_id
        shard = self.shard_for(group_id, commit.generation, commit.member_id, commit.instance_id, knows_epochs=knows_epochs)
        return self._runtime.write_now(shard.partition, PlainOffsets(group_id, commit.topics, self._clock.now_ms()))

    def shard_for(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None, *, knows_epochs: bool
    ) -> GroupShard:
        """The shard of a group; raises unless this client may commit for the group."""
        shard = self._runtime.state_of(group_id)
        consumer_group = shard.consumer_groups.get(group_id) if shard.consumer_groups else None
        if consumer_group is not None:
            consumer_membership.check_commit(consumer_group, member_id, generation, knows_epochs=knows_epochs)
            return shard
        group = group_for(shard, group_id, generation)
        if generation >= 0 or group.state is not State.EMPTY:
            membership.check_commit(self._turn(), group, member_id, instance_id, generation)
        return shard


def group_for(shard: GroupShard, group_id: str, generation: int) -> Group:
    """The classic group that someone commits for; who is no member may make it by that."""
    group = shard.groups.get(group_id)
    if group is None:
        if generation >= 0:
            raise KafkaError(Error.ILLEGAL_GENERATION, f"there is no group {group_id}")
        group = shard.groups[group_id] = Group(group_id)
    return group
