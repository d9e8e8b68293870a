"""Incremental fetch sessions: epochs that are counted, slots that are bounded, and nobody who starves."""

from __future__ import annotations

import itertools

import pytest

from ottla.api.fetch_sessions import NO_SESSION, FetchSessions, Session, Wanted
from ottla.model import Error, KafkaError
from ottla.replication.waiting import Watcher, Watchers

LAST_EPOCH = 2**31 - 1


class Place:
    def __init__(self) -> None:
        self.watchers: Watchers[Watcher] = Watchers()


class Scene:
    def __init__(self, slots: int = 2) -> None:
        self.now = 1000.0
        ids = itertools.chain([0, 5, 5], itertools.count(6))  # 0 means none, and an id may come up twice
        self.sessions = FetchSessions(slots, lambda: self.now, lambda: next(ids))

    def open(self, *names: str) -> Session:
        session = self.sessions.open([wanted(name) for name in names], uses_ids=False)
        assert session is not None
        return session

    def refuses(self, error: Error, session_id: int, epoch: int, uses_ids: bool = False) -> None:
        with pytest.raises(KafkaError) as refusal:
            self.sessions.resume(session_id, epoch, uses_ids)
        assert refusal.value.error is error


def wanted(name: str, offset: int = 0, partition: int = 0) -> Wanted:
    return Wanted(name, bytes(16), partition, offset, 1 << 20, -1)


def test_ids_are_never_zero_and_never_shared() -> None:
    scene = Scene(slots=10)
    ids = [scene.open("t").id for _ in range(5)]
    assert NO_SESSION not in ids
    assert len(set(ids)) == 5


def test_epochs_are_counted() -> None:
    scene = Scene()
    session = scene.open("t")
    assert scene.sessions.resume(session.id, 1, False) is session
    assert scene.sessions.resume(session.id, 2, False) is session
    scene.refuses(Error.INVALID_FETCH_SESSION_EPOCH, session.id, 2)  # a repeated request
    scene.refuses(Error.INVALID_FETCH_SESSION_EPOCH, session.id, 4)  # one was lost
    assert scene.sessions.resume(session.id, 3, False) is session


def test_the_epoch_after_the_last_is_one() -> None:
    scene = Scene()
    session = scene.open("t")
    session.epoch = LAST_EPOCH
    scene.sessions.resume(session.id, LAST_EPOCH, False)
    assert session.epoch == 1


def test_unknown_and_closed_sessions() -> None:
    scene = Scene()
    scene.refuses(Error.FETCH_SESSION_ID_NOT_FOUND, 12345, 1)
    session = scene.open("t")
    scene.sessions.close(session.id)
    scene.sessions.close(session.id)
    scene.refuses(Error.FETCH_SESSION_ID_NOT_FOUND, session.id, 1)
    assert len(scene.sessions) == 0


def test_names_and_ids_do_not_mix() -> None:
    scene = Scene()
    session = scene.open("t")
    scene.refuses(Error.FETCH_SESSION_TOPIC_ID_ERROR, session.id, 1, uses_ids=True)


def test_slots_are_bounded_and_the_one_not_used_for_longest_gives_way() -> None:
    scene = Scene(slots=2)
    old, used = scene.open("a"), scene.open("b")
    assert scene.sessions.open([wanted("c")], False) is None, "all are in use: no session, and the client sends all"
    scene.now += 119
    scene.sessions.resume(used.id, 1, False)
    assert scene.sessions.open([wanted("c")], False) is None
    scene.now += 2
    newest = scene.open("c")
    assert len(scene.sessions) == 2
    scene.refuses(Error.FETCH_SESSION_ID_NOT_FOUND, old.id, 1)
    scene.sessions.resume(used.id, 2, False)
    scene.sessions.resume(newest.id, 1, False)


def test_without_slots_there_are_no_sessions() -> None:
    assert Scene(slots=0).sessions.open([wanted("t")], False) is None


def test_only_what_changed_is_sent() -> None:
    session = Scene().open("a", "b")
    session.update([wanted("a", offset=7), wanted("c")], [("b", 0), ("ghost", 3)])
    assert {key: one.offset for key, one in session.wanted.items()} == {("a", 0): 7, ("c", 0): 0}
    assert [one.topic for one in session.pending] == ["a", "c"]


def test_by_id_where_the_client_speaks_ids() -> None:
    one = Wanted("t", b"i" * 16, 3, 0, 1, -1)
    assert one.key == (b"i" * 16, 3)
    assert wanted("t", partition=3).key == ("t", 3)


def test_nobody_starves() -> None:
    """What had data goes to the end: with room for one partition per request, all have their turn."""
    session = Scene().open("a", "b", "c")
    turns = []
    for _ in range(6):
        first = next(iter(session.pending))
        turns.append(first.topic)
        session.served(first)
    assert turns == ["a", "b", "c", "a", "b", "c"]


def test_a_session_hears_of_its_partitions_only_while_it_lasts() -> None:
    scene = Scene()
    session, place, other = scene.open("a", "b"), Place(), Place()
    a, b = session.wanted["a", 0], session.wanted["b", 0]
    a.watch(place)
    b.watch(place)
    session.pending.clear()
    for watcher in tuple(place.watchers):
        watcher.arrived(10)
    assert set(session.pending) == {a, b}
    a.watch(other)  # the topic was made anew: another partition under the same name
    assert a not in place.watchers
    assert a in other.watchers
    session.update([], [("b", 0)])
    assert not place.watchers
    scene.sessions.close(session.id)
    assert not other.watchers


def test_an_evicted_session_watches_nothing() -> None:
    scene = Scene(slots=1)
    session, place = scene.open("a"), Place()
    session.wanted["a", 0].watch(place)
    scene.now += 1000
    scene.open("b")
    assert not place.watchers
