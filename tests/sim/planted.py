"""Bugs to plant, one per rule, each a context in which the brokers of this process have it.

`python planted.py BUG` runs seeds until the rule that the bug breaks has caught it, and says with which. What is compiled
cannot be patched: it wants OTTLA_PLAIN=1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from ottla import journal, markers
from ottla.controller import election, reassignment, state
from ottla.coordinator.groups import GroupCoordinator
from ottla.model import Error
from ottla.replication import fetcher, isr, partition, replicas
from ottla.storage.producers import Producers
from ottla.storage.segments import SegmentedLog
from ottla.testing.sim import Options, simulate
from ottla.testing.sim.network import Network

SEEDS = range(1, 61)
ROUGH = Options(seconds=15.0, faults_every=0.7)

Plant = Callable[[pytest.MonkeyPatch], None]


def high_watermark_ignores_the_isr(patch: pytest.MonkeyPatch) -> None:
    """What the leader has counts as committed."""
    patch.setattr(isr, "high_watermark", lambda leader_end, *_: leader_end)


def acknowledged_before_it_is_replicated(patch: pytest.MonkeyPatch) -> None:
    """acks=all is answered as acks=1 is."""
    patch.setattr(partition.Partition, "committed", lambda *_: True)
    patch.setattr(partition.Partition, "outcome_of", lambda *_: Error.NONE)


def follower_truncates_to_its_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """As before KIP-101: a follower drops what it does not know to be committed, and hopes to get it again."""
    real = fetcher.Fetcher.follow

    def follow(self: fetcher.Fetcher, partitions: Any) -> None:
        followed = list(partitions)
        for one in followed:
            one.truncate_to(one.log.high_watermark)
        real(self, followed)

    patch.setattr(fetcher.Fetcher, "follow", follow)


def leader_hides_where_logs_part(patch: pytest.MonkeyPatch) -> None:
    """A follower keeps what its new leader never had."""
    patch.setattr(partition.Partition, "_parted", lambda *_: None)


def any_live_replica_is_elected(patch: pytest.MonkeyPatch) -> None:
    """Election does not look at the ISR."""

    def after_failure(replicas: Any, _isr: Any, live: Any, _unclean: bool) -> Any:
        alive = tuple(one for one in reversed(replicas) if one in live)
        return (alive[0], alive) if alive else None

    patch.setattr(election, "after_failure", after_failure)


def no_new_epoch_for_a_new_leader(patch: pytest.MonkeyPatch) -> None:
    """A new leader goes on in the epoch of the old one."""
    real = state.ClusterState.changed

    def changed(self: state.ClusterState, tp: Any, leader: int, members: Any) -> Any:
        action = real(self, tp, leader, members)
        return replace(action, node=replace(action.node, leader_epoch=action.node.leader_epoch - 1))

    patch.setattr(state.ClusterState, "changed", changed)


def epochs_go_back(patch: pytest.MonkeyPatch) -> None:
    """A leader epoch is 0 or 1, in turn."""
    real = state.ClusterState.changed

    def changed(self: state.ClusterState, tp: Any, leader: int, members: Any) -> Any:
        action = real(self, tp, leader, members)
        return replace(action, node=replace(action.node, leader_epoch=action.node.leader_epoch % 2))

    patch.setattr(state.ClusterState, "changed", changed)


def leader_writes_in_an_epoch_that_is_not_its_own(patch: pytest.MonkeyPatch) -> None:
    """A deposed leader goes on to write: it is not told, or does not listen."""
    real = partition.Partition.become

    def become(self: partition.Partition, new: Any) -> None:
        led = self.is_leader
        real(self, new)
        if led and not self.is_leader:
            self.is_leader = True

    patch.setattr(partition.Partition, "become", become)


def isr_counts_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """A leader goes by the ISR that it wishes for."""
    real = partition.Partition._propose

    def propose(self: partition.Partition, members: tuple[int, ...]) -> None:
        real(self, members)
        self.state = replace(self.state, isr=members)
        self._maximal_isr = frozenset(members)
        self._advance()

    patch.setattr(partition.Partition, "_propose", propose)
    patch.setattr(partition.Partition, "under_min_isr", property(lambda _self: False))


def markers_with_the_other_outcome(patch: pytest.MonkeyPatch) -> None:
    """One partition of a transaction is told the opposite of what was decided."""
    real = markers.LocalMarkers._write

    def write(self: markers.LocalMarkers, marker: Any, tp: Any) -> Any:
        return real(self, marker._replace(committed=not marker.committed) if tp.partition == 1 else marker, tp)

    patch.setattr(markers.LocalMarkers, "_write", write)


def open_transactions_are_stable(patch: pytest.MonkeyPatch) -> None:
    """Whoever reads only what is committed is served all that is replicated."""
    patch.setattr(SegmentedLog, "last_stable_offset", property(lambda self: self.high_watermark))


def coordinators_answer_before_it_is_replicated(patch: pytest.MonkeyPatch) -> None:
    """What a coordinator wrote counts at once. Brokers are far from each other, so that it matters for a while."""
    real = journal.append_committed
    near = Network.latency

    def append_committed(*arguments: Any) -> None:
        waiting = real(*arguments)
        if waiting is not None:
            waiting.add_done_callback(lambda done: done.exception())

    def latency(self: Network, source: str, target: str) -> float:
        return near(self, source, target) + (0.05 if source.startswith("broker") and target.startswith("broker") else 0.0)

    patch.setattr(journal, "append_committed", append_committed)
    patch.setattr(Network, "latency", latency)


def sequences_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """What is sent again is written again."""
    patch.setattr(Producers, "check", lambda *_, **__: None)


def everybody_gets_the_same_assignment(patch: pytest.MonkeyPatch) -> None:
    """SyncGroup answers a member with what another one was assigned."""
    real = GroupCoordinator.sync
    last: dict[tuple[str, int], bytes] = {}

    async def sync(self: GroupCoordinator, request: Any) -> Any:
        result = await real(self, request)
        if result.error is Error.NONE:
            assignment = last.setdefault((request.group_id, request.generation), result.assignment)
            return replace(result, assignment=assignment)
        return result

    patch.setattr(GroupCoordinator, "sync", sync)


def group_offsets_are_not_loaded(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator does not read what the old one wrote."""
    real = journal.TopicJournal.read_all

    def read_all(self: journal.TopicJournal, number: int) -> Any:
        return iter(()) if self.topic == "__consumer_offsets" else real(self, number)

    patch.setattr(journal.TopicJournal, "read_all", read_all)


def reassignment_waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """New replicas take over before they have anything."""
    real = reassignment.switched
    patch.setattr(
        reassignment, "switched", lambda current, node, *more: real(current, replace(node, isr=current.target), *more)
    )


def deleted_topics_stay_on_the_disk(patch: pytest.MonkeyPatch) -> None:
    """A broker says that it has deleted a replica, and has not."""
    patch.setattr(replicas.Replicas, "_delete", lambda *_: None)


PLANTS: dict[str, tuple[Plant, set[str]]] = {
    plant.__name__: (plant, rules)
    for plant, rules in (
        (high_watermark_ignores_the_isr, {"lost", "two values", "order", "refused"}),
        (acknowledged_before_it_is_replicated, {"lost", "refused"}),
        (follower_truncates_to_its_high_watermark, {"lost", "two values", "refused"}),
        (leader_hides_where_logs_part, {"two values", "lost", "failed"}),
        (any_live_replica_is_elected, {"election"}),
        (no_new_epoch_for_a_new_leader, {"two leaders"}),
        (epochs_go_back, {"epochs"}),
        (leader_writes_in_an_epoch_that_is_not_its_own, {"two leaders"}),
        (isr_counts_before_it_is_written, {"lost", "two values", "refused"}),
        (markers_with_the_other_outcome, {"transactions"}),
        (open_transactions_are_stable, {"not committed"}),
        (coordinators_answer_before_it_is_replicated, {"group offsets", "transactions"}),
        (sequences_are_not_looked_at, {"twice", "order"}),
        (group_offsets_are_not_loaded, {"group offsets"}),
        (everybody_gets_the_same_assignment, {"two owners"}),
        (reassignment_waits_for_nobody, {"election", "lost", "two values"}),
        (deleted_topics_stay_on_the_disk, {"stuck"}),
    )
}
"""Each bug, and the rules that may catch it."""


@contextmanager
def planted(name: str) -> Iterator[set[str]]:
    """Have a bug; the rules that it breaks."""
    plant, rules = PLANTS[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        yield rules


def main(bug: str) -> str | None:
    """Look for a seed that catches the bug; why not, if there is none."""
    found: set[str] = set()
    with planted(bug) as rules:
        for seed in SEEDS:
            broken = {violation.rule for violation in simulate(seed, ROUGH).violations}
            found |= broken
            if broken & rules:
                print(f"{bug} is caught with seed {seed}: {', '.join(sorted(broken & rules))}")
                return None
    return f"{len(SEEDS)} seeds did not catch {bug}: only {sorted(found)} was found, not {sorted(rules)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
