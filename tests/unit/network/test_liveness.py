"""Who lives: only refused connections prove a death, twice, and nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from ottla.metadata.image import BrokerImage, Endpoint
from ottla.model import BrokerUnavailable
from ottla.network import liveness
from ottla.network.liveness import Duty, Life, Line, Liveness, duty, to_watch

HOME = Endpoint("two", 9092)
TWO = Life(2, 22, HOME)
REFUSED = BrokerUnavailable("refused", refused=True)
SILENT = BrokerUnavailable("no answer in time")


class FakeLine:
    """A connection that lives until it is cut."""

    def __init__(self) -> None:
        self.cut = asyncio.Event()
        self.closed = False

    async def ended(self) -> None:
        await self.cut.wait()

    def close(self) -> None:
        self.closed = True


class World:
    """What dialing comes to: `script` first, then `otherwise`."""

    def __init__(self) -> None:
        self.script: list[BrokerUnavailable | None] = []
        self.otherwise: BrokerUnavailable | None = None
        self.dialed = 0
        self.lines: list[FakeLine] = []
        self.gone: list[tuple[int, int]] = []
        self.liveness = Liveness(lambda broker, epoch: self.gone.append((broker, epoch)), self._open)

    async def _open(self, host: str, port: int, timeout: float) -> Line:
        assert (host, port) == (HOME.host, HOME.port)
        self.dialed += 1
        outcome = self.script.pop(0) if self.script else self.otherwise
        if outcome is not None:
            raise outcome
        self.lines.append(FakeLine())
        return self.lines[-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - a condition of its own each time
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def world(monkeypatch: pytest.MonkeyPatch, *, settled: float = 0.0) -> AsyncIterator[World]:
    monkeypatch.setattr(liveness, "_SETTLED", settled)
    monkeypatch.setattr(liveness, "_FIRST_PAUSE", 0.002)
    monkeypatch.setattr(liveness, "CONFIRM_AFTER", 0.002)
    made = World()
    try:
        yield made
    finally:
        made.liveness.close()
        await asyncio.sleep(0)
        assert all(line.closed for line in made.lines), "no connection is left behind"


async def connected(scene: World) -> FakeLine:
    scene.liveness.watch([TWO])
    await scene.until(lambda: bool(scene.lines))
    await asyncio.sleep(0.002)
    return scene.lines[-1]


def test_a_process_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with world(monkeypatch) as scene:
            line = await connected(scene)
            scene.otherwise = REFUSED
            line.cut.set()
            await scene.until(lambda: bool(scene.gone))
            assert scene.gone[0] == (2, 22)
            assert scene.dialed >= 3, "once to connect, and twice refused"

    asyncio.run(run())


@pytest.mark.parametrize("afterwards", [[REFUSED], [SILENT, REFUSED, SILENT, REFUSED], [SILENT, SILENT, SILENT]])
def test_what_proves_nothing(monkeypatch: pytest.MonkeyPatch, afterwards: list[BrokerUnavailable | None]) -> None:
    """One refusal (it restarts), silence, no way there: the broker accepts again and nobody was told anything."""

    async def run() -> None:
        async with world(monkeypatch) as scene:
            line = await connected(scene)
            scene.script = list(afterwards)
            line.cut.set()
            await scene.until(lambda: len(scene.lines) == 2)
            assert scene.gone == []

    asyncio.run(run())


def test_a_connection_that_was_idle_too_long_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with world(monkeypatch) as scene:
            for count in range(1, 4):
                await connected(scene)
                assert len(scene.lines) == count
                scene.lines[-1].cut.set()
                await scene.until(lambda count=count: len(scene.lines) == count + 1)  # type: ignore[misc]
            assert scene.gone == []

    asyncio.run(run())


def test_a_listener_that_hangs_up_at_once_is_not_dialed_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with world(monkeypatch, settled=60) as scene:
            scene.liveness.watch([TWO])
            for _ in range(200):
                for line in scene.lines:
                    line.cut.set()
                await asyncio.sleep(0.0005)
            assert 2 <= scene.dialed <= 20
            assert scene.gone == []

    asyncio.run(run())


def test_it_is_told_again_while_it_is_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may be away the first time."""

    async def run() -> None:
        async with world(monkeypatch) as scene:
            scene.otherwise = REFUSED
            scene.liveness.watch([TWO])
            await scene.until(lambda: len(scene.gone) >= 3)
            scene.liveness.watch([])
            told = len(scene.gone)
            await asyncio.sleep(0.05)
            assert len(scene.gone) == told, "who is not watched is not spoken of"

    asyncio.run(run())


def test_a_broker_out_of_reach_that_comes_back_is_not_called_gone_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with world(monkeypatch) as scene:
            scene.otherwise = REFUSED
            scene.liveness.watch([TWO])
            await scene.until(lambda: bool(scene.gone))
            back = Life(2, 23, HOME)
            scene.liveness.watch([back])
            dialed = scene.dialed
            await scene.until(lambda: scene.dialed > dialed + 4)
            assert (2, 23) not in scene.gone
            scene.otherwise = None
            await scene.until(lambda: bool(scene.lines))
            scene.otherwise = REFUSED
            await asyncio.sleep(0.002)
            scene.lines[-1].cut.set()
            await scene.until(lambda: (2, 23) in scene.gone)  # now it was reached: its death can be seen

    asyncio.run(run())


def test_over_sockets() -> None:
    async def run() -> None:
        gone: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        accepted: list[socket.socket] = []
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        port = listening.getsockname()[1]
        watching = Liveness(lambda *who: None if gone.done() else gone.set_result(who))
        watching.watch([Life(5, 55, Endpoint("127.0.0.1", port))])
        async with asyncio.timeout(10):
            accepted.append((await asyncio.get_running_loop().sock_accept(listening))[0])
            accepted.pop().close()  # closed while somebody listens: it calls again
            accepted.append((await asyncio.get_running_loop().sock_accept(listening))[0])
            assert not gone.done()
            listening.close()
            accepted.pop().close()
            assert await gone == (5, 55)
        watching.close()

    asyncio.run(run())


def broker(number: int, listener: str = "PLAINTEXT") -> BrokerImage:
    return BrokerImage(number, {listener: Endpoint("h", 9090 + number)}, None, 10 + number)


BROKERS = {1: broker(1), 2: broker(2), 3: broker(3, "OTHER")}


@pytest.mark.parametrize(
    ("own", "controller", "watched"),
    [(1, 1, [2]), (2, 1, [1]), (2, 2, [1]), (2, -1, []), (1, 3, []), (1, 9, [])],
)
def test_who_watches_whom(own: int, controller: int, watched: list[int]) -> None:
    lives = to_watch(own, controller, BROKERS, "PLAINTEXT")
    assert [life.broker_id for life in lives] == watched
    assert all(life.epoch == 10 + life.broker_id and life.address.port == 9090 + life.broker_id for life in lives)


@pytest.mark.parametrize(
    ("own", "controller", "gone", "expected"),
    [
        (1, 1, 2, Duty.SUSPECT),
        (2, 1, 1, Duty.DEPOSE),
        (2, 1, 3, Duty.NOTHING),  # the controller sees to it
        (2, 3, 1, Duty.NOTHING),  # it was the controller, and another one is already
        (1, 1, 1, Duty.NOTHING),
        (2, -1, 1, Duty.NOTHING),
    ],
)
def test_who_acts(own: int, controller: int, gone: int, expected: Duty) -> None:
    assert duty(own, controller, gone) is expected
