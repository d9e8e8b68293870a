"""A coordinator in a world where the test owns time and the log: no socket, no file, no thread, no sleep."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from ottla.clock import ManualClock
from ottla.coordinator.appending import Writer
from ottla.coordinator.groups import Committing, GroupCoordinator
from ottla.coordinator.membership import Join, Leaver, Sync
from ottla.coordinator.offsets import Commit
from ottla.coordinator.rebalance import JoinResult, SyncResult
from ottla.coordinator.settings import GroupSettings
from ottla.model import Error, TopicPartition
from unit.coordinator.consumer_kit import Topics
from unit.coordinator.coordinator_kit import ManualHandle, MemoryJournal


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A story is a coroutine: run it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


class World:
    """A clock, a log, and the coordinator that lives between them."""

    def __init__(self, **settings: Any) -> None:
        self.topics = Topics(t=4)
        self.clock = ManualClock()
        self.journal = MemoryJournal()
        self.settings = GroupSettings(**{"initial_rebalance_delay_ms": 0, **settings})
        self._timers: list[ManualHandle] = []
        self._count = itertools.count()
        self.start()

    def start(self) -> None:
        """Start a coordinator over the log as it is: what a restarted broker does."""
        self._timers.clear()
        ids = itertools.count(1)
        self.groups = GroupCoordinator(
            self.settings,
            self.clock,
            self.journal,
            self._timer,
            topics=self.topics,
            new_member_id=lambda prefix: f"{prefix}-{next(self._count)}-{next(ids)}",
            new_consumer_id=lambda: f"member-{next(self._count)}-{next(ids)}",
            offload=self._offload,
        )

    async def commit(self, group_id: str, commits: Sequence[Commit], **identity: Any) -> dict[TopicPartition, Error]:
        """OffsetCommit, and what becomes of each partition."""
        return await _outcome(self.groups.commit(group_id, commits, **identity), commits)

    async def commit_in_transaction(
        self, group_id: str, writer: Writer, commits: Sequence[Commit], **identity: Any
    ) -> dict[TopicPartition, Error]:
        """TxnOffsetCommit, and what becomes of each partition."""
        return await _outcome(self.groups.commit_in_transaction(group_id, writer, commits, **identity), commits)

    async def restart(self) -> None:
        self.start()
        await self.groups.partition_of("any")

    @staticmethod
    async def _offload(work: Callable[[], None]) -> None:
        work()

    def _timer(self, delay: float, callback: Callable[[], None]) -> ManualHandle:
        handle = ManualHandle(self.clock.monotonic() + delay, next(self._count), callback)
        self._timers.append(handle)
        return handle

    async def settle(self) -> None:
        """Let everything happen that can happen without time passing."""
        for _ in range(20):
            await asyncio.sleep(0)
            for handle in sorted(self._timers):
                if handle.due <= self.clock.monotonic() + 1e-9 and not handle.cancelled:
                    handle.cancelled = True
                    handle.callback()
            self._timers = [handle for handle in self._timers if not handle.cancelled]

    async def advance(self, milliseconds: int) -> None:
        """Let time pass, in steps small enough that timers ring in order."""
        await self.settle()
        step = max(milliseconds // 20, 1)
        while milliseconds > 0:
            self.clock.advance_ms(min(step, milliseconds))
            milliseconds -= step
            await self.settle()

    async def member(self, group: str = "g", **options: object) -> Member:
        """A member that has its id and waits in JoinGroup."""
        await self.groups.partition_of(group)
        member = Member(self, group, **options)  # type: ignore[arg-type]
        member.start_join()
        await self.settle()
        return member


async def _outcome(committing: Committing, commits: Sequence[Commit]) -> dict[TopicPartition, Error]:
    if committing.written is not None:
        await committing.written
    return {commit.partition: committing.refused.get(commit.partition, Error.NONE) for commit in commits}


RANGE = (("range", b"r"),)


class Member:
    """A client of the group protocol, by hand."""

    def __init__(
        self,
        world: World,
        group: str,
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        protocol_type: str = "consumer",
        member_id: str = "",
        version: int = 9,
    ) -> None:
        self.world = world
        self.group = group
        self.instance = instance
        self.protocols = protocols
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.protocol_type = protocol_type
        self.id = member_id
        self.version = version
        self.generation = -1
        self.joining: asyncio.Task[JoinResult] | None = None
        self.syncing: asyncio.Task[SyncResult] | None = None

    def start_join(self) -> None:
        self.joining = asyncio.get_running_loop().create_task(self._join())

    async def _join(self) -> JoinResult:
        result = await self._join_once()
        if result.error.name == "MEMBER_ID_REQUIRED":
            self.id = result.member_id
            result = await self._join_once()
        if result.error == 0:
            self.id, self.generation = result.member_id, result.generation
        return result

    async def _join_once(self) -> JoinResult:
        return await self.world.groups.join(
            Join(
                self.group,
                self.id,
                self.instance,
                "client",
                "/127.0.0.1",
                self.session_ms,
                self.rebalance_ms,
                self.protocol_type,
                self.protocols,
                member_id_required=self.version >= 4,
                may_skip_assignment=self.version >= 9,
            )
        )

    @property
    def waits(self) -> bool:
        return any(task is not None and not task.done() for task in (self.joining, self.syncing))

    async def joined(self) -> JoinResult:
        """The answer to JoinGroup, which must have come."""
        await self.world.settle()
        assert self.joining is not None
        assert self.joining.done(), "the member still waits"
        return self.joining.result()

    async def rejoin(self) -> JoinResult:
        self.start_join()
        return await self.joined()

    def start_sync(self, assignments: dict[str, bytes] | None = None, **changes: object) -> None:
        request = Sync(
            **{  # type: ignore[arg-type]
                "group_id": self.group,
                "generation": self.generation,
                "member_id": self.id,
                "instance_id": self.instance,
                "protocol_type": None,
                "protocol": None,
                "assignments": assignments or {},
                **changes,
            }
        )
        self.syncing = asyncio.get_running_loop().create_task(self.world.groups.sync(request))

    async def synced(self) -> SyncResult:
        """The answer to SyncGroup, which must have come."""
        await self.world.settle()
        assert self.syncing is not None
        assert self.syncing.done(), "the member still waits"
        return self.syncing.result()

    async def sync(self, assignments: dict[str, bytes] | None = None, **changes: object) -> SyncResult:
        self.start_sync(assignments, **changes)
        return await self.synced()

    async def heartbeat(self) -> None:
        await self.world.groups.heartbeat(self.group, self.id, self.instance, self.generation)

    async def leave(self) -> list[int]:
        return [*await self.world.groups.leave(self.group, [Leaver(self.id, self.instance)])]


async def stable_group(world: World, size: int, **options: object) -> list[Member]:
    """A stable group in generation `size`; each member has its own number as its assignment, the first one leads."""
    members: list[Member] = []
    for _ in range(size):
        members.append(await world.member(**options))
        for member in members[:-1]:
            member.start_join()
        await world.settle()
    await hand_out(members)
    return members


async def hand_out(members: list[Member]) -> None:
    """Everyone sends SyncGroup; the first member is the leader."""
    for member in members:
        assert (await member.joined()).leader == members[0].id
    for member in members[1:]:
        member.start_sync()
    members[0].start_sync({member.id: str(number).encode() for number, member in enumerate(members)})
    await members[0].world.settle()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def make_world() -> type[World]:
    return World


@pytest.fixture
def make_stable() -> Callable[..., Awaitable[list[Member]]]:
    return stable_group


@pytest.fixture
def sync_all() -> Callable[[list[Member]], Awaitable[None]]:
    return hand_out
