"""The process that reads messages for the console: there while there is work, replaced when it dies, and never in the way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http import HTTPStatus

import pytest

from ottla import client
from ottla.client import Cluster
from ottla.console.asking import BadRequest
from ottla.console.process import Job, ReaderProcess
from ottla.testing import Broker
from support.waiting import wait_for

pytestmark = pytest.mark.slow

TOPIC = "t"


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        client.create_topic(cluster, TOPIC, 1)
        yield broker.bootstrap_servers


def story(bootstrap: str, steps: Callable[[ReaderProcess], Awaitable[None]], idle_s: float = 30.0) -> None:
    async def whole() -> None:
        reader = ReaderProcess({"bootstrap.servers": bootstrap}, idle_s)
        try:
            await steps(reader)
        finally:
            reader.close()

    asyncio.run(whole())


async def send(reader: ReaderProcess, text: str) -> None:
    await reader.ask("send", {"topic": TOPIC, "body": {"value": {"text": text}}})


async def tail(reader: ReaderProcess) -> tuple[Job, AsyncIterator[str]]:
    """A tail that has begun, and the kinds of what it says."""
    job = await reader.follow("follow", {"topic": TOPIC, "query": {}})
    kinds = (frame.kind async for frame in job.words())
    assert await anext(kinds) == "begun"
    return job, kinds


async def until_gone(pid: int) -> None:
    await asyncio.to_thread(wait_for, lambda: not os.path.exists(f"/proc/{pid}"), "the process ends")


def test_it_ends_when_it_has_nothing_to_do_and_comes_again(bootstrap: str) -> None:
    async def steps(reader: ReaderProcess) -> None:
        assert reader.pid is None
        job, kinds = await tail(reader)
        await send(reader, "one")
        first = reader.pid
        assert first is not None
        for _ in range(3):  # each comes a quarter of a second after the last: longer than it may be idle
            assert await anext(kinds) == "news"
        assert reader.pid == first
        job.end()
        await until_gone(first)
        await send(reader, "two")
        assert reader.pid not in (None, first)

    story(bootstrap, steps, idle_s=0.05)


def test_where_it_dies_its_jobs_say_so_and_the_next_gets_another(bootstrap: str) -> None:
    async def steps(reader: ReaderProcess) -> None:
        job, kinds = await tail(reader)
        first = reader.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert [kind async for kind in kinds if kind != "news"] == ["problem"]
        job.end()
        await send(reader, "again")
        assert reader.pid not in (None, first)

    story(bootstrap, steps)


def test_so_many_jobs_and_no_more_until_one_ends(bootstrap: str) -> None:
    async def steps(reader: ReaderProcess) -> None:
        jobs = [(await tail(reader))[0] for _ in range(8)]
        with pytest.raises(BadRequest) as refused:
            await reader.follow("follow", {"topic": TOPIC, "query": {}})
        assert refused.value.status is HTTPStatus.TOO_MANY_REQUESTS
        await send(reader, "what has one answer is not held up")
        jobs.pop().end()
        jobs.append((await tail(reader))[0])
        for job in jobs:
            job.end()

    story(bootstrap, steps)


def test_a_job_that_nobody_holds_is_over(bootstrap: str) -> None:
    async def steps(reader: ReaderProcess) -> None:
        for _ in range(9):
            await reader.follow("follow", {"topic": TOPIC, "query": {}})

    story(bootstrap, steps)


def test_it_ends_with_its_console(bootstrap: str) -> None:
    async def steps(reader: ReaderProcess) -> None:
        await send(reader, "x")
        pid = reader.pid
        assert pid is not None
        reader.close()
        await until_gone(pid)

    story(bootstrap, steps)
