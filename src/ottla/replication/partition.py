"""One partition as this broker sees it: its role, its epoch, and who may write.

Guards: an append is accepted only by the leader of the current epoch with enough in-sync replicas; a consumer's read never
passes the high watermark (or the last stable offset), a follower's never the log's end. A leader counts as committed what every
member of the ISR has asked beyond, also those whose coming or going is only proposed; a follower never says that more is
committed than it has. Life: created by `Replicas`, retired by `stop`; a role change swaps `state` whole, so that no request
sees half of one. Lives on the broker's loop: no locks, and nothing in here awaits.

Two kinds of readers wait here. `watchers` want what is committed: consumers, and producers that wait for it; `tail_watchers`
want what is written: followers. Both are told by `wake`, once for all that a request did.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ottla.clock import SystemClock
from ottla.metadata.image import PartitionState
from ottla.metrics import ReplicaCounters, TopicCounters
from ottla.model import UNKNOWN_EPOCH, UNKNOWN_OFFSET, Error, KafkaError, TopicPartition
from ottla.replication import isr
from ottla.replication.isr import IsrOutcome, IsrProposal, LastAsked, Progress, Verdict
from ottla.replication.leaders import EpochEnd
from ottla.replication.waiting import TailWatcher, Watcher, Watchers
from ottla.storage.append import AppendInfo, Origin
from ottla.storage.log import Log
from ottla.storage.slices import FileSlice

log = logging.getLogger("ottla.replication")

READ_COMMITTED = 1
ACKS_ALL = -1
_RECENT_BYTES = 4 << 20
_BASE_OFFSET_SIZE = 8


@dataclass(slots=True)
class Surroundings:
    """What partitions know of the cluster around them; one for all of a broker."""

    monotonic: Callable[[], float] = SystemClock().monotonic
    max_lag: float = 30.0
    """replica.lag.time.max.ms, in seconds."""
    alive: Callable[[int], bool] = lambda _broker: True
    broker_epoch: Callable[[], int] = lambda: -1
    """Which life of this broker it is."""
    propose: Callable[[Partition, IsrProposal], None] = lambda _partition, _proposal: None
    """Ask the controller for another ISR; `Partition.answered` gets what comes of it."""
    counters: ReplicaCounters = field(default_factory=ReplicaCounters)


ALONE = Surroundings()


class Partition:
    """A replica on this broker, and the leader's bookkeeping while it leads."""

    __slots__ = (
        "_around", "_epoch_start", "_followers", "_fresh", "_maximal_isr", "_start_news", "_told", "_unannounced", "_waits",
        "broker_id", "counters", "is_leader", "leader_epoch", "led_since", "log", "news", "proposed", "state",
        "tail_watchers", "tp", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        broker_id: int,
        tp: TopicPartition,
        log: Log,
        state: PartitionState,
        around: Surroundings = ALONE,
        counters: TopicCounters | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.tp = tp
        self.log = log
        self.is_leader = False
        self.leader_epoch = UNKNOWN_EPOCH
        self.led_since = UNKNOWN_EPOCH
        """The epoch in which this broker began to lead, without a break since."""
        self.watchers: Watchers[Watcher] = Watchers()
        self.tail_watchers: Watchers[TailWatcher] = Watchers()
        self.news = False
        """Whether a follower's fetch changed something that others wait for: `wake` is due."""
        self.counters = counters or TopicCounters()
        """Those of its topic."""
        self._around = around
        self._followers: dict[int, Progress] = {}
        self._epoch_start = 0
        self.proposed: IsrProposal | None = None
        """An ISR that the controller was asked for and has not answered to."""
        self._waits = False
        self._maximal_isr: frozenset[int] = frozenset()
        self._fresh = 0  # bytes that followers were not told of
        self._unannounced = 0  # bytes that nobody was told are committed
        self._told = log.high_watermark
        self._start_news = False
        self.become(state)

    # Roles

    def become(self, state: PartitionState) -> None:
        """Take the role that the controller gave. An epoch that we know already brings another ISR at most."""
        if state.leader == self.broker_id:
            self._lead(state)
        else:
            self._follow(state)

    def _lead(self, state: PartitionState) -> None:
        """A new epoch begins at the log's end. The high watermark stays: only followers can say that more is committed."""
        self.log.rebuild_producers()
        led, new_epoch = self.is_leader, state.leader_epoch != self.leader_epoch
        # Of an epoch that we did not hear of, another may have been the leader: what followers had then they may have cut off.
        follows_on = led and state.leader_epoch <= self.leader_epoch + 1
        end, now = self.log.log_end_offset, self._around.monotonic()
        self.is_leader = True
        self.leader_epoch = state.leader_epoch
        if led and not new_epoch and self._may_yet_be_written(state):
            self.state = state
        else:
            self._take(state)
        known = self._followers if follows_on else {}
        if not led:
            self.led_since = state.leader_epoch
        self._followers = {
            broker: known.get(broker) or isr.new_follower(broker, broker in state.isr, now)
            for broker in state.replicas
            if broker != self.broker_id
        }
        if new_epoch or not led:
            self._epoch_start = end
            self.log.leader_epochs.assign(state.leader_epoch, end, write=False)
            for broker in known.keys() & self._followers.keys():
                self._followers[broker].begin_epoch(broker in state.isr, end, now)
        if self._followers:
            self._advance()
        else:
            self.log.high_watermark = end
        if led and new_epoch:
            self._tell_changed()
        else:
            self.wake()

    def _follow(self, state: PartitionState) -> None:
        changed = self.is_leader or state.leader_epoch != self.leader_epoch
        self.is_leader = False
        self.leader_epoch = state.leader_epoch
        self._followers = {}
        self._take(state)
        if changed:
            self._tell_changed()

    def _take(self, state: PartitionState) -> None:
        self.state = state
        self.proposed = None
        self._waits = False
        self._maximal_isr = frozenset(state.isr)
        for tail in tuple(self.tail_watchers):
            tail.moved()  # who is not in the ISR may want to be, and who is may not be any more

    def _may_yet_be_written(self, state: PartitionState) -> bool:
        """Whether a proposal is under way that the controller could still write over this state."""
        return self.proposed is not None and not self._waits and self.proposed.version == state.version

    def stop(self) -> None:
        """The replica is given up: nothing more is accepted, and whoever waits is answered."""
        self.is_leader = False
        self._tell_changed()

    # Writing

    def append(self, records: memoryview, acks: int, api_version: int, origin: Origin = Origin.CLIENT) -> AppendInfo:
        """Write what a producer or a coordinator sent: it is in the leader's log then; `committed` tells when all have it."""
        counters = self.counters
        counters.produces += 1
        if not self.is_leader:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
        log = self.log
        if self._followers and acks == ACKS_ALL and self.under_min_isr:
            raise KafkaError(
                Error.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {list(self.state.isr)} is insufficient to satisfy the min.isr requirement of "
                f"{log.config.min_insync_replicas} for partition {self.tp}",
            )
        info = log.append_as_leader(records, self.leader_epoch, origin=origin, api_version=api_version)
        if not info.duplicate:
            self._unannounced += info.size
            counters.bytes_in += info.size
            counters.messages_in += info.last_offset - info.first_offset + 1
            if not self._followers:
                log.high_watermark = log.log_end_offset  # nobody else is in sync: what the leader has is committed
            else:
                self._fresh += info.size
                for follower in self._followers.values():
                    if follower.end == info.first_offset:
                        follower.left_behind()
                if len(self._maximal_isr) == 1:
                    self._advance()
        return info

    def committed(self, last_offset: int) -> bool:
        """Whether every in-sync replica has `last_offset`."""
        return self.log.high_watermark > last_offset

    def led_all_the_time(self, since: int) -> bool:
        """Whether this broker has led since that epoch, so that what it wrote then is still what it wrote."""
        return self.is_leader and self.led_since == since

    def outcome_of(self, last_offset: int, since: int) -> Error:
        """What a producer with acks=all is told now of records that were written when `led_since` was `since`."""
        if not self.led_all_the_time(since):
            return Error.NOT_LEADER_OR_FOLLOWER
        if not self.committed(last_offset):
            return Error.REQUEST_TIMED_OUT
        return Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND if self.under_min_isr else Error.NONE

    @property
    def under_min_isr(self) -> bool:
        """Whether fewer are in sync than `min.insync.replicas` asks for."""
        needed = isr.needed_in_sync(self.log.config.min_insync_replicas, len(self._followers) + 1)
        return len(self.state.isr) < needed

    def wake(self) -> None:
        """Tell those who wait about what was written and what was committed since the last time."""
        self.news = False
        if self._fresh:
            size, self._fresh = self._fresh, 0
            for tail in tuple(self.tail_watchers):
                tail.arrived(size)
        committed, told, end = self.log.high_watermark, self._told, self.log.log_end_offset
        if committed <= told:
            self._told = committed
            if not self._start_news:
                return
        self._start_news = False
        size = self._unannounced
        if committed < end:  # more was written than is committed: the bytes in their proportion
            size = size * max(committed - told, 0) // max(end - told, 1)
        self._unannounced -= size
        self._told = committed
        for watcher in tuple(self.watchers):
            watcher.arrived(size)
        for tail in tuple(self.tail_watchers):
            tail.moved()

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: int,
        expected_epoch: int,
        min_one: bool,
        nowait: bool = True,
        leader_only: bool = True,
    ) -> FileSlice | None:
        """Committed bytes from `offset` on, as a region of a file; None where there are none yet.

        With `nowait` it raises NotCached where looking for the place would have to wait for a disk.
        """
        self.check_leader(expected_epoch, leader_only)
        log = self.log
        limit = log.last_stable_offset if isolation == READ_COMMITTED else log.high_watermark
        if offset >= limit and offset <= log.log_end_offset and offset >= log.log_start_offset:
            return None
        return log.read(offset, max_bytes, limit, min_one, nowait)

    def is_recent(self, region: FileSlice) -> bool:
        """Whether a region was written just now, so that it is in the page cache without asking."""
        active = self.log.segments[-1]
        return region.file is active.file and active.size - region.position <= _RECENT_BYTES

    def check_leader(self, expected_epoch: int = UNKNOWN_EPOCH, leader_only: bool = True) -> None:
        """Raise unless this broker leads (where that is enough: leads or follows) in the epoch that the client knows."""
        if expected_epoch not in (UNKNOWN_EPOCH, self.leader_epoch):
            if expected_epoch < self.leader_epoch:
                raise KafkaError(Error.FENCED_LEADER_EPOCH)
            raise KafkaError(Error.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader and leader_only:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)

    @property
    def knows_its_end(self) -> bool:
        """Whether a leader knows at least as much to be committed as it began with. Until then its high watermark may lie
        below what consumers of the leader before it have read, and must not be told to them as the end."""
        return self.log.high_watermark >= self._epoch_start

    def epoch_end(self, epoch: int) -> EpochEnd:
        """Where an epoch ends in this log: the largest that is not above `epoch`; unknown where there is none."""
        return EpochEnd(*self.log.leader_epochs.end_offset_for(epoch, self.log.log_end_offset))

    # Followers, as their leader sees them

    def follower_asks(
        self,
        broker: int,
        offset: int,
        start: int,
        expected_epoch: int,
        last_fetched_epoch: int,
        asked: LastAsked,
    ) -> EpochEnd | None:
        """A follower fetches from `offset` on: what that says of it, and where our logs part if they do. Raises KafkaError.

        Sets `news` where others wait for what this changed.
        """
        self.check_leader(expected_epoch)
        follower = self._followers.get(broker)
        if follower is None:  # it may know more than we do: it asks again when the controller's word has reached us too
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER if expected_epoch == UNKNOWN_EPOCH else Error.UNKNOWN_LEADER_EPOCH)
        if -1 < asked.broker_epoch < follower.broker_epoch:  # from an earlier life
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
        log = self.log
        end = log.log_end_offset
        if last_fetched_epoch != UNKNOWN_EPOCH and (parted := self._parted(offset, last_fetched_epoch)) is not None:
            return parted
        if offset > end or offset < log.log_start_offset:
            raise KafkaError(
                Error.OFFSET_OUT_OF_RANGE,
                f"Replica {broker} asked for offset {offset} of {self.tp}, which has {log.log_start_offset} to {end}.",
            )
        moved = offset != follower.end
        if start != follower.start:
            self._start_news = self.news = True
        follower.fetched(offset, start, end, asked)
        if broker not in self.state.isr:
            self.let_join(broker)
        if moved and offset > log.high_watermark and self._advance():
            self.news = True
        return None

    def _parted(self, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
        """Where a log that ends at `offset` in this epoch stops being ours."""
        log = self.log
        if last_fetched_epoch == log.leader_epochs.latest and log.log_start_offset <= offset <= log.log_end_offset:
            return None
        found = self.epoch_end(last_fetched_epoch)
        if found.epoch == UNKNOWN_EPOCH or found.end_offset == UNKNOWN_OFFSET or offset < log.log_start_offset:
            raise KafkaError(
                Error.OFFSET_OUT_OF_RANGE, f"{self.tp}: offset {offset} of epoch {last_fetched_epoch} is not known here"
            )
        return found if found.epoch < last_fetched_epoch or found.end_offset < offset else None

    def let_join(self, broker: int) -> None:
        """Propose that a follower which has caught up be in the ISR."""
        follower = self._followers.get(broker)
        if (
            self.proposed is None
            and follower is not None
            and isr.may_join(follower, self.log.high_watermark, self._epoch_start)
            and self._around.alive(follower.broker)
        ):
            log.info(
                "%s: replica %d has caught up (offset %d, high watermark %d); proposing ISR %s",
                self.tp, follower.broker, follower.end, self.log.high_watermark, [*self.state.isr, follower.broker],
            )  # fmt: skip
            self._propose((*self.state.isr, follower.broker))

    def shrink_isr(self, now: float) -> None:
        """Propose an ISR without those who have not kept up, if there are any."""
        if not self._followers or not self.is_leader or self.proposed is not None or len(self.state.isr) == 1:
            return
        end = self.log.log_end_offset
        late = isr.out_of_sync(self.state.isr, self.broker_id, self._followers, end, now, self._around.max_lag)
        if late:
            left = tuple(member for member in self.state.isr if member not in late)
            log.warning(
                "%s: replicas %s have not kept up (log end %d, high watermark %d); proposing ISR %s",
                self.tp, sorted(late), end, self.log.high_watermark, list(left),
            )  # fmt: skip
            self._propose(left)

    def _propose(self, members: tuple[int, ...]) -> None:
        epochs = {member: self._followers[member].broker_epoch for member in members if member in self._followers}
        epochs[self.broker_id] = self._around.broker_epoch()
        proposal = IsrProposal(self.tp, self.log.topic_id or bytes(16), self.leader_epoch, members, self.state.version, epochs)
        self.proposed = proposal
        self._maximal_isr = frozenset(self.state.isr).union(members)
        self._around.propose(self, proposal)

    def answered(self, proposal: IsrProposal, outcome: IsrOutcome) -> bool:
        """What came of a proposal; whether it must be made again."""
        if self.proposed is not proposal:
            return False  # a role change came between, and says more than this answer
        verdict = isr.judge(outcome, self.leader_epoch, self.state.version)
        counters, change = self._around.counters, len(outcome.isr) - len(self.state.isr)
        if verdict is Verdict.TAKE:
            if change > 0:
                counters.isr_expands += 1
            elif change < 0:
                counters.isr_shrinks += 1
            self._take(replace(self.state, isr=outcome.isr, version=outcome.version))
            log.info("%s: ISR is %s now (version %d)", self.tp, list(outcome.isr), outcome.version)
            if self._advance():
                self.wake()
        elif verdict is Verdict.WAIT:
            log.info("%s: ISR %s was not taken (%s); waiting for word", self.tp, list(proposal.isr), outcome.error.name)
            self._waits = True
        elif verdict is Verdict.DROP:
            counters.failed_isr_updates += 1
            log.info("%s: the controller does not take ISR %s: %s", self.tp, list(proposal.isr), outcome.error.name)
            self._take(self.state)
        return verdict is Verdict.RETRY

    def progress_of(self, broker: int) -> Progress | None:
        """What is known of a follower while this broker leads."""
        return self._followers.get(broker)

    def _advance(self) -> bool:
        """Move the high watermark as far as the followers allow; whether it moved."""
        log, followers = self.log, self._followers
        if len(self.state.isr) <= len(followers) and self.under_min_isr:
            return False
        before = log.high_watermark
        about_to_join = None if len(self._maximal_isr) > len(followers) else self._about_to_join()
        after = isr.high_watermark(log.log_end_offset, followers.values(), self._maximal_isr, before, about_to_join)
        if after == before:
            return False
        log.high_watermark = after
        return True

    def _about_to_join(self) -> Callable[[Progress], bool]:
        around, end, now = self._around, self.log.log_end_offset, self._around.monotonic()
        return lambda follower: follower.caught_up(end, now, around.max_lag) and around.alive(follower.broker)

    def replicas_with(self, offset: int) -> list[tuple[int, int]]:
        """The replicas that a consumer could read `offset` from, with their ends; this one is the first."""
        found = [(self.broker_id, self.log.log_end_offset)]
        for one in self._followers.values():
            if one.start <= offset <= one.end and one.broker in self.state.isr and self._around.alive(one.broker):
                found.append((one.broker, one.end))
        return found

    # Deleting records

    def delete_records_before(self, offset: int) -> int:
        """Give up what lies before `offset` (-1: all that is committed); the new log start offset."""
        self.check_leader()
        wanted = self.log.high_watermark if offset == UNKNOWN_OFFSET else offset
        if wanted < 0 or wanted > self.log.high_watermark:
            raise KafkaError(
                Error.OFFSET_OUT_OF_RANGE,
                f"The specified offset {offset} is higher than the high watermark {self.log.high_watermark} of {self.tp}",
            )
        self.log.delete_records_before(wanted)
        self._tell_changed()
        return self.log.log_start_offset

    @property
    def low_watermark(self) -> int:
        """Before this no live replica has anything any more."""
        starts = (one.start for one in self._followers.values() if self._around.alive(one.broker))
        return min((self.log.log_start_offset, *starts))

    # Following

    def append_from_leader(self, records: memoryview | bytes, high_watermark: int, log_start_offset: int) -> AppendInfo | None:
        """Write what the leader sent, and take over how much is committed and where the log begins. Raises KafkaError."""
        log = self.log
        info = None
        if records:
            if log.log_end_offset == log.log_start_offset:
                self._begin_with_batch(records)
            info = log.append_as_follower(memoryview(records))
            self._unannounced += info.size
            self.counters.replication_bytes_in += info.size
        committed = min(high_watermark, log.log_end_offset)
        if committed > log.high_watermark:
            log.high_watermark = committed
            self.news = True
        if log_start_offset > log.log_start_offset and log_start_offset <= log.high_watermark:
            self._change(log.delete_records_before, log_start_offset)
        return info

    def _begin_with_batch(self, records: memoryview | bytes) -> None:
        """An empty log begins with the first batch, even if the leader's begins within it: records were deleted there."""
        first = int.from_bytes(records[:_BASE_OFFSET_SIZE], "big", signed=True)
        if 0 <= first < self.log.log_end_offset:
            self._change(self.log.truncate_fully_and_start_at, first)

    def truncate_to(self, offset: int) -> None:
        """Drop what the leader does not have. Before the next append, `log.producer_rebuild` is to be run."""
        if offset < self.log.high_watermark:
            log.warning(
                "%s: truncating to %d, below its high watermark %d: committed records go, as after an unclean election",
                self.tp, offset, self.log.high_watermark,
            )  # fmt: skip
        self._change(self.log.cut, offset)

    def restart_at(self, offset: int) -> None:
        """Drop everything and begin anew at `offset`: the leader has nothing that follows what we have."""
        log.warning("%s: the leader's log begins at %d, beyond our end %d", self.tp, offset, self.log.log_end_offset)
        self._change(self.log.truncate_fully_and_start_at, offset)

    def _change(self, change: Callable[[int], None], offset: int) -> None:
        try:
            change(offset)
        except OSError as error:
            raise self.log.failed(error) from error

    def _tell_changed(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.changed()
        for tail in tuple(self.tail_watchers):
            tail.changed()
