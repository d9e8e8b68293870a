"""The broker's loop: readers and writers called on the spot, and everything of asyncio's as ever."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from ottla.network.loop import BrokerLoop, new_event_loop, turn_of
from ottla.network.readiness import Turn


def run(story: Callable[[asyncio.AbstractEventLoop, socket.socket, socket.socket], Coroutine[Any, Any, None]]) -> None:
    async def with_a_pair() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        with ours, theirs:
            await asyncio.wait_for(story(asyncio.get_running_loop(), ours, theirs), 10)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(with_a_pair())


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_readers_and_writers_are_called_until_they_are_taken_away() -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        read: list[bytes] = []
        writable = asyncio.Event()
        loop.add_reader(ours.fileno(), lambda: read.append(ours.recv(100)))
        loop.add_writer(ours.fileno(), writable.set)
        theirs.send(b"one")
        await writable.wait()
        await turns()
        assert read == [b"one"]
        assert loop.remove_writer(ours.fileno())
        assert not loop.remove_writer(ours.fileno())
        assert loop.remove_reader(ours.fileno())
        theirs.send(b"two")
        await turns()
        assert read == [b"one"]
        loop.add_reader(ours.fileno(), lambda what: read.append(what + ours.recv(100)), b"now ")
        await turns()
        assert read == [b"one", b"now two"]
        loop.remove_reader(ours.fileno())

    run(story)


def test_one_that_was_taken_away_by_another_is_not_called() -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        called: list[str] = []

        def take_away(name: str, other: socket.socket) -> None:
            called.append(name)
            loop.remove_reader(other.fileno())

        loop.add_reader(ours.fileno(), take_away, "ours", theirs)
        loop.add_reader(theirs.fileno(), take_away, "theirs", ours)
        theirs.send(b"x")
        ours.send(b"x")
        await turns()
        assert len(set(called)) == 1
        loop.remove_reader(ours.fileno())
        loop.remove_reader(theirs.fileno())

    run(story)


def test_a_reader_that_fails_harms_no_other() -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        problems: list[Any] = []
        read: list[bytes] = []
        loop.set_exception_handler(lambda _, context: problems.append(context["exception"]))

        def fail() -> None:
            ours.recv(100)
            raise ValueError("planned")

        loop.add_reader(ours.fileno(), fail)
        loop.add_reader(theirs.fileno(), lambda: read.append(theirs.recv(100)))
        theirs.send(b"x")
        ours.send(b"y")
        await turns()
        assert [str(problem) for problem in problems] == ["planned"]
        assert read == [b"y"]
        loop.remove_reader(ours.fileno())
        loop.remove_reader(theirs.fileno())

    run(story)


def test_a_peer_that_hung_up_is_told_to_the_reader_and_to_nobody_if_there_is_none() -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        read: list[bytes] = []
        theirs.close()
        await turns()

        def at_end() -> None:
            read.append(ours.recv(100))
            loop.remove_reader(ours.fileno())

        loop.add_reader(ours.fileno(), at_end)
        await asyncio.sleep(0.01)
        assert read == [b""]

    run(story)


@pytest.mark.parametrize("closed_early", [False, True])
def test_asyncios_own_sockets_work_beside(closed_early: bool) -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read(100))
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
            if not closed_early:
                got = asyncio.Event()
                loop.add_reader(client.fileno(), got.set)  # the descriptor that asyncio had for the connect
                await loop.sock_sendall(client, b"hello")
                await got.wait()
                assert client.recv(100) == b"hello"
                loop.remove_reader(client.fileno())
        server.close()
        assert await loop.run_in_executor(None, lambda: 7) == 7

    run(story)


def test_what_is_put_off_is_done_when_all_had_their_turn() -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        done: list[str] = []
        turn = turn_of(loop)

        def reader(name: str, sock: socket.socket) -> Callable[[], None]:
            def read() -> None:
                sock.recv(100)
                assert turn.shared
                turn.put_off(lambda: done.append(f"after {name}"))
                done.append(name)

            return read

        loop.add_reader(ours.fileno(), reader("ours", ours))
        loop.add_reader(theirs.fileno(), reader("theirs", theirs))
        theirs.send(b"x")
        ours.send(b"x")
        loop.call_soon(done.append, "the rest of the loop")
        await turns()
        first, second = ("ours", "theirs") if done[0] == "ours" else ("theirs", "ours")
        assert done == [first, second, f"after {first}", f"after {second}", "the rest of the loop"]
        assert not turn.shared
        loop.remove_reader(ours.fileno())
        loop.remove_reader(theirs.fileno())

    run(story)


@pytest.mark.parametrize("listener", ["ours", "theirs", "both", "neither"])
def test_who_listens_is_called_after_those_who_bring_something_and_answered_before_them(listener: str) -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        done: list[str] = []
        turn = turn_of(loop)
        for name, sock in (("ours", ours), ("theirs", theirs)):

            def read(name: str = name, sock: socket.socket = sock) -> None:
                sock.recv(100)
                done.append(name)
                turn.put_off(partial(done.append, f"after {name}"), awaited=sock.fileno() in turn.listeners)

            loop.add_reader(sock.fileno(), read)
            if listener in (name, "both"):
                turn.listeners.add(sock.fileno())
        theirs.send(b"x")
        ours.send(b"x")
        await turns()
        last = {"ours": "ours", "theirs": "theirs"}.get(listener, done[1])
        first = "ours" if last == "theirs" else "theirs"
        if listener in ("ours", "theirs"):
            assert done == [first, last, f"after {last}", f"after {first}"]
        else:
            assert done == [first, last, f"after {first}", f"after {last}"]
        loop.remove_reader(ours.fileno())
        loop.remove_reader(theirs.fileno())

    run(story)


def test_who_is_called_alone_has_nothing_to_wait_for() -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        shared: list[bool] = []

        def read() -> None:
            ours.recv(100)
            shared.append(turn_of(loop).shared)

        loop.add_reader(ours.fileno(), read)
        theirs.send(b"x")
        await turns()
        assert shared == [False]
        loop.remove_reader(ours.fileno())

    run(story)


def test_nobody_waits_for_many_others_whether_or_not_they_are_answered() -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        done: list[str] = []
        turn = turn_of(loop)
        pairs = [socket.socketpair() for _ in range(40)]
        for near, far in pairs:

            def read(near: socket.socket = near) -> None:
                near.recv(100)
                if not done:
                    turn.put_off(partial(done.append, "answered"))
                done.append("asked")

            near.setblocking(False)
            loop.add_reader(near.fileno(), read)
            far.send(b"x")
        await turns()
        assert done.index("answered") == 16
        assert len(done) == 41
        for near, far in pairs:
            loop.remove_reader(near.fileno())
            near.close()
            far.close()

    run(story)


def test_a_turn_that_is_broken_off_leaves_nothing_undone() -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        done: list[str] = []
        turn = turn_of(loop)

        def read(sock: socket.socket) -> None:
            sock.recv(100)
            turn.put_off(partial(done.append, "answered"))
            if turn.shared and len(done) == 0:
                done.append("asked")
            else:
                raise KeyboardInterrupt

        assert isinstance(loop, BrokerLoop)
        loop.add_reader(ours.fileno(), partial(read, ours))
        loop.add_reader(theirs.fileno(), partial(read, theirs))
        ours.send(b"x")
        theirs.send(b"x")
        with pytest.raises(KeyboardInterrupt):
            loop._readiness.select(0)
        assert done == ["asked", "answered", "answered"]
        assert not turn.shared
        loop.remove_reader(ours.fileno())
        loop.remove_reader(theirs.fileno())

    run(story)


def test_what_fails_at_the_end_of_a_turn_harms_no_other() -> None:
    turn = Turn()
    problems: list[Exception] = []
    done: list[str] = []
    turn.failed = problems.append
    turn.put_off(lambda: done.append("one"))
    turn.put_off(partial(int, "no number"))
    turn.put_off(lambda: done.append("two"))
    turn.catch_up()
    assert done == ["one", "two"]
    assert [type(problem) for problem in problems] == [ValueError]
    turn.catch_up()
    assert done == ["one", "two"]


def test_other_loops_have_no_turns() -> None:
    loop = asyncio.SelectorEventLoop()
    try:
        assert not turn_of(loop).shared
    finally:
        loop.close()


# One poll follows the other, as long as asyncio has nothing to do


def ask_each_other(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket, times: int) -> asyncio.Event:
    """The two sockets send a byte to and fro, so many times."""
    left, enough = [times], asyncio.Event()

    def over(here: socket.socket) -> None:
        here.recv(1)
        left[0] -= 1
        if left[0] > 0:
            here.send(b"x")
        else:
            enough.set()

    for here in (ours, theirs):
        loop.add_reader(here.fileno(), over, here)
    ours.send(b"x")
    return enough


@pytest.mark.parametrize("timer_in", [None, 60.0])
def test_requests_that_follow_each_other_do_not_go_through_asyncio(
    monkeypatch: pytest.MonkeyPatch, timer_in: float | None
) -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        rounds: list[int] = []
        real = BrokerLoop._process_events  # type: ignore[attr-defined]  # asyncio's own
        monkeypatch.setattr(BrokerLoop, "_process_events", lambda self, events: (rounds.append(1), real(self, events))[1])
        if timer_in is not None:
            loop.call_later(timer_in, pytest.fail)
        await ask_each_other(loop, ours, theirs, 200).wait()
        assert len(rounds) < 100
        for here in (ours, theirs):
            loop.remove_reader(here.fileno())

    run(story)


@pytest.mark.parametrize("timer_in", [None, 60.0], ids=["no timer", "a late timer"])
@pytest.mark.parametrize("what", ["soon", "earlier timer", "thread", "task"])
def test_what_a_reader_asks_of_asyncio_is_done_while_requests_go_on(what: str, timer_in: float | None) -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        done = asyncio.Event()
        asked: list[Any] = []

        async def set_it() -> None:
            done.set()

        def read() -> None:
            theirs.send(ours.recv(1))  # there is always more to read
            if asked:
                return
            if what == "soon":
                asked.append(loop.call_soon(done.set))
            elif what == "earlier timer":
                asked.append(loop.call_later(0.01, done.set))
            elif what == "thread":
                asked.append(loop.run_in_executor(None, loop.call_soon_threadsafe, done.set))
            else:
                asked.append(loop.create_task(set_it()))

        late = loop.call_later(timer_in, pytest.fail) if timer_in is not None else None
        loop.add_reader(ours.fileno(), read)
        theirs.send(b"x")
        await done.wait()
        loop.remove_reader(ours.fileno())
        if late is not None:
            late.cancel()

    run(story)


def test_a_timer_is_not_late_while_requests_go_on() -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        ask_each_other(loop, ours, theirs, 1 << 60)
        assert await asyncio.wait_for(asyncio.sleep(0.02, "in time"), 5) == "in time"
        for here in (ours, theirs):
            loop.remove_reader(here.fileno())

    run(story)


def test_timers_that_are_cancelled_do_not_gather_while_requests_go_on() -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        late, most, left = loop.call_later(30, pytest.fail), [0], [2000]

        def read() -> None:
            theirs.send(ours.recv(1))
            loop.call_later(60, pytest.fail).cancel()
            most[0] = max(most[0], len(loop._scheduled))  # type: ignore[attr-defined]
            left[0] -= 1
            if not left[0]:
                enough.set()

        enough = asyncio.Event()
        loop.add_reader(ours.fileno(), read)
        theirs.send(b"x")
        await enough.wait()
        assert most[0] < 400
        loop.remove_reader(ours.fileno())
        late.cancel()

    run(story)


def test_a_reader_stops_the_loop() -> None:
    loop = new_event_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.add_reader(ours.fileno(), loop.stop)
        theirs.send(b"x")
        loop.run_forever()
        loop.remove_reader(ours.fileno())
        loop.close()


def test_a_timer_of_weeks_is_waited_for_in_days() -> None:
    async def story(loop: asyncio.AbstractEventLoop, ours: socket.socket, theirs: socket.socket) -> None:
        await ask_each_other(loop, ours, theirs, 3).wait()
        for here in (ours, theirs):
            loop.remove_reader(here.fileno())

    loop = new_event_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        late = loop.call_later(30 * 86_400, pytest.fail)
        loop.run_until_complete(story(loop, ours, theirs))
        late.cancel()
    loop.close()
