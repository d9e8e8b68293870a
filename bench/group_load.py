"""How long a group takes to become stable, and to settle after a member has left: members at the level of the wire.

What is measured is the broker and not a heartbeat interval, which is 3 s in most clients and would be all that one sees. So:
- all members have their connections before the clock runs, and join at once, in the two steps of JoinGroup 4 and later;
- a member whose generation is not complete sends the next heartbeat after a few ms, and rejoins as soon as one says so;
- when one has left, the others rejoin at once, as if a heartbeat had just told them to.
The clock stops when every member has its assignment of one common generation with all members in it, and a heartbeat of that
generation is answered with NONE.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from statistics import median

from bench.connection import GROUP, NOT_YET, Connection
from bench.load import Figures, LoadError
from ottla.model import Error
from ottla.wire.apis.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

_JOIN, _SYNC, _HEARTBEAT, _LEAVE = 5, 3, 3, 3
_SUBSCRIPTION = b"\0\1\0\0\0\1\0\5bench\xff\xff\xff\xff\0\0\0\0"  # version 1: one topic, no user data, nothing owned
_ASSIGNMENT = b"\0\1\0\0\0\1\0\5bench\0\0\0\1\0\0\0\0\xff\xff\xff\xff"  # version 1: partition 0 of that topic
_AGAIN = NOT_YET | {Error.REBALANCE_IN_PROGRESS}
_SESSION_MS, _REBALANCE_MS = 30_000, 60_000
_AT_MOST_S = 60.0


@dataclass(slots=True)
class _Gathering:
    """What the members of one group know of each other: who belongs to which generation only its leader is told."""

    group: str
    wanted: int
    sizes: dict[int, int] = field(default_factory=dict)


class _Member:
    __slots__ = ("_connection", "_gathering", "generation", "leads", "member_id")

    def __init__(self, connection: Connection, gathering: _Gathering) -> None:
        self._connection = connection
        self._gathering = gathering
        self.member_id = ""
        self.generation = -1
        self.leads = False

    async def become_stable(self) -> None:
        """Join until there is a generation with all members in it, and it holds."""
        while True:
            assignments = await self._join()
            if assignments is None or not await self._sync(assignments):
                continue
            size = self._gathering.sizes[self.generation]
            while await self._heartbeat():
                if size == self._gathering.wanted:
                    return
                await asyncio.sleep(0.001 + 0.0001 * size)

    async def leave(self) -> None:
        request = LeaveGroupRequest(group_id=self._gathering.group, members=[MemberIdentity(member_id=self.member_id)])
        answer = await self._connection.ask(request, LeaveGroupResponse, _LEAVE)
        if answer.error_code or answer.members[0].error_code:
            raise LoadError(f"LeaveGroup: {Error(answer.error_code or answer.members[0].error_code).name}")

    def close(self) -> None:
        self._connection.close()

    async def _join(self) -> list[SyncGroupRequestAssignment] | None:
        request = JoinGroupRequest(
            group_id=self._gathering.group,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=_SUBSCRIPTION)],
        )
        answer = await self._connection.ask(request, JoinGroupResponse, _JOIN)
        if answer.error_code == Error.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return None
        if answer.error_code in _AGAIN:
            await asyncio.sleep(0.001)
            return None
        if answer.error_code:
            raise LoadError(f"JoinGroup: {Error(answer.error_code).name}")
        self.generation, self.leads = answer.generation_id, answer.leader == self.member_id
        if not self.leads:
            return []
        self._gathering.sizes[self.generation] = len(answer.members)
        return [SyncGroupRequestAssignment(member_id=one.member_id, assignment=_ASSIGNMENT) for one in answer.members]

    async def _sync(self, assignments: list[SyncGroupRequestAssignment]) -> bool:
        request = SyncGroupRequest(
            group_id=self._gathering.group,
            generation_id=self.generation,
            member_id=self.member_id,
            assignments=assignments,
        )
        answer = await self._connection.ask(request, SyncGroupResponse, _SYNC)
        return _goes_on(answer.error_code, "SyncGroup")

    async def _heartbeat(self) -> bool:
        request = HeartbeatRequest(group_id=self._gathering.group, generation_id=self.generation, member_id=self.member_id)
        answer = await self._connection.ask(request, HeartbeatResponse, _HEARTBEAT)
        return _goes_on(answer.error_code, "Heartbeat")


def _goes_on(error: int, what: str) -> bool:
    if error in (Error.REBALANCE_IN_PROGRESS, Error.ILLEGAL_GENERATION):
        return False
    if error:
        raise LoadError(f"{what}: {Error(error).name}")
    return True


def group_settles(bootstrap: str, group: str, members: int, times: int) -> Figures:
    """Some groups, one after the other: how long the members take to become stable, and the others after one has left."""
    return asyncio.run(_group_settles(bootstrap, group, members, times))


async def _group_settles(bootstrap: str, group: str, members: int, times: int) -> Figures:
    measured = [await _one_group(bootstrap, f"{group}-{number}", members) for number in range(times)]
    stable, settled = zip(*measured, strict=True)
    return {"stable_ms": median(stable) * 1000, "settled_ms": median(settled) * 1000}


async def _one_group(bootstrap: str, group: str, members: int) -> tuple[float, float]:
    gathering = _Gathering(group, members)
    pool = [_Member(await Connection.open(bootstrap), gathering) for _ in range(members)]
    extra = await Connection.open(bootstrap)
    await extra.find_coordinator(group, GROUP)
    extra.close()
    stable = await _timed(pool)
    # The last one leaves that is not the leader. A group of one has nobody to settle then: it is over when it may go.
    leaver = next((member for member in reversed(pool) if not member.leads), pool[-1])
    pool.remove(leaver)
    gathering.wanted -= 1
    began = time.perf_counter()
    await leaver.leave()
    if pool:
        await _timed(pool)
    settled = time.perf_counter() - began
    leaver.close()
    for member in pool:
        await member.leave()
        member.close()
    return stable, settled


async def _timed(pool: list[_Member]) -> float:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(_AT_MOST_S):
            await asyncio.gather(*(member.become_stable() for member in pool))
    except TimeoutError:
        raise LoadError(f"{len(pool)} members were not stable after {_AT_MOST_S:.0f} s") from None
    took = time.perf_counter() - began
    generations = {member.generation for member in pool}
    if len(generations) != 1:
        raise LoadError(f"the members are in several generations: {sorted(generations)}")
    return took
