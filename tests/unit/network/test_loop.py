"""The broker's loop: readers and writers called on the spot, and everything of asyncio's as ever."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.network.loop import new_event_loop


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
