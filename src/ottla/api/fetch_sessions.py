"""Incremental fetch sessions: the broker remembers what a reader wants, so that both sides send only what changed. Pure.

Guards: a session's epoch counts its requests, so a lost or repeated one is noticed and the client starts anew; the number of
sessions is bounded (`max.incremental.fetch.session.cache.slots`), the one that was not used for longest gives way after two
minutes. A session watches its partitions and keeps those that may have something to tell in `pending`: a fetch looks at these
and no others, so that a consumer of a thousand quiet partitions costs no more than one of a single partition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

from ottla.model import Error, KafkaError
from ottla.replication.isr import LastAsked
from ottla.replication.waiting import Waiter, Watched, WatchedTail

NO_SESSION = 0
FIRST_EPOCH = 0
FINAL_EPOCH = -1
_LAST_EPOCH = 2**31 - 1
_MAY_EVICT_AFTER = 120.0


class Wanted:
    """One partition that a reader wants, and what it was told last."""

    __slots__ = (
        "high_watermark", "leader_epoch", "log_start_offset", "max_bytes", "offset", "partition",
        "session", "topic", "topic_id", "watched",
    )  # fmt: skip

    def __init__(
        self, topic: str | None, topic_id: bytes, partition: int, offset: int, max_bytes: int, leader_epoch: int
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.high_watermark = -1
        self.log_start_offset = -1
        self.session: Session | None = None
        self.watched: Watched | None = None

    @property
    def key(self) -> tuple[object, int]:
        """By id where the client speaks ids, by name where it speaks names."""
        return (self.topic_id if any(self.topic_id) else self.topic, self.partition)

    def watch(self, partition: Watched) -> None:
        """Be told from now on what happens to the partition, as soon as a session is there to remember it."""
        if self.watched is not partition:
            self.unwatch()
            self.watched = partition
            if self.session is not None:
                self._begin()

    def unwatch(self) -> None:
        """Be told no more."""
        if self.watched is not None:
            self._end()
            self.watched = None

    def remembered_by(self, session: Session) -> None:
        """There is a session from now on."""
        self.session = session
        if self.watched is not None:
            self._begin()

    def take(self, other: Wanted) -> None:
        """What the client says now."""
        self.offset, self.max_bytes, self.leader_epoch = other.offset, other.max_bytes, other.leader_epoch

    def _begin(self) -> None:
        assert self.watched is not None
        self.watched.watchers.add(self)

    def _end(self) -> None:
        assert self.watched is not None
        self.watched.watchers.discard(self)

    def arrived(self, size: int) -> None:
        """More is committed."""
        session = self.session
        if session is not None:
            session.pending[self] = None
            if session.waiter is not None:
                session.waiter.arrived(size)

    def changed(self) -> None:
        """The partition's role changed, or it is gone."""
        session = self.session
        if session is not None:
            session.pending[self] = None
            if session.waiter is not None:
                session.waiter.complete()


class WantedByFollower(Wanted):
    """One partition that a follower wants: to the end of the log, with what the leader must know of the follower's."""

    __slots__ = ("last_fetched_epoch", "start")

    def __init__(
        self,
        topic: str | None,
        topic_id: bytes,
        partition: int,
        offset: int,
        max_bytes: int,
        leader_epoch: int,
        start: int,
        last_fetched_epoch: int,
    ) -> None:
        super().__init__(topic, topic_id, partition, offset, max_bytes, leader_epoch)
        self.start = start
        self.last_fetched_epoch = last_fetched_epoch

    def take(self, other: Wanted) -> None:
        super().take(other)
        assert isinstance(other, WantedByFollower)
        self.start, self.last_fetched_epoch = other.start, other.last_fetched_epoch
        self.high_watermark = -1  # in another role it may not have listened: it is told again

    def moved(self) -> None:
        """More is committed, or the log begins elsewhere: told with the next answer."""
        if self.session is not None:
            self.session.pending[self] = None

    def _begin(self) -> None:
        cast(WatchedTail, self.watched).tail_watchers.add(self)

    def _end(self) -> None:
        cast(WatchedTail, self.watched).tail_watchers.discard(self)


@dataclass(slots=True)
class Session:
    """What one consumer or follower reads."""

    id: int
    uses_ids: bool
    used_at: float
    epoch: int = 1
    wanted: dict[tuple[object, int], Wanted] = field(default_factory=dict)
    pending: dict[Wanted, None] = field(default_factory=dict)
    """What may have something to tell, in the order in which it is looked at."""
    waiter: Waiter | None = None
    asked: LastAsked | None = None
    """Of a follower's session: when it last asked, for all of its partitions."""

    def update(self, changed: Iterable[Wanted], forgotten: Iterable[tuple[object, int]]) -> None:
        """Take in what the client says has changed."""
        for one in changed:
            known = self.wanted.get(one.key)
            if known is None:
                known = self.wanted[one.key] = one
                one.session = self
            else:
                known.take(one)
            self.pending[known] = None
        for key in forgotten:
            gone = self.wanted.pop(key, None)
            if gone is not None:
                gone.unwatch()
                self.pending.pop(gone, None)

    @classmethod
    def of_one_request(cls, wanted: Iterable[Wanted]) -> Session:
        """For a request without a session that has to wait: it is told what happens to its partitions like any other."""
        session = cls(NO_SESSION, False, 0.0, wanted={("", at): one for at, one in enumerate(wanted)})
        for one in session.wanted.values():
            one.remembered_by(session)
        return session

    def waited(self) -> None:
        """A request of this session waits no longer."""
        self.waiter = None
        if self.id == NO_SESSION:
            self.end()

    def served(self, one: Wanted) -> None:
        """A partition that had data goes to the end of the queue, so that none is starved by a bound on bytes."""
        self.pending.pop(one, None)
        self.pending[one] = None

    def end(self) -> None:
        """Watch nothing any more, now and later."""
        for one in self.wanted.values():
            one.session = None
            one.unwatch()


class FetchSessions:
    """All sessions of this broker."""

    def __init__(self, slots: int, monotonic: Callable[[], float], new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._monotonic = monotonic
        self._new_id = new_id
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, wanted: Iterable[Wanted], uses_ids: bool, asked: LastAsked | None = None) -> Session | None:
        """A new session, or None where all slots are in use: the client then sends full requests.

        A follower (who has `asked`) takes the place of a consumer's session if it must.
        """
        now = self._monotonic()
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is not None and now - oldest.used_at < _MAY_EVICT_AFTER:
                consumers = (one for one in self._sessions.values() if one.asked is None)
                oldest = next(consumers, None) if asked is not None else None
            if oldest is None:
                return None
            self.close(oldest.id)
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session = Session(session_id, uses_ids, now, asked=asked)
        session.update(wanted, ())
        self._sessions[session_id] = session
        return session

    def resume(self, session_id: int, epoch: int, uses_ids: bool) -> Session:
        """The session that a request continues; raises where it cannot be continued."""
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(Error.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(Error.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids != uses_ids:
            raise KafkaError(Error.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        session.used_at = self._monotonic()
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: int) -> None:
        """The client is done, or begins anew."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()
