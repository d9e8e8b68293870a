"""Offset commits by simple consumers (no generation, no member), and the offsets that a coordinator has to load.

Guards: an answer counts only if it says NONE for every partition; the first is read, the others must equal it byte for byte.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from bench.connection import GROUP, NOT_YET, Connection, Pace, frame
from bench.load import Figures, LoadError
from bench.machine import cpu_seconds
from ottla.model import Error
from ottla.wire.apis.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.wire.frame import decode_response

_VERSION = 8
_VARIANTS = 16  # a consumer moves on: the frames of so many commits are prepared, each with other offsets


def commits(
    bootstrap: str, pid: int, topic: str, partitions: int, count: int, rate: float | None = None, connections: int = 16
) -> Figures:
    """`count` commits of so many partitions each, by connections that each stand for a group and have one commit under way.

    At full speed, or so many a second: a broker that is never idle saves what waking up costs, and most brokers often are.
    """
    return asyncio.run(_commits(bootstrap, pid, topic, partitions, count, rate, connections))


async def _commits(
    bootstrap: str, pid: int, topic: str, partitions: int, count: int, rate: float | None, connections: int
) -> Figures:
    committers = []
    for number in range(connections):
        connection = await Connection.open(bootstrap)
        group = f"{topic}-{partitions}-{number}"
        requests = [_commit(group, topic, partitions, variant) for variant in range(_VARIANTS)]
        await connection.find_coordinator(group, GROUP)
        await connection.until(requests[0], OffsetCommitResponse, _VERSION, _error_of)
        committers.append(_Committer(connection, [frame(request, _VERSION) for request in requests]))
    each = count // connections
    cpu, own, began = cpu_seconds(pid), time.process_time(), time.perf_counter()
    paces = [Pace(rate, connections, number) for number in range(connections)]
    await asyncio.gather(*(committer.run(each, pace) for committer, pace in zip(committers, paces, strict=True)))
    seconds, cpu, own = time.perf_counter() - began, cpu_seconds(pid) - cpu, time.process_time() - own
    done = each * connections
    return {"per_s": done / seconds, "per_cpu_s": done / cpu, "cores": cpu / seconds, "client_cores": own / seconds}


class _Committer:
    """One connection, one group, one commit after the other."""

    __slots__ = ("_connection", "_expected", "_frames")

    def __init__(self, connection: Connection, frames: list[bytes]) -> None:
        self._connection = connection
        self._frames = frames
        self._expected = b""

    async def run(self, count: int, pace: Pace) -> None:
        for number in range(count):
            await pace()
            answer = await self._connection.exchange(self._frames[number % len(self._frames)])
            if answer != self._expected:
                _check(answer)
                self._expected = answer


def fill(bootstrap: str, topic: str, partitions: int, groups: int, connections: int = 8) -> Figures:
    """One commit of all partitions by each of so many groups: every record has a key of its own, so that none is compacted."""
    return asyncio.run(_fill(bootstrap, topic, partitions, groups, connections))


def group_name(number: int) -> str:
    """The groups that `fill` commits for."""
    return f"filled-{number}"


async def _fill(bootstrap: str, topic: str, partitions: int, groups: int, connections: int) -> Figures:
    numbers = iter(range(groups))
    opened = [await Connection.open(bootstrap) for _ in range(connections)]
    await opened[0].find_coordinator(group_name(0), GROUP)
    await opened[0].until(_commit(group_name(0), topic, partitions, 0), OffsetCommitResponse, _VERSION, _error_of)
    began = time.perf_counter()
    await asyncio.gather(*(_fill_by(connection, topic, partitions, numbers) for connection in opened))
    return {"seconds": time.perf_counter() - began}


async def _fill_by(connection: Connection, topic: str, partitions: int, numbers: Iterator[int]) -> None:
    for number in numbers:
        _check(await connection.exchange(frame(_commit(group_name(number), topic, partitions, number), _VERSION)))


def _commit(group: str, topic: str, partitions: int, offset: int) -> OffsetCommitRequest:
    items = [
        OffsetCommitRequestPartition(partition_index=partition, committed_offset=1_000_000 + offset, committed_metadata="")
        for partition in range(partitions)
    ]
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=items)])


def _check(answer: bytes) -> None:
    response = decode_response(OffsetCommitResponse, answer, _VERSION)[1]
    assert isinstance(response, OffsetCommitResponse)
    error = _error_of(response)
    if error != Error.NONE:
        hint = " (it had answered before)" if error in NOT_YET else ""
        raise LoadError(f"OffsetCommit: {Error(error).name}{hint}")


def _error_of(response: OffsetCommitResponse) -> int:
    """The first error of an answer."""
    return next((item.error_code for topic in response.topics for item in topic.partitions if item.error_code), Error.NONE)
