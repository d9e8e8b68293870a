"""A follower's side of replication: one task that fetches from one leader, for all partitions that are followed there.

Guards: what the leader sent is written as it came, in order, or not at all; before that the log is cut to where it parts from
the leader's, and only by the rule of epochs; an answer to a question that was asked in another role, or from another offset, is
thrown away. One partition's trouble makes that one rest for `replica.fetch.backoff.ms` and no other. A leader that is away is
asked again. Life: made by `Fetchers` when the first partition is followed there, stopped when none is.

Only what changed since the last fetch is told to the leader (a session, as consumers have): quiet partitions cost nothing here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ottla.model import UNKNOWN_EPOCH, Error, KafkaError, TopicPartition
from ottla.replication.leaders import EpochEnd, Fetched, Leader, Position, SessionLost
from ottla.replication.partition import Partition
from ottla.replication.throttle import UNTHROTTLED, Throttle
from ottla.replication.truncation import cut_at
from ottla.replication.waiting import Timer, TimerHandle
from ottla.storage.log import Log

log = logging.getLogger("ottla.replication")

_PASSING = frozenset(
    {
        Error.NOT_LEADER_OR_FOLLOWER,
        Error.UNKNOWN_LEADER_EPOCH,
        Error.UNKNOWN_TOPIC_OR_PARTITION,
        Error.UNKNOWN_TOPIC_ID,
        Error.KAFKA_STORAGE_ERROR,
    }
)
"""What a leader says that has not heard yet what we have, or that tells its own operator."""
_FIRST_PAUSE = 0.02
"""Seconds: the controller's word reaches leader and followers within milliseconds of each other, and writes wait for it."""


@dataclass(slots=True, frozen=True)
class FetcherSettings:
    """What a fetcher goes by."""

    backoff: float = 1.0
    """replica.fetch.backoff.ms, in seconds."""


class Followed:
    """A partition that is followed, and how far the leader knows."""

    __slots__ = ("asked", "leader_epoch", "partition", "pause", "resting", "topic_id")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.topic_id = partition.log.topic_id or bytes(16)
        self.leader_epoch = partition.leader_epoch
        self.pause = _FIRST_PAUSE
        """How long it rests if the leader does not know yet that it leads: longer each time."""
        self.asked: Position | None = None
        """What the leader was told last; None while it is not in the session."""
        self.resting: TimerHandle | None = None

    def position(self) -> Position:
        log = self.partition.log
        self.asked = position = Position(
            self.topic_id, log.log_end_offset, log.log_start_offset, self.leader_epoch, log.leader_epochs.latest
        )
        return position

    @property
    def moved(self) -> bool:
        """Whether the leader should be told anew where we are."""
        asked, log = self.asked, self.partition.log
        return asked is None or asked.offset != log.log_end_offset or asked.log_start_offset != log.log_start_offset


class Fetcher:
    """Follows partitions of one leader."""

    def __init__(
        self,
        source: int,
        leader: Leader,
        settings: FetcherSettings,
        timer: Timer,
        look_after: Callable[[Log], Awaitable[None]],
        throttle: Throttle = UNTHROTTLED,
    ) -> None:
        self.source = source
        self._leader = leader
        self._settings = settings
        self._timer = timer
        self._look_after = look_after
        self._throttle = throttle
        self._followed: dict[TopicPartition, Followed] = {}
        self._changed: dict[TopicPartition, Followed] = {}
        self._gone: dict[TopicPartition, bytes] = {}
        self._in_session = 0
        self._lost: list[Followed] = []
        self._blocking: list[Log] = []
        self._something_to_ask = asyncio.Event()
        self._away = False
        self._pause = _FIRST_PAUSE

    def __len__(self) -> int:
        return len(self._followed)

    def follow(self, partitions: Iterable[Partition]) -> None:
        """Fetch these from now on, from the end of their logs."""
        for partition in partitions:
            self._leave(partition.tp)
            log = partition.log
            if log.producer_rebuild is not None:
                self._blocking.append(log)  # cut in an earlier role
            if log.leader_epochs.latest == UNKNOWN_EPOCH and log.log_end_offset > log.high_watermark:
                partition.truncate_to(log.high_watermark)  # without epochs nobody can tell whose the rest is
                self._blocking.append(log)
            followed = self._followed[partition.tp] = Followed(partition)
            self._ready(followed)

    def forget(self, tp: TopicPartition) -> None:
        """Fetch this one no more."""
        self._leave(tp)
        self._followed.pop(tp, None)

    def _leave(self, tp: TopicPartition) -> None:
        """Take a partition out of the session."""
        followed = self._followed.get(tp)
        if followed is None:
            return
        if followed.resting is not None:
            followed.resting.cancel()
            followed.resting = None
        self._changed.pop(tp, None)
        if followed.asked is not None:
            followed.asked = None
            self._in_session -= 1
            self._gone[tp] = followed.topic_id

    def _ready(self, followed: Followed) -> None:
        followed.resting = None
        self._changed[followed.partition.tp] = followed
        self._something_to_ask.set()

    def _rest(self, followed: Followed, seconds: float | None = None) -> None:
        """Leave a partition alone for a while."""
        self._leave(followed.partition.tp)
        delay = self._settings.backoff if seconds is None else seconds
        followed.resting = self._timer(delay, lambda: self._ready(followed))

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            if not self._in_session and not self._changed:
                self._something_to_ask.clear()
                await self._something_to_ask.wait()
            try:
                await self.fetch_once()
            except Exception:
                log.exception("Fetching from broker %d failed; beginning anew", self.source)
                self._begin_anew()
                await asyncio.sleep(self._settings.backoff)

    async def fetch_once(self) -> None:
        """Ask the leader for what is new, and write it."""
        await self._afterwards()
        changed, self._changed = self._changed, {}
        gone, self._gone = self._gone, {}
        positions: dict[TopicPartition, Position] = {}
        for tp, followed in changed.items():
            if self._throttle.active and (wait := self._throttle.seconds_to_wait(followed.partition)) > 0:
                self._rest(followed, wait)
                continue
            if followed.asked is None:
                self._in_session += 1
            positions[tp] = followed.position()
            gone.pop(tp, None)
        try:
            answers = await self._leader.fetch(positions, tuple(gone.items()))
        except SessionLost:
            self._begin_anew()
            return
        except KafkaError as problem:
            await self._leader_away(problem)
            return
        if self._away:
            self._away = False
            log.info("Broker %d answers again; %d partitions are followed there", self.source, len(self._followed))
        for answer in answers:
            self._take(answer)
        # Only now may the leader be asked something else: its answer lies where the records lay.
        await self._afterwards()

    def _begin_anew(self) -> None:
        """The leader remembers nothing: it is told everything again."""
        self._gone.clear()
        self._in_session = 0
        for tp, followed in self._followed.items():
            followed.asked = None
            if followed.resting is None:
                self._changed[tp] = followed

    async def _leader_away(self, problem: KafkaError) -> None:
        if not self._away:
            self._away = True
            self._pause = _FIRST_PAUSE
            log.warning("Cannot fetch from broker %d: %s; trying again", self.source, problem.message)
        self._begin_anew()
        await asyncio.sleep(min(self._pause, self._settings.backoff))
        self._pause *= 2

    # Answers

    def _take(self, answer: Fetched) -> None:
        followed = self._followed.get(answer.tp)
        asked = followed.asked if followed is not None else None
        if followed is None or asked is None:
            return  # it is followed elsewhere by now, or anew
        partition = followed.partition
        if asked.offset != partition.log.log_end_offset:
            self._changed[answer.tp] = followed
            return
        try:
            if answer.error is not Error.NONE:
                self._refused(followed, answer.error)
            elif answer.diverging is not None:
                self._cut(partition, answer.diverging)
            else:
                self._write(partition, answer)
        except KafkaError as problem:
            self._failed(followed, problem)
            return
        if followed.asked is not None and followed.moved:
            self._changed[answer.tp] = followed

    def _failed(self, followed: Followed, problem: KafkaError) -> None:
        tp = followed.partition.tp
        log.error("%s: could not follow broker %d: %s; trying again", tp, self.source, problem.message)
        if self._followed.get(tp) is followed:
            self._rest(followed)

    def _write(self, partition: Partition, answer: Fetched) -> None:
        info = partition.append_from_leader(answer.records, answer.high_watermark, answer.log_start_offset)
        if info is not None:
            if info.flush_due:
                self._blocking.append(partition.log)
            if self._throttle.active:
                self._throttle.record(partition, info.size)
        if partition.news and partition.watchers:
            partition.wake()

    def _cut(self, partition: Partition, leaders: EpochEnd) -> None:
        """Our logs part: drop what the leader does not have."""
        own = partition.epoch_end(leaders.epoch)
        end, committed = partition.log.log_end_offset, partition.log.high_watermark
        offset = cut_at(leaders, own, end, committed)
        log.info(
            "%s: our log parts from that of leader %d in epoch %d (it ends there at %d, here at %d): truncating from %d to %d",
            partition.tp, self.source, leaders.epoch, leaders.end_offset, own.end_offset, end, offset,
        )  # fmt: skip
        partition.truncate_to(offset)
        self._blocking.append(partition.log)
        # The epoch that parted is gone now, even if no record of it was here: the leader must be told the one before.
        self._changed[partition.tp] = self._followed[partition.tp]

    def _refused(self, followed: Followed, error: Error) -> None:
        tp = followed.partition.tp
        if error is Error.OFFSET_OUT_OF_RANGE:
            self._lost.append(followed)
            return
        if error is Error.FENCED_LEADER_EPOCH:
            log.debug("%s: there is a newer leader than that of epoch %d; waiting to be told", tp, followed.leader_epoch)
            self._leave(tp)
            return
        level = logging.DEBUG if error in _PASSING else logging.ERROR
        log.log(level, "%s: leader %d answers %s; trying again", tp, self.source, error.name)
        if error in _PASSING:
            self._rest(followed, min(followed.pause, self._settings.backoff))
            followed.pause *= 2
        else:
            self._rest(followed)

    async def _afterwards(self) -> None:
        """What takes more than one answer."""
        while self._lost:
            followed = self._lost.pop()
            try:
                await self._find_place(followed)
            except KafkaError as problem:
                self._failed(followed, problem)
        while self._blocking:
            await self._look_after(self._blocking.pop())

    async def _find_place(self, followed: Followed) -> None:
        """The leader does not have what we asked for: find out where to go on."""
        partition, tp = followed.partition, followed.partition.tp
        latest = await self._leader.latest(tp, followed.leader_epoch)
        earliest = await self._leader.earliest(tp, followed.leader_epoch)
        ends: EpochEnd | Error = Error.NONE
        epoch = partition.log.leader_epochs.latest
        if epoch != UNKNOWN_EPOCH:
            ends = (await self._leader.epoch_ends({tp: (followed.leader_epoch, epoch)}))[tp]
        if self._followed.get(tp) is not followed or partition.leader_epoch != followed.leader_epoch:
            return
        if isinstance(ends, Error) and ends is not Error.NONE:
            raise KafkaError(ends)
        end = partition.log.log_end_offset
        if earliest.end_offset > end:
            partition.restart_at(earliest.end_offset)
        elif isinstance(ends, EpochEnd):
            offset = cut_at(ends, partition.epoch_end(ends.epoch), end, partition.log.high_watermark)
            partition.truncate_to(min(offset, latest.end_offset))
        else:
            partition.truncate_to(min(end, latest.end_offset))
        self._blocking.append(partition.log)
        self._changed[tp] = followed
