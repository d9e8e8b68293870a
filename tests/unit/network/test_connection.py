"""One connection over a socket pair: frames cut anywhere, answers in order, and memory that one client cannot make large."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ottla.network.answers import Owed, Part
from ottla.network.buffers import LARGE, SMALL, BufferPool
from ottla.network.connection import Connection
from ottla.network.haste import Haste
from ottla.network.pacing import MOST_IN_A_TURN, OldData, Traffic
from ottla.network.readiness import Turn
from ottla.storage.slices import FileSlice, SegmentFile

MAX_REQUEST = 8 << 20


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def body(number: int, size: int = 8) -> bytes:
    """A frame's body that says which it is, at both of its ends."""
    return (b"%08d" % number).ljust(size, b"x")


class Pair:
    """A connection and its client. `dispatch` sees every frame; without one, each is echoed at once."""

    def __init__(
        self,
        dispatch: Callable[[Connection, bytes], None] | None = None,
        turn: Turn | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.client.setblocking(False)
        self.loop = asyncio.get_running_loop()
        self.pool = BufferPool()
        self.traffic = traffic or Traffic(Haste(self.loop, lambda _patient: False))
        self.frames: list[bytes] = []
        self.closed: list[Connection] = []
        self._act = dispatch or (lambda connection, data: connection.answer([frame(data)]))
        self.connection = Connection(
            ours, ("10.0.0.1", 4711), "PLAINTEXT", self.loop, self.pool, self.traffic, self._dispatch, MAX_REQUEST,
            self.closed.append, turn=turn,
        )  # fmt: skip

    def _dispatch(self, connection: Connection, view: memoryview) -> None:
        data = bytes(view)
        self.frames.append(data)
        self._act(connection, data)

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.client, data)

    async def receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = await asyncio.wait_for(self.loop.sock_recv(self.client, size - len(data)), 5)
            if not part:
                break
            data += part
        return bytes(data)

    async def turn(self) -> None:
        """One turn of the loop."""
        await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let the loop do all that can be done now."""
        for _ in range(20):
            await self.turn()

    async def at_end(self) -> bool:
        return await self.receive(1) == b""

    def end(self) -> None:
        self.connection.close()
        self.client.close()


def story(steps: Callable[[Pair], Awaitable[None]], dispatch: Callable[[Connection, bytes], None] | None = None) -> None:
    async def run() -> None:
        pair = Pair(dispatch)
        try:
            await asyncio.wait_for(steps(pair), 20)
        finally:
            pair.end()

    asyncio.run(run())


class Held:
    """A dispatcher that answers when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []

    def __call__(self, connection: Connection, data: bytes) -> None:
        self.waiting.append(data)


@pytest.mark.parametrize("cut", range(1, 2 * (4 + 12)))
def test_two_frames_cut_at_every_byte(cut: int) -> None:
    async def steps(pair: Pair) -> None:
        data = frame(body(1, 12)) + frame(body(2, 12))
        await pair.send(data[:cut])
        await pair.settle()
        assert len(pair.frames) == cut // 16
        await pair.send(data[cut:])
        assert await pair.receive(len(data)) == data
        assert pair.frames == [body(1, 12), body(2, 12)]

    story(steps)


def test_one_byte_at_a_time() -> None:
    async def steps(pair: Pair) -> None:
        data = b"".join(frame(body(number, 9)) for number in range(3))
        for at in range(len(data)):
            await pair.send(data[at : at + 1])
            await pair.settle()
        assert await pair.receive(len(data)) == data

    story(steps)


@pytest.mark.parametrize("count", [2, 63, 64, 65, 1000])
def test_many_frames_at_once_are_answered_in_order(count: int) -> None:
    async def steps(pair: Pair) -> None:
        data = b"".join(frame(body(number)) for number in range(count))
        sending = asyncio.ensure_future(pair.send(data))
        assert await pair.receive(len(data)) == data
        await sending

    story(steps)


@pytest.mark.parametrize(
    "size", [SMALL - 5, SMALL - 4, SMALL - 3, SMALL, SMALL + 1, LARGE - 4, LARGE, LARGE + 1, 2 * LARGE + 7, MAX_REQUEST]
)
def test_large_frames_among_small_ones(size: int) -> None:
    async def steps(pair: Pair) -> None:
        bodies = [body(0), body(1, size), body(2), body(3, size), body(4)]
        data = b"".join(frame(one) for one in bodies)
        sending = asyncio.ensure_future(pair.send(data))
        assert await pair.receive(len(data)) == data
        await sending
        assert pair.frames == bodies

    story(steps)


def test_a_frame_that_begins_in_the_last_bytes_of_a_buffer() -> None:
    async def steps(pair: Pair) -> None:
        for short in range(8):
            first = SMALL - 4 - short
            data = frame(body(1, first)) + frame(body(2, 100)) + frame(body(3))
            await pair.send(data)
            assert await pair.receive(len(data)) == data

    story(steps)


@pytest.mark.parametrize("size", [0, 7, -1, -(2**31), MAX_REQUEST + 1, 2**31 - 1])
def test_lengths_that_cannot_be(size: int, caplog: pytest.LogCaptureFixture) -> None:
    async def steps(pair: Pair) -> None:
        await pair.send(frame(body(1)) + struct.pack(">i", size) + bytes(20))
        assert await pair.receive(12) == frame(body(1)), "what came before is answered"
        assert await pair.at_end()
        assert pair.closed == [pair.connection]
        assert pair.frames == [body(1)]

    story(steps)
    assert [record.getMessage() for record in caplog.records if "Closing 10.0.0.1:4711" in record.getMessage()] == [
        f"Closing 10.0.0.1:4711: a request of {size} bytes (allowed: 8 to {MAX_REQUEST})"
    ]


def test_the_next_request_is_not_looked_at_before_the_first_is_answered() -> None:
    held = Held()

    async def steps(pair: Pair) -> None:
        await pair.send(b"".join(frame(body(number)) for number in range(3)))
        for number in range(3):
            await pair.settle()
            assert held.waiting == [body(number)]
            pair.connection.answer([frame(held.waiting.pop())])
            assert await pair.receive(12) == frame(body(number))

    story(steps, held)


def test_no_answer_lets_the_next_one_in() -> None:
    async def steps(pair: Pair) -> None:
        data = b"".join(frame(body(number)) for number in range(4))
        await pair.send(data)
        assert await pair.receive(24) == frame(body(1)) + frame(body(3))

    def only_odd(connection: Connection, data: bytes) -> None:
        if int(data[:8]) % 2:
            connection.answer([frame(data)])
        else:
            connection.no_answer()

    story(steps, only_odd)


def test_at_most_one_buffer_is_read_ahead() -> None:
    held = Held()

    async def steps(pair: Pair) -> None:
        await pair.send(frame(body(0)))
        await pair.settle()
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += pair.client.send(bytes(4096))
                await pair.settle()
        room = pair.connection._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert sent < 20 * (SMALL + room), "the client is made to wait"
        assert pair.connection._filled <= SMALL
        assert held.waiting == [body(0)]

    story(steps, held)


@pytest.mark.parametrize(("count", "size"), [(5, 3 << 20), (100, 60_000)])
def test_a_client_that_does_not_read_is_not_asked_for_more(count: int, size: int) -> None:
    """While an answer cannot leave, no further request is looked at; when it has left, all go on, in order."""

    async def steps(pair: Pair) -> None:
        await pair.send(b"".join(frame(body(number)) for number in range(count)))
        await pair.settle()
        seen = len(pair.frames)
        assert seen < count
        await pair.send(frame(body(count)))
        await pair.settle()
        assert len(pair.frames) == seen, "not even when more comes"
        for number in range(count + 1):
            got = await pair.receive(size)
            assert got[:8] == b"%08d" % number
            assert len(got) == size
        assert len(pair.frames) == count + 1

    story(steps, lambda connection, data: connection.answer([data.ljust(size, b"a")]))


@pytest.fixture
def region(tmp_path: Path) -> SegmentFile:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(os.urandom(5 << 20))
    return SegmentFile(str(path))


def test_file_regions_between_bytes(region: SegmentFile) -> None:
    whole = FileSlice(region, 0, 5 << 20).read()

    def answer(connection: Connection, data: bytes) -> None:
        parts: list[Part] = [b"head", FileSlice(region, 10, 3 << 20), b"middle", FileSlice(region, 0, 7), b"tail"]
        connection.answer(parts)

    async def steps(pair: Pair) -> None:
        expected = b"head" + whole[10 : 10 + (3 << 20)] + b"middle" + whole[:7] + b"tail"
        await pair.send(frame(body(1)) + frame(body(2)))
        assert await pair.receive(2 * len(expected)) == expected + expected

    story(steps, answer)


def test_a_region_that_is_not_there_ends_the_connection(region: SegmentFile, caplog: pytest.LogCaptureFixture) -> None:
    def answer(connection: Connection, data: bytes) -> None:
        connection.answer([b"head", FileSlice(region, 5 << 20, 100)])

    async def steps(pair: Pair) -> None:
        await pair.send(frame(body(1)))
        assert await pair.receive(100) in (b"head", b"")
        assert pair.closed == [pair.connection]

    story(steps, answer)
    assert len([record for record in caplog.records if "could not send an answer" in record.getMessage()]) == 1


def busy_elsewhere(pair: Pair) -> None:
    """As if requests of another client came all the time."""
    pair.traffic.heard(object(), pair.loop.time() + 1000)


def test_while_others_are_busy_no_turn_sends_much_of_however_many_regions(
    region: SegmentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "sendfile", lambda _out, _file, _offset, count: sent.append(count) or count)
    pair_of: list[Pair] = []

    def answer(connection: Connection, data: bytes) -> None:
        busy_elsewhere(pair_of[0])
        connection.answer([FileSlice(region, at * 100_000, 100_000) for at in range(30)])

    async def steps(pair: Pair) -> None:
        pair_of.append(pair)
        await pair.send(frame(body(1)))
        while not sent:
            await pair.turn()
        assert sum(sent) == MOST_IN_A_TURN
        while sum(sent) < 3_000_000:
            before = sum(sent)
            await pair.turn()
            assert sum(sent) - before <= MOST_IN_A_TURN

    story(steps, answer)


@pytest.mark.parametrize("pieces", [1, 32])
@pytest.mark.parametrize("old", [False, True])
def test_while_others_are_busy_old_data_rests_however_it_is_cut(
    region: SegmentFile, monkeypatch: pytest.MonkeyPatch, old: bool, pieces: int
) -> None:
    size, sent = 512 << 10, [0]
    real, pair_of = os.sendfile, list[Pair]()

    def slow(out: int, file: int, offset: int, count: int) -> int:
        time.sleep(0.02)
        sent[0] += (count := real(out, file, offset, count))
        return count

    monkeypatch.setattr(os, "sendfile", slow)

    def answer(connection: Connection, data: bytes) -> None:
        busy_elsewhere(pair_of[0])
        each = size // pieces
        connection.answer([FileSlice(region, at * each, each, old) for at in range(pieces)])

    async def steps(pair: Pair) -> None:
        pair_of.append(pair)
        await pair.send(frame(body(1)))
        received = asyncio.ensure_future(pair.receive(size))
        while not sent[0]:
            await pair.turn()
        first = sent[0]
        assert not old or first <= 64 << 10
        await pair.settle()
        assert (sent[0] == first) is old
        pair.traffic.heard(object(), 0.0)  # the others have gone: what is left comes at once
        assert await received == FileSlice(region, 0, size).read()

    story(steps, answer)


def test_all_old_data_of_a_loop_rests_together(region: SegmentFile, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def slow(_out: int, _file: int, _offset: int, count: int) -> int:
        time.sleep(0.02)
        sent.append(count)
        return count

    monkeypatch.setattr(os, "sendfile", slow)

    async def steps(pair: Pair) -> None:
        busy_elsewhere(pair)
        other = Pair(traffic=pair.traffic)
        try:
            for one in (pair, other):
                one.connection._in_hand = True
                one.connection.answer([FileSlice(region, 0, 1 << 20, old=True)])
            await pair.settle()
            assert len(sent) == 1
            pair.traffic.heard(object(), 0.0)
            while sum(sent) < 2 << 20:
                await pair.turn()
        finally:
            other.end()

    story(steps)


def test_a_rest_is_a_share_of_the_time_that_sending_took_and_never_long() -> None:
    old = OldData()
    old.sent(10.0, 10.00003)
    assert old.rests_until < 10.0, "what the loop's timers cannot count gathers"
    for number in range(20):
        old.sent(11.0 + number, 11.00003 + number)
    assert 0.0005 <= old.rests_until % 1 < 0.0008
    old.sent(50.0, 110.0)
    assert 110.0 < old.rests_until < 110.1, "the machine stood still"


class Forgotten:
    """A waiter that remembers that it was given up."""

    discarded = 0

    def discard(self) -> None:
        self.discarded += 1


def test_a_client_that_hangs_up_while_it_waits() -> None:
    held, waiter = Held(), Forgotten()

    async def steps(pair: Pair) -> None:
        await pair.send(frame(body(1)))
        await pair.settle()
        pair.connection.waiter = waiter  # type: ignore[assignment]
        pair.client.close()
        await pair.settle()
        assert pair.connection.closed
        assert waiter.discarded == 1
        assert pair.closed == [pair.connection]
        pair.connection.answer([b"too late"])
        pair.connection.no_answer()
        pair.connection.close()
        assert pair.closed == [pair.connection], "closed once"

    story(steps, held)


def test_a_client_that_hangs_up_in_the_middle_of_an_answer() -> None:
    async def steps(pair: Pair) -> None:
        await pair.send(frame(body(1)))
        await pair.receive(1000)
        pair.client.close()
        await pair.settle()
        assert pair.connection.closed

    story(steps, lambda connection, _data: connection.answer([bytes(8 << 20)]))


def test_a_close_by_the_dispatcher_ends_the_rest_and_sends_what_was_answered() -> None:
    def close_on_two(connection: Connection, data: bytes) -> None:
        if data == body(2):
            connection.close()
        else:
            connection.answer([frame(data)])

    async def steps(pair: Pair) -> None:
        await pair.send(b"".join(frame(body(number)) for number in range(4)))
        assert await pair.receive(100) == frame(body(0)) + frame(body(1))
        assert pair.frames == [body(0), body(1), body(2)]

    story(steps, close_on_two)


def test_an_idle_connection_holds_no_buffer() -> None:
    async def steps(pair: Pair) -> None:
        for size in (8, SMALL, LARGE + 1):
            data = frame(body(1, size))
            sending = asyncio.ensure_future(pair.send(data))
            await pair.receive(len(data))
            await sending
            assert pair.connection._buffer is None
            assert pair.connection.idle

    story(steps)


def test_the_pool_keeps_a_few_buffers_and_no_more() -> None:
    pool = BufferPool()
    for large in (False, True):
        lent = [pool.take(large) for _ in range(100)]
        for buffer in lent:
            pool.give_back(buffer)
    pool.give_back(pool.take_for(LARGE * 10, LARGE))
    kept = sum(buffer.size for buffer in (*pool._small, *pool._large))
    assert kept <= 32 * SMALL + 4 * LARGE
    assert pool.take(large=False).size == SMALL


def test_only_a_few_buffers_ever_lie_in_large_pages() -> None:
    """A client that stops in the middle of a request keeps its buffer; one in a large page is real from its first byte on."""
    pool = BufferPool()
    held = []
    for _ in range(100):
        pool.give_back(pool.take(large=True))
        held.append(pool.take(large=True))
    assert sum(buffer.in_one_page for buffer in held) == 4
    for _ in range(2):
        for buffer in reversed(held):
            pool.give_back(buffer)
        held = [pool.take(large=True) for _ in range(100)]
    assert sum(buffer.in_one_page for buffer in held) == 4, "those that were let go are made up for"


def test_who_had_to_wait_is_a_listener_until_it_goes() -> None:
    class Waiting:
        def discard(self) -> None: ...

    def wait(connection: Connection, data: bytes) -> None:
        if data.startswith(body(2)[:8]):
            connection.waiter = Waiting()
        connection.answer([frame(data)])

    async def steps(pair: Pair) -> None:
        fd, turn = pair.connection.fd, pair.connection._turn
        await pair.send(frame(body(1)))
        await pair.receive(len(frame(body(1))))
        assert turn.listeners == set()
        await pair.send(frame(body(2)))
        await pair.receive(len(frame(body(2))))
        assert turn.listeners == {fd}
        pair.connection.close()
        assert turn.listeners == set()

    story(steps, wait)


def test_a_buffer_in_a_large_page_is_kept_before_others() -> None:
    pool = BufferPool()
    pool.give_back(pool.take(large=True))
    special = pool.take(large=True)
    others = [pool.take(large=True) for _ in range(8)]
    for buffer in (*others, special):
        pool.give_back(buffer)
    assert any(buffer is special for buffer in pool._large)
    assert sum(buffer.in_one_page for buffer in pool._large) == 4


@pytest.mark.parametrize(("size", "large"), [(8, 0), (SMALL, 0), (SMALL + 1, 1)])
def test_large_requests_are_told_to_haste(size: int, large: int) -> None:
    async def steps(pair: Pair) -> None:
        data = frame(body(1, size))
        sending = asyncio.ensure_future(pair.send(data))
        await pair.receive(len(data))
        await sending
        assert pair.traffic.haste._came == large
        pair.traffic.haste.end()

    story(steps)


def test_what_was_waited_for_leaves_first_when_the_turn_is_over() -> None:
    async def steps(pair: Pair) -> None:
        turn = Turn()
        turn.shared = True
        order: list[str] = []
        listener, other = Pair(turn=turn), Pair(turn=turn)
        try:
            turn.listeners.add(listener.connection.fd)
            for one, name in ((other, "other"), (listener, "listener")):
                one.connection._in_hand = one.connection._processing = True
                one.connection.answer([name.encode()])
                one.connection._processing = False
                one.connection.paid()
            flushed = turn._first + turn._then
            for flush in flushed:
                flush()
                for one, name in ((other, "other"), (listener, "listener")):
                    with contextlib.suppress(BlockingIOError):
                        if one.client.recv(100):
                            order.append(name)
            assert order == ["listener", "other"]
        finally:
            listener.end()
            other.end()

    story(steps)


def test_a_rest_ends_also_where_what_rested_has_left_by_another_way(region: SegmentFile) -> None:
    """Answers that were owed are sent at the end of a turn, which may come within the rest of one of them."""

    async def steps(pair: Pair) -> None:
        busy_elsewhere(pair)
        pair.traffic.old_data.rests_until = pair.loop.time() + 0.02
        pair.connection._in_hand = True
        pair.connection.answer([FileSlice(region, 0, 20_000, old=True), b"tail"])
        assert pair.connection._outgoing.blocked
        pair.traffic.old_data.rests_until = 0.0
        pair.connection._flush()  # what was put off to the end of the turn
        pair.connection._outgoing.flush()
        assert (await pair.receive(20_004)).endswith(b"tail")
        await pair.send(frame(body(2)))
        assert await pair.receive(len(frame(body(2)))) == frame(body(2)), "the connection goes on"

    story(steps)


@pytest.mark.parametrize("early", [False, True])
def test_a_connection_that_ends_gives_its_buffer_back(early: bool) -> None:
    def close(connection: Connection, _data: bytes) -> None:
        connection.close()
        assert not pair_of[0].pool._small, "the frame is still being looked at"

    pair_of: list[Pair] = []

    async def steps(pair: Pair) -> None:
        pair_of.append(pair)
        await pair.send(frame(body(1))[: 5 if early else None])
        while not pair.closed and pair.connection._buffer is None:
            await pair.turn()
        pair.client.close()
        while not pair.closed:
            await pair.turn()
        await pair.turn()
        assert len(pair.pool._small) == 1

    story(steps, close)


@pytest.mark.parametrize("have", [SMALL, LARGE, 3 * LARGE])
def test_room_grows_with_what_has_come(have: int) -> None:
    buffer = BufferPool().take_for(1 << 30, have)
    assert have < buffer.size <= max(2 * have, 2 * LARGE)


# ---- answers that are owed -----------------------------------------------------------------------------------------------


class Owing:
    """A dispatcher that carries out every request at once, and answers those that a test names when the test says so."""

    def __init__(self, later: Callable[[int], bool] = lambda _number: True) -> None:
        self.owed: dict[int, Owed] = {}
        self._later = later

    def __call__(self, connection: Connection, data: bytes) -> None:
        number = int(data[:8])
        if self._later(number):
            self.owed[number] = connection.owe()
        else:
            connection.answer([frame(data)])

    def pay(self, number: int, size: int = 8) -> None:
        self.owed.pop(number).answer([frame(body(number, size))])


def test_requests_behind_one_whose_answer_waits_are_carried_out_and_answered_behind_it() -> None:
    owing = Owing(lambda number: number == 0)

    async def steps(pair: Pair) -> None:
        await pair.send(b"".join(frame(body(number)) for number in range(3)))
        await pair.settle()
        assert pair.frames == [body(0), body(1), body(2)]
        assert nothing_has_come(pair)
        assert not pair.connection.idle
        owing.pay(0)
        assert await pair.receive(36) == b"".join(frame(body(number)) for number in range(3))
        assert pair.connection.idle

    story(steps, owing)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_order_in_which_answers_are_made_they_leave_in_that_of_the_requests(seed: int) -> None:
    chance = random.Random(seed)
    kinds = [chance.choice(("now", "later", "later", "never", "held")) for _ in range(80)]
    sizes = [chance.choice((8, 8, 100, SMALL + 1, 200_000)) for _ in kinds]
    ripe: list[Callable[[], None]] = []

    def dispatch(connection: Connection, data: bytes) -> None:
        number = int(data[:8])
        answer = [frame(body(number, sizes[number]))]
        if kinds[number] == "now":
            connection.answer(answer)
        elif kinds[number] == "never":
            connection.no_answer()
        elif kinds[number] == "held":
            ripe.append(lambda: connection.answer(answer))
        else:
            owed = connection.owe()
            ripe.append(lambda: owed.answer(answer) if number % 7 else owed.no_answer())

    async def steps(pair: Pair) -> None:
        sent = b"".join(frame(body(number, chance.choice((8, 3000)))) for number in range(len(kinds)))
        sending = asyncio.ensure_future(pair.send(sent))
        expected = b"".join(
            frame(body(number, sizes[number]))
            for number, kind in enumerate(kinds)
            if kind in ("now", "held") or (kind == "later" and number % 7)
        )
        receiving = asyncio.ensure_future(pair.receive(len(expected)))
        while not receiving.done():
            await pair.settle()
            if ripe:
                ripe.pop(chance.randrange(len(ripe)))()
        await sending
        while ripe:
            ripe.pop()()
        assert receiving.result() == expected
        assert pair.connection.idle

    story(steps, dispatch)


def test_no_more_than_a_few_answers_are_owed() -> None:
    owing = Owing()

    async def steps(pair: Pair) -> None:
        await pair.send(b"".join(frame(body(number)) for number in range(20)))
        await pair.settle()
        assert sorted(owing.owed) == list(range(8))
        owing.pay(1)
        await pair.settle()
        assert len(pair.frames) == 8, "its answer waits behind another"
        owing.pay(0)
        await pair.settle()
        assert len(pair.frames) == 10
        for number in range(2, 20):
            owing.pay(number)
            await pair.settle()
        assert await pair.receive(20 * 12) == b"".join(frame(body(number)) for number in range(20))

    story(steps, owing)


def test_a_client_that_hangs_up_gives_up_all_that_it_is_owed() -> None:
    owing = Owing()
    waiters = [Forgotten() for _ in range(3)]

    async def steps(pair: Pair) -> None:
        await pair.send(b"".join(frame(body(number)) for number in range(3)))
        await pair.settle()
        for number, waiter in enumerate(waiters):
            owing.owed[number].waiter = waiter
        assert pair.connection.waiters == waiters
        pair.client.close()
        await pair.settle()
        assert pair.connection.closed
        assert [waiter.discarded for waiter in waiters] == [1, 1, 1]
        assert all(owed.waiter is None for owed in owing.owed.values()), "nothing is held in a circle"
        assert owing.owed[1].closed
        owing.pay(0)
        owing.owed[1].close()
        assert pair.closed == [pair.connection], "closed once"

    story(steps, owing)


def test_a_client_that_sends_no_more_gets_what_it_is_owed_while_something_is_not_carried_out() -> None:
    owing = Owing()

    async def steps(pair: Pair) -> None:
        await pair.send(b"".join(frame(body(number)) for number in range(10)))
        await pair.settle()
        pair.client.shutdown(socket.SHUT_WR)
        await pair.settle()
        for number in range(10):
            assert not pair.connection.closed
            owing.pay(number)
            await pair.settle()
        assert await pair.receive(1000) == b"".join(frame(body(number)) for number in range(10))
        assert pair.connection.closed

    story(steps, owing)


@pytest.mark.parametrize("what", ["by the dispatcher", "a length that cannot be"])
def test_a_hang_up_takes_no_answer_along_that_is_owed(what: str) -> None:
    """What was carried out before the bad request is answered first; what came behind that is not looked at."""
    owing = Owing()

    def dispatch(connection: Connection, data: bytes) -> None:
        if data == body(3):
            connection.close()
        else:
            owing(connection, data)

    async def steps(pair: Pair) -> None:
        bad = frame(body(3)) if what == "by the dispatcher" else struct.pack(">i", -5)
        await pair.send(b"".join(frame(body(number)) for number in range(3)) + bad + frame(body(4)))
        for number in (1, 2, 0):
            await pair.settle()
            assert not pair.connection.closed
            owing.pay(number)
        assert await pair.receive(100) == b"".join(frame(body(number)) for number in range(3))
        assert pair.closed == [pair.connection]
        assert pair.frames[3:] in ([], [body(3)])

    story(steps, dispatch)


def test_behind_an_answer_that_is_owed_at_most_one_large_one_is_held() -> None:
    owing = Owing(lambda number: number == 0)

    def dispatch(connection: Connection, data: bytes) -> None:
        if data == body(0):
            owing(connection, data)
        else:
            connection.answer([frame(data.ljust(200_000, b"a"))])

    async def steps(pair: Pair) -> None:
        await pair.send(b"".join(frame(body(number)) for number in range(5)))
        await pair.settle()
        assert pair.frames == [body(0), body(1)]
        owing.pay(0)
        assert len(await pair.receive(12 + 4 * 200_004)) == 12 + 4 * 200_004
        assert len(pair.frames) == 5

    story(steps, dispatch)


def test_a_client_that_hung_up_and_is_owed_nothing_after_all() -> None:
    owing = Owing()

    async def steps(pair: Pair) -> None:
        await pair.send(b"".join(frame(body(number)) for number in range(9)))
        await pair.settle()
        pair.client.shutdown(socket.SHUT_WR)
        await pair.settle()
        for number in range(9):
            assert not pair.connection.closed
            owing.owed.pop(number).no_answer()
            await pair.settle()
        assert pair.connection.closed

    story(steps, owing)


def test_a_full_buffer_behind_a_request_in_hand_is_looked_at_when_that_is_answered() -> None:
    """That the loop tells of more, after the answer and before what is here was looked at, must not end the reading."""

    def dispatch(connection: Connection, data: bytes) -> None:
        if data != body(0):
            connection.answer([frame(data[:8])])

    async def steps(pair: Pair) -> None:
        await pair.send(frame(body(0)))
        await pair.settle()
        rest = frame(body(1, SMALL - 12)) + b"".join(frame(body(number)) for number in range(2, 5))
        sending = asyncio.ensure_future(pair.send(rest))
        while pair.connection._filled < SMALL:
            await pair.settle()
        pair.connection.answer([frame(body(0))])
        pair.connection._readable()  # the loop saw the socket before it got to what is to be done soon
        assert await pair.receive(5 * 12) == b"".join(frame(body(number)) for number in range(5))
        await sending

    story(steps, dispatch)


# ---- the end of a turn ---------------------------------------------------------------------------------------------------


def shared_turn() -> Turn:
    """That of a poll which found others too."""
    turn = Turn()
    turn.shared = True
    return turn


def nothing_has_come(pair: Pair) -> bool:
    try:
        return not pair.client.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True


def in_a_shared_turn(steps: Callable[[Pair, Turn], Awaitable[None]], dispatch: Callable[..., None] | None = None) -> None:
    async def run() -> None:
        turn = shared_turn()
        pair = Pair(dispatch, turn)
        try:
            await steps(pair, turn)
        finally:
            pair.end()

    asyncio.run(run())


def test_small_answers_leave_at_the_end_of_a_turn_that_is_shared() -> None:
    async def steps(pair: Pair, turn: Turn) -> None:
        await pair.send(frame(body(1)) + frame(body(2)))
        await pair.settle()
        assert pair.frames == [body(1), body(2)], "the requests are carried out at once"
        assert nothing_has_come(pair)
        turn.catch_up()
        answers = frame(body(1)) + frame(body(2))
        assert await pair.receive(len(answers)) == answers
        turn.shared = False
        await pair.send(frame(body(3)))
        assert await pair.receive(len(frame(body(3)))) == frame(body(3))

    in_a_shared_turn(steps)


def test_a_large_answer_waits_for_nobody() -> None:
    async def steps(pair: Pair, turn: Turn) -> None:
        await pair.send(frame(body(1)))
        assert await pair.receive(len(frame(bytes(SMALL)))) == frame(bytes(SMALL))

    in_a_shared_turn(steps, lambda connection, _data: connection.answer([frame(bytes(SMALL))]))


def test_a_file_region_waits_for_nobody_whatever_comes_behind_it(region: SegmentFile) -> None:
    """As in an answer to Fetch from version 12 on, which ends in bytes."""

    async def steps(pair: Pair, turn: Turn) -> None:
        await pair.send(frame(body(1)))
        assert len(await pair.receive((1 << 20) + 5)) == (1 << 20) + 5

    in_a_shared_turn(steps, lambda connection, _data: connection.answer([b"ab", FileSlice(region, 0, 1 << 20), b"abc"]))


def test_what_was_put_off_leaves_before_the_connection_closes() -> None:
    async def steps(pair: Pair, turn: Turn) -> None:
        await pair.send(frame(body(1)))
        await pair.settle()
        pair.connection.close()
        assert await pair.receive(100) == frame(body(1)), "and then the end"
        turn.catch_up()

    in_a_shared_turn(steps)


def test_an_answer_from_elsewhere_takes_along_what_was_put_off() -> None:
    """A request that waited is answered by somebody else, between the end of our part of the turn and its own end."""
    waiting: list[Connection] = []

    def dispatch(connection: Connection, data: bytes) -> None:
        if data == body(2):
            waiting.append(connection)
        else:
            connection.answer([frame(data)])

    async def steps(pair: Pair, turn: Turn) -> None:
        await pair.send(frame(body(1)) + frame(body(2)))
        await pair.settle()
        assert nothing_has_come(pair)
        waiting[0].answer([frame(body(2))])
        answers = frame(body(1)) + frame(body(2))
        assert await pair.receive(len(answers)) == answers
        turn.catch_up()
        await pair.settle()
        assert nothing_has_come(pair)

    in_a_shared_turn(steps, dispatch)


def test_a_client_that_hung_up_gets_its_answer_all_the_same() -> None:
    async def steps(pair: Pair, turn: Turn) -> None:
        await pair.send(frame(body(1)))
        pair.client.shutdown(socket.SHUT_WR)
        await pair.settle()
        turn.catch_up()
        assert await pair.receive(100) == frame(body(1))
        assert pair.closed == [pair.connection]

    in_a_shared_turn(steps)


def test_what_was_put_off_and_cannot_be_sent_is_told_once(region: SegmentFile, caplog: pytest.LogCaptureFixture) -> None:
    async def steps(pair: Pair, turn: Turn) -> None:
        await pair.send(frame(body(1)))
        await pair.settle()
        turn.catch_up()
        assert pair.closed == [pair.connection]

    in_a_shared_turn(steps, lambda connection, _data: connection.answer([b"head", FileSlice(region, 5 << 20, 100)]))
    assert len([record for record in caplog.records if "could not send an answer" in record.getMessage()]) == 1
