"""The purgatory: completed exactly once, by whatever comes first; afterwards nothing holds on to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.replication.waiting import Waiter, Watcher, Watchers


class FakeTimer:
    """A timer that goes off when the test says so."""

    def __init__(self) -> None:
        self.delay = -1.0
        self.cancelled = 0
        self.callback: Callable[[], None] = lambda: None

    def __call__(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        self.delay, self.callback = delay, callback
        return self

    def cancel(self) -> None:
        self.cancelled += 1


class Place:
    def __init__(self) -> None:
        self.watchers: Watchers[Watcher] = Watchers()


class Scene:
    """A waiter for 100 bytes in two places."""

    def __init__(self) -> None:
        self.timer = FakeTimer()
        self.places = [Place(), Place()]
        self.events: list[str] = []
        self.seen = 0
        self.waiter = Waiter(
            self._enough,
            lambda: self.events.append("complete"),
            self.places,
            self.timer,
            0.5,
            lambda: self.events.append("ended"),
        )

    def _enough(self, size: int) -> bool:
        self.seen += size
        return self.seen >= 100


def test_it_watches_all_its_places_until_its_deadline() -> None:
    scene = Scene()
    assert scene.timer.delay == 0.5
    assert all(scene.waiter in place.watchers for place in scene.places)
    assert scene.events == []


@pytest.mark.parametrize(
    "first",
    [
        lambda scene: (scene.waiter.arrived(60), scene.waiter.arrived(40)),
        lambda scene: scene.timer.callback(),
        lambda scene: scene.waiter.changed(),
        lambda scene: scene.waiter.complete(),
    ],
    ids=["enough", "deadline", "changed", "completed"],
)
@pytest.mark.parametrize("second", ["arrived", "timer", "changed", "complete"])
def test_completed_exactly_once(first: Callable[[Scene], object], second: str) -> None:
    scene = Scene()
    first(scene)
    assert scene.events == ["ended", "complete"]
    assert scene.timer.cancelled >= 1
    assert not any(place.watchers for place in scene.places)
    {
        "arrived": lambda: scene.waiter.arrived(1000),
        "timer": scene.timer.callback,
        "changed": scene.waiter.changed,
        "complete": scene.waiter.complete,
    }[second]()
    assert scene.events == ["ended", "complete"]


def test_not_enough_is_not_enough() -> None:
    scene = Scene()
    scene.waiter.arrived(99)
    assert scene.events == []
    assert all(place.watchers for place in scene.places)


def test_discarded_without_an_answer() -> None:
    scene = Scene()
    scene.waiter.discard()
    assert scene.events == ["ended"]
    scene.timer.callback()
    scene.waiter.arrived(1000)
    assert scene.events == ["ended"]
    assert not any(place.watchers for place in scene.places)


def test_a_waiter_that_completes_another_while_partitions_are_told() -> None:
    """Completion may end other waiters of the same partition: each is still completed once."""
    place, timer = Place(), FakeTimer()
    order: list[str] = []
    others: list[Waiter] = []

    def complete_first() -> None:
        order.append("first")
        others[0].complete()

    first = Waiter(lambda _size: True, complete_first, [place], timer, 1)
    others.append(Waiter(lambda _size: True, lambda: order.append("second"), [place], timer, 1))
    for watcher in (first, others[0]):
        watcher.arrived(1)
    assert order == ["first", "second"]
